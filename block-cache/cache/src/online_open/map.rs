//! State of the map before it is loaded, for volumes that are served already. Also lets their reads
//! run between the steps of the opening.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, BlockDeviceExt, Completion, DeviceInfo, Request};
use forebay_io::rt;
use forebay_io::sync::{Semaphore, WaitList};
use forebay_metadata::journal::Recovered;
use forebay_metadata::superblock::Superblock;

use super::log_index::LogIndex;
use crate::failpoints::{Fault, planted};
use crate::options::{Devices, Durability};
use forebay_metadata::replay::Progress as OpeningProgress;

/// Length of a turn of the opening, and of a turn of reads, while there are reads.
const TURN: Duration = Duration::from_millis(8);
/// Time of the first turn, for reads that waited for the index.
const FIRST_TURN: Duration = Duration::from_millis(400);
/// Interval at which the opening looks for the end of those reads.
const LOOK: Duration = Duration::from_millis(1);

/// Answers reads of possibly dirty data while a cache is being opened. The caller gives it to the
/// opening ([`CacheOptions::opening_map`](crate::CacheOptions::opening_map)) and to the volumes
/// that are served meanwhile ([`OpeningVolume`](crate::OpeningVolume)). Clones are handles to the
/// same map.
#[derive(Clone, Default)]
pub struct OpeningMap(Rc<Inner>);

#[derive(Default)]
struct Inner {
    state: RefCell<State>,
    changed: WaitList,
    /// The log is being read for the index.
    building: Cell<bool>,
    /// Reads that are being answered, or wait for the index.
    reading: Cell<u32>,
    answered: Cell<u64>,
    turns: Turns,
}

#[derive(Default)]
enum State {
    /// No read has asked yet.
    #[default]
    Idle,
    Asked,
    Ready(Rc<LogIndex>),
    /// Gives no more answers, or never gave any.
    Closed,
}

/// Turns of the opening and of reads, by time.
struct Turns {
    /// Serializes the steps of the opening.
    step: Semaphore,
    /// End of the opening's turn.
    opening_end: Cell<Duration>,
    /// End of the turn of reads, which follows if there are reads.
    reads_end: Cell<Duration>,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            step: Semaphore::new(1),
            opening_end: Cell::default(),
            reads_end: Cell::default(),
        }
    }
}

impl fmt::Debug for OpeningMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpeningMap")
            .field("answered", &self.answered())
            .finish_non_exhaustive()
    }
}

impl OpeningMap {
    /// Reads of what may be dirty that were answered before the cache was open.
    #[must_use]
    pub fn answered(&self) -> u64 {
        self.0.answered.get()
    }

    /// Answers a read as the map would. Returns whether it did; if not, the buffer has nothing to
    /// rely on.
    pub(super) async fn read(
        &self,
        volume: u16,
        request: &Request,
        backing: &Rc<dyn BlockDevice>,
    ) -> bool {
        let inner = &self.0;
        inner.reading.set(inner.reading.get() + 1);
        let read = match self.index().await {
            Some(index) => index.read(volume, request, backing).await,
            None => None,
        };
        inner.reading.set(inner.reading.get() - 1);
        // Behind that, a slot may hold something else by now.
        let counts = !self.is_closed() || planted(Fault::AnswerLate);
        let answered = read.is_some() && counts;
        inner
            .answered
            .set(inner.answered.get() + u64::from(answered));
        answered
    }

    /// The index, when it is there; none if there will be none.
    async fn index(&self) -> Option<Rc<LogIndex>> {
        let inner = &self.0;
        if matches!(*inner.state.borrow(), State::Idle) {
            self.set_state(State::Asked);
        }
        loop {
            match &*inner.state.borrow() {
                State::Ready(index) => return Some(Rc::clone(index)),
                State::Closed => return None,
                State::Idle | State::Asked => {}
            }
            inner.changed.wait().await;
        }
    }

    /// Stops all answers, because the opening or the cache after it is about to write. A second
    /// call has no effect.
    pub(crate) fn close(&self) {
        self.set_state(State::Closed);
    }

    fn is_closed(&self) -> bool {
        matches!(*self.0.state.borrow(), State::Closed)
    }

    fn set_state(&self, state: State) {
        *self.0.state.borrow_mut() = state;
        self.0.changed.wake_all();
    }

    /// Begins to accept reads, as the opening is about to read the log. The first read makes this
    /// build the index.
    pub(crate) fn begin(
        &self,
        devices: &Devices,
        superblock: &Superblock,
        journal: Rc<Option<Recovered>>,
        durability: Durability,
        boot_id: [u8; 16],
        progress: &OpeningProgress,
    ) {
        // With `sync`, data that is read must not be lost with power. The opening makes it durable
        // first.
        if durability == Durability::Sync {
            return self.close();
        }
        let (map, devices, superblock) = (self.clone(), devices.clone(), superblock.clone());
        let progress = progress.clone();
        rt::spawn(async move {
            let inner = &map.0;
            let is_idle = || matches!(*inner.state.borrow(), State::Idle);
            inner.changed.until(|| !is_idle()).await;
            if map.is_closed() {
                return;
            }
            if is_almost_read(&progress) {
                return map.close();
            }
            inner.building.set(true);
            let index = LogIndex::build(&devices, &superblock, (*journal).as_ref(), &boot_id).await;
            inner.building.set(false);
            // The waiting reads have the first turn.
            inner.turns.opening_end.set(rt::now());
            inner.turns.reads_end.set(rt::now() + FIRST_TURN);
            let state = match index {
                Some(index) if !map.is_closed() => State::Ready(Rc::new(index)),
                _ => State::Closed,
            };
            map.set_state(state);
        });
    }

    /// Returns the device from which the opening must read the log. It slows the opening down in
    /// favour of waiting reads.
    pub(crate) fn paced(&self, device: &Rc<dyn BlockDevice>) -> impl BlockDevice + use<> {
        Paced {
            map: self.clone(),
            device: Rc::clone(device),
        }
    }

    /// Waits until the opening may continue: while the log is read for the index, and while it is
    /// the turn of reads.
    async fn turn(&self) {
        let inner = &self.0;
        let turns = &inner.turns;
        turns.step.acquire(1).await;
        inner.changed.until(|| !inner.building.get()).await;
        if rt::now() >= turns.opening_end.get() {
            while inner.reading.get() > 0 && rt::now() < turns.reads_end.get() {
                rt::sleep(LOOK).await;
            }
            turns.opening_end.set(rt::now() + TURN);
            turns.reads_end.set(rt::now() + 2 * TURN);
        }
        turns.step.release(1);
    }
}

/// Returns whether the map is there so soon that reading the log for an index would not help.
fn is_almost_read(progress: &OpeningProgress) -> bool {
    let (done, all) = progress.bytes();
    3 * done > 2 * all
}

struct Paced {
    map: OpeningMap,
    device: Rc<dyn BlockDevice>,
}

impl BlockDevice for Paced {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        let (map, io) = (self.map.clone(), self.device.start(request));
        rt::spawn(async move {
            let result = io.await;
            map.turn().await;
            done.complete(result);
        });
    }
}
