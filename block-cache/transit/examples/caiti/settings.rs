//! Settings of one run: `SYSTEM LOAD SECONDS-OR-WRITES [KEY=VALUE]...`.

use std::str::FromStr;
use std::time::Duration;

use forebay_device::emulate::memory::{MemoryProfile, Waiting};

use crate::costs::Service;

/// A block, bytes.
pub(crate) const BLOCK_BYTES: u32 = 4096;

/// Settings of one run.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// `pmem`, `btt`, a policy, or, for a calibration, `null` (a device that does nothing) or
    /// `workers` (the table by an eviction thread alone).
    pub(crate) system: String,
    pub(crate) load: Load,
    /// Seconds of a measured run, writes of a modelled one.
    pub(crate) amount: f64,
    /// `medium=MIB`.
    pub(crate) medium_bytes: u64,
    /// `cache=MIB`.
    pub(crate) cache_bytes: u64,
    /// `threads=N`: threads that evict.
    pub(crate) threads: usize,
    /// `evictions=N` at a time.
    pub(crate) evictions: usize,
    /// `flush=SECONDS` apart; none if zero.
    pub(crate) flush_interval: Duration,
    /// `flush-every=KIB` that were written; never if zero.
    pub(crate) flush_every_bytes: u64,
    /// `profile=NAME` of the emulated memory.
    pub(crate) profile: MemoryProfile,
    /// `wait=spin|yield`.
    pub(crate) waiting: Waiting,
    /// `seed=N`.
    pub(crate) seed: u64,
    /// `reads=1`: after the warm-up, reads and no writes.
    pub(crate) reads: bool,
    /// `meter=1`: takes the time of the cache's own code.
    pub(crate) meter: bool,
    /// `timeline=1`: prints when requests came and how long they took.
    pub(crate) timeline: bool,
    /// `priority=0`: no real-time priority.
    pub(crate) priority: bool,
    /// `fill=1`: the cache is empty at first, and the run ends when half of it is written.
    pub(crate) fill: bool,
    /// `cores=N` that the model declares, of which `jobs=N` send writes and the others evict.
    pub(crate) cores: usize,
    pub(crate) jobs: usize,
    /// `dimms=N` of the modelled memory.
    pub(crate) dimms: usize,
    /// `stack=NS` that a modelled write takes before it comes to the device.
    pub(crate) stack_ns: u64,
    /// `evict=pool|writer|syncer`: threads that evict in the model.
    pub(crate) evict: Evict,
    /// Service times, by their names.
    pub(crate) service: Service,
}

/// How requests come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    /// So many under way at a time.
    Closed(usize),
    /// So many a second.
    Open(f64),
}

impl std::fmt::Display for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Closed(depth) => write!(f, "closed:{depth}"),
            Self::Open(rate) => write!(f, "open:{rate:.0}"),
        }
    }
}

/// Thread that writes a slot to the device, in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Evict {
    /// Threads on all cores that send no writes, as in the library.
    Pool,
    /// The thread that sends writes, in their path, as in the paper's staging caches.
    Writer,
    /// One thread in the background, as in the paper's PMBD-70.
    Syncer,
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is no number of this kind"))
}

impl Settings {
    /// Reads the words of a command line.
    pub(crate) fn parse(words: &[&str]) -> Result<Self, String> {
        let [system, load, amount, rest @ ..] = words else {
            return Err("say SYSTEM LOAD AMOUNT [KEY=VALUE]...".into());
        };
        let load = match load.split_once(':') {
            Some(("closed", depth)) => Load::Closed(number(depth)?),
            Some(("open", rate)) => Load::Open(number(rate)?),
            _ => return Err(format!("{load:?} is no load: closed:N or open:N")),
        };
        let mut settings = Self {
            system: (*system).to_owned(),
            load,
            amount: number(amount)?,
            medium_bytes: 2 << 30,
            cache_bytes: 64 << 20,
            threads: 1,
            evictions: 128,
            flush_interval: Duration::from_secs(5),
            flush_every_bytes: 0,
            profile: MemoryProfile::OPTANE_DIMM,
            waiting: Waiting::Spin,
            seed: 1,
            reads: false,
            meter: false,
            timeline: false,
            priority: true,
            fill: false,
            cores: 2,
            jobs: 1,
            dimms: 1,
            stack_ns: 0,
            evict: Evict::Pool,
            service: Service::default(),
        };
        for word in rest {
            let (key, value) = word
                .split_once('=')
                .ok_or(format!("{word:?}: say KEY=VALUE"))?;
            settings.set(key, value)?;
        }
        Ok(settings)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        match key {
            "medium" => self.medium_bytes = number::<u64>(value)? << 20,
            "cache" => self.cache_bytes = number::<u64>(value)? << 20,
            "threads" => self.threads = number(value)?,
            "evictions" => self.evictions = number(value)?,
            "flush" => self.flush_interval = Duration::from_secs_f64(number(value)?),
            "flush-every" => self.flush_every_bytes = number::<u64>(value)? << 10,
            "profile" => {
                self.profile =
                    (value.parse()).map_err(|error: forebay_block::Error| error.report())?;
            }
            "wait" => {
                self.waiting = match value {
                    "spin" => Waiting::Spin,
                    "yield" => Waiting::Yield,
                    _ => return Err(format!("wait={value}: spin or yield")),
                }
            }
            "seed" => self.seed = number(value)?,
            "reads" => self.reads = value == "1",
            "meter" => self.meter = value == "1",
            "timeline" => self.timeline = value == "1",
            "priority" => self.priority = value != "0",
            "fill" => self.fill = value == "1",
            "cores" => self.cores = number(value)?,
            "jobs" => self.jobs = number(value)?,
            "dimms" => self.dimms = number(value)?,
            "stack" => self.stack_ns = number(value)?,
            "evict" => {
                self.evict = match value {
                    "pool" => Evict::Pool,
                    "writer" => Evict::Writer,
                    "syncer" => Evict::Syncer,
                    _ => return Err(format!("evict={value}: pool, writer or syncer")),
                }
            }
            _ => self.service.set(key, number(value)?)?,
        }
        Ok(())
    }

    /// Slots of the cache.
    pub(crate) fn slots(&self) -> usize {
        (self.cache_bytes / u64::from(BLOCK_BYTES)) as usize
    }
}
