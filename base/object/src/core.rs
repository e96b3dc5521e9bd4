//! State that a volume shares with its tasks.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use forebay_block::{Buf, Completion, Error, ErrorKind, Result};
use forebay_io::sync::WaitList;

use crate::batch::{Batch, Closed};
use crate::chain::Chain;
use crate::claim::Writer;
use crate::fault::Faults;
use crate::format::superblock::Superblock;
use crate::format::{Id, SECTOR_BYTES};
use crate::limits::Limits;
use crate::link::Link;
use crate::map::Place;
use crate::objects::bytes_of;

/// State that a volume shares with its tasks.
pub(crate) struct Core {
    pub(crate) link: Link<'static>,
    pub(crate) volume: Superblock,
    /// Identity of the volume, or of the snapshot.
    pub(crate) identity: Id,
    /// `None` if the volume is only read.
    pub(crate) writer: Option<Writer>,
    pub(crate) limits: Limits,
    pub(crate) faults: Faults,
    /// No borrow lasts beyond an await.
    pub(crate) log: RefCell<Log>,
    pub(crate) pinned: RefCell<BTreeMap<String, Pinned>>,
    /// Wakes the background task.
    pub(crate) work: WaitList,
    /// Whether the background task has to end.
    pub(crate) closing: Cell<bool>,
}

/// A snapshot, which pins objects.
#[derive(Debug)]
pub(crate) struct Pinned {
    pub(crate) id: Id,
    /// Numbers of its objects in the table.
    pub(crate) objects: Vec<u32>,
    /// Whether the log has a record of it, or the open batch.
    pub(crate) is_recorded: bool,
}

/// State of the log and of what is in flight.
#[derive(Debug)]
pub(crate) struct Log {
    /// State of the volume with all acknowledged writes.
    pub(crate) chain: Chain,
    /// The open batch.
    pub(crate) batch: Batch,
    /// Batches that wait for their creation.
    pub(crate) closed: VecDeque<Closed>,
    /// Place of the writer's first batch in the log.
    pub(crate) first_seq: u64,
    /// Number of batches that are durable without a gap.
    pub(crate) durable: u64,
    /// Numbers of batches that are durable beyond a gap.
    pub(crate) ahead: BTreeSet<u64>,
    /// Flushes with the number of batches that have to be durable, in ascending order.
    pub(crate) flushes: VecDeque<(u64, Completion)>,
    /// Changes that wait for room, in order of arrival.
    pub(crate) queue: VecDeque<Queued>,
    /// Sectors that garbage collection has copied into batches, by the numbers of the batches.
    pub(crate) moved_sectors: BTreeMap<u64, u64>,
    /// Whether a flush waits for the open batch.
    pub(crate) wants_close: bool,
    /// Error that all requests get once the volume has failed. It is never cleared.
    pub(crate) failed: Option<Error>,
    /// Error of all changes until the store answers.
    pub(crate) stalled: Option<Error>,
    /// Time of the last answer to a creation, or of the begin of the first.
    pub(crate) progress: Duration,
    /// Whether a task watches the creations.
    pub(crate) is_watched: bool,
    /// Error of the last failed creation.
    pub(crate) last_error: Option<Error>,
    /// Log since the last checkpoint, bytes.
    pub(crate) since_bytes: u64,
    /// Log since the last checkpoint, objects.
    pub(crate) since_objects: u64,
    /// Place of the last checkpoint.
    pub(crate) checkpoint: Option<u64>,
    /// Length of the last checkpoint, bytes.
    pub(crate) checkpoint_bytes: u64,
    /// Whether the store has refused the last checkpoint as too long.
    pub(crate) is_too_long: bool,
}

/// A change that waits for room.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) change: Change,
    /// Sectors of it that are done.
    pub(crate) at: u64,
    pub(crate) done: Completion,
}

