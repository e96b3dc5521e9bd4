//! Random lives on devices whose contents rot while they are not in use.
//!
//! Either data rots, in a stack that keeps checksums, or its metadata.
//!
//! - Clean data must still be served.
//! - Dirty data that rotted is an error that names it, until it is rewritten.
//! - Lost metadata costs its own ranges and no more.
//! - The stack always opens.
//!
//! Data rots after a clean end, and reads look for it before anything is written. Data beside an
//! overwrite or a fill that a crash cut off has no known checksums (docs/internals/limits.md,
//! "Silent corruption").

use forebay_io::sim::{Rng, Stop};

use crate::case::Case;
use crate::crash::{Failure, Report, Target};
use crate::machine::{End, Life, Machine};
use crate::outcome::draw_crash;
use crate::stack::{Decay, Stack};

/// Largest number of crashes during reads that look for rot.
const CUT_OFF: u64 = 3;

impl<S: Stack> Target<S> {
    /// Runs the lives, crashes and rot that `seed` draws. The report's points are the pieces that
    /// rotted.
    ///
    /// # Errors
    /// Returns the first violation.
    pub fn rotting(&self, seed: u64) -> Result<Report, Failure> {
        self.within(Case::Rot { seed }, || self.rotting_lives(seed))
    }

    pub(crate) fn rotting_lives(&self, seed: u64) -> Result<Report, String> {
        let rng = Rng::labelled(seed, 14);
        let mut machine = Machine::new(&self.stack, rng.draw())?;
        let mut report = Report::default();
        let decay = [Decay::Data, Decay::Metadata][rng.index(2)];
        for round in 0..1 + rng.below(5) {
            let with = |message: String| format!("{decay:?}, life {round}: {message}");
            if decay == Decay::Metadata || rng.chance(1, 2) {
                let within_io = [10, 30, 100, 400][rng.index(4)];
                machine.world.set_stop(match rng.below(4) {
                    0 => None,
                    1 => Some(Stop::AfterIo(1 + rng.below(within_io))),
                    _ => Some(Stop::BeforeIo(1 + rng.below(within_io))),
                });
                let life = Life {
                    close: rng.chance(1, 2),
                    ..self.first_life(rng.draw())
                };
                let end = machine.live(life).map_err(with)?;
                if end != End::Finished || rng.chance(1, 2) {
                    machine.crash(draw_crash(&machine, &rng));
                    report.crashes += 1;
                }
                machine.world.set_stop(None);
            }
            if decay == Decay::Data {
                let life = self.first_life(rng.draw());
                machine.live(life).map_err(with)?;
            }
            let rotted = machine.rot(decay, rng.draw()).map_err(with)?;
            report.points += u64::from(rotted.any);
            if rotted.any && decay == Decay::Data {
                self.look_for_rot(&mut machine, &rng, rotted.needs_calm, &mut report)
                    .map_err(with)?;
            }
        }
        self.recover(&mut machine, rng.draw(), false)
            .map_err(|message| format!("{decay:?}, at the end: {message}"))?;
        report.crashes += 1;
        report.digest = machine.world.digest();
        Ok(report)
    }

    /// Reads everything until each piece of rot was reported. Crashes interrupt it some times,
    /// unless the damage needs calm.
    fn look_for_rot(
        &self,
        machine: &mut Machine<S>,
        rng: &Rng,
        needs_calm: bool,
        report: &mut Report,
    ) -> Result<(), String> {
        for attempt in 0.. {
            let stop = Stop::BeforeIo(1 + rng.below(30));
            let cut_off = attempt < CUT_OFF && rng.chance(1, 2) && !needs_calm;
            machine.world.set_stop(cut_off.then_some(stop));
            let end = machine.live(Life {
                seed: rng.draw(),
                verify: true,
                work: None,
                close: rng.chance(1, 2),
                errors_allowed: false,
            })?;
            machine.world.set_stop(None);
            if end == End::Finished {
                break;
            }
            machine.crash(draw_crash(machine, rng));
            report.crashes += 1;
        }
        match machine.model().unfound_rot().first() {
            None => Ok(()),
            Some(range) => Err(format!("{range:?} rotted, was dirty, and was not reported")),
        }
    }
}
