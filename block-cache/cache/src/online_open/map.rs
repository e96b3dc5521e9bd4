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

use super::log_index::Sketch;
use crate::failpoints::{Fault, planted};
use crate::options::{Devices, Durability};
use forebay_metadata::replay::Progress as OpeningProgress;

/// Time that the opening and the reads take in turns while there are reads.
const TURN: Duration = Duration::from_millis(8);
/// Time of the first turn, for reads that waited for the index.
const FIRST_TURN: Duration = Duration::from_millis(400);
/// How often it looks whether there are.
const LOOK: Duration = Duration::from_millis(1);

/// Answers reads of possibly dirty data while a cache is being opened. The caller gives it to the
/// opening ([`CacheOptions::early`](crate::CacheOptions::early)) and to the volumes that are served
/// meanwhile ([`EarlyVolume`](crate::EarlyVolume)). Clones are handles to the same map.
#[derive(Clone, Default)]
pub struct EarlyMap(Rc<Inner>);

#[derive(Default)]
struct Inner {
    state: RefCell<State>,
    changed: WaitList,
    /// The log is being read for the sketch.
    drawing: Cell<bool>,
    /// Reads that are being answered, or wait for the sketch.
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
    There(Rc<Sketch>),
    /// Gives no more answers, or never gave any.
    Closed,
}

/// Whose turn it is.
struct Turns {
    one: Semaphore,
    /// Until then it is the opening's; then that of reads, if there are some.
    own: Cell<Duration>,
    /// And until then it stays theirs.
    others: Cell<Duration>,
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            one: Semaphore::new(1),
            own: Cell::default(),
            others: Cell::default(),
        }
    }
}

impl fmt::Debug for EarlyMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EarlyMap")
            .field("answered", &self.answered())
            .finish_non_exhaustive()
    }
}

impl EarlyMap {
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
        let read = match self.sketch().await {
            Some(sketch) => sketch.read(volume, request, backing).await,
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

    /// The sketch, when it is there; none if there will be none.
    async fn sketch(&self) -> Option<Rc<Sketch>> {
        let inner = &self.0;
        if matches!(*inner.state.borrow(), State::Idle) {
            self.turn_to(State::Asked);
        }
        loop {
            match &*inner.state.borrow() {
                State::There(sketch) => return Some(Rc::clone(sketch)),
                State::Closed => return None,
                State::Idle | State::Asked => {}
            }
            inner.changed.wait().await;
        }
    }

    /// Stops all answers, because the opening or the cache after it is about to write. A second
    /// call has no effect.
    pub(crate) fn close(&self) {
        self.turn_to(State::Closed);
    }

    fn is_closed(&self) -> bool {
        matches!(*self.0.state.borrow(), State::Closed)
    }

    fn turn_to(&self, state: State) {
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
        let (early, devices, superblock) = (self.clone(), devices.clone(), superblock.clone());
        let progress = progress.clone();
        rt::spawn(async move {
            let inner = &early.0;
            let is_idle = || matches!(*inner.state.borrow(), State::Idle);
            inner.changed.until(|| !is_idle()).await;
            if early.is_closed() {
                return;
            }
            if is_nearly_over(&progress) {
                return early.close();
            }
            inner.drawing.set(true);
            let sketch = Sketch::draw(&devices, &superblock, (*journal).as_ref(), &boot_id).await;
            inner.drawing.set(false);
            // Those who waited go first.
            inner.turns.own.set(rt::now());
            inner.turns.others.set(rt::now() + FIRST_TURN);
            let state = match sketch {
                Some(sketch) if !early.is_closed() => State::There(Rc::new(sketch)),
                _ => State::Closed,
            };
            early.turn_to(state);
        });
    }

    /// Returns the device from which the opening must read the log. It slows the opening down in
    /// favour of waiting reads.
    pub(crate) fn paced(&self, device: &Rc<dyn BlockDevice>) -> impl BlockDevice + use<> {
        Paced {
            early: self.clone(),
            device: Rc::clone(device),
        }
    }

    /// Waits until the opening may go on: while the log is read for the sketch, and while it is the
    /// turn of reads.
    async fn turn(&self) {
        let inner = &self.0;
        let turns = &inner.turns;
        turns.one.acquire(1).await;
        inner.changed.until(|| !inner.drawing.get()).await;
        if rt::now() >= turns.own.get() {
            while inner.reading.get() > 0 && rt::now() < turns.others.get() {
                rt::sleep(LOOK).await;
            }
            turns.own.set(rt::now() + TURN);
            turns.others.set(rt::now() + 2 * TURN);
        }
        turns.one.release(1);
    }
}

/// Whether the map is there so soon that reading the log once more would not help.
fn is_nearly_over(progress: &OpeningProgress) -> bool {
    let (done, all) = progress.bytes();
    3 * done > 2 * all
}

struct Paced {
    early: EarlyMap,
    device: Rc<dyn BlockDevice>,
}

impl BlockDevice for Paced {
    fn info(&self) -> DeviceInfo {
        self.device.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        let (early, io) = (self.early.clone(), self.device.start(request));
        rt::spawn(async move {
            let result = io.await;
            early.turn().await;
            done.complete(result);
        });
    }
}
