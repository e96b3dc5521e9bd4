//! A controller: the state of one association that its queues share, on all their reactors.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_block::{Error, ErrorKind};
use forebay_io::rt::{self, Remote};
use forebay_wire::nvme::fabrics::{cc, csts};
use forebay_wire::nvme::log::ErrorEntry;

use super::link;
use super::namespaces::Namespaces;

/// Entries of the error log.
pub(super) const ERROR_ENTRIES: usize = 32;

/// Type of a controller.
pub(super) enum Role {
    /// Of a subsystem with these namespaces.
    Io(Arc<Namespaces>),
    Discovery,
}

pub(super) struct Controller {
    id: u16,
    role: Role,
    host: String,
    host_id: [u8; 16],
    configuration: AtomicU32,
    status: AtomicU32,
    keep_alive_ms: AtomicU32,
    /// Whether the host has enabled the volatile write cache.
    write_cache: AtomicBool,
    queues: Mutex<Queues>,
    errors: Mutex<Errors>,
}

#[derive(Default)]
struct Queues {
    /// Reason for the end of the association.
    ended: Option<Error>,
    list: Vec<Arc<QueueShared>>,
}

/// State of a queue that other reactors see.
pub(super) struct QueueShared {
    number: u16,
    connection: u64,
    reactor: Remote,
    /// Number of commands so far; only the queue's own reactor writes it.
    commands: AtomicU64,
}

