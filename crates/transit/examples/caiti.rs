//! Response times of random writes of 4 KiB to emulated persistent memory: raw, through a block translation
//! table, and through a transit cache over the table. One run; `cargo xtask study caiti` makes many.
//!
//! `study SYSTEM LOAD SECONDS [KEY=VALUE]...`, where SYSTEM is `pmem`, `btt` or a policy, LOAD is `closed:N` (N
//! writes under way at a time) or `open:N` (N a second, at random moments, whatever becomes of them). It
//! prints one JSON object.
//!
//! A reactor serves the writes, as in the daemon, and never sleeps; another thread evicts. A write's time
//! begins when it was to be sent, not when the reactor came to it.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf, Persistence, Result};
use forebay_btt::{Btt, BttDevice, FormatOptions, format};
use forebay_device::emulate::memory::{EmulatedPmem, MemoryProfile, Waiting};
use forebay_device::pmem::PmemDevice;
use forebay_io::pmem::{Pmem as _, PmemMapping};
use forebay_io::sim::Rng;
use forebay_io::{Engine, Reactor, rt};
use forebay_transit::{Policy, Transit, TransitOptions, Workers, memory_bytes};
use hdrhistogram::Histogram;

const BLOCK_BYTES: u32 = 4096;
/// Writes with other contents, so that they differ.
const BUFFERS: usize = 64;

/// What one run is told.
#[derive(Clone, Debug)]
struct Settings {
    system: String,
    load: Load,
    time: Duration,
    medium_bytes: u64,
    cache_bytes: u64,
    threads: usize,
    /// Evictions at a time.
    evictions: usize,
    /// Flushes come so far apart; none if zero.
    flush_interval: Duration,
    profile: MemoryProfile,
    waiting: Waiting,
    seed: u64,
}

#[derive(Clone, Copy, Debug)]
enum Load {
    Closed(usize),
    Open(f64),
}

impl Settings {
    fn parse(arguments: &[String]) -> Option<Self> {
        let [system, load, seconds, rest @ ..] = arguments else {
            return None;
        };
        let load = match load.split_once(':')? {
            ("closed", depth) => Load::Closed(depth.parse().ok()?),
            ("open", rate) => Load::Open(rate.parse().ok()?),
            _ => return None,
        };
        let mut settings = Self {
            system: system.clone(),
            load,
            time: Duration::from_secs_f64(seconds.parse().ok()?),
            medium_bytes: 1 << 30,
            cache_bytes: 512 << 20,
            threads: 1,
            evictions: 32,
            flush_interval: Duration::from_secs(5),
            profile: MemoryProfile::OPTANE_DIMM,
            waiting: Waiting::Spin,
            seed: 1,
        };
        for pair in rest {
            let (key, value) = pair.split_once('=')?;
            match key {
                "medium" => settings.medium_bytes = value.parse::<u64>().ok()? << 20,
                "cache" => settings.cache_bytes = value.parse::<u64>().ok()? << 20,
                "evictions" => settings.evictions = value.parse().ok()?,
                "threads" => settings.threads = value.parse().ok()?,
                "flush" => settings.flush_interval = Duration::from_secs_f64(value.parse().ok()?),
                "profile" => settings.profile = value.parse().ok()?,
                "seed" => settings.seed = value.parse().ok()?,
                "wait" => {
                    settings.waiting = match value {
                        "spin" => Waiting::Spin,
                        "yield" => Waiting::Yield,
                        _ => return None,
                    }
                }
                _ => return None,
            }
        }
        Some(settings)
    }
}

/// What is measured.
struct Target {
    device: Rc<dyn BlockDevice>,
    transit: Option<Rc<Transit>>,
}

