//! The share of the machine that other programs use during a load. Figures of a busy machine are
//! not results.

use std::fs;
use std::time::Instant;

/// Ticks of processor time a second (`USER_HZ`, 100 on every Linux).
const TICKS_PER_S: f64 = 100.0;

/// Processor time so far, seconds.
pub(super) struct Processors {
    begin: Instant,
    busy_s: f64,
    ours_s: f64,
}

/// Returns a file of /proc as words. With a name in parentheses, returns the numbers after it.
fn words(path: &str) -> Vec<f64> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let after = text.lines().next().unwrap_or_default();
    let after = after.rsplit(')').next().unwrap_or_default();
    after
        .split_whitespace()
        .skip(1)
        .map(|word| word.parse().unwrap_or(0.0))
        .collect()
}

fn sum(words: &[f64], places: &[usize]) -> f64 {
    places.iter().filter_map(|at| words.get(*at)).sum()
}

/// Returns the processor time of a process, with ended threads, seconds.
pub(super) fn used_s(pid: u32) -> f64 {
    // utime and stime are fields 14 and 15; field 4 is the first one here.
    sum(&words(&format!("/proc/{pid}/stat")), &[10, 11]) / TICKS_PER_S
}

/// Returns the processor time of this program's children that it waited for, seconds.
pub(super) fn children_s() -> f64 {
    // cutime and cstime are fields 16 and 17.
    sum(&words("/proc/self/stat"), &[12, 13]) / TICKS_PER_S
}

impl Processors {
    /// Samples the machine's time, and that of `server`, this program and the children it waited
    /// for.
    pub(super) fn sample(server: u32) -> Self {
        // cpu: user, nice, system, idle, iowait, irq, softirq, steal.
        let busy = sum(&words("/proc/stat"), &[0, 1, 2, 5, 6, 7]);
        // utime, stime, cutime, cstime are fields 14 to 17; field 4 is the first one here.
        let server = sum(&words(&format!("/proc/{server}/stat")), &[10, 11]);
        let own = sum(&words("/proc/self/stat"), &[10, 11, 12, 13]);
        Self {
            begin: Instant::now(),
            busy_s: busy / TICKS_PER_S,
            ours_s: (server + own) / TICKS_PER_S,
        }
    }

    /// Returns the use by other programs since then, as a share of one processor, in percent.
    pub(super) fn others_percent(&self, server: u32) -> f64 {
        let now = Self::sample(server);
        let others_s = (now.busy_s - self.busy_s) - (now.ours_s - self.ours_s);
        (others_s / self.begin.elapsed().as_secs_f64() * 100.0).max(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_this_process_is_not_that_of_others() {
        let used = || sum(&words("/proc/self/stat"), &[10, 11]);
        let (before, begin) = (used(), Instant::now());
        // A busy machine gives this process little time, but some.
        while used() - before < 5.0 {
            assert!(begin.elapsed().as_secs() < 60, "no work is counted");
        }
        let ticks = begin.elapsed().as_secs_f64() * TICKS_PER_S;
        assert!(used() - before <= ticks + 40.0, "more than there was");
    }
}
