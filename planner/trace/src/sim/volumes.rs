//! Counts of a simulated cache.

/// Bytes and operations in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Bytes.
    pub bytes: u64,
    /// Operations.
    pub ios: u64,
}

impl Volume {
    pub(super) fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        self.ios += 1;
    }
}

/// The four I/O volumes (AdaCache, section IV-B).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoVolumes {
    /// Reads from the backing device.
    pub read_from_core: Volume,
    /// Writes to the backing device.
    pub write_to_core: Volume,
    /// Reads from the cache device.
    pub read_from_cache: Volume,
    /// Writes to the cache device.
    pub write_to_cache: Volume,
}

impl IoVolumes {
    /// Returns the bytes to and from the backing device.
    #[must_use]
    pub const fn core_bytes(&self) -> u64 {
        self.read_from_core.bytes + self.write_to_core.bytes
    }

    /// Returns the bytes to and from the cache device.
    #[must_use]
    pub const fn cache_bytes(&self) -> u64 {
        self.read_from_cache.bytes + self.write_to_cache.bytes
    }
}

/// Requests of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// Number of requests.
    pub count: u64,
    /// Number of requests with all their bytes in the cache.
    pub hits: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// Requested bytes that were in the cache.
    pub hit_bytes: u64,
    /// Requested bytes of requests that were no hits.
    pub missed_request_bytes: u64,
}

impl Requests {
    /// Returns the share of hits, 0 to 1; 0 without requests.
    #[must_use]
    pub fn hit_ratio(&self) -> f64 {
        ratio(self.hits, self.count)
    }

    pub(super) fn note(&mut self, bytes: u64, hit_bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
        self.hit_bytes += hit_bytes;
        if hit_bytes == bytes {
            self.hits += 1;
        } else {
            self.missed_request_bytes += bytes;
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people to read")]
pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// All counts of one simulated cache.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Reads.
    pub reads: Requests,
    /// Writes.
    pub writes: Requests,
    /// The four I/O volumes.
    pub io: IoVolumes,
    /// Skipped requests: their range is beyond the largest possible volume.
    pub beyond: u64,
    /// Placed blocks.
    pub allocated_blocks: u64,
    /// Total size of placed blocks, bytes.
    pub allocated_bytes: u64,
    /// Evicted blocks.
    pub evicted_blocks: u64,
    /// Groups that were evicted whole.
    pub evicted_groups: u64,
    /// Sum, over requests, of the number of cached blocks.
    pub cached_blocks_sum: u64,
    /// Largest number of cached blocks.
    pub cached_blocks_max: u64,
    /// Largest memory for metadata, bytes.
    pub memory_max_bytes: u64,
    /// Sum, over requests, of the modelled latency, nanoseconds.
    pub latency_sum_ns: u64,
}
