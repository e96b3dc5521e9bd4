//! What a simulated cache did.

/// Bytes and operations that went one way.
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
    /// Bytes to and from the backing device.
    #[must_use]
    pub const fn core_bytes(&self) -> u64 {
        self.read_from_core.bytes + self.write_to_core.bytes
    }

    /// Bytes to and from the cache device.
    #[must_use]
    pub const fn cache_bytes(&self) -> u64 {
        self.read_from_cache.bytes + self.write_to_cache.bytes
    }
}

/// Requests of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Requests {
    /// How many.
    pub count: u64,
    /// Those that found all their bytes in the cache.
    pub hits: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// Bytes of them that were in the cache.
    pub hit_bytes: u64,
    /// Bytes asked for by requests that were no hits.
    pub missed_request_bytes: u64,
}

impl Requests {
    /// The part of the requests that were hits, 0 to 1; 0 if there was none.
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

/// All that is counted of one simulated cache.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Reads.
    pub reads: Requests,
    /// Writes.
    pub writes: Requests,
    /// The four I/O volumes.
    pub io: IoVolumes,
    /// Requests that were passed over: no volume is so large that it has what they ask for.
    pub beyond: u64,
    /// Blocks that were placed.
    pub allocated_blocks: u64,
    /// Bytes of those.
    pub allocated_bytes: u64,
    /// Blocks that were given up.
    pub evicted_blocks: u64,
    /// Groups that were given up whole.
    pub evicted_groups: u64,
    /// Sum over requests of the blocks cached then.
    pub cached_blocks_sum: u64,
    /// Most blocks cached at a time.
    pub cached_blocks_max: u64,
    /// Most memory for metadata at a time, bytes.
    pub memory_max_bytes: u64,
    /// Sum over requests of their modelled latency, nanoseconds.
    pub latency_sum_ns: u64,
}