fn open(settings: &Settings) -> Result<Target> {
    let path = format!("/dev/shm/forebay-study-{}", std::process::id());
    let mapping = PmemMapping::open(path.as_ref(), Some(settings.medium_bytes))?;
    let _ = std::fs::remove_file(&path);
    // Every page is there before the clock runs.
    let zeroes = Buf::zeroed(1 << 20);
    for at in (0..mapping.size_bytes()).step_by(1 << 20) {
        mapping.stream(at, &zeroes);
    }
    mapping.fence();
    if settings.system != "pmem" {
        format(&mapping, &FormatOptions::new(BLOCK_BYTES, [7; 16]))?;
    }
    let memory = EmulatedPmem::new(Arc::new(mapping), settings.profile, settings.waiting);
    let under = PmemDevice::new(Arc::new(memory), "pmem", Persistence::Machine);
    if settings.system == "pmem" {
        return Ok(Target {
            device: Rc::new(under),
            transit: None,
        });
    }
    let table = Arc::new(Btt::open(under.memory())?);
    let table = Arc::new(BttDevice::new(table, "btt", &under.info()));
    if settings.system == "btt" {
        return Ok(Target {
            device: Rc::new(table),
            transit: None,
        });
    }
    let policy: Policy = settings.system.parse()?;
    let run = Arc::clone(&table);
    let workers = Workers::new(
        table.info(),
        Arc::new(move |request| run.run(request)),
        settings.threads,
    )?;
    let options = TransitOptions {
        policy,
        evictions: settings.evictions,
        ..TransitOptions::new("transit", [1; 16])
    };
    let slots = (settings.cache_bytes / u64::from(BLOCK_BYTES)) as usize;
    let memory = Buf::zeroed(memory_bytes(slots, BLOCK_BYTES));
    let (transit, _) = Transit::open(Rc::new(table), Rc::new(workers), memory, options)?;
    Ok(Target {
        device: Rc::clone(&transit) as Rc<dyn BlockDevice>,
        transit: Some(transit),
    })
}

/// Who writes.
struct Client {
    device: Rc<dyn BlockDevice>,
    blocks: u64,
    rng: Rng,
    buffers: Vec<Buf>,
    times: RefCell<Histogram<u64>>,
    flushes: RefCell<Histogram<u64>>,
    under_way: Cell<usize>,
    end: Instant,
}

fn histogram() -> RefCell<Histogram<u64>> {
    RefCell::new(Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("bounds"))
}

impl Client {
    fn note(&self, times: &RefCell<Histogram<u64>>, since: Instant) {
        let ns = since.elapsed().as_nanos();
        times
            .borrow_mut()
            .saturating_record(u64::try_from(ns).unwrap_or(u64::MAX).max(1));
    }

    /// Sends a write that was to be sent at `due`. Whether it is over.
    fn send(self: &Rc<Self>, due: Instant) -> bool {
        let at = self.rng.below(self.blocks) * u64::from(BLOCK_BYTES);
        let buf = self.buffers[self.rng.index(BUFFERS)].clone();
        let mut io = self.device.write(at, buf);
        if let Poll::Ready(result) = Pin::new(&mut io).poll(&mut Context::from_waker(Waker::noop()))
        {
            result.expect("written");
            self.note(&self.times, due);
            return true;
        }
        let client = Rc::clone(self);
        client.under_way.set(client.under_way.get() + 1);
        rt::spawn(async move {
            io.await.expect("written");
            client.note(&client.times, due);
            client.under_way.set(client.under_way.get() - 1);
        });
        false
    }

    async fn closed(self: Rc<Self>) {
        while Instant::now() < self.end {
            let due = Instant::now();
            // Others that were sent earlier go first.
            rt::yield_now().await;
            let at = self.rng.below(self.blocks) * u64::from(BLOCK_BYTES);
            let buf = self.buffers[self.rng.index(BUFFERS)].clone();
            self.device.write(at, buf).await.expect("written");
            self.note(&self.times, due);
        }
        self.under_way.set(self.under_way.get() - 1);
    }

    async fn open(self: &Rc<Self>, rate: f64) {
        let mut due = Instant::now();
        while due < self.end {
            if Instant::now() >= due {
                self.send(due);
                let uniform = (self.rng.draw() >> 11) as f64 / (1_u64 << 53) as f64;
                due += Duration::from_secs_f64(-(1.0 - uniform).ln() / rate);
            }
            rt::yield_now().await;
        }
    }

