//! A failure of each operation, followed by a crash.

use forebay_io::sim::{FaultPlan, Keep, OpClass};

use super::{Failure, Report, Target};
use crate::case::Case;
use crate::machine::{Crash, Life, Machine};
use crate::stack::Stack;

impl<S: Stack> Target<S> {
    /// Makes the n-th operation of each kind on each device fail, n = 1, 2, ... until none fails.
    /// Then shuts down or not, crashes, and recovers without failures.
    ///
    /// # Errors
    /// Returns the first violation.
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
                    // A shutdown completes the work that the answer to a failure left undone.
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

    /// Runs one life in which an operation may fail. Returns whether one did.
    pub(super) fn fail(
        &self,
        fresh: &Machine<S>,
        case: Case,
    ) -> Result<(Machine<S>, bool), String> {
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

    /// Recovers from the crash after such a life.
    pub(super) fn recover_from_fault(
        &self,
        machine: &mut Machine<S>,
        case: Case,
    ) -> Result<(), String> {
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
        // Until power loss, reads may still show data that a failed flush lost. A new process
        // cannot know that.
        let power_stays = class == OpClass::Flush && matches!(crash, Crash::Process(_));
        self.recover(machine, seed ^ nth, power_stays)
    }
}
