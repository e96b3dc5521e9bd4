//! One queue: a reader, a task for each command, and batched replies.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_block::{BlockDevice, Buf, Error, ErrorKind};
use forebay_io::net::Stream;
use forebay_io::rt;
use forebay_io::sync::{Semaphore, WaitList};
use forebay_wire::nvme::log::ErrorEntry;
use forebay_wire::nvme::{Command, Completion, Status};
use forebay_wire::nvme_tcp::{
    ADMIN_IN_CAPSULE_BYTES, COMMON_BYTES, Common, Fatal, Fault, Kind, flag,
};

use crate::net::{Deadline, Progress, Receiver};

use super::auth::Chap;
use super::controller::{Controller, Membership};
use super::events::Events;
use super::export::Exports;
use super::handshake::Session;
use super::memory::Memory;
use super::receive::{Capsule, take_capsule, take_data, take_data_header, take_termination};
use super::reply::{Outbox, Reply};
use super::slots::{NoSlot, Slots};
use super::{
    End, FAREWELL_TIMEOUT, IN_CAPSULE_BYTES, MAX_H2C_DATA_BYTES, admin, authenticate, command,
};

/// Maximum memory of a connection's commands, bytes, without the data in capsules.
pub(super) const BUDGET_BYTES: u64 = 32 << 20;
/// Number of commands that a connection starts in one turn of its reactor. So the first of many
/// commands is answered before the last is parsed. A host with many commands gets no more turns
/// than one with few.
const BURST: u32 = 8;
/// Interval between two checks of a queue that must drain.
const SETTLE_POLL: Duration = Duration::from_millis(1);

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
    id: u64,
    stream: Rc<Stream>,
    progress: Rc<Progress>,
    membership: Membership,
    pub(super) exports: Arc<Exports>,
    pub(super) queue: u16,
    queue_size: u16,
    no_flow_control: bool,
    head: Cell<u16>,
    pub(super) slots: Slots,
    pub(super) budget: Semaphore,
    in_flight: Cell<u64>,
    idle: WaitList,
    /// Whether the association has ended.
    shut: Cell<bool>,
    closing: Cell<bool>,
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

thread_local! {
    /// Connections of this thread's reactor.
    static CONNECTIONS: RefCell<Vec<(u64, Weak<Connection>)>> = const { RefCell::new(Vec::new()) };
}

/// Returns a unique connection number.
pub(super) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Finds a connection of the calling reactor.
pub(super) fn find(id: u64) -> Option<Rc<Connection>> {
    CONNECTIONS.with_borrow(|list| {
        let (_, found) = list.iter().find(|(known, _)| *known == id)?;
        found.upgrade()
    })
}

/// Ends a connection of the calling reactor.
pub(super) fn shut(id: u64) {
    if let Some(connection) = find(id) {
        // Received commands that have not started are discarded.
        connection.shut.set(true);
        connection.stream.shutdown();
    }
}

/// Waits until all commands that have reached this machine on a connection of the calling reactor
/// have ended. Later ones are not waited for.
pub(super) async fn settle(id: u64) {
    let Some(connection) = find(id) else { return };
    // The reader notices a finished receive within one turn.
    rt::sleep(SETTLE_POLL).await;
    let here = connection.progress.received_bytes() + connection.stream.unread_bytes();
    while !connection.closing.get() && !connection.progress.has_seen(here) {
        rt::sleep(SETTLE_POLL).await;
    }
    let before = connection.slots.in_flight();
    loop {
        let now = connection.slots.in_flight();
        if !now.iter().any(|number| before.contains(number)) {
            return;
        }
        rt::sleep(SETTLE_POLL).await;
    }
}