impl QueueShared {
    pub(super) fn count_command(&self) {
        let commands = self.commands.load(Ordering::Relaxed);
        self.commands.store(commands + 1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct Errors {
    count: u64,
    last: VecDeque<ErrorEntry>,
}

impl Controller {
    pub(super) fn new(
        id: u16,
        role: Role,
        host: &str,
        host_id: [u8; 16],
        keep_alive_ms: u32,
    ) -> Arc<Self> {
        Arc::new(Self {
            id,
            role,
            host: host.to_owned(),
            host_id,
            configuration: AtomicU32::new(0),
            status: AtomicU32::new(0),
            keep_alive_ms: AtomicU32::new(keep_alive_ms),
            write_cache: AtomicBool::new(true),
            queues: Mutex::default(),
            errors: Mutex::default(),
        })
    }

    pub(super) const fn id(&self) -> u16 {
        self.id
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    pub(super) const fn host_id(&self) -> [u8; 16] {
        self.host_id
    }

    /// Returns the namespaces of the subsystem, or `None` for a discovery controller.
    pub(super) fn namespaces(&self) -> Option<&Namespaces> {
        match &self.role {
            Role::Io(namespaces) => Some(namespaces),
            Role::Discovery => None,
        }
    }

    pub(super) fn keep_alive_ms(&self) -> u32 {
        self.keep_alive_ms.load(Ordering::Relaxed)
    }

    pub(super) fn set_keep_alive_ms(&self, time: u32) {
        self.keep_alive_ms.store(time, Ordering::Relaxed);
    }

    pub(super) fn write_cache(&self) -> bool {
        self.write_cache.load(Ordering::Relaxed)
    }

    pub(super) fn set_write_cache(&self, used: bool) {
        self.write_cache.store(used, Ordering::Relaxed);
    }

    pub(super) fn configuration(&self) -> u32 {
        self.configuration.load(Ordering::Relaxed)
    }

    fn is_enabled(&self) -> bool {
        self.configuration() & cc::EN != 0
    }

    pub(super) fn status(&self) -> u32 {
        let status = self.status.load(Ordering::Acquire);
        // A reset is complete when all I/O queues are gone.
        if status != 0
            && !self.is_enabled()
            && self.queues().list.iter().all(|queue| queue.number == 0)
        {
            self.status.store(0, Ordering::Release);
            return 0;
        }
        status
    }

    pub(super) fn is_ready(&self) -> bool {
        let status = self.status.load(Ordering::Acquire);
        self.is_enabled() && status & (csts::RDY | csts::CFS) == csts::RDY
    }

    /// Applies a new configuration. Returns true if the host shuts the controller down: then the
    /// caller must flush and call [`Controller::shut_down`].
    pub(super) fn configure(&self, value: u32) -> bool {
        let before = self.configuration.swap(value, Ordering::AcqRel);
        let enabled = |value: u32| value & cc::EN != 0;
        if enabled(value) && !enabled(before) {
            let right = value & cc::CHOICES == 0 && value & cc::ENTRY_SIZES_MASK == cc::ENTRY_SIZES;
            let status = if right { csts::RDY } else { csts::CFS };
            self.status.store(status, Ordering::Release);
        } else if enabled(before) && !enabled(value) {
            // A reset ends the I/O queues; their hosts recreate them.
            self.write_cache.store(true, Ordering::Relaxed);
            self.shut(|queue| queue.number != 0);
        }
        value & cc::SHN != 0 && before & cc::SHN == 0
    }

    pub(super) fn shut_down(&self) {
        self.status.fetch_or(csts::SHST_COMPLETE, Ordering::AcqRel);
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a queue on the calling reactor. Returns `None` if the number is taken or the controller
    /// has ended.
    pub(super) fn join(self: &Arc<Self>, number: u16, connection: u64) -> Option<Membership> {
        let mut queues = self.queues();
        if queues.ended.is_some() || queues.list.iter().any(|queue| queue.number == number) {
            return None;
        }
        let queue = Arc::new(QueueShared {
            number,
            connection,
            reactor: rt::remote(),
            commands: AtomicU64::new(0),
        });
        queues.list.push(Arc::clone(&queue));
        Some(Membership {
            controller: Arc::clone(self),
            queue,
            left: AtomicBool::new(false),
        })
    }

    /// Returns the number of commands on all queues so far.
    pub(super) fn commands(&self) -> u64 {
        let queues = self.queues();
        let counts = queues
            .list
            .iter()
            .map(|q| q.commands.load(Ordering::Relaxed));
        counts.sum()
    }

    /// Returns the connections of the queues, with their reactors.
    pub(super) fn connections(&self) -> Vec<(Remote, u64)> {
        let queues = self.queues();
        let list = queues.list.iter();
        list.map(|q| (q.reactor.clone(), q.connection)).collect()
    }

    /// Returns the connection of a queue, with its reactor.
    pub(super) fn connection(&self, number: u16) -> Option<(Remote, u64)> {
        let queues = self.queues();
        let queue = queues.list.iter().find(|queue| queue.number == number)?;
        Some((queue.reactor.clone(), queue.connection))
    }

    /// Ends the association: all connections are shut down, and commands in flight run to their end
    /// without an answer. The admin connection logs the reason, unless it ended first.
    pub(super) fn end(&self, kind: ErrorKind, reason: &str) {
        let mut queues = self.queues();
        if queues.ended.is_some() {
            return;
        }
        let nqn = self.namespaces().map_or("discovery", |it| it.nqn());
        let (id, host) = (self.id, &self.host);
        let what = format!("controller {id} of {nqn} for host {host:?} has ended: {reason}");
        queues.ended = Some(Error::new(kind, what));
        drop(queues);
        self.shut(|_| true);
    }

    /// Returns the reason for the end of the association.
    pub(super) fn ended(&self) -> Option<Error> {
        self.queues().ended.clone()
    }

    /// Returns whether the association has ended and no queue is left.
    pub(super) fn is_gone(&self) -> bool {
        let queues = self.queues();
        queues.ended.is_some() && queues.list.is_empty()
    }

    fn shut(&self, which: impl Fn(&QueueShared) -> bool) {
        let queues = self.queues();
        for queue in queues.list.iter().filter(|queue| which(queue)) {
            let connection = queue.connection;
            queue.reactor.call(move || link::shut(connection));
        }
    }

    /// Records a command that failed.
    pub(super) fn note_error(&self, mut entry: ErrorEntry) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.count += 1;
        entry.number = errors.count;
        errors.last.truncate(ERROR_ENTRIES - 1);
        errors.last.push_front(entry);
    }

    /// Returns the number of errors so far, and the latest ones, newest first.
    pub(super) fn errors(&self) -> (u64, Vec<ErrorEntry>) {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        (errors.count, errors.last.iter().copied().collect())
    }
}

/// A queue's membership in its controller. It is dropped when the connection and its commands have
/// ended.
pub(super) struct Membership {
    controller: Arc<Controller>,
    pub(super) queue: Arc<QueueShared>,
    left: AtomicBool,
}

impl Membership {
    pub(super) const fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// Removes an I/O queue that the host has closed with nothing in flight, as before a shutdown.
    /// The association continues.
    pub(super) fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    /// Ends the association after the loss of a connection, since its host may repeat commands
    /// elsewhere that are still in flight here. During a reset only the I/O queues end.
    pub(super) fn lost(&self) {
        let number = self.queue.number;
        let io = number != 0;
        if io && (self.left.load(Ordering::Relaxed) || !self.controller.is_enabled()) {
            return;
        }
        let reason = match io {
            false => "its admin connection has ended".to_owned(),
            true => format!("the connection of its queue {number} was lost"),
        };
        self.controller.end(ErrorKind::Disconnected, &reason);
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.lost();
        let mut queues = self.controller.queues();
        queues.list.retain(|queue| !Arc::ptr_eq(queue, &self.queue));
    }
}
