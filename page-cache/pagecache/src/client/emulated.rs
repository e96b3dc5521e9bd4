//! Emulated remote memory: additional time of a copy from or to another node's memory.

use std::time::{Duration, Instant};

/// A latency and a bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emulated {
    /// Latency of a copy of any length: its lines overlap.
    pub latency: Duration,
    /// Bandwidth, bytes a second; 0 for no limit.
    pub bytes_per_s: u64,
}

impl Emulated {
    /// Returns the additional time of a copy of `bytes`.
    #[must_use]
    pub fn of(&self, bytes: usize) -> Duration {
        let moved_ns = (bytes as u64 * 1_000_000_000).checked_div(self.bytes_per_s);
        self.latency + Duration::from_nanos(moved_ns.unwrap_or(0))
    }

    /// Waits for that time. The thread spins, as during slow loads.
    pub(super) fn spend(&self, bytes: usize) {
        let (begin, time) = (Instant::now(), self.of(bytes));
        while begin.elapsed() < time {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_takes_the_latency_once_and_its_bytes() {
        let emulated = Emulated {
            latency: Duration::from_nanos(400),
            bytes_per_s: 16_000_000_000,
        };
        assert_eq!(emulated.of(4096), Duration::from_nanos(656));
        assert_eq!(emulated.of(0), Duration::from_nanos(400));
        let unbounded = Emulated {
            bytes_per_s: 0,
            ..emulated
        };
        assert_eq!(unbounded.of(1 << 20), Duration::from_nanos(400));
        let begin = Instant::now();
        emulated.spend(4096);
        assert!(begin.elapsed() >= Duration::from_nanos(656));
    }
}
