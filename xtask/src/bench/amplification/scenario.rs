//! One run: a load, its counts, a power cut, and a check.

use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde::Serialize;

use super::blocks::{Blocks, Pass, REQUEST_BYTES};
use crate::bench::client::Client;
use crate::bench::loops::{Counters, Loop};
use crate::bench::server::{Forebay, Scratch, counter};
use crate::bench::{Outcome, run_for_output};

/// The daemon's `durability`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Durability {
    Sync,
    Flush,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Scenario {
    pub(super) durability: Durability,
    pub(super) depth: usize,
    pub(super) flush_every: Option<usize>,
    pub(super) evicts: bool,
    pub(super) device_block_bytes: u32,
    pub(super) cache_block_bytes: u64,
    /// Counted writes.
    pub(super) writes: u64,
}

/// Figures of one run.
#[derive(Debug, Serialize)]
pub(in crate::bench) struct Row {
    pub(super) scenario: String,
    pub(super) durability: Durability,
    pub(super) depth: usize,
    pub(super) flush_every: Option<usize>,
    pub(super) device_block_bytes: u32,
    /// Bytes to the cache device per client byte, at the end of the load.
    pub(super) cache_at_end: f64,
    /// The same after everything is written back and recorded.
    pub(super) cache_settled: f64,
    /// Bytes to the backing device per client byte, settled.
    pub(super) backing_settled: f64,
    /// Flushes of both devices per client flush, to the end of the load, without those of requested
    /// write-backs.
    pub(super) device_flushes_per_flush: f64,
    pub(super) evictions: u64,
    /// Writes that bypassed the cache.
    pub(super) bypassed_writes: u64,
    pub(super) read_hits: u64,
    pub(super) read_hits_wrote_bytes: u64,
    pub(super) lost_blocks: u64,
}

/// Time in which the daemon makes the last records durable, with a margin.
const COMMITTED: Duration = Duration::from_millis(1500);

struct Devices {
    cache: Loop,
    backing: Loop,
}

/// Flushes of a load.
#[derive(Default)]
struct Flushes {
    /// Flushes of the client.
    client: u64,
    /// Flushes of both devices during the load.
    devices: u64,
}

impl Devices {
    fn flushes(&self) -> Outcome<u64> {
        let (cache, backing) = self.counters()?;
        Ok(cache.flushes + backing.flushes)
    }

    fn counters(&self) -> Outcome<(Counters, Counters)> {
        Ok((self.cache.counters()?, self.backing.counters()?))
    }
}

impl Scenario {
    pub(super) fn name(&self) -> String {
        let load = match (self.durability, self.flush_every) {
            (Durability::Flush, Some(1)) => "flush_each".to_owned(),
            (Durability::Flush, every) => format!("flush_every_{}", every.unwrap_or(0)),
            (Durability::Sync, _) => format!("sync_qd{}", self.depth),
        };
        format!(
            "{load}/{}/device_{}/block_{}k",
            if self.evicts { "evicts" } else { "fits" },
            self.device_block_bytes,
            self.cache_block_bytes >> 10
        )
    }

