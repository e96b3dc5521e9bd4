//! State of a queue in use: its association, its memory, its namespaces, and batched replies.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{BlockDevice, Buf, ErrorKind};
use forebay_io::rt;
use forebay_io::sync::{Semaphore, WaitList};
use forebay_wire::nvme::{Command, Completion, Status};

use super::auth::Chap;
use super::controller::{Controller, Membership};
use super::events::Events;
use super::export::Exports;
use super::link::Link;
use super::reply::{Outbox, Reply};
use super::session::Session;
use super::slots::Slots;

/// Maximum memory of a connection's commands, bytes, without the data in capsules.
pub(super) const BUDGET_BYTES: u64 = 32 << 20;
/// Reason why a command does not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The command failed with this status.
    Status(Status),
    /// The connection is gone, so no answer is sent.
    Unanswered,
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// Result of a command: its result value and data.
pub(super) type Outcome = Result<(u64, Option<Buf>), Failure>;

/// A queue in use.
pub(super) struct Connection {
    link: Rc<Link>,
    membership: Membership,
    pub(super) exports: Arc<Exports>,
    pub(super) queue: u16,
    queue_size: u16,
    no_flow_control: bool,
    head: Cell<u16>,
    pub(super) budget: Semaphore,
    in_flight: Cell<u64>,
    idle: WaitList,
    outbox: Outbox,
    parts: RefCell<Vec<Buf>>,
    opened: RefCell<Opened>,
    pub(super) events: Events,
    /// Authentication, if the host has a secret. It is taken while an authentication command runs.
    pub(super) chap: Option<Cell<Option<Chap>>>,
    /// Reason for which the association ends after the current commands are answered.
    pub(super) doomed: RefCell<Option<String>>,
}

/// Namespaces as devices of this reactor, with the generation of the subsystem.
#[derive(Default)]
struct Opened {
    generation: u64,
    list: Vec<Option<Rc<Opening>>>,
}

/// A namespace as a device of this reactor.
pub(super) struct Opening {
    pub(super) nsid: u32,
    pub(super) device: Rc<dyn BlockDevice>,
    /// Logical block size as a power of two in bytes.
    pub(super) block_shift: u32,
}

impl Connection {
    /// Creates the connection of a session.
    pub(super) fn new(session: Session, link: Rc<Link>, exports: Arc<Exports>) -> Rc<Self> {
        Rc::new(Self {
            link,
            membership: session.membership,
            exports,
            queue: session.queue,
            queue_size: session.queue_size,
            no_flow_control: session.no_flow_control,
            head: Cell::new(session.head),
            budget: Semaphore::new(BUDGET_BYTES),
            in_flight: Cell::new(0),
            idle: WaitList::new(),
            outbox: Outbox::new(session.style),
            parts: RefCell::default(),
            opened: RefCell::default(),
            events: Events::default(),
            chap: session.chap.map(|chap| Cell::new(Some(chap))),
            doomed: RefCell::default(),
        })
    }

    /// Returns the link to the host.
    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    /// Returns the commands in flight.
    pub(super) fn slots(&self) -> &Slots {
        &self.link.slots
    }

    /// Notes that a command was received.
    pub(super) fn note_received(&self) {
        self.membership.queue.count_command();
        self.head.set((self.head.get() + 1) % self.queue_size);
    }

    /// Notes that a command is in flight until its answer was sent.
    pub(super) fn note_started(&self) {
        self.in_flight.set(self.in_flight.get() + 1);
    }

    /// Ends the queue: no further command is read. If its host has closed it (`by_host`), with
    /// nothing in flight, the association continues.
    pub(super) fn close(&self, by_host: bool) {
        self.link.close();
        if by_host && self.slots().in_flight().is_empty() {
            self.membership.leave();
        }
        self.membership.lost();
        self.slots().lose();
    }

    /// Waits until no command is in flight.
    pub(super) async fn drain(&self) {
        self.idle.until(|| self.in_flight.get() == 0).await;
    }

    pub(super) const fn controller(&self) -> &Arc<Controller> {
        self.membership.controller()
    }

    /// Returns the local address.
    pub(super) fn local_address(&self) -> Option<std::net::SocketAddr> {
        self.link.stream.local_address()
    }

    pub(super) fn is_closing(&self) -> bool {
        self.link.is_closing()
    }

