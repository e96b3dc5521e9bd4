//! Seeded clients: each lane keeps one operation in flight on one volume, and reports to the model.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, BlockDeviceExt, ErrorKind, Op, Result};
use forebay_io::rt;
use forebay_io::sim::{Rng, Stopper};
use forebay_io::sync::WaitList;

use crate::model::{Intent, Model};
use crate::stack::Running;
use crate::stamp::SECTOR_BYTES;

/// Weights of the kinds of operations.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// Reads.
    pub read: u64,
    /// Writes without FUA.
    pub write: u64,
    /// Writes with FUA.
    pub fua: u64,
    /// Flushes.
    pub flush: u64,
    /// Discards.
    pub discard: u64,
    /// Write-zeroes, one in four with FUA.
    pub zeroes: u64,
    /// Calls of [`Running::control`].
    pub control: u64,
    /// Idle time for background work: up to 20 ms, or to seconds.
    pub pause: u64,
}

impl Default for Mix {
    fn default() -> Self {
        Self {
            read: 24,
            write: 40,
            fua: 5,
            flush: 10,
            discard: 3,
            zeroes: 3,
            control: 0,
            pause: 2,
        }
    }
}

/// Concurrent reads of a volume while everything is read. A read that must wait delays no other.
const READERS: usize = 3;

/// One action of a client.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// Reads this many KiB from this KiB on.
    Read(u64, u64),
    /// Writes this many KiB from this KiB on.
    Write(u64, u64),
    /// Makes this many KiB from this KiB on read as zeroes.
    Zero(u64, u64),
    /// Flushes.
    Flush,
    /// [`Running::control`] with this draw.
    Control(u64),
    /// Does nothing for this many milliseconds.
    Pause(u64),
}

/// The actions of the clients of one process.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// If not empty, one client of the first volume does this, and no other runs.
    pub script: &'static [Step],
    /// Operations in flight at once on each volume.
    pub lanes: usize,
    /// Operations of each lane.
    pub operations: usize,
    /// Kinds of operations.
    pub mix: Mix,
    /// Largest read or write, bytes.
    pub largest_bytes: u64,
}

/// State that all clients of a process share.
pub(crate) struct Clients {
    pub(crate) model: Rc<RefCell<Model>>,
    pub(crate) stopper: Stopper,
    pub(crate) failure: Rc<RefCell<Option<String>>>,
    /// Whether operations may fail.
    pub(crate) errors_allowed: bool,
}

impl Clients {
    /// Records the first violation and ends the run.
    pub(crate) fn fail(&self, message: String) {
        if !self.stopper.is_stopped() {
            self.failure.borrow_mut().get_or_insert(message);
            self.stopper.stop();
        }
    }

    /// Whether the run is over. Events after that do not count.
    fn is_over(&self) -> bool {
        self.stopper.is_stopped()
    }

    /// Runs one operation and reports it to the model.
    pub(crate) async fn perform(
        &self,
        volume: usize,
        device: &Rc<dyn BlockDevice>,
        intent: Intent,
    ) {
        let (ticket, request) = self.model.borrow_mut().submit(volume, intent);
        let buf = request.buf.clone();
        let result = device.start(request).await;
        if self.is_over() {
            return std::future::pending().await;
        }
        if let Err(error) = &result
            && !self.errors_allowed
            && !self.model.borrow_mut().names_rot(&ticket, error)
        {
            self.fail(format!(
                "volume {volume}: {intent:?} failed: {}",
                error.report()
            ));
        }
        let checked = self.model.borrow_mut().end(&ticket, &result, buf.as_ref());
        if let Err(violation) = checked {
            self.fail(violation);
        }
    }

    /// Reads every sector of every volume, in pieces of several sizes, in seeded order, some
    /// concurrently.
    pub(crate) async fn verify(self: &Rc<Self>, volumes: &[Rc<dyn BlockDevice>], rng: &Rng) {
        let left = Rc::new((Cell::new(volumes.len() * READERS), WaitList::new()));
        for (volume, device) in volumes.iter().enumerate() {
            let size = self.model.borrow().volume_bytes(volume);
            let mut pieces = Vec::new();
            let mut offset = 0;
            while offset < size {
                let len = (SECTOR_BYTES as u64)
                    .max(1 << (9 + rng.below(8)))
                    .min(size - offset);
                pieces.push((offset, len));
                offset += len;
            }
            for last in (1..pieces.len()).rev() {
                pieces.swap(last, rng.index(last + 1));
            }
            let pieces = Rc::new(RefCell::new(pieces));
            for _ in 0..READERS {
                let (clients, device) = (Rc::clone(self), Rc::clone(device));
                let (pieces, left) = (Rc::clone(&pieces), Rc::clone(&left));
                rt::spawn(async move {
                    loop {
                        let next = pieces.borrow_mut().pop();
                        let Some((offset, len)) = next else { break };
                        let op = Op::Read;
                        let intent = Intent { op, offset, len };
                        clients.perform(volume, &device, intent).await;
                    }
                    left.0.set(left.0.get() - 1);
                    left.1.wake_all();
                });
            }
        }
        left.1.until(|| left.0.get() == 0).await;
        // An error names one range, though others of the same read may have rotted, too.
        let unfound = self.model.borrow().unfound_rot();
        for range in unfound {
            let intent = Intent {
                op: Op::Read,
                offset: range.offset,
                len: range.len,
            };
            self.perform(range.volume, &volumes[range.volume], intent)
                .await;
        }
    }