/// Serves commands until the host disconnects, then waits for those in flight.
pub(super) async fn serve(
    stream: &Rc<Stream>,
    receiver: &mut Receiver,
    session: Session,
    exports: Arc<Exports>,
) -> Result<(), End> {
    let connection = Rc::new(Connection {
        id: session.connection,
        stream: Rc::clone(stream),
        progress: receiver.progress(),
        membership: session.membership,
        exports,
        queue: session.queue,
        queue_size: session.queue_size,
        no_flow_control: session.no_flow_control,
        head: Cell::new(session.head),
        slots: Slots::new(session.queue_size),
        budget: Semaphore::new(BUDGET_BYTES),
        in_flight: Cell::new(0),
        idle: WaitList::new(),
        shut: Cell::new(false),
        closing: Cell::new(false),
        outbox: Outbox::new(session.style),
        parts: RefCell::default(),
        opened: RefCell::default(),
        events: Events::default(),
        chap: session.chap.map(|chap| Cell::new(Some(chap))),
        doomed: RefCell::default(),
    });
    let place = (connection.id, Rc::downgrade(&connection));
    CONNECTIONS.with_borrow_mut(|list| list.push(place));
    if connection.queue == 0 {
        rt::spawn(admin::watch(Rc::downgrade(&connection)));
    }
    let mut ended = connection.read(receiver, session.style.digests).await;
    // If the association has ended, the admin connection logs the reason.
    if connection.shut.get()
        && connection.queue == 0
        && let Some(reason) = connection.controller().ended()
    {
        ended = Err(End::Broken(reason));
    }
    connection.closing.set(true);
    if ended.is_ok() && connection.slots.in_flight().is_empty() {
        connection.membership.leave();
    }
    connection.membership.lost();
    connection.slots.lose();
    match ended {
        // The host gets the reason, but a host that does not read must not hold resources here.
        Err(End::Fault(..)) => drop(Deadline::set(stream, FAREWELL_TIMEOUT)),
        _ => stream.shutdown(),
    }
    let idle = || connection.in_flight.get() == 0;
    connection.idle.until(idle).await;
    CONNECTIONS.with_borrow_mut(|list| list.retain(|(id, _)| *id != connection.id));
    ended
}

impl Connection {
    pub(super) const fn controller(&self) -> &Arc<Controller> {
        self.membership.controller()
    }

    /// Returns the local address.
    pub(super) fn local_address(&self) -> Option<std::net::SocketAddr> {
        self.stream.local_address()
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.get()
    }

    async fn read(
        self: &Rc<Self>,
        receiver: &mut Receiver,
        digests: forebay_wire::nvme_tcp::Digests,
    ) -> Result<(), End> {
        let mut started = 0u32;
        while let Some(header) = receiver.take::<COMMON_BYTES>().await? {
            let layout = Common::decode(header).check(digests, 0);
            let layout = layout.map_err(|fault| End::Fault(fault, header))?;
            if self.shut.get() {
                break;
            }
            let last = header[1] & flag::LAST != 0;
            let done = match layout.kind {
                Kind::CapsuleCmd => {
                    let most_bytes = match self.queue {
                        0 => ADMIN_IN_CAPSULE_BYTES,
                        _ => IN_CAPSULE_BYTES,
                    };
                    let capsule = take_capsule(receiver, &header, layout, most_bytes).await;
                    capsule.and_then(|capsule| self.begin(capsule))
                }
                Kind::H2cData => self.take_data(receiver, &header, layout, last).await,
                Kind::H2cTermReq => {
                    let said = take_termination(receiver, &header, layout).await?;
                    let what = format!(
                        "the host has ended it for fatal error {} ({})",
                        said.fatal, said.information
                    );
                    let error = Error::new(ErrorKind::Disconnected, what);
                    return Err(End::Broken(error));
                }
                Kind::IcReq => Err(Fault::plain(Fatal::SequenceError).into()),
                // A PDU that only controllers send.
                _ => Err(Fault::field(0).into()),
            };
            done.map_err(|end| end.in_pdu(header))?;
            started = started.wrapping_add(1);
            if started.is_multiple_of(BURST) {
                rt::next_turn().await;
            }
        }
        Ok(())
    }