    /// Answers a command, and gives its memory back when the answer was sent.
    pub(super) async fn complete(&self, cid: u16, outcome: Outcome, cost: u64) {
        let (status, result, data) = match outcome {
            Ok((result, data)) => (Status::SUCCESS, result, data),
            Err(Failure::Status(status)) => (status, 0, None),
            Err(Failure::Unanswered) => {
                self.end_commands(1, cost);
                return;
            }
        };
        let completion = Completion {
            result,
            sq_head: if self.no_flow_control {
                0
            } else {
                self.head.get()
            },
            sq_id: 0,
            cid,
            status,
        };
        self.reply(Reply::Completion(completion, data), cost).await;
    }

    pub(super) async fn reply(&self, reply: Reply, cost: u64) {
        if self.outbox.push(reply, cost) {
            self.send_replies().await;
        }
    }

    /// Queues a reply of a command that goes on. Another task sends: it may go on to send the
    /// replies of other commands for any time.
    pub(super) fn queue_reply(self: &Rc<Self>, reply: Reply) {
        if self.outbox.push(reply, 0) {
            let connection = Rc::clone(self);
            rt::spawn(async move { connection.send_replies().await });
        }
    }

    /// Waits while too many replies are not sent. A host that does not read must not fill the
    /// memory with replies to commands that take none. At most [`Slots`] commands wait for data of
    /// the host, so the others end without further PDUs.
    pub(super) async fn wait_for_sent_replies(&self) {
        let most = self.most_in_flight();
        (self.idle)
            .until(|| self.in_flight.get() < most || self.link.is_shut())
            .await;
    }

    /// Returns the number of commands in flight, with unsent replies, at which no further one is
    /// read.
    fn most_in_flight(&self) -> u64 {
        2 * u64::from(self.queue_size.max(1))
    }

    /// Sends all queued replies. Only one task sends at a time.
    async fn send_replies(&self) {
        if self.in_flight.get() > 1 {
            // Other tasks that are ready add their replies first.
            rt::yield_now().await;
        }
        let mut parts = self.parts.take();
        while let Some(batch) = self.outbox.gather(&mut parts) {
            let sent = self.link.stream.send(&parts).await;
            parts.clear();
            if sent.is_err() {
                // The reader sees the end of the connection and logs the reason.
                self.link.stream.shutdown();
            }
            self.end_commands(batch.ended, batch.cost);
        }
        self.parts.replace(parts);
    }

    fn end_commands(&self, count: u64, cost: u64) {
        self.budget.release(cost);
        let before = self.in_flight.get();
        let now = before - count;
        self.in_flight.set(now);
        let most = self.most_in_flight();
        if now == 0 || (before >= most && now < most) {
            self.idle.wake_all();
        }
    }

    /// Returns a namespace by its identifier.
    ///
    /// # Errors
    /// [`Status::INVALID_NAMESPACE`] if it does not exist.
    pub(super) fn open(&self, nsid: u32) -> Result<Rc<Opening>, Status> {
        self.refresh();
        let opened = self.opened.borrow();
        let index = (nsid as usize).checked_sub(1);
        let found = index.and_then(|index| opened.list.get(index)?.clone());
        found.ok_or(Status::INVALID_NAMESPACE)
    }

    /// Returns all namespaces.
    pub(super) fn open_all(&self) -> Vec<Rc<Opening>> {
        self.refresh();
        self.opened
            .borrow()
            .list
            .iter()
            .flatten()
            .cloned()
            .collect()
    }

    fn refresh(&self) {
        let Some(namespaces) = self.controller().namespaces() else {
            return;
        };
        let generation = namespaces.generation();
        if self.opened.borrow().generation == generation {
            return;
        }
        let mut list = Vec::new();
        for namespace in namespaces.list() {
            list.resize_with(namespace.nsid as usize, || None);
            let block_bytes = namespace.volume.info().logical_block_bytes;
            list[namespace.nsid as usize - 1] = Some(Rc::new(Opening {
                nsid: namespace.nsid,
                device: namespace.volume.open(),
                block_shift: block_bytes.trailing_zeros(),
            }));
        }
        self.opened.replace(Opened { generation, list });
    }

    /// Ends the association because a volume of it is shutting down. Its host must reconnect.
    pub(super) fn abandon(&self) -> Failure {
        let why = "its volume is shutting down";
        self.controller().end(ErrorKind::ShuttingDown, why);
        Failure::Unanswered
    }
}

/// Reads the data pointer of a command that must have no data.
pub(super) fn no_data(command: &Command) -> Result<(), Status> {
    match command.data()?.length() {
        0 => Ok(()),
        _ => Err(Status::DATA_SGL_LENGTH_INVALID),
    }
}
