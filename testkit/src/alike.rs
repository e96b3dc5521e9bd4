//! Crashes with equal outcomes.
//!
//! The choice of surviving writes ignores their contents, so many outcomes of one crash are equal.
//! A device without unflushed writes, for example, keeps all and none. One seed draws the run after
//! all of them, so equal outcomes continue equally. One of them is run.

use forebay_io::sim::Stop;

use crate::case::Case;
use crate::crash::{Failure, Target};
use crate::depth::Depth;
use crate::machine::{Crash, End, Machine};
use crate::outcome::choices;
use crate::stack::Stack;

impl<S: Stack> Machine<S> {
    /// Whether two copies of a crashed machine hold the same. Journal, model and boot follow from
    /// the kind of the crash.
    fn is_like(&self, other: &Self) -> bool {
        self.boot() == other.boot() && self.world.is_like(&other.world)
    }

    /// Applies each of `crashes` to a copy. Returns the copies that differ from all earlier ones,
    /// and the number of the others.
    pub(crate) fn crashed_by(&self, crashes: &[Crash]) -> (Vec<(Crash, Self)>, u64) {
        let mut left: Vec<(Crash, Self)> = Vec::new();
        for &crash in crashes {
            let machine = self.crashed(crash);
            if !left.iter().any(|(_, other)| other.is_like(&machine)) {
                left.push((crash, machine));
            }
        }
        let alike = (crashes.len() - left.len()) as u64;
        (left, alike)
    }

    fn crashed(&self, crash: Crash) -> Self {
        let mut machine = self.fork();
        machine.world.set_stop(None);
        machine.crash(crash);
        machine
    }
}

impl<S: Stack> Target<S> {
    /// Cuts the workload of `seed` off as [`Target::sweep`] does, and runs the outcomes that the
    /// sweep leaves out. Each must continue as the equal one did, to the last operation of a
    /// device. Returns the number of outcomes left out.
    ///
    /// # Errors
    /// Returns an outcome that continues differently, or the first violation.
    pub fn alike(&self, seed: u64, depth: Depth) -> Result<u64, Failure> {
        let mut alike = 0;
        let case = |stop, crash| Case::Sweep { seed, stop, crash };
        let stop = Stop::BeforeIo(0);
        let fresh = self.within(case(stop, Crash::Process(0)), || {
            Machine::new(&self.stack, seed)
        })?;
        for nth in (1..).step_by(depth.stride.max(1) as usize) {
            let stop = Stop::BeforeIo(nth);
            let crashed = fresh.fork();
            crashed.world.set_stop(Some(stop));
            let end = self.within(case(stop, Crash::Process(0)), || {
                crashed.live(self.first_life(seed))
            })?;
            if end != End::Crashed {
                break;
            }
            let mut gone: Vec<(Machine<S>, u64)> = Vec::new();
            for crash in choices(&crashed, depth, seed ^ nth) {
                self.within(case(stop, crash), || {
                    let (before, mut machine) = (crashed.crashed(crash), crashed.crashed(crash));
                    self.recover_from(&mut machine, crash, seed ^ nth, false)?;
                    let digest = machine.world.digest();
                    match gone.iter().find(|(other, _)| other.is_like(&before)) {
                        Some((_, other)) if *other != digest => {
                            let message = "an outcome that counts as equal continues differently";
                            return Err(message.into());
                        }
                        Some(_) => alike += 1,
                        None => gone.push((before, digest)),
                    }
                    Ok(())
                })?;
            }
        }
        Ok(alike)
    }
}
