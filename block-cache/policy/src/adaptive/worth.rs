//! Cost of read-ahead, given the costs of the backing device.

/// Cost of read-ahead in addition to the cost of a miss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worth {
    /// Granules that the backing device delivers in the time of its smallest operation.
    pub free_granules: u32,
    /// How likely a granule must be to be read for it to be worth its bytes while it takes no time.
    pub free: f32,
}

impl Worth {
    /// Of a backing device that answers a read after `latency_ns` and serves so many operations and
    /// bytes a second.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio")]
    pub fn of(latency_ns: u64, iops: u64, bytes_per_s: u64, granule_bytes: u64) -> Self {
        Self::new(
            1e9 / iops as f32,
            latency_ns as f32,
            granule_bytes as f32 * 1e9 / bytes_per_s as f32,
        )
    }

    /// Returns the worth for the costs of a backing device, in any unit of time. The costs are the
    /// capacity that its smallest read takes, the latency of a read, and the capacity that a
    /// granule's bytes take.
    ///
    /// A granule that takes no time still takes its bytes; they are held as dear as the time they
    /// would take. A miss that it saves is worth an operation and its latency.
    #[must_use]
    pub fn new(operation: f32, latency: f32, granule: f32) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a ratio of costs is small and not negative"
        )]
        let free_granules = (operation / granule).min(64.0) as u32;
        Self {
            free_granules,
            free: granule / (operation + latency),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worth_of_a_granule_follows_from_costs() {
        let worth = Worth::new(333.0, 1000.0, 31.25);
        assert_eq!(worth.free_granules, 10);
        assert!((worth.free - 0.0234).abs() < 0.001);
    }
}