    async fn play<R: Running>(&self, running: &R, script: &[Step]) {
        const KIB: u64 = 1024;
        let device = &running.volumes()[0];
        for step in script {
            let (op, offset, len) = match *step {
                Step::Read(at, len) => (Op::Read, at * KIB, len * KIB),
                Step::Write(at, len) => (Op::Write { fua: false }, at * KIB, len * KIB),
                Step::Zero(at, len) => {
                    let zeroes = Op::WriteZeroes {
                        fua: false,
                        unmap: false,
                    };
                    (zeroes, at * KIB, len * KIB)
                }
                Step::Flush => (Op::Flush, 0, 0),
                Step::Control(draw) => {
                    self.controlled(running.control(0, draw).await);
                    continue;
                }
                Step::Pause(ms) => {
                    rt::sleep(Duration::from_millis(ms)).await;
                    continue;
                }
            };
            self.perform(0, device, Intent { op, offset, len }).await;
        }
    }

    fn controlled(&self, result: Result<()>) {
        if let Err(error) = result
            && !self.errors_allowed
            && !(error.kind() == ErrorKind::Corrupt && self.model.borrow().has_rot())
        {
            self.fail(format!("control: {}", error.report()));
        }
    }

    /// Plays the script, or runs all lanes of all volumes to their end.
    pub(crate) async fn work<R: Running>(self: &Rc<Self>, running: &Rc<R>, plan: Plan, seed: u64) {
        if !plan.script.is_empty() {
            return self.play(running.as_ref(), plan.script).await;
        }
        // Two connections to each volume, which the lanes share.
        let (first, second) = (running.volumes(), running.volumes());
        let left = Rc::new((Cell::new(first.len() * plan.lanes), WaitList::new()));
        for (volume, connections) in first.iter().zip(&second).enumerate() {
            for lane in 0..plan.lanes {
                let device = match lane % 2 {
                    0 => connections.0,
                    _ => connections.1,
                };
                let label = (volume * plan.lanes + lane) as u64 + 1;
                let rng = Rng::labelled(seed, label);
                let size = self.model.borrow().volume_bytes(volume);
                let (clients, device) = (Rc::clone(self), Rc::clone(device));
                let (running, left) = (Rc::clone(running), Rc::clone(&left));
                rt::spawn(async move {
                    let mut places = Places::new(&rng, size, plan.largest_bytes);
                    for _ in 0..plan.operations {
                        match draw(&plan.mix, &rng) {
                            Some(op) => {
                                let intent = places.intent(op, &rng);
                                clients.perform(volume, &device, intent).await;
                            }
                            None if rng
                                .chance(plan.mix.pause, plan.mix.pause + plan.mix.control) =>
                            {
                                let most_us = [20_000, 20_000, 5_000_000, 10_000_000][rng.index(4)];
                                rt::sleep(Duration::from_micros(rng.below(most_us))).await;
                            }
                            None => {
                                clients.controlled(running.control(volume, rng.draw()).await);
                            }
                        }
                    }
                    left.0.set(left.0.get() - 1);
                    left.1.wake_all();
                });
            }
        }
        left.1.until(|| left.0.get() == 0).await;
    }
}

/// Draws a kind of operation. `None` is a pause or a control step.
fn draw(mix: &Mix, rng: &Rng) -> Option<Op> {
    let kinds = [
        (mix.read, Op::Read),
        (mix.write, Op::Write { fua: false }),
        (mix.fua, Op::Write { fua: true }),
        (mix.flush, Op::Flush),
        (mix.discard, Op::Discard),
        (
            mix.zeroes,
            Op::WriteZeroes {
                fua: rng.chance(1, 4),
                unmap: rng.chance(1, 2),
            },
        ),
    ];
    let total: u64 = kinds.iter().map(|(weight, _)| weight).sum();
    let mut at = rng.below(total + mix.control + mix.pause);
    for (weight, op) in kinds {
        if at < weight {
            return Some(op);
        }
        at -= weight;
    }
    None
}

/// Places of a lane's operations. Most fall into a small hot set that all lanes share, so that they
/// rewrite blocks, overlap in flight, and evict each other's blocks. Some are sequential.
struct Places {
    size: u64,
    largest: u64,
    next: u64,
}

/// Sectors of one hot spot, and the number of spots.
const HOT_SECTORS: u64 = 16;
const HOT_SPOTS: u64 = 6;

impl Places {
    fn new(rng: &Rng, size: u64, largest: u64) -> Self {
        Self {
            size,
            largest,
            next: rng.below(size / 4096) * 4096,
        }
    }

    fn intent(&mut self, op: Op, rng: &Rng) -> Intent {
        const SECTOR: u64 = SECTOR_BYTES as u64;
        if op == Op::Flush {
            return Intent {
                op,
                offset: 0,
                len: 0,
            };
        }
        let sectors = self.size / SECTOR;
        let most = self.largest / SECTOR;
        let len = match rng.below(10) {
            0..3 => 1,
            3..6 => 1 + rng.below(HOT_SECTORS),
            6..9 => 8 * (1 + rng.below(4)),
            _ => 8 + rng.below(most.saturating_sub(8).max(1)),
        };
        let len = len.min(most).min(sectors);
        let align = if rng.chance(1, 2) { 8 } else { 1 };
        let first = match rng.below(10) {
            0..6 => {
                let spot = rng.below(HOT_SPOTS) * (sectors / HOT_SPOTS);
                spot + rng.below(HOT_SECTORS) / align * align
            }
            6..9 => rng.below(sectors) / align * align,
            _ => self.next / SECTOR,
        };
        let first = first.min(sectors - len);
        self.next = (first + len) * SECTOR % self.size;
        Intent {
            op,
            offset: first * SECTOR,
            len: len * SECTOR,
        }
    }
}
