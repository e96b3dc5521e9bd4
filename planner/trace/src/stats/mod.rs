//! Statistics of a trace, in one pass.

mod pages;

use pages::PageSet;

use crate::{MAX_VOLUMES, Op, Request, Volumes};

/// Options for the statistics.
#[derive(Clone, Copy, Debug)]
pub struct StatsOptions {
    /// The unit of the working set; a power of two from 512.
    pub page_bytes: u64,
    /// Memory limit for the working set, bytes. It is exact within the limit: 32 bytes for every 64
    /// neighbouring pages of which one was used. Beyond the limit it is an estimate, which the
    /// result states.
    pub max_memory_bytes: usize,
}

impl Default for StatsOptions {
    fn default() -> Self {
        Self {
            page_bytes: 4096,
            max_memory_bytes: 1 << 30,
        }
    }
}

/// Requests and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of requests.
    pub requests: u64,
    /// Sum of their lengths.
    pub bytes: u64,
}

impl Totals {
    fn add(&mut self, request: &Request) {
        self.requests += 1;
        self.bytes += u64::from(request.len_bytes);
    }

    /// Returns the sum of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            bytes: self.bytes + other.bytes,
        }
    }

    /// Returns the mean length, bytes; zero without requests.
    #[must_use]
    pub fn mean_bytes(self) -> f64 {
        if self.requests == 0 {
            return 0.0;
        }
        self.bytes as f64 / self.requests as f64
    }
}

/// Sizes of requests, by powers of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Requests larger than `2^(k - 1)` and at most `2^k` bytes.
    up_to: [u64; 33],
    /// Requests of exactly `2^k` bytes.
    exactly: [u64; 33],
}

impl Default for Sizes {
    fn default() -> Self {
        Self {
            up_to: [0; 33],
            exactly: [0; 33],
        }
    }
}

impl Sizes {
    fn add(&mut self, len_bytes: u32) {
        let power = u64::from(len_bytes).next_power_of_two();
        let class = power.trailing_zeros() as usize;
        self.up_to[class] += 1;
        self.exactly[class] += u64::from(len_bytes.is_power_of_two());
    }

    /// Returns the number of requests of at most `2^power` bytes.
    #[must_use]
    pub fn at_most(&self, power: u32) -> u64 {
        self.up_to.iter().take(power as usize + 1).sum()
    }

    /// Returns the number of requests of at least `2^power` bytes.
    #[must_use]
    pub fn at_least(&self, power: u32) -> u64 {
        let larger = self.up_to.iter().skip(power as usize + 1).sum::<u64>();
        larger + self.exactly.get(power as usize).copied().unwrap_or(0)
    }

    /// Returns the number of all requests.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.up_to.iter().sum()
    }
}

/// Statistics of one volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeSummary {
    /// Its name.
    pub name: String,
    /// Its reads.
    pub reads: Totals,
    /// Its writes.
    pub writes: Totals,
    /// Number of distinct pages that it read or wrote.
    pub working_set_pages: u64,
    /// Largest end of a read or write, bytes.
    pub end_bytes: u64,
}

/// Statistics of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The reads.
    pub reads: Totals,
    /// The writes.
    pub writes: Totals,
    /// The flushes.
    pub flushes: Totals,
    /// The discards.
    pub discards: Totals,
    /// Number of distinct pages that were read or written, over all volumes.
    pub working_set_pages: u64,
    /// Size of a page, bytes.
    pub page_bytes: u64,
    /// Whether the working set is an estimate ([`StatsOptions::max_memory_bytes`]).
    pub working_set_estimated: bool,
    /// The sizes of reads and writes.
    pub sizes: Sizes,
    /// Length of the largest read or write, bytes.
    pub max_bytes: u32,
    /// Time from the earliest request to the latest, nanoseconds.
    pub span_ns: u64,
    /// Requests that are earlier than the one before them.
    pub out_of_order: u64,
    /// Reads and writes that do not begin and end at a multiple of 4 KiB.
    pub unaligned: u64,
    /// Reads and writes that begin where the volume's last one ended.
    pub sequential: u64,
    /// The volumes, in order of first appearance.
    pub volumes: Vec<VolumeSummary>,
}

impl Summary {
    /// Returns reads and writes together.
    #[must_use]
    pub const fn data(&self) -> Totals {
        self.reads.and(self.writes)
    }

    /// Returns the number of all requests.
    #[must_use]
    pub const fn requests(&self) -> u64 {
        self.data().requests + self.flushes.requests + self.discards.requests
    }

    /// Returns the working set, bytes.
    #[must_use]
    pub const fn working_set_bytes(&self) -> u64 {
        self.working_set_pages * self.page_bytes
    }
}

/// Statistics of one volume so far.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    reads: Totals,
    writes: Totals,
    end_bytes: u64,
    last_end_bytes: Option<u64>,
}

/// Collects statistics, batch by batch.
#[derive(Clone, Debug)]
pub struct Stats {
    page_shift: u32,
    pages: PageSet,
    flushes: Totals,
    discards: Totals,
    sizes: Sizes,
    max_bytes: u32,
    times_ns: Option<(u64, u64)>,
    last_ns: u64,
    out_of_order: u64,
    unaligned: u64,
    sequential: u64,
    volumes: Vec<Seen>,
}

