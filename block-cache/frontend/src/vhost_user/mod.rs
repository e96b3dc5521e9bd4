//! vhost-user-blk: volumes as disks of virtual machines on this machine, without a network.
//!
//! The monitor of a virtual machine (QEMU, Cloud Hypervisor) connects to a Unix socket, and shares
//! the guest's memory and its queues. After that, guest and target use the rings directly. A thread
//! processes the messages of the monitor, which are few and may block. The queues are reactor
//! tasks, spread like connections.
//!
//! A socket is one disk, so it accepts one monitor at a time. When the monitor disconnects or dies,
//! its queues end: requests on the device run to their end, then the guest's memory is unmapped.
//! When this process dies, a monitor that connects to the next one has the list of unanswered
//! requests (`inflight`), and the guest continues.
//!
//! **The guest is not trusted.** It owns the rings and may write anything there. An invalid chain
//! is returned unserved. An address outside the guest's memory fails that request. A queue with
//! invalid indices stops. A guest holds at most 32 MiB of buffers for each queue. **The monitor is
//! trusted more**: it may truncate the memory that it has shared, which ends this process. It runs
//! as the same user.

mod chain;
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
pub use handshake::MonitorConnection;

/// Maximum memory of the requests of a disk, bytes.
pub const DISK_BYTES: u64 = command::BUDGET_BYTES * export::QUEUES as u64;

/// Accepts monitors one at a time and serves `volume` to them as a disk, for as long as the
/// listener lives. The queues are spread over reactors. `succession` decides whether virtual
/// machines of an earlier process may continue.
///
/// # Errors
/// Fails if the listener cannot accept connections any more.
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

/// Starts a conversation of [`serve_on`] that the caller drives message by message, on a thread
/// that also runs the queues. It is for tests that play both sides. `wait` waits for the end of a
/// queue.
pub fn talk(
    socket: UnixStream,
    volume: VolumeHandle,
    succession: Succession,
    spread: Arc<Spread>,
    wait: impl Fn(&Receiver<u16>) -> Option<u16> + 'static,
) -> MonitorConnection {
    let export = Arc::new(Export::new(volume, succession));
    MonitorConnection::new(socket, export, spread, Box::new(wait))
}

/// A disk, on the connections of one listener.
struct VhostUser {
    export: Arc<Export>,
    spread: Arc<Spread>,
    /// Whether a monitor has the disk.
    taken: Arc<AtomicBool>,
}

thread_local! {
    /// Connections of this thread's reactor whose threads have not ended.
    static TALKING: RefCell<Vec<(u64, Promise<Result<()>>)>> = const { RefCell::new(Vec::new()) };
}

/// Returns a unique number.
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
                "volume {name} is already the disk of a virtual machine: a socket serves one at a \
                 time"
            );
            return Err(Error::new(ErrorKind::Busy, what));
        }
        let taken = Taken(Arc::clone(&self.taken));
        let socket = UnixStream::from(stream.duplicate()?);
        socket.set_nonblocking(false)?;
        let (id, ended, here) = (next_id(), Promise::new(), rt::remote());
        // Also ends the thread when this task is dropped.
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
        // This task waits for the result of the thread.
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

/// Frees the disk on drop.
struct Taken(Arc<AtomicBool>);

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Ends a connection on drop.
struct Close(Rc<Stream>);

impl Drop for Close {
    fn drop(&mut self) {
        self.0.shutdown();
    }
}
