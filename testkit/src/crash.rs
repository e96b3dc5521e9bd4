//! The crash drivers. Each takes a [`Target`] and returns at the first violation, with the one
//! command that replays it.

use std::cell::Cell;
use std::fmt;
use std::rc::Rc;

use forebay_io::sim::{FaultPlan, Keep, OpClass, Rng, Stop};

use crate::case::Case;
use crate::depth::Depth;
use crate::machine::{Crash, End, Life, Machine};
use crate::outcome::{choices, draw_crash, draw_failure, draw_spell};
use crate::stack::Stack;
use crate::workload::{Mix, Plan};

/// What is tested, and how a failure names it.
#[derive(Debug)]
pub struct Target<S> {
    /// The stack.
    pub stack: Rc<S>,
    /// What clients do.
    pub plan: Plan,
    /// Lives that a random seed draws at most, from two on.
    pub lives: u64,
    /// Whether an operation of a device fails in some of them.
    pub failing: bool,
    /// Whether each of their crashes is tried with other outcomes, too, and without the process journal.
    pub forks: bool,
    /// Names the stack's configuration in the replay command.
    pub label: String,
    /// The command that replays a case which it finds in `FOREBAY_REPLAY`.
    pub command: &'static str,
}

/// Of the crashes of random lives, where they are tried with several outcomes.
const FORKS: Depth = Depth {
    singles: 2,
    subsets: 2,
    deaths: 1,
    stride: 1,
    recoveries: false,
};

/// How much a driver did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Places at which a run was cut off.
    pub points: u64,
    /// Crashes from which the stack recovered.
    pub crashes: u64,
    /// Crashes beside those that left just what another one left, and so were not gone through again.
    pub alike: u64,
    /// Of all I/O of the last machine; the same for two runs of one case.
    pub digest: u64,
}

/// A violation.
#[derive(Debug)]
pub struct Failure {
    /// What was violated.
    pub message: String,
    /// The run in which it was violated.
    pub case: Case,
    /// The command that replays it.
    pub replay: String,
}

thread_local! {
    static CURRENT: Cell<Option<Case>> = const { Cell::new(None) };
}

/// Returns the run that this thread's drivers began last: after a panic, the run that panicked.
#[must_use]
pub fn last_case() -> Option<Case> {
    CURRENT.get()
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\nreplay with: {}", self.message, self.replay)
    }
}

impl<S: Stack> Target<S> {
    fn replay_command(&self, case: Case) -> String {
        format!("FOREBAY_REPLAY='{}: {case}' {}", self.label, self.command)
    }

