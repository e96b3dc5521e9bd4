//! Random lives and crashes.

use forebay_io::sim::{FaultPlan, Keep, OpClass, Rng, Stop};

use super::recovery::FORKS;
use super::{Failure, Report, Target};
use crate::case::Case;
use crate::machine::{Crash, End, Life, Machine};
use crate::outcome::{choices, draw_crash, draw_failure, draw_spell};
use crate::stack::Stack;

impl<S: Stack> Target<S> {
    /// Runs the lives and crashes that `seed` draws, with a crash possible in every recovery.
    ///
    /// # Errors
    /// Returns the first violation.
    pub fn random(&self, seed: u64) -> Result<Report, Failure> {
        self.within(Case::Random { seed }, || self.random_lives(seed))
    }

    pub(super) fn random_lives(&self, seed: u64) -> Result<Report, String> {
        let rng = Rng::labelled(seed, 11);
        // Separate generators, so that the seeds of other stacks keep their meaning.
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
                // Until power loss, reads may still show data that a failed flush lost, and a new
                // process cannot know that. So power is lost at once. The same holds for a client's
                // write that failed in a spell.
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
}
