//! vhost-user-blk: volumes as disks of virtual machines on this machine, without a network between.
//!
//! The monitor of a virtual machine (QEMU, Cloud Hypervisor) connects to a Unix socket, hands over the guest's memory and
//! its queues, and is out of the way: guest and target share the rings. The messages of the monitor, which are
//! few and may block, are a thread's; the queues are reactor citizens, spread like connections.
//!
//! A socket is one disk, so it takes one monitor at a time. When the monitor leaves or dies, its queues end: what is on
//! the device runs to its end, then the guest's memory is let go. When this process dies, a monitor that connects to the
//! next one has the list of what was not answered ([`mod@inflight`]), and the guest goes on.
//!
//! **What a guest can do.** It owns the rings and may write anything there: a chain that is none is given back
//! unserved, addresses outside its memory are an error of that request, and a queue that makes no sense stands still.
//! It holds at most 32 MiB of buffers for each queue. **What the monitor can do** is more: it may take the memory away
//! that it has handed over, which ends this process. It runs as the same user.

mod command;
mod export;
mod handshake;
mod inflight;
mod memory;
mod queue;

use std::cell::RefCell;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;

use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_io::net::{Listener, Stream};
use forebay_io::rt;
use forebay_io::sync::Promise;
use forebay_volume::VolumeHandle;

use crate::net::{self, Protocol, Spread};
use crate::succession::Succession;
use export::Export;
pub use handshake::Talk;

/// Accepts monitors and serves `volume` to them as a disk, one at a time, for as long as the listener lives. The queues
/// are spread over reactors. `succession` says whether virtual machines that a process before this one served may go on.
///
/// # Errors
/// When the listener can take no more connections.
pub async fn serve_on(
    listener: Listener,
    volume: VolumeHandle,
    succession: Succession,
    spread: Arc<Spread>,
) -> Result<()> {
    let disk = VhostUser {
        export: Arc::new(Export::new(volume, succession)),
        spread: Arc::clone(&spread),
        taken: Arc::default(),
    };
    net::serve(listener, disk, spread).await
}

/// A conversation of [`serve_on`] that the caller has heard message by message, on a thread that runs the queues as well:
/// for who is both of its sides. `wait` waits until a queue has ended, which is told there.
pub fn talk(
    socket: UnixStream,
    volume: VolumeHandle,
    succession: Succession,
    spread: Arc<Spread>,
    wait: impl Fn(&Receiver<u16>) -> Option<u16> + 'static,
) -> Talk {
    let export = Arc::new(Export::new(volume, succession));
    Talk::new(socket, export, spread, Box::new(wait))
}

/// A disk, on the connections of one listener.
struct VhostUser {
    export: Arc<Export>,
    spread: Arc<Spread>,
    /// Whether a monitor has it.
    taken: Arc<AtomicBool>,
}

thread_local! {
    /// Connections of this thread's reactor whose threads have not ended.
    static TALKING: RefCell<Vec<(u64, Promise<Result<()>>)>> = const { RefCell::new(Vec::new()) };
}

/// A number that nobody else has.
fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Protocol for VhostUser {
    const NAME: &'static str = "vhost-user";

    async fn converse(&self, stream: Rc<Stream>, peer: &str) -> Result<()> {
        let name = self.export.volume().name().to_owned();
        if self.taken.swap(true, Ordering::AcqRel) {
            let what = format!(
                "volume {name} is the disk of a virtual machine already: a socket takes one at a time"
            );
            return Err(Error::new(ErrorKind::Busy, what));
        }
        let taken = Taken(Arc::clone(&self.taken));
        let socket = UnixStream::from(stream.duplicate()?);
        socket.set_nonblocking(false)?;
        let (id, ended, here) = (next_id(), Promise::new(), rt::remote());
        // Ends the thread too, when this task is dropped.
        let _close = Close(stream);
        let (export, spread) = (Arc::clone(&self.export), Arc::clone(&self.spread));
        tracing::debug!(peer, volume = name, "a virtual machine is connected");
        let talk = move || {
            let outcome = handshake::converse(socket, export, spread);
            drop(taken);
            here.call(move || finish(id, outcome));
        };
        std::thread::Builder::new()
            .name(format!("vhost-{name}"))
            .spawn(talk)
            .context(|| "starting a thread for a virtual machine's monitor")?;
        // What the thread says in the end comes when this task waits.
        TALKING.with_borrow_mut(|list| list.push((id, ended.clone())));
        ended.get().await
    }
}

fn finish(id: u64, outcome: Result<()>) {
    let found = TALKING.with_borrow_mut(|list| {
        let at = list.iter().position(|(known, _)| *known == id)?;
        Some(list.swap_remove(at).1)
    });
    if let Some(ended) = found {
        ended.set(outcome);
    }
}

/// The disk is free again when it is dropped.
struct Taken(Arc<AtomicBool>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Ends a connection when it is dropped.
struct Close(Rc<Stream>);

impl Drop for Close {
    fn drop(&mut self) {
        self.0.shutdown();
    }
}