    async fn flush(self: Rc<Self>, interval: Duration) {
        let mut next = Instant::now() + interval;
        while next < self.end {
            rt::sleep(next.saturating_duration_since(Instant::now())).await;
            let begin = Instant::now();
            self.device.flush().await.expect("flushed");
            self.note(&self.flushes, begin);
            next += interval;
        }
    }
}

/// Time that the machine's owner took from its processors, in hundredths of a second.
fn steal() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = stat.lines().next().unwrap_or_default();
    let field = line.split_whitespace().nth(8);
    field.and_then(|text| text.parse().ok()).unwrap_or(0)
}

async fn measure(settings: Settings) -> Result<serde_json::Value> {
    let target = open(&settings)?;
    let buffers = (0..BUFFERS).map(|index| {
        let buf = Buf::zeroed(BLOCK_BYTES as usize);
        buf.fill(index as u8);
        buf
    });
    let begin = Instant::now();
    let client = Rc::new(Client {
        blocks: target.device.info().size_bytes / u64::from(BLOCK_BYTES),
        device: Rc::clone(&target.device),
        rng: Rng::new(settings.seed),
        buffers: buffers.collect(),
        times: histogram(),
        flushes: histogram(),
        under_way: Cell::new(0),
        end: begin + settings.time,
    });
    let stolen = steal();
    if !settings.flush_interval.is_zero() {
        rt::spawn(Rc::clone(&client).flush(settings.flush_interval));
    }
    match settings.load {
        Load::Closed(depth) => {
            client.under_way.set(depth);
            for _ in 0..depth {
                rt::spawn(Rc::clone(&client).closed());
            }
        }
        Load::Open(rate) => client.open(rate).await,
    }
    while client.under_way.get() > 0 {
        rt::yield_now().await;
    }
    let took = begin.elapsed();
    let stolen = steal() - stolen;
    let stats = target.transit.as_ref().map(|transit| transit.stats());
    let drain = Instant::now();
    target.device.flush().await?;
    let drain_ms = drain.elapsed().as_secs_f64() * 1e3;
    let (times, flushes) = (client.times.borrow(), client.flushes.borrow());
    let us = |ns: u64| ns as f64 / 1e3;
    let stats = stats.unwrap_or_default();
    let load = match settings.load {
        Load::Closed(depth) => format!("closed:{depth}"),
        Load::Open(rate) => format!("open:{rate:.0}"),
    };
    Ok(serde_json::json!({
        "system": settings.system,
        "load": load,
        "emulated": settings.profile.to_string(),
        "waiting": format!("{:?}", settings.waiting).to_lowercase(),
        "seconds": took.as_secs_f64(),
        "writes": times.len(),
        "iops": times.len() as f64 / took.as_secs_f64(),
        "mean_us": times.mean() / 1e3,
        "p50_us": us(times.value_at_quantile(0.5)),
        "p99_us": us(times.value_at_quantile(0.99)),
        "p9999_us": us(times.value_at_quantile(0.9999)),
        "max_us": us(times.max()),
        "flushes": flushes.len(),
        "flush_mean_ms": flushes.mean() / 1e6,
        "drain_ms": drain_ms,
        "steal_s": stolen as f64 / 100.0,
        "written": stats.written,
        "rewritten": stats.rewritten,
        "bypassed": stats.bypassed,
        "waited": stats.waited,
        "collided": stats.collided,
        "evicted": stats.evicted,
        "flushed": stats.flushed,
        "slot_bytes": stats.slot_bytes,
    }))
}

fn main() -> std::process::ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(settings) = Settings::parse(&arguments) else {
        eprintln!(
            "usage: study SYSTEM closed:N|open:N SECONDS [medium=MIB] [cache=MIB] [threads=N] \
                   [evictions=N]                    [flush=SECONDS] [profile=NAME] [wait=spin|yield] [seed=N]"
        );
        return std::process::ExitCode::FAILURE;
    };
    let result = Reactor::new(Engine::Auto).and_then(|reactor| reactor.run(measure(settings)));
    match result {
        Ok(row) => {
            println!("{row}");
            std::process::ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("study: {}", error.report());
            std::process::ExitCode::FAILURE
        }
    }
}
