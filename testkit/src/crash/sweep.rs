//! A crash at each I/O of one workload.

use forebay_io::sim::{Keep, Stop};

use super::{Failure, Report, Target};
use crate::case::Case;
use crate::depth::Depth;
use crate::machine::{Crash, End, Machine};
use crate::outcome::choices;
use crate::stack::Stack;

impl<S: Stack> Target<S> {
    /// Cuts the workload of `seed` off at each of its I/Os, and recovers from each crash.
    ///
    /// # Errors
    /// Returns the first violation.
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
}