    async fn take_data(
        &self,
        receiver: &mut Receiver,
        common: &[u8; COMMON_BYTES],
        layout: forebay_wire::nvme_tcp::Layout,
        last: bool,
    ) -> Result<(), End> {
        let header = take_data_header(receiver, common, layout).await?;
        if header.length > MAX_H2C_DATA_BYTES {
            return Err(Fault::plain(Fatal::LimitExceeded).into());
        }
        let into = self.slots.place(&header, last)?;
        let sound = take_data(receiver, &into, layout).await?;
        self.slots.arrived(&header, sound);
        Ok(())
    }

    /// Starts a command.
    fn begin(self: &Rc<Self>, capsule: Capsule) -> Result<(), End> {
        let cid = capsule.command.cid;
        self.membership.queue.count_command();
        self.head.set((self.head.get() + 1) % self.queue_size);
        let (slot, refused) = match self.slots.take(cid) {
            Ok(slot) => (Some(slot), None),
            Err(NoSlot::Conflict) => (None, Some(Status::COMMAND_ID_CONFLICT)),
            // A queue has at most as many commands in flight as entries.
            Err(NoSlot::Full) => return Err(Fault::plain(Fatal::SequenceError).into()),
        };
        self.in_flight.set(self.in_flight.get() + 1);
        let this = Rc::clone(self);
        rt::spawn(async move {
            match (slot, refused) {
                (Some(slot), _) => this.run(slot, capsule).await,
                (None, status) => {
                    let status = status.unwrap_or(Status::INTERNAL_ERROR);
                    this.complete(cid, Err(status.into()), 0).await;
                }
            }
        });
        Ok(())
    }

    async fn run(self: &Rc<Self>, slot: u16, capsule: Capsule) {
        let command = capsule.command;
        let mut memory = Memory::of(self, slot);
        let outcome = match authenticate::reauthenticate(self, &mut memory, &capsule).await {
            Some(outcome) => outcome,
            None if self.queue == 0 => admin::run(self, &mut memory, &capsule).await,
            None => command::run(self, &mut memory, &capsule).await,
        };
        let cost = memory.cost();
        drop(capsule);
        if let Err(Failure::Status(status)) = outcome {
            self.controller().note_error(ErrorEntry {
                number: 0,
                queue: self.queue,
                cid: command.cid,
                status,
                first_block: command.first_block(),
                nsid: command.nsid,
            });
        }
        self.slots.give_back(slot);
        self.complete(command.cid, outcome, cost).await;
        if let Some(why) = self.doomed.take() {
            self.controller().end(ErrorKind::Permission, &why);
        }
    }

    async fn complete(&self, cid: u16, outcome: Outcome, cost: u64) {
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

    /// Sends all queued replies. Only one task sends at a time.
    async fn send_replies(&self) {
        if self.in_flight.get() > 1 {
            // Other tasks that are ready add their replies first.
            rt::yield_now().await;
        }
        let mut parts = self.parts.take();
        while let Some(batch) = self.outbox.gather(&mut parts) {
            let sent = self.stream.send(&parts).await;
            parts.clear();
            if sent.is_err() {
                // The reader sees the end of the connection and logs the reason.
                self.stream.shutdown();
            }
            self.end_commands(batch.ended, batch.cost);
        }
        self.parts.replace(parts);
    }

    fn end_commands(&self, count: u64, cost: u64) {
        self.budget.release(cost);
        self.in_flight.set(self.in_flight.get() - count);
        if self.in_flight.get() == 0 {
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
        let Some(subsystem) = self.controller().subsystem() else {
            return;
        };
        let generation = subsystem.generation();
        if self.opened.borrow().generation == generation {
            return;
        }
        let mut list = Vec::new();
        for namespace in subsystem.namespaces() {
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
