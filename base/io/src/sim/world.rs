//! The world of a simulated process: its devices, its clock, and when it ends.

use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_block::{BlockDevice, ErrorKind};

use super::cut::Stop;
use super::disk::{DiskConfig, SimDisk};
use super::inline::Inline;
use super::media::Part;
use super::pmem::{SimPmem, Survival};
use super::rng::Rng;
use super::shared::{Shared, tracing_enabled};
use crate::rt::Executor;

/// Selection of the unflushed writes that survive power loss. Writes are counted from zero over all
/// devices in the order of their submission. The undurable words of memories follow them.
/// [`World::unflushed`] says how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Nothing.
    None,
    /// Everything.
    All,
    /// Only the i-th.
    Only(usize),
    /// All but the i-th.
    AllBut(usize),
    /// All on one device (in the order in which devices were added, memories behind them), nothing
    /// on the others.
    Disk(usize),
    /// A seeded subset, each write wholly, not at all, or torn between logical blocks; of memories,
    /// word by word.
    Random(u64),
    /// Of each write a seeded half of its logical blocks; of memories, word by word.
    Torn(u64),
}

/// End of a run.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// The future came to its end.
    Finished(T),
    /// The run was cut off, by its [`Stop`] or a [`Stopper`].
    Crashed,
    /// It would never have ended; why.
    Deadlock(&'static str),
}

/// Virtual time after which a run counts as deadlocked.
const TIME_LIMIT: Duration = Duration::from_secs(3600);
/// Polls after which a run counts as deadlocked.
const POLL_LIMIT: u64 = 5_000_000;

/// A set of simulated devices and the process that uses them.
pub struct World {
    seed: u64,
    shared: Rc<Shared>,
    disks: Vec<SimDisk>,
    memories: Vec<Arc<SimPmem>>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World")
            .field("seed", &self.seed)
            .field("disks", &self.disks)
            .finish_non_exhaustive()
    }
}

/// A process that panics: its tasks are not dropped. Their objects are in no state for that, and a
/// second panic would end the program of a test that expects the first.
struct Left(Rc<Executor>);

impl Drop for Left {
    fn drop(&mut self) {
        if std::thread::panicking() {
            Executor::leak(Rc::clone(&self.0));
        }
    }
}

