//! One queue: a task for each tag, which fetches a request, executes it, and commits the result
//! with the next fetch.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::mpsc;
use std::time::Duration;

use forebay_block::{ErrorKind, Result};
use forebay_io::rt;
use forebay_volume::VolumeHandle;
use forebay_wire::ublk::{Descriptor, Io, io};

use super::command::{Executor, errno};
use super::driver::{Node, Port, refusal};
use crate::net::Place;

/// Maximum memory of the requests of one device, bytes. Each queue has its share.
pub(super) const BUDGET_BYTES: u64 = 32 << 20;

/// Any short time: ready tasks and one turn of the reactor run before it ends.
const SUBMITTED: Duration = Duration::from_millis(1);
/// Name of the refused operation in errors.
const COMMAND: &str = "a command of a queue";

/// Parameters of a queue.
pub(super) struct Start<N> {
    pub(super) device: u32,
    pub(super) queue: u16,
    pub(super) depth: u16,
    pub(super) node: N,
    pub(super) volume: VolumeHandle,
    /// Whether the device outlives this process.
    pub(super) recovers: bool,
    /// Maximum memory of requests, a power of two in bytes; at least that of the largest request.
    pub(super) budget_bytes: u64,
    pub(super) place: Place,
    pub(super) events: mpsc::Sender<QueueEvent>,
}

/// Message of a queue to the thread that started it.
#[derive(Debug)]
pub(super) enum QueueEvent {
    /// The queue fetches requests, or the reason why it cannot.
    Begun(Result<()>),
    /// The queue has released the device.
    Ended,
}

/// A queue in use.
pub(super) struct Queue<P: Port> {
    number: u16,
    path: String,
    executor: Executor<P>,
    recovers: bool,
    /// First refusal of a command by the driver.
    refused: Cell<Option<i32>>,
    _end: End,
    _place: Place,
}

/// Sends the end of a queue on drop, after its port is closed.
struct End(mpsc::Sender<QueueEvent>);

impl Drop for End {
    fn drop(&mut self) {
        // The receiver may be gone.
        let _ = self.0.send(QueueEvent::Ended);
    }
}

/// Starts a queue on the calling reactor.
pub(super) fn start<N: Node>(start: Start<N>) {
    let port = match start.node.port(start.queue, start.depth) {
        Ok(port) => port,
        Err(error) => {
            let _ = start.events.send(QueueEvent::Begun(Err(error)));
            return;
        }
    };
    let queue = Rc::new(Queue {
        number: start.queue,
        path: super::path(start.device).display().to_string(),
        executor: Executor::new(port, start.volume.open(), start.budget_bytes),
        recovers: start.recovers,
        refused: Cell::new(None),
        _end: End(start.events.clone()),
        _place: start.place,
    });
    for tag in 0..start.depth {
        rt::spawn(Rc::clone(&queue).serve(tag));
    }
    let events = start.events;
    rt::spawn(async move {
        // When the device ends, the driver ends the commands that it has, but not later ones. The
        // wait ends after a turn of the reactor, in which all commands were submitted to the
        // driver.
        rt::sleep(SUBMITTED).await;
        let begun = queue
            .refused
            .get()
            .map_or(Ok(()), |refused| Err(refusal(refused, COMMAND)));
        let _ = events.send(QueueEvent::Begun(begun));
        // Dropped only now: the end of the queue may be the next message.
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
            match self.executor.port.command(number, argument.encode()).await {
                io::RESULT_OK => {}
                io::RESULT_ABORT => return,
                refusal => return self.refused(tag, refusal),
            }
            let request = Descriptor::decode(self.executor.port.descriptor(tag));
            number = io::COMMIT_AND_FETCH;
            result = match self.executor.run(tag, request).await {
                Ok(result) => result,
                // The volume is closed because this process ends. The kernel gives the request to
                // the next process. An error would reach a file system without need.
                Err(error) if self.recovers && error.kind() == ErrorKind::ShuttingDown => {
                    return std::future::pending().await;
                }
                Err(error) => -errno(error.kind()),
            };
        }
    }

    /// Notes that the driver refused a command: the tag is lost until the device ends.
    fn refused(&self, tag: u16, result: i32) {
        if self.refused.get().is_none() {
            self.refused.set(Some(result));
            let why = refusal(result, COMMAND).report();
            tracing::error!("{}: queue {}, tag {tag}: {why}", self.path, self.number);
        }
    }
}
