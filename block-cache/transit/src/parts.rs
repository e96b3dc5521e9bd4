//! Times of a cache's parts, for the study. Enabled by the feature `parts`, and empty without it.
//!
//! The work of the cache's own thread is measured in laps, each from one reading of the clock to
//! the next. The waiting time of a request is measured as it passes, with other work of the thread
//! included.

/// Part of the work or of the waiting time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Look-ups, decisions and bookkeeping.
    Metadata,
    /// Data into a slot, or out of it.
    Slot,
    /// Evictions chosen and handed over.
    Queue,
    /// Evictions ended.
    Ended,
    /// Requests that go to the device themselves: bypassed, with FUA, reads that miss.
    Through,
    /// Writes that wait for a slot, or for the end of an eviction.
    Wait,
    /// Flushes.
    Flush,
}

/// Their names, in order.
#[cfg(feature = "parts")]
pub(crate) const NAMES: [&str; 7] = [
    "metadata", "slot", "queue", "ended", "through", "wait", "flush",
];

/// Counts and times by part.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    #[cfg(feature = "parts")]
    sums: std::cell::RefCell<[(u64, std::time::Duration); NAMES.len()]>,
}

/// Since when a lap runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lap {
    #[cfg(feature = "parts")]
    since: std::time::Instant,
}

impl Lap {
    #[inline]
    pub(crate) fn begin() -> Self {
        Self {
            #[cfg(feature = "parts")]
            since: std::time::Instant::now(),
        }
    }
}

impl Parts {
    /// Charges a lap, and begins the next.
    #[inline]
    pub(crate) fn end(&self, lap: Lap, part: Part) -> Lap {
        let next = Lap::begin();
        self.add(lap, next, part);
        next
    }

    #[cfg(feature = "parts")]
    fn add(&self, lap: Lap, next: Lap, part: Part) {
        let (count, time) = &mut self.sums.borrow_mut()[part as usize];
        *count += 1;
        *time += next.since - lap.since;
    }

    #[cfg(not(feature = "parts"))]
    #[inline]
    const fn add(&self, _lap: Lap, _next: Lap, _part: Part) {}

    /// Of each part its name, how often it was charged, and nanoseconds.
    #[cfg(feature = "parts")]
    pub(crate) fn get(&self) -> Vec<(&'static str, u64, u64)> {
        let sums = self.sums.borrow();
        let all = NAMES.into_iter().zip(sums.iter());
        all.map(|(name, (count, time))| {
            (
                name,
                *count,
                u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            )
        })
        .collect()
    }

    #[cfg(not(feature = "parts"))]
    pub(crate) const fn get(&self) -> Vec<(&'static str, u64, u64)> {
        Vec::new()
    }
}