impl World {
    /// A world without devices.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            shared: Rc::new(Shared::new()),
            disks: Vec::new(),
            memories: Vec::new(),
        }
    }

    /// Adds a device.
    pub fn add_disk(&mut self, config: &DiskConfig) -> SimDisk {
        let rng = Rng::labelled(self.seed, self.disks.len() as u64 + 1);
        let disk = SimDisk::new(Rc::clone(&self.shared), config, rng);
        self.disks.push(disk.clone());
        disk
    }

    /// The devices in the order in which they were added.
    #[must_use]
    pub fn disks(&self) -> &[SimDisk] {
        &self.disks
    }

    /// Adds byte-addressable memory, of zeroes.
    ///
    /// # Panics
    /// As [`SimPmem::new`].
    pub fn add_memory(&mut self, size_bytes: u64) -> Arc<SimPmem> {
        let memory = SimPmem::in_world(size_bytes, Arc::clone(self.shared.cut()));
        self.memories.push(Arc::clone(&memory));
        memory
    }

    /// The memories in the order in which they were added.
    #[must_use]
    pub fn memories(&self) -> &[Arc<SimPmem>] {
        &self.memories
    }

    /// A copy of the world as it is, with its unflushed writes, to try another end on. Faults and
    /// stops are not copied.
    ///
    /// # Panics
    /// While a run is under way.
    #[must_use]
    pub fn fork(&self) -> Self {
        let shared = Rc::new(self.shared.fork());
        Self {
            seed: self.seed,
            disks: (self.disks.iter())
                .map(|disk| disk.fork(Rc::clone(&shared)))
                .collect(),
            memories: (self.memories.iter())
                .map(|memory| memory.fork(Arc::clone(shared.cut())))
                .collect(),
            shared,
        }
    }

    /// Returns whether two worlds would run the same from now on: their devices have equal contents
    /// and equal pending writes. Faults and stops are not compared.
    ///
    /// # Panics
    /// If both are one world with memories.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        let (ours, theirs) = (&self.shared, &other.shared);
        let disks = || self.disks.iter().zip(&other.disks);
        let memories = || self.memories.iter().zip(&other.memories);
        self.seed == other.seed
            && ours.last_id() == theirs.last_id()
            && ours.is_stopped() == theirs.is_stopped()
            && self.disks.len() == other.disks.len()
            && self.memories.len() == other.memories.len()
            && disks().all(|(one, other)| one.is_like(other))
            && memories().all(|(one, other)| one.is_like(other))
    }

    /// Sets where the next run is cut off, and counts I/Os from zero.
    pub fn set_stop(&self, stop: Option<Stop>) {
        self.shared.cut().set(stop);
    }

    /// A handle by which something inside a run can see or cause its end.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        Stopper(Rc::clone(&self.shared))
    }

    /// Write-like I/Os submitted since the stop was set.
    #[must_use]
    pub fn io_count(&self) -> u64 {
        self.shared.cut().io_count()
    }

    /// A number that is the same for two runs if and, nearly, only if they did the same I/O at the
    /// same times.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.shared.digest()
    }

    /// Runs a process until `future` ends or the world stops. Tasks that are left are dropped.
    /// After a crash, [`World::crash_power`] or [`World::crash_process`] must decide which
    /// unflushed writes survive. After an end, operations still in flight end as in process death.
    pub fn run<T: 'static>(
        &self,
        seed: u64,
        future: impl Future<Output = T> + 'static,
    ) -> Outcome<T> {
        assert!(
            !self.shared.is_stopped(),
            "a crash must be decided before the next run"
        );
        let executor = Executor::simulated(seed);
        let _left = Left(Rc::clone(&executor));
        let entered = executor.enter();
        let result = Rc::new(RefCell::new(None));
        let slot = Rc::clone(&result);
        executor.spawn(async move {
            let value = future.await;
            *slot.borrow_mut() = Some(value);
        });
        let outcome = self.drive(&executor, &result);
        executor.clear();
        for disk in &self.disks {
            for done in disk.drain() {
                done.complete(Err(ErrorKind::ShuttingDown.into()));
            }
        }
        for done in self.shared.take_abandoned() {
            done.complete(Err(ErrorKind::ShuttingDown.into()));
        }
        executor.clear();
        drop(entered);
        if matches!(outcome, Outcome::Finished(_)) {
            self.crash_process(seed);
        }
        outcome
    }

    fn drive<T>(&self, executor: &Rc<Executor>, result: &RefCell<Option<T>>) -> Outcome<T> {
        let mut polls = 0;
        loop {
            while executor.collect() {
                polls += 1;
                if self.shared.cut().stop_if(Stop::BeforePoll(polls)) {
                    return Outcome::Crashed;
                }
                executor.run_ready(1);
                if self.shared.is_stopped() {
                    return Outcome::Crashed;
                }
                if let Some(value) = result.borrow_mut().take() {
                    return Outcome::Finished(value);
                }
                if polls > POLL_LIMIT {
                    return Outcome::Deadlock("tasks run and run, and the work does not end");
                }
            }
            let Some(next) = executor.next_timer() else {
                return Outcome::Deadlock("every task waits, and no timer is set");
            };
            if next > TIME_LIMIT {
                return Outcome::Deadlock("an hour has passed, and the work has not ended");
            }
            executor.advance(next);
        }
    }

    /// The number of writes that power loss may take.
    #[must_use]
    pub fn unflushed(&self) -> usize {
        let words = self.memories.iter().map(|memory| memory.undurable_words());
        self.unflushed_ids().len() + words.sum::<usize>()
    }

    fn unflushed_ids(&self) -> Vec<u64> {
        let mut ids = Vec::new();
        for disk in &self.disks {
            ids.extend(disk.media().borrow().unflushed());
        }
        ids.sort_unstable();
        ids
    }

    /// Power is lost and comes back: every device forgets its unflushed writes but those of `keep`.
    ///
    /// # Panics
    /// If `keep` counts past the unflushed writes.
    pub fn crash_power(&self, keep: Keep) {
        let ids = self.unflushed_ids();
        if tracing_enabled() {
            eprintln!(
                "power is lost: of {} unflushed writes keep {keep:?}",
                ids.len()
            );
        }
        let seed = match keep {
            Keep::Random(seed) | Keep::Torn(seed) => seed,
            _ => 0,
        };
        let rng = Rng::labelled(self.seed, seed);
        let density = rng.below(9);
        for (index, disk) in self.disks.iter().enumerate() {
            disk.media().borrow_mut().lose_power(&rng, |id| match keep {
                Keep::None => None,
                Keep::All => Some(Part::All),
                // Behind the writes come the words of memories.
                Keep::Only(one) => (ids.get(one) == Some(&id)).then_some(Part::All),
                Keep::AllBut(one) => (ids.get(one) != Some(&id)).then_some(Part::All),
                Keep::Disk(one) => (index == one).then_some(Part::All),
                Keep::Random(_) => match rng.below(3) {
                    0 => Some(Part::Some(rng.below(9))),
                    _ => rng.chance(density, 8).then_some(Part::All),
                },
                Keep::Torn(_) => Some(Part::Some(4)),
            });
        }
        let mut words_before = ids.len();
        for (index, memory) in self.memories.iter().enumerate() {
            let words = memory.undurable_words();
            let here = |one: usize| one.checked_sub(words_before).filter(|word| *word < words);
            memory.lose(match keep {
                Keep::None => Survival::None,
                Keep::All => Survival::All,
                Keep::Only(one) => here(one).map_or(Survival::None, Survival::Only),
                Keep::AllBut(one) => here(one).map_or(Survival::All, Survival::AllBut),
                Keep::Disk(one) if one == self.disks.len() + index => Survival::All,
                Keep::Disk(_) => Survival::None,
                Keep::Random(_) | Keep::Torn(_) => Survival::Random(rng.draw()),
            });
            words_before += words;
        }
        self.restart();
    }

    /// Ends the process. Its devices survive and finish operations in flight, or not, as `seed`
    /// says. The same holds for its stores in progress to memories. The kernel makes earlier stores
    /// durable when it ends the process.
    pub fn crash_process(&self, seed: u64) {
        if tracing_enabled() {
            eprintln!("the process ends");
        }
        for (index, disk) in self.disks.iter().enumerate() {
            let rng = Rng::labelled(self.seed ^ seed, index as u64);
            disk.media().borrow_mut().lose_process(&rng);
        }
        for (index, memory) in (self.disks.len()..).zip(&self.memories) {
            let rng = Rng::labelled(self.seed ^ seed, index as u64);
            memory.lose(Survival::Random(rng.draw()));
        }
        self.restart();
    }

    fn restart(&self) {
        self.shared.cut().restart();
    }
}

/// Sees and causes the end of a run from inside it.
#[derive(Clone)]
pub struct Stopper(Rc<Shared>);

impl std::fmt::Debug for Stopper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Stopper")
            .field(&self.0.is_stopped())
            .finish()
    }
}

impl Stopper {
    /// Returns whether the run is over. Actions of a task before its next wait then have no effect.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.0.is_stopped()
    }

    /// Ends the run when the current task next waits.
    pub fn stop(&self) {
        self.0.cut().stop();
    }

    /// Wraps a device that completes inline, so that it delivers no completion after the end.
    #[must_use]
    pub fn silences(&self, device: Rc<dyn BlockDevice>) -> Rc<dyn BlockDevice> {
        Rc::new(Inline::new(Rc::clone(&self.0), device))
    }
}
