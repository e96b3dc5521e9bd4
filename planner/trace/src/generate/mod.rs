//! Generation of traces from a description. The same seed gives the same trace.

mod preset;
mod random;
mod sizes;
mod zipf;

use forebay_block::{Error, ErrorKind, Result};

pub use preset::Preset;
pub use sizes::SizeCdf;

use crate::read::BATCH_REQUESTS;
use crate::{Op, Request, Volumes};
use random::Random;
use zipf::Zipf;

/// Alignment of requests, bytes.
pub const SLOT_BYTES: u64 = 4096;

/// Number of slots that are neighbours on the volume and in popularity: hot data forms pieces of
/// 256 KiB, which are placed at random.
const PIECE_SLOTS: u64 = 64;

/// Arrival times of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arrivals {
    /// Independent arrivals with an average rate.
    Poisson {
        /// Requests per second.
        rate_per_s: f64,
    },
    /// Arrivals at equal intervals.
    Fixed {
        /// Requests per second.
        rate_per_s: f64,
    },
}

/// Properties of the requests of one volume.
#[derive(Clone, Debug, PartialEq)]
pub struct VolumeLoad {
    /// Name of the volume.
    pub name: String,
    /// Number of requests.
    pub requests: u64,
    /// Share of reads, from 0 to 1; exact up to rounding.
    pub read_share: f64,
    /// Sizes of reads.
    pub read_sizes: SizeCdf,
    /// Sizes of writes.
    pub write_sizes: SizeCdf,
    /// Size of the range of requests at the start of the volume, bytes, rounded down to whole
    /// pieces of 256 KiB. With enough requests, all of it is used.
    pub working_set_bytes: u64,
    /// Skew of popularity: the exponent of Zipf's law, 0 for none.
    pub zipf_exponent: f64,
    /// Share of requests that start at the end of the last one of their kind, from 0 to 1.
    pub sequential_share: f64,
    /// Arrival times of requests.
    pub arrivals: Arrivals,
}

/// State of one volume.
#[derive(Debug)]
struct Stream {
    load: VolumeLoad,
    random: Random,
    zipf: Zipf,
    pieces: u64,
    piece_slots: u64,
    /// Mapping from popularity to place: `piece * stride + shift` modulo the pieces.
    stride: u64,
    shift: u64,
    left: u64,
    reads_left: u64,
    time_s: f64,
    next_ns: u64,
    /// Ends of the last read and the last write.
    ends: [u64; 2],
}

/// Generator of a trace.
#[derive(Debug)]
pub struct Generator {
    streams: Vec<Stream>,
    volumes: Volumes,
}

impl Generator {
    /// Returns the generator of the trace of these volumes for `seed`. The volumes are used
    /// concurrently.
    ///
    /// # Errors
    /// If a volume's description is invalid.
    pub fn new(loads: Vec<VolumeLoad>, seed: u64) -> Result<Self> {
        let mut volumes = Volumes::new();
        let mut streams = Vec::with_capacity(loads.len());
        for (number, load) in loads.into_iter().enumerate() {
            let name = load.name.clone();
            let expected = u32::try_from(number).ok();
            if volumes.number(&name) != expected || expected.is_none() {
                let said = format!(
                    "volume {name:?}: its name is another's, or too long, or they are too many"
                );
                return Err(Error::new(ErrorKind::InvalidInput, said));
            }
            streams.push(Stream::new(
                load,
                Random::new(seed ^ (number as u64) << 48),
            )?);
        }
        Ok(Self { streams, volumes })
    }

    /// Replaces the contents of `batch` with the next requests, at most [`BATCH_REQUESTS`]. Returns
    /// false, with an empty batch, at the end of the trace.
    pub fn fill(&mut self, batch: &mut Vec<Request>) -> bool {
        batch.clear();
        while batch.len() < BATCH_REQUESTS {
            let waiting = self
                .streams
                .iter()
                .enumerate()
                .filter(|(_, stream)| stream.left > 0);
            let first = waiting.min_by_key(|(_, stream)| stream.next_ns);
            let Some((number, _)) = first else { break };
            let volume = u32::try_from(number).expect("volumes are few");
            batch.push(self.streams[number].next(volume));
        }
        !batch.is_empty()
    }

    /// Returns the volumes.
    #[must_use]
    pub const fn volumes(&self) -> &Volumes {
        &self.volumes
    }