/// A change of the volume.
#[derive(Debug)]
pub(crate) enum Change {
    Write {
        first: u64,
        buf: Buf,
        fua: bool,
    },
    Zero {
        sectors: Range<u64>,
        fua: bool,
    },
    /// Writes data again that are at `source`, as far as the map still names that place.
    Move {
        first: u64,
        source: Place,
        data: Bytes,
    },
}

impl Log {
    /// Returns the log of a volume whose state is `chain`.
    pub(crate) fn new(chain: Chain, checkpoint: Option<u64>) -> Self {
        Self {
            batch: Batch::default(),
            closed: VecDeque::new(),
            first_seq: chain.seq + 1,
            durable: 0,
            ahead: BTreeSet::new(),
            flushes: VecDeque::new(),
            queue: VecDeque::new(),
            moved_sectors: BTreeMap::new(),
            wants_close: false,
            failed: None,
            stalled: None,
            progress: Duration::ZERO,
            is_watched: false,
            last_error: None,
            since_bytes: chain.log_bytes,
            since_objects: chain.seq - checkpoint.unwrap_or(0),
            checkpoint,
            checkpoint_bytes: chain.checkpoint_bytes,
            is_too_long: false,
            chain,
        }
    }

    /// Returns the place of a batch in the log.
    pub(crate) const fn seq_of(&self, number: u64) -> u64 {
        self.first_seq + number
    }

    /// Checks that requests of all kinds are served.
    pub(crate) fn check(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }
}

impl Core {
    /// Fails all requests, now and later.
    pub(crate) fn fail(&self, error: &Error) {
        let mut log = self.log.borrow_mut();
        if log.failed.is_some() {
            return;
        }
        log.failed = Some(error.clone());
        drop(log);
        self.fail_changes(error);
        self.work.wake_all();
    }

    /// Returns the bytes of acknowledged writes that the store may lack. Data that garbage
    /// collection copies is in the store at its old place.
    pub(crate) fn unflushed_bytes(&self) -> usize {
        let log = self.log.borrow();
        let end = log.seq_of(log.durable);
        let objects = log.chain.objects.iter().map(|(_, it)| it);
        let closed: usize = objects
            .filter(|it| it.seq >= end)
            .map(|it| bytes_of(it.payload_sectors))
            .sum();
        let moved: u64 = log.moved_sectors.range(log.durable..).map(|it| it.1).sum();
        let moved = usize::try_from(moved * SECTOR_BYTES).unwrap_or(usize::MAX);
        (closed + log.batch.payload.len()).saturating_sub(moved)
    }

    /// Fails the volume and all its requests for good. Logs the cause and the data that is lost.
    pub(crate) fn fail_in_service(&self, error: &Error) {
        if self.has_failed() {
            return;
        }
        tracing::error!("{}", error.report());
        let unflushed = self.unflushed_bytes();
        if unflushed > 0 {
            tracing::error!(
                "object store {}: {unflushed} unflushed bytes ARE LOST unless a cache has them",
                self.link.name()
            );
        }
        self.fail(error);
    }

    /// Fails all flushes and changes that wait.
    pub(crate) fn fail_changes(&self, error: &Error) {
        let mut log = self.log.borrow_mut();
        let flushes = std::mem::take(&mut log.flushes);
        let queue = std::mem::take(&mut log.queue);
        drop(log);
        for (_, done) in flushes {
            done.complete(Err(error.clone()));
        }
        for queued in queue {
            queued.done.complete(Err(error.clone()));
        }
    }

    /// Returns whether the volume has failed, so that all requests fail.
    pub(crate) fn has_failed(&self) -> bool {
        self.log.borrow().failed.is_some()
    }

    /// Returns the writer.
    ///
    /// # Errors
    /// `ReadOnly` if the volume is only read.
    pub(crate) fn writer(&self) -> Result<&Writer> {
        self.writer
            .as_ref()
            .ok_or_else(|| ErrorKind::ReadOnly.into())
    }
}