    /// Runs a step of a case; a violation or a panic in it names the case.
    pub(crate) fn within<T>(
        &self,
        case: Case,
        step: impl FnOnce() -> Result<T, String>,
    ) -> Result<T, Failure> {
        struct Announce<F: Fn()>(F);
        impl<F: Fn()> Drop for Announce<F> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    (self.0)();
                }
            }
        }
        let _announce = Announce(|| eprintln!("replay with: {}", self.replay_command(case)));
        CURRENT.set(Some(case));
        step().map_err(|message| Failure {
            message,
            case,
            replay: self.replay_command(case),
        })
    }

    pub(crate) fn first_life(&self, seed: u64) -> Life {
        Life {
            seed,
            verify: false,
            work: Some(self.plan),
            close: true,
            errors_allowed: false,
        }
    }

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

    /// Opens the machine after a crash and checks everything; lets it end once more, cleanly or
    /// not, and checks again. With `power_stays` no power loss is among the ends.
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

    /// Cuts the workload of `seed` off at each of its I/Os, and recovers from each crash.
    ///
    /// # Errors
    /// The first violation.
    pub fn sweep(&self, seed: u64, depth: Depth) -> Result<Report, Failure> {
        let case = |stop, crash| Case::Sweep { seed, stop, crash };
        let undecided = Crash::Power(Keep::None);
        let fresh = self.within(case(Stop::BeforeIo(0), undecided), || {
            Machine::new(&self.stack, seed)
        })?;
        let mut report = Report::default();
        for nth in (1..).step_by(depth.stride.max(1) as usize) {
            for stop in [Stop::BeforeIo(nth), Stop::AfterIo(nth)] {
                let crashed = fresh.fork();
                let end = self.within(case(stop, undecided), || {
                    crashed.world.set_stop(Some(stop));
                    crashed.live(self.first_life(seed))
                })?;
                report.points += 1;
                let crashes = match (stop, end) {
                    (Stop::AfterIo(_), End::Crashed) => {
                        let few = Depth {
                            singles: 0,
                            subsets: 1,
                            deaths: 1,
                            ..depth
                        };
                        choices(&crashed, few, seed ^ nth)
                    }
                    (_, End::Crashed) => choices(&crashed, depth, seed ^ nth),
                    _ => vec![undecided, Crash::Process(nth)],
                };
                let (left, alike) = crashed.crashed_by(&crashes);
                report.alike += alike;
                for (crash, mut machine) in left {
                    self.within(case(stop, crash), || {
                        let recoveries = depth.recoveries && matches!(stop, Stop::BeforeIo(_));
                        self.recover_from(&mut machine, crash, seed ^ nth, recoveries)
                    })?;
                    report.crashes += 1;
                }
                if end != End::Crashed {
                    return Ok(report);
                }
            }
        }
        Ok(report)
    }

    /// Makes the n-th operation of each kind on each device fail, n = 1, 2, ... until nothing fails;
    /// then shuts down or not, crashes, and recovers without failures.
    ///
    /// # Errors
    /// The first violation.
    pub fn faults(&self, seed: u64, stride: u64) -> Result<Report, Failure> {
        let mut report = Report::default();
        let fresh = self.within(Case::Random { seed }, || Machine::new(&self.stack, seed))?;
        for disk in 0..fresh.world.disks().len() {
            for class in [
                OpClass::Write,
                OpClass::Flush,
                OpClass::Discard,
                OpClass::Read,
            ] {
                for nth in (1..).step_by(stride.max(1) as usize) {
                    let mut failed = false;
                    // A shutdown makes good what the answer to a failure left undone.
                    for closes in [true, false] {
                        let case = |crash| Case::Fault {
                            seed,
                            disk,
                            class,
                            nth,
                            closes,
                            crash,
                        };
                        let crashes = [
                            Crash::Power(Keep::None),
                            Crash::Power(Keep::Random(nth)),
                            Crash::Process(nth),
                        ];
                        let (machine, has_failed) =
                            self.within(case(crashes[0]), || self.fail(&fresh, case(crashes[0])))?;
                        failed |= has_failed;
                        let (left, alike) = machine.crashed_by(&crashes);
                        report.alike += alike;
                        for (crash, mut machine) in left {
                            let case = case(crash);
                            self.within(case, || self.recover_from_fault(&mut machine, case))?;
                            report.crashes += 1;
                        }
                    }
                    report.points += 1;
                    if !failed {
                        break;
                    }
                }
            }
        }
        Ok(report)
    }

    /// One life with a failure, if it comes to that: whether anything failed.
    fn fail(&self, fresh: &Machine<S>, case: Case) -> Result<(Machine<S>, bool), String> {
        let Case::Fault {
            seed,
            disk,
            class,
            nth,
            closes,
            ..
        } = case
        else {
            unreachable!("the caller made it");
        };
        let machine = fresh.fork();
        let device = machine.world.disks()[disk].clone();
        let before = device.counters().failed;
        device.set_faults(FaultPlan {
            fail_nth: Some((class, nth)),
            ..FaultPlan::default()
        });
        machine.live(Life {
            close: closes,
            errors_allowed: true,
            ..self.first_life(seed)
        })?;
        let failed = device.counters().failed > before;
        device.set_faults(FaultPlan::default());
        Ok((machine, failed))
    }

    /// Recovers from the crash behind such a life.
    fn recover_from_fault(&self, machine: &mut Machine<S>, case: Case) -> Result<(), String> {
        let Case::Fault {
            seed,
            class,
            nth,
            crash,
            ..
        } = case
        else {
            unreachable!("the caller made it");
        };
        // What a failed flush lost may still show until power is lost, and a new process cannot know.
        let power_stays = class == OpClass::Flush && matches!(crash, Crash::Process(_));
        self.recover(machine, seed ^ nth, power_stays)
    }

    /// Lives and crashes that `seed` draws, with a crash possible in every recovery.
    ///
    /// # Errors
    /// The first violation.
    pub fn random(&self, seed: u64) -> Result<Report, Failure> {
        self.within(Case::Random { seed }, || self.random_lives(seed))
    }

    fn random_lives(&self, seed: u64) -> Result<Report, String> {
        let rng = Rng::labelled(seed, 11);
        // Drawn apart, so that other stacks' seeds stay what they are.
        let (ailing, spells) = (self.stack.ailing(), Rng::labelled(seed, 12));
        let mut machine = Machine::new(&self.stack, rng.draw())?;
        let mut report = Report::default();
        let mut down = false;
        for round in 0..2 + rng.below(self.lives - 1) {
            let within_io = [10, 30, 100, 400][rng.index(4)];
            machine.world.set_stop(match rng.below(6) {
                0 => None,
                1 => Some(Stop::BeforePoll(1 + rng.below(within_io * 20))),
                2 => Some(Stop::AfterIo(1 + rng.below(within_io))),
                _ => Some(Stop::BeforeIo(1 + rng.below(within_io))),
            });
            let mut failing =
                (self.failing && rng.chance(1, 4)).then(|| draw_failure(&machine, &rng));
            if failing.is_none() && !ailing.is_empty() && spells.chance(1, 2) {
                failing = Some(draw_spell(&machine, ailing.clone(), &spells));
            }
            let life = Life {
                // Clients that live on do not read everything first.
                verify: round > 0 && rng.chance(1, 2),
                close: rng.chance(1, 2),
                errors_allowed: failing.is_some(),
                ..self.first_life(rng.draw())
            };
            let end = machine
                .live(life)
                .map_err(|message| format!("life {round}: {message}"))?;
            report.points += 1;
            let mut crash =
                (end != End::Finished || rng.chance(3, 4)).then(|| draw_crash(&machine, &rng));
            let mut power_only = false;
            if let Some((disk, class)) = failing {
                let device = &machine.world.disks()[disk];
                device.set_faults(FaultPlan::default());
                // What a failed flush lost may still show until power is lost, and a new process
                // cannot know: power goes at once. So it is with a client's write that failed in a spell.
                power_only = class == OpClass::Flush || machine.model().may_show_failed();
                machine.model().set_spell(false);
                machine.model().set_hiding(false);
                if power_only && !matches!(crash, Some(Crash::Power(_))) {
                    crash = Some(Crash::Power(Keep::Random(rng.draw())));
                }
            }
            down = crash.is_some();
            if let Some(crash) = crash {
                if self.forks {
                    self.fork_crash(&machine, &rng, power_only, &mut report)?;
                }
                machine.crash(crash);
                report.crashes += 1;
            }
        }
        machine.world.set_stop(None);
        if rng.chance(1, 2) {
            if !down || rng.chance(1, 4) {
                machine.crash(draw_crash(&machine, &rng));
            }
            report.crashes += self.crash_recoveries(&machine, &rng)?;
        }
        self.recover(&mut machine, rng.draw(), false)
            .map_err(|message| format!("at the end: {message}"))?;
        report.digest = machine.world.digest();
        Ok(report)
    }

    /// Tries several outcomes of a crash, each on a copy.
    fn fork_crash(
        &self,
        crashed: &Machine<S>,
        rng: &Rng,
        power_only: bool,
        report: &mut Report,
    ) -> Result<(), String> {
        let mut crashes = choices(crashed, FORKS, rng.draw());
        crashes.retain(|crash| !power_only || matches!(crash, Crash::Power(_)));
        let seed = rng.draw();
        let (left, alike) = crashed.crashed_by(&crashes);
        report.alike += alike;
        for (crash, mut machine) in left {
            if matches!(crash, Crash::Process(_)) {
                self.lose_journal(&machine, seed)?;
            }
            self.recover(&mut machine, seed, false)
                .map_err(|message| format!("instead, {crash:?}: {message}"))?;
            report.crashes += 1;
        }
        Ok(())
    }

    /// After process death with the process journal gone: the stack refuses to open, or has everything.
    fn lose_journal(&self, dead: &Machine<S>, seed: u64) -> Result<(), String> {
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

    /// Lets the recovery from a crash crash in turn, at each of its I/Os. Returns how often.
    fn crash_recoveries(&self, crashed: &Machine<S>, rng: &Rng) -> Result<u64, String> {
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

    /// Runs one case again.
    ///
    /// # Errors
    /// The violation.
    pub fn replay(&self, case: Case) -> Result<(), Failure> {
        self.within(case, || match case {
            Case::Random { seed } => self.random_lives(seed).map(|_| ()),
            Case::Rot { seed } => self.rotting_lives(seed).map(|_| ()),
            Case::Fault { seed, .. } => {
                let fresh = Machine::new(&self.stack, seed)?;
                let (mut machine, _) = self.fail(&fresh, case)?;
                if let Case::Fault { crash, .. } = case {
                    machine.crash(crash);
                }
                self.recover_from_fault(&mut machine, case)
            }
            Case::Sweep { seed, stop, crash } => {
                let crashed = Machine::new(&self.stack, seed)?.fork();
                crashed.world.set_stop(Some(stop));
                crashed.live(self.first_life(seed))?;
                let (Stop::BeforeIo(nth) | Stop::AfterIo(nth) | Stop::BeforePoll(nth)) = stop;
                let mut machine = crashed.fork();
                machine.crash(crash);
                self.recover_from(&mut machine, crash, seed ^ nth, true)
            }
        })
    }
}
