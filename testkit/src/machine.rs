//! Simulated devices, a stack on them, and the model: one machine through its lives and crashes.

use std::cell::RefCell;
use std::rc::Rc;

use forebay_block::{Buf, Op};
use forebay_io::rt;
use forebay_io::sim::{Keep, Outcome, Rng, World};

use crate::model::{Intent, Loss, Model};
use crate::stack::{Damage, Decay, Process, Running, Stack};
use crate::workload::{Clients, Plan};

/// Bytes of the memory that outlives a process.
pub const JOURNAL_BYTES: usize = 64 << 10;

/// End of a life, and the outcome of everything that was not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// Power is lost. Of the unflushed writes, these survive.
    Power(Keep),
    /// The process dies. The seed decides which operations in flight arrive.
    Process(u64),
}

/// The actions of a process in its life.
#[derive(Clone, Copy, Debug)]
pub struct Life {
    /// Decides the order of tasks and all actions of clients.
    pub seed: u64,
    /// Whether to read everything first.
    pub verify: bool,
    /// Actions of clients after that, if any.
    pub work: Option<Plan>,
    /// Whether to shut down cleanly at the end.
    pub close: bool,
    /// Whether devices fail, so that operations and the opening may fail, too.
    pub errors_allowed: bool,
}

/// How a life ended without a violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It completed all actions.
    Finished,
    /// The world stopped. [`Machine::crash`] must follow.
    Crashed,
    /// The stack did not open, or did not close, because of an injected failure.
    Refused,
}

/// One machine.
pub struct Machine<S: Stack> {
    stack: Rc<S>,
    /// The simulated devices.
    pub world: World,
    journal: Buf,
    boot: u64,
    model: Rc<RefCell<Model>>,
}

impl<S: Stack> std::fmt::Debug for Machine<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Machine")
            .field("world", &self.world)
            .field("boot", &self.boot)
            .finish_non_exhaustive()
    }
}

impl<S: Stack> Machine<S> {
    /// Creates fresh devices and formats them.
    ///
    /// # Errors
    /// Returns a description if formatting fails.
    pub fn new(stack: &Rc<S>, seed: u64) -> Result<Self, String> {
        let world = stack.world(seed);
        let machine = Self {
            stack: Rc::clone(stack),
            world,
            journal: Buf::zeroed(JOURNAL_BYTES),
            boot: 1,
            model: Rc::new(RefCell::new(Model::new(
                stack.promise(),
                &stack.volume_bytes(),
            ))),
        };
        let (stack, process) = (Rc::clone(stack), machine.process());
        let formatted = machine
            .world
            .run(seed, async move { stack.format(&process).await });
        match formatted {
            Outcome::Finished(Ok(())) => Ok(machine),
            Outcome::Finished(Err(error)) => Err(format!("format: {}", error.report())),
            Outcome::Crashed => Err("format: the world stopped".to_owned()),
            Outcome::Deadlock(why) => Err(format!("format: {why}")),
        }
    }

    /// Returns a copy, to try another end on.
    #[must_use]
    pub fn fork(&self) -> Self {
        let journal = Buf::scratch(JOURNAL_BYTES);
        journal.copy_from_buf(&self.journal);
        Self {
            stack: Rc::clone(&self.stack),
            world: self.world.fork(),
            journal,
            boot: self.boot,
            model: Rc::new(RefCell::new(self.model.borrow().clone())),
        }
    }

    /// Number of power losses plus one.
    pub(crate) const fn boot(&self) -> u64 {
        self.boot
    }

    /// Returns the state that a new process finds.
    #[must_use]
    pub fn process(&self) -> Process {
        let mut boot_id = [0xb0; 16];
        boot_id[..8].copy_from_slice(&self.boot.to_le_bytes());
        Process {
            disks: self.world.disks().to_vec(),
            memories: self.world.memories().to_vec(),
            stopper: self.world.stopper(),
            journal: self.journal.clone(),
            boot_id,
        }
    }

