//! A job on a machine between two lives, cut off at each of its I/Os.

use std::future::Future;

use forebay_io::sim::{Outcome, Stop};

use crate::depth::Depth;
use crate::machine::Machine;
use crate::outcome::choices;
use crate::stack::{Process, Stack};

impl<S: Stack> Machine<S> {
    /// Runs a job to its end.
    ///
    /// # Errors
    /// Returns a description if it fails.
    pub fn run<T: 'static, F>(&self, seed: u64, job: impl Fn(Process) -> F) -> Result<T, String>
    where
        F: Future<Output = Result<T, String>> + 'static,
    {
        self.world.set_stop(None);
        match self.world.run(seed, job(self.process())) {
            Outcome::Finished(result) => result,
            Outcome::Crashed => Err("the world stopped".to_owned()),
            Outcome::Deadlock(why) => Err(why.to_owned()),
        }
    }

    /// Cuts a job off before and after each of its writes and flushes, and tries every outcome that
    /// `depth` asks for. `then` gets the machine of each outcome. Returns the number of outcomes.
    ///
    /// No crash comes before the first of them: the machine may not survive it, with or without the
    /// job. For example, one copy of a superblock has rotted, and the power takes the
    /// other one, which a killed process left in the device's cache.
    ///
    /// # Errors
    /// Returns the first error of `then` or of the job, with the point of the cut.
    pub fn cut_off<F>(
        &self,
        seed: u64,
        depth: Depth,
        job: impl Fn(Process) -> F,
        then: impl Fn(Self) -> Result<(), String>,
    ) -> Result<u64, String>
    where
        F: Future<Output = Result<(), String>> + 'static,
    {
        let mut outcomes = 0;
        for nth in (1..).step_by(depth.stride.max(1) as usize) {
            for stop in [Stop::BeforeIo(nth), Stop::AfterIo(nth)] {
                if stop == Stop::BeforeIo(1) {
                    continue;
                }
                let cut = self.fork();
                cut.world.set_stop(Some(stop));
                match cut.world.run(seed, job(cut.process())) {
                    Outcome::Crashed => {}
                    Outcome::Finished(result) => return result.map(|()| outcomes),
                    Outcome::Deadlock(why) => return Err(format!("{stop:?}: {why}")),
                }
                for crash in choices(&cut, depth, seed ^ nth) {
                    let mut machine = cut.fork();
                    machine.crash(crash);
                    then(machine).map_err(|what| format!("{stop:?}, {crash:?}: {what}"))?;
                    outcomes += 1;
                }
            }
        }
        unreachable!("the loop ends when the job does")
    }
}