impl Stats {
    /// Returns statistics of no requests.
    ///
    /// # Panics
    /// If the page size is not a power of two, or less than 512 bytes.
    #[must_use]
    pub fn new(options: StatsOptions) -> Self {
        let page_bytes = options.page_bytes;
        assert!(
            page_bytes.is_power_of_two() && page_bytes >= 512,
            "a page is a power of two of at least 512 bytes"
        );
        Self {
            page_shift: page_bytes.trailing_zeros(),
            pages: PageSet::new(options.max_memory_bytes),
            flushes: Totals::default(),
            discards: Totals::default(),
            sizes: Sizes::default(),
            max_bytes: 0,
            times_ns: None,
            last_ns: 0,
            out_of_order: 0,
            unaligned: 0,
            sequential: 0,
            volumes: Vec::new(),
        }
    }

    /// Adds the next requests.
    ///
    /// # Panics
    /// If a volume's number is [`MAX_VOLUMES`] or more.
    pub fn add(&mut self, requests: &[Request]) {
        for request in requests {
            self.add_one(request);
        }
    }

    fn add_one(&mut self, request: &Request) {
        let time_ns = request.time_ns;
        let (first, last) = self.times_ns.unwrap_or((time_ns, time_ns));
        self.times_ns = Some((first.min(time_ns), last.max(time_ns)));
        self.out_of_order += u64::from(time_ns < self.last_ns);
        self.last_ns = time_ns;

        let volume = request.volume as usize;
        assert!(volume < MAX_VOLUMES, "volumes are numbered from zero");
        if self.volumes.len() <= volume {
            self.volumes.resize(volume + 1, Seen::default());
        }
        let seen = &mut self.volumes[volume];
        match request.op {
            Op::Read => seen.reads.add(request),
            Op::Write => seen.writes.add(request),
            Op::Flush => return self.flushes.add(request),
            Op::Discard => return self.discards.add(request),
        }
        let (offset, end) = (request.offset_bytes, request.end_bytes());
        self.sequential += u64::from(seen.last_end_bytes == Some(offset));
        seen.last_end_bytes = Some(end);
        seen.end_bytes = seen.end_bytes.max(end);
        self.unaligned += u64::from((offset | end) % 4096 != 0);
        self.sizes.add(request.len_bytes);
        self.max_bytes = self.max_bytes.max(request.len_bytes);
        if request.len_bytes > 0 {
            let shift = self.page_shift;
            self.pages.add(volume, offset >> shift, (end - 1) >> shift);
        }
    }

    /// Returns the statistics so far.
    #[must_use]
    pub fn summary(&self, volumes: &Volumes) -> Summary {
        let summary = |(number, seen): (usize, &Seen)| VolumeSummary {
            name: volumes.names().get(number).cloned().unwrap_or_default(),
            reads: seen.reads,
            writes: seen.writes,
            working_set_pages: self.pages.pages(number),
            end_bytes: seen.end_bytes,
        };
        let volumes: Vec<_> = self.volumes.iter().enumerate().map(summary).collect();
        let sum = |totals: fn(&VolumeSummary) -> Totals| {
            volumes
                .iter()
                .map(totals)
                .fold(Totals::default(), Totals::and)
        };
        Summary {
            reads: sum(|volume| volume.reads),
            writes: sum(|volume| volume.writes),
            flushes: self.flushes,
            discards: self.discards,
            working_set_pages: volumes.iter().map(|volume| volume.working_set_pages).sum(),
            page_bytes: 1 << self.page_shift,
            working_set_estimated: self.pages.is_sample(),
            sizes: self.sizes,
            max_bytes: self.max_bytes,
            span_ns: self.times_ns.map_or(0, |(first, last)| last - first),
            out_of_order: self.out_of_order,
            unaligned: self.unaligned,
            sequential: self.sequential,
            volumes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(time_ns: u64, op: Op, offset_bytes: u64, len_bytes: u32, volume: u32) -> Request {
        Request {
            time_ns,
            offset_bytes,
            len_bytes,
            volume,
            op,
        }
    }

    #[test]
    fn everything_is_counted() {
        let mut stats = Stats::new(StatsOptions::default());
        stats.add(&[
            request(10, Op::Read, 0, 4096, 0),
            request(5, Op::Write, 4096, 8192, 0),
            request(6, Op::Read, 4096, 512, 1),
            request(7, Op::Flush, 0, 0, 0),
            request(8, Op::Discard, 0, 1 << 20, 1),
            request(9, Op::Read, 4608, 131_072, 1),
        ]);
        let mut volumes = Volumes::new();
        volumes.number("a");
        volumes.number("b");
        let summary = stats.summary(&volumes);
        assert_eq!((summary.requests(), summary.data().requests), (6, 4));
        assert_eq!(summary.reads.bytes, 4096 + 512 + 131_072);
        assert_eq!(summary.discards.bytes, 1 << 20);
        assert_eq!((summary.span_ns, summary.out_of_order), (5, 1));
        assert_eq!((summary.unaligned, summary.sequential), (2, 2));
        assert_eq!(summary.volumes[0].working_set_pages, 3);
        assert_eq!(summary.volumes[1].working_set_pages, 33);
        assert_eq!(summary.volumes[1].end_bytes, 4608 + 131_072);
        assert_eq!(
            (summary.sizes.at_most(12), summary.sizes.at_most(13)),
            (2, 3)
        );
        assert_eq!(
            (summary.sizes.at_least(17), summary.sizes.at_least(13)),
            (1, 2)
        );
        assert_eq!(summary.max_bytes, 131_072);
        assert!(!summary.working_set_estimated);
    }
}