    pub(super) fn run(&self, binary: &Path) -> Outcome<Row> {
        let writes = self.writes;
        let scratch = Scratch::new("bench-amplification")?;
        let devices = self.devices(binary, &scratch)?;
        let mut forebay = self.serve(binary, &scratch, &devices, &[])?;
        // With eviction, uncounted writes first fill the cache.
        let before = if self.evicts { self.slots() * 3 / 2 } else { 0 };
        let sync = self.durability == Durability::Sync;
        let mut blocks = Blocks::new(before + writes, self.cache_block_bytes, sync);
        let (before, all) = (before as usize, (before + writes) as usize);
        let pass = Pass {
            depth: self.depth,
            flush_every: self.flush_every,
        };
        let mut client = Client::connect(forebay.server.socket(), "v")?;
        if self.evicts {
            let warm = Pass {
                depth: 32,
                flush_every: Some(32),
            };
            self.write(
                &forebay,
                &devices,
                &mut blocks,
                &mut client,
                0..before,
                warm,
            )?;
        }

        let status = forebay.status()?;
        let start = devices.counters()?;
        let counts = self.write(
            &forebay,
            &devices,
            &mut blocks,
            &mut client,
            before..all,
            pass,
        )?;
        let end = devices.counters()?;
        settle(&forebay)?;
        let settled = devices.counters()?;
        let status_after = forebay.status()?;
        let grown = |place: &str| {
            Ok::<_, String>(counter(&status_after, place)? - counter(&status, place)?)
        };
        let (evictions, bypassed_writes) = (
            grown("/cache/evictions")?,
            grown("/volumes/0/bypassed_writes")?,
        );

        // The last blocks are cached in any case. Two passes of hits, since measured admission may
        // bypass the first.
        let recent = all - (writes as usize).min(self.slots() as usize / 4)..all;
        blocks.verify(&mut client, recent.clone())?;
        settle(&forebay)?;
        let hits_before = counter(&forebay.status()?, "/volumes/0/read_hits")?;
        let reading = devices.cache.counters()?;
        let mut lost_blocks = blocks.verify(&mut client, recent.clone())?;
        std::thread::sleep(COMMITTED);
        let read_hits_wrote_bytes = devices.cache.counters()?.since(reading).written_bytes;
        let read_hits = counter(&forebay.status()?, "/volumes/0/read_hits")? - hits_before;

        // The power cut falls into writes to cached blocks.
        let middle = recent.start + recent.len() / 2;
        blocks.write(&mut client, recent.start..middle, pass)?;
        let unflushed = Pass {
            depth: self.depth,
            flush_every: None,
        };
        blocks.write(&mut client, middle..recent.end, unflushed)?;
        forebay.server.kill();
        drop(forebay);
        let journal = scratch.path("journal");
        std::fs::remove_file(&journal)
            .map_err(|error| format!("{}: {error}", journal.display()))?;
        let forebay = self.serve(binary, &scratch, &devices, &["--accept-journal-loss"])?;
        let mut client = Client::connect(forebay.server.socket(), "v")?;
        lost_blocks += blocks.verify(&mut client, 0..all)?;

        let client_bytes = (writes * REQUEST_BYTES as u64) as f64;
        let ratio = |counters: Counters| counters.written_bytes as f64 / client_bytes;
        let asked = if self.flush_every.is_some() {
            counts.client
        } else {
            writes
        };
        Ok(Row {
            scenario: self.name(),
            durability: self.durability,
            depth: self.depth,
            flush_every: self.flush_every,
            device_block_bytes: self.device_block_bytes,
            cache_at_end: ratio(end.0.since(start.0)),
            cache_settled: ratio(settled.0.since(start.0)),
            backing_settled: ratio(settled.1.since(start.1)),
            device_flushes_per_flush: counts.devices as f64 / asked as f64,
            evictions,
            bypassed_writes,
            read_hits,
            read_hits_wrote_bytes,
            lost_blocks,
        })
    }

    /// Returns the approximate number of cache blocks.
    fn slots(&self) -> u64 {
        if self.evicts {
            self.writes
        } else {
            self.writes * 2
        }
    }

    fn devices(&self, binary: &Path, scratch: &Scratch) -> Outcome<Devices> {
        // The metadata has extra room.
        let cache_bytes = self.slots() * (self.cache_block_bytes + 256) + (1 << 20);
        let volume_bytes = (self.writes + self.slots() * 3 / 2) * self.cache_block_bytes;
        let attach = |name, size_bytes| {
            let file = scratch.file(name, size_bytes)?;
            Loop::attach(&file, self.device_block_bytes)
        };
        let devices = Devices {
            cache: attach("cache.img", cache_bytes)?,
            backing: attach("backing.img", volume_bytes)?,
        };
        let mut format = Command::new(binary);
        format.args(["format", "--cache"]).arg(&devices.cache.path);
        format.arg(format!("--block-size={}", self.cache_block_bytes));
        run_for_output(format)?;
        Ok(devices)
    }

    fn serve(
        &self,
        binary: &Path,
        scratch: &Scratch,
        devices: &Devices,
        arguments: &[&str],
    ) -> Outcome<Forebay> {
        let durability = match self.durability {
            Durability::Sync => "sync",
            Durability::Flush => "flush",
        };
        let config = format!(
            r#"
[[device]]
name = "cache"
kind = "file"
path = "{}"

[[device]]
name = "backing"
kind = "file"
path = "{}"

[cache]
data = "cache"
durability = "{durability}"
journal = "journal"

[[volume]]
name = "v"
backing = "backing"
mode = "wb"
"#,
            devices.cache.path.display(),
            devices.backing.path.display()
        );
        Forebay::start(binary, scratch, &config, None, arguments)
    }

    /// Writes blocks once. With eviction, requests a write-back after every quarter of the cache's
    /// size. Above its dirty limit (60%), writes would bypass the cache and cost it nothing.
    fn write(
        &self,
        forebay: &Forebay,
        devices: &Devices,
        blocks: &mut Blocks,
        client: &mut Client,
        mut range: Range<usize>,
        pass: Pass,
    ) -> Outcome<Flushes> {
        let step = match self.evicts {
            true => self.slots() as usize / 4,
            false => range.len(),
        };
        let mut flushes = Flushes::default();
        while !range.is_empty() {
            let to = range.end.min(range.start + step);
            let before = devices.flushes()?;
            flushes.client += blocks.write(client, range.start..to, pass)?;
            flushes.devices += devices.flushes()? - before;
            if self.evicts {
                forebay.control(&["flush"])?;
            }
            range.start = to;
        }
        Ok(flushes)
    }
}

/// Requests a write-back of everything, and waits until its records are durable.
fn settle(forebay: &Forebay) -> Outcome<()> {
    forebay.control(&["flush"])?;
    std::thread::sleep(COMMITTED);
    Ok(())
}