    /// Lives one life, from opening the stack to its end.
    ///
    /// # Errors
    /// Returns the description of a violation.
    pub fn live(&self, life: Life) -> Result<End, String> {
        let failure = Rc::new(RefCell::new(None));
        let clients = Rc::new(Clients {
            model: Rc::clone(&self.model),
            stopper: self.world.stopper(),
            failure: Rc::clone(&failure),
            errors_allowed: life.errors_allowed,
        });
        let (stack, process) = (Rc::clone(&self.stack), self.process());
        let outcome = self
            .world
            .run(life.seed, run_life(stack, process, clients, life));
        if let Some(violation) = failure.take() {
            return Err(violation);
        }
        // Of an opening that was cut off.
        for lost in self.stack.take_lost() {
            self.model.borrow_mut().lose(lost);
        }
        match outcome {
            Outcome::Finished(end) => {
                // No operation of a client is in flight. The stack may still have some of its own.
                self.model.borrow_mut().crash(Loss::Process);
                Ok(end)
            }
            Outcome::Crashed => Ok(End::Crashed),
            Outcome::Deadlock(why) => Err(why.to_owned()),
        }
    }

    pub(crate) fn hides_failed_writes(&self) -> bool {
        self.stack.hides_failed_writes()
    }

    /// The model of the volumes' contents.
    #[must_use]
    pub fn model(&self) -> std::cell::RefMut<'_, Model> {
        self.model.borrow_mut()
    }

    /// Lets something rot that `draw` names, between two lives. Returns the damage.
    ///
    /// # Errors
    /// Returns a description if the stack cannot examine its own media.
    pub fn rot(&self, decay: Decay, draw: u64) -> Result<Damage, String> {
        let (stack, process) = (Rc::clone(&self.stack), self.process());
        let run = async move { stack.rot(&process, decay, draw).await };
        let damage = match self.world.run(draw, run) {
            Outcome::Finished(Ok(damage)) => damage,
            ended => return Err(format!("no place for rot was found: {ended:?}")),
        };
        let mut model = self.model.borrow_mut();
        damage.rotted.iter().for_each(|range| model.rot(*range));
        damage.lost.iter().for_each(|range| model.damage(*range));
        Ok(damage)
    }

    /// Clears the memory that outlives a process.
    pub fn lose_journal(&mut self) {
        self.journal = Buf::zeroed(JOURNAL_BYTES);
    }

    /// Ends the process or the power, after a life that crashed or one that finished.
    pub fn crash(&mut self, crash: Crash) {
        match crash {
            Crash::Power(keep) => {
                self.world.crash_power(keep);
                self.model.borrow_mut().crash(Loss::Power);
                self.journal = Buf::zeroed(JOURNAL_BYTES);
                self.boot += 1;
            }
            Crash::Process(seed) => {
                self.world.crash_process(seed);
                self.model.borrow_mut().crash(Loss::Process);
            }
        }
    }
}

async fn run_life<S: Stack>(
    stack: Rc<S>,
    process: Process,
    clients: Rc<Clients>,
    life: Life,
) -> End {
    let opened = stack.open(&process).await;
    for lost in stack.take_lost() {
        clients.model.borrow_mut().lose(lost);
    }
    let running = match opened {
        Ok(running) => Rc::new(running),
        Err(_) if life.errors_allowed => return End::Refused,
        Err(error) => {
            clients.fail(format!("open: {}", error.report()));
            return End::Refused;
        }
    };
    let rng = Rng::labelled(life.seed, 0);
    if life.verify {
        clients.verify(&running.volumes(), &rng).await;
    } else if life.work.is_none() {
        // Only the opening, and requests that are served meanwhile.
        let (readers, volumes) = (Rc::clone(&clients), running.volumes());
        let opened = running.opened();
        let mut opened = std::pin::pin!(opened);
        rt::spawn(async move { readers.verify(&volumes, &rng).await });
        if let Err(error) = opened.as_mut().await {
            if !life.errors_allowed {
                clients.fail(format!("open: {}", error.report()));
            }
            return End::Refused;
        }
        return End::Finished;
    }
    if let Some(plan) = life.work {
        clients.work(&running, plan, rng.draw()).await;
    }
    if !life.close {
        return End::Finished;
    }
    // For the model, a clean end is a flush of every volume.
    let flush = Intent {
        op: Op::Flush,
        offset: 0,
        len: 0,
    };
    let count = clients.model.borrow().volume_count();
    let tickets: Vec<_> = (0..count)
        .map(|volume| clients.model.borrow_mut().submit(volume, flush).0)
        .collect();
    let result = running.close().await;
    if clients.stopper.is_stopped() {
        return std::future::pending().await;
    }
    for ticket in &tickets {
        let ended = clients.model.borrow_mut().end(ticket, &result, None);
        debug_assert!(ended.is_ok(), "a flush returns no data");
    }
    match result {
        Ok(()) => End::Finished,
        Err(_) if life.errors_allowed => End::Refused,
        Err(error) => {
            clients.fail(format!("close: {}", error.report()));
            End::Refused
        }
    }
}
