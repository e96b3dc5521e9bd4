//! The recovery from a crash, with its checks.

use forebay_io::sim::{Keep, Rng, Stop};

use super::Target;
use crate::depth::Depth;
use crate::machine::{Crash, End, Life, Machine};
use crate::outcome::{choices, draw_crash};
use crate::stack::Stack;
use crate::workload::{Mix, Plan};

/// Depth of the crashes of random lives that are tried with several outcomes.
pub(super) const FORKS: Depth = Depth {
    singles: 2,
    subsets: 2,
    deaths: 1,
    stride: 1,
    recoveries: false,
};

impl<S: Stack> Target<S> {
    /// A life that reads everything, does a little, and ends.
    fn second_life(&self, seed: u64, close: bool) -> Life {
        Life {
            seed,
            verify: true,
            work: Some(Plan {
                script: &[],
                lanes: 1,
                operations: 5,
                mix: Mix {
                    control: 0,
                    pause: 0,
                    ..self.plan.mix
                },
                largest_bytes: self.plan.largest_bytes,
            }),
            close,
            errors_allowed: false,
        }
    }

    /// Opens the machine after a crash and checks everything. Ends it once more, cleanly or not,
    /// and repeats the check. With `power_stays` no power loss is among the ends.
    pub(crate) fn recover(
        &self,
        machine: &mut Machine<S>,
        seed: u64,
        power_stays: bool,
    ) -> Result<(), String> {
        let rng = Rng::labelled(seed, 7);
        let close = rng.chance(1, 2);
        let with = |what: &str, message: String| format!("{what}: {message}");
        machine
            .live(self.second_life(rng.draw(), close))
            .map_err(|message| with("after the crash", message))?;
        let then = if close {
            "after the crash, a recovery and a clean end"
        } else if power_stays || rng.chance(1, 2) {
            machine.crash(Crash::Process(rng.draw()));
            "after the crash, a recovery and process death"
        } else {
            machine.crash(Crash::Power(Keep::Random(rng.draw())));
            "after the crash, a recovery and power loss"
        };
        let last = Life {
            work: None,
            ..self.second_life(rng.draw(), true)
        };
        machine.live(last).map_err(|message| with(then, message))?;
        Ok(())
    }

    /// Recovers from a crash of a sweep.
    pub(crate) fn recover_from(
        &self,
        machine: &mut Machine<S>,
        crash: Crash,
        seed: u64,
        recoveries: bool,
    ) -> Result<(), String> {
        if matches!(crash, Crash::Process(_)) {
            self.lose_journal(machine, seed)?;
        }
        if recoveries {
            self.crash_recoveries(machine, &Rng::labelled(seed, 13))?;
        }
        self.recover(machine, seed, false)
    }

    /// After process death with the loss of the process journal, the stack refuses to open, or
    /// holds everything.
    pub(super) fn lose_journal(&self, dead: &Machine<S>, seed: u64) -> Result<(), String> {
        let mut machine = dead.fork();
        machine.lose_journal();
        let life = Life {
            work: None,
            close: false,
            errors_allowed: true,
            ..self.second_life(seed, false)
        };
        let lived = machine.live(life);
        lived.map_err(|message| format!("without the process journal: {message}"))?;
        Ok(())
    }

    /// Crashes the recovery from a crash at each of its I/Os. Returns the number of crashes.
    pub(super) fn crash_recoveries(&self, crashed: &Machine<S>, rng: &Rng) -> Result<u64, String> {
        let seed = rng.draw();
        for nth in 1.. {
            let machine = crashed.fork();
            machine.world.set_stop(Some(Stop::BeforeIo(nth)));
            let opening = Life {
                seed,
                verify: false,
                work: None,
                close: false,
                errors_allowed: false,
            };
            let end = machine.live(opening)?;
            if end != End::Crashed {
                return Ok(nth - 1);
            }
            machine.world.set_stop(None);
            let crashes = if self.forks {
                choices(&machine, FORKS, rng.draw())
            } else {
                vec![Crash::Process(rng.draw()), draw_crash(&machine, rng)]
            };
            for crash in crashes {
                let mut machine = machine.fork();
                machine.crash(crash);
                self.recover(&mut machine, rng.draw(), false)
                    .map_err(|message| format!("recovery cut off at I/O {nth}: {message}"))?;
            }
        }
        unreachable!("the loop ends when the recovery does")
    }
}
