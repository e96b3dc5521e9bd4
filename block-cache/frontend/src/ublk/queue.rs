//! One queue: a task for each tag, which fetches a request, does it, says how it ended and fetches the next.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use forebay_block::{BlockDevice, ErrorKind, Result};
use forebay_io::rt;
use forebay_io::sync::Semaphore;
use forebay_volume::VolumeHandle;
use forebay_wire::ublk::{Descriptor, Io, io};

use super::command;
use super::driver::{Node, Port, refusal};
use crate::net::Place;

/// Memory that the requests of one device may hold at a time, bytes: each queue has its share.
pub(super) const BUDGET_BYTES: u64 = 32 << 20;

/// Any time: what is ready, and a turn of the reactor, come before its end.
const SUBMITTED: Duration = Duration::from_millis(1);
/// What the driver refuses when it refuses a command.
const COMMAND: &str = "a command of a queue";

/// All that a queue needs to begin.
pub(super) struct Start<N> {
    pub(super) device: u32,
    pub(super) queue: u16,
    pub(super) depth: u16,
    pub(super) node: N,
    pub(super) volume: VolumeHandle,
    /// Whether the device outlives this process.
    pub(super) recovers: bool,
    /// Memory that requests may hold at a time, a power of two of bytes; that of the largest at least.
    pub(super) budget_bytes: u64,
    pub(super) place: Place,
    pub(super) tell: mpsc::Sender<Told>,
}

/// What a queue tells who has begun it.
#[derive(Debug)]
pub(super) enum Told {
    /// It fetches, or why it cannot.
    Begun(Result<()>),
    /// It holds nothing of the device any more.
    Ended,
}

/// A queue in use.
pub(super) struct Queue<P: Port> {
    number: u16,
    path: String,
    pub(super) port: P,
    pub(super) device: Rc<dyn BlockDevice>,
    recovers: bool,
    pub(super) budget: Semaphore,
    pub(super) budget_bytes: u64,
    /// What the driver said when it refused a command the first time.
    refused: Cell<Option<i32>>,
    _end: End,
    _place: Place,
}

/// Tells of the end of a queue when it is dropped, which is after its port has gone.
struct End(mpsc::Sender<Told>);

impl Drop for End {
    fn drop(&mut self) {
        // Nobody may want to know.
        let _ = self.0.send(Told::Ended);
    }
}

/// Begins a queue on the calling reactor.
pub(super) fn start<N: Node>(start: Start<N>) {
    let port = match start.node.port(start.queue, start.depth) {
        Ok(port) => port,
        Err(error) => {
            let _ = start.tell.send(Told::Begun(Err(error)));
            return;
        }
    };
    let queue = Rc::new(Queue {
        number: start.queue,
        path: super::path(start.device).display().to_string(),
        port,
        device: start.volume.open(),
        recovers: start.recovers,
        budget: Semaphore::new(start.budget_bytes),
        budget_bytes: start.budget_bytes,
        refused: Cell::new(None),
        _end: End(start.tell.clone()),
        _place: start.place,
    });
    for tag in 0..start.depth {
        rt::spawn(Rc::clone(&queue).serve(tag));
    }
    let tell = start.tell;
    rt::spawn(async move {
        // The driver ends the commands that it has when the device ends, and not those that come later. A wait ends
        // after a turn of the reactor, with which all of them have gone to the driver.
        rt::sleep(SUBMITTED).await;
        let begun = queue
            .refused
            .get()
            .map_or(Ok(()), |refused| Err(refusal(refused, COMMAND)));
        let _ = tell.send(Told::Begun(begun));
        // Not before: its end may be the next thing told.
        drop(queue);
    });
}

impl<P: Port> Queue<P> {
    async fn serve(self: Rc<Self>, tag: u16) {
        let (mut number, mut result) = (io::FETCH, 0);
        loop {
            let argument = Io {
                queue: self.number,
                tag,
                result,
            };
            match self.port.command(number, argument.encode()).await {
                io::RESULT_OK => {}
                io::RESULT_ABORT => return,
                refusal => return self.refused(tag, refusal),
            }
            let request = Descriptor::decode(self.port.descriptor(tag));
            number = io::COMMIT_AND_FETCH;
            result = match command::run(&self, tag, request).await {
                Ok(result) => result,
                // The volume is closed since this process ends. The kernel gives the request to the next one; an error
                // would go to a file system that need not know.
                Err(error) if self.recovers && error.kind() == ErrorKind::ShuttingDown => {
                    return std::future::pending().await;
                }
                Err(error) => -command::errno(error.kind()),
            };
        }
    }

    /// The driver does not take a command: the tag is lost until the device ends.
    fn refused(&self, tag: u16, result: i32) {
        if self.refused.get().is_none() {
            self.refused.set(Some(result));
            let why = refusal(result, COMMAND).report();
            tracing::error!("{}: queue {}, tag {tag}: {why}", self.path, self.number);
        }
    }
}