    /// Returns the number of remaining requests.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.streams.iter().map(|stream| stream.left).sum()
    }
}

impl Stream {
    fn new(load: VolumeLoad, mut random: Random) -> Result<Self> {
        let name = &load.name;
        let bad = |what: &str| {
            let said = format!("volume {name:?}: {what}");
            Err(Error::new(ErrorKind::InvalidInput, said))
        };
        let share = 0.0..=1.0;
        if !share.contains(&load.read_share) || !share.contains(&load.sequential_share) {
            return bad("the shares of reads and of sequential requests are from 0 to 1");
        }
        let max_bytes = load
            .read_sizes
            .max_bytes()
            .max(load.write_sizes.max_bytes());
        if load.working_set_bytes < u64::from(max_bytes).max(SLOT_BYTES) {
            return bad("its working set is smaller than its largest requests");
        }
        if load.working_set_bytes > 1 << 60 {
            return bad("its working set is larger than any volume");
        }
        if !(0.0..=100.0).contains(&load.zipf_exponent) {
            return bad("the exponent of Zipf's law is from 0 to 100");
        }
        let (Arrivals::Poisson { rate_per_s } | Arrivals::Fixed { rate_per_s }) = load.arrivals;
        if !(1e-3..=1e9).contains(&rate_per_s) {
            return bad("from 0.001 to 1,000,000,000 requests arrive a second");
        }
        let slots = load.working_set_bytes / SLOT_BYTES;
        let piece_slots = slots.min(PIECE_SLOTS);
        let pieces = slots / piece_slots;
        let mut stride = random.below(pieces) | 1;
        while greatest_common_divisor(stride, pieces) != 1 {
            stride += 2;
        }
        let shift = random.below(pieces);
        let reads_left = (load.requests as f64 * load.read_share).round() as u64;
        let mut stream = Self {
            zipf: Zipf::new(pieces * piece_slots, load.zipf_exponent),
            pieces,
            piece_slots,
            stride,
            shift,
            left: load.requests,
            reads_left: reads_left.min(load.requests),
            time_s: 0.0,
            next_ns: 0,
            ends: [0; 2],
            load,
            random,
        };
        stream.ends = [stream.draw_place(), stream.draw_place()];
        Ok(stream)
    }

    /// Returns the next request, which must exist.
    fn next(&mut self, volume: u32) -> Request {
        // As from an urn without replacement: the number of reads is exact.
        let read = self.random.below(self.left) < self.reads_left;
        self.left -= 1;
        self.reads_left -= u64::from(read);
        let (op, sizes) = match read {
            true => (Op::Read, &self.load.read_sizes),
            false => (Op::Write, &self.load.write_sizes),
        };
        let len_bytes = sizes.draw(&mut self.random);
        let goes_on = self.random.unit() < self.load.sequential_share;
        let end = self.ends[usize::from(read)];
        let end_of_all = self.load.working_set_bytes / SLOT_BYTES * SLOT_BYTES;
        let offset_bytes = match goes_on && end + u64::from(len_bytes) <= end_of_all {
            true => end,
            false => self.draw_place(),
        };
        // A request that would cross the end is moved before it.
        let last = (end_of_all.saturating_sub(u64::from(len_bytes))) / SLOT_BYTES * SLOT_BYTES;
        let offset_bytes = offset_bytes.min(last);
        self.ends[usize::from(read)] = offset_bytes + u64::from(len_bytes);
        let request = Request {
            time_ns: self.next_ns,
            offset_bytes,
            len_bytes,
            volume,
            op,
        };
        self.time_s += match self.load.arrivals {
            Arrivals::Fixed { rate_per_s } => 1.0 / rate_per_s,
            Arrivals::Poisson { rate_per_s } => -(1.0 - self.random.unit()).ln() / rate_per_s,
        };
        self.next_ns = (self.time_s * 1e9) as u64;
        request
    }

    /// Returns the offset of a slot, chosen by popularity.
    fn draw_place(&mut self) -> u64 {
        let rank = self.zipf.draw(&mut self.random) - 1;
        let (piece, slot) = (rank / self.piece_slots, rank % self.piece_slots);
        let place = u128::from(piece) * u128::from(self.stride) + u128::from(self.shift);
        let place = (place % u128::from(self.pieces)) as u64;
        (place * self.piece_slots + slot) * SLOT_BYTES
    }
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests;
