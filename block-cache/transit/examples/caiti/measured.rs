//! A measured run.
//!
//! A reactor serves the requests, as in the daemon, and never sleeps; other threads evict. A
//! request's time begins when it is due, not when the reactor sends it. Before the measurement,
//! memory is touched, and the cache's size and a quarter more is written under the same load. So
//! policies that retain blocks start in their steady state. During the run the process has
//! real-time priority, if it is permitted and not disabled.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use forebay_block::{
    BlockDevice, BlockDeviceExt as _, Buf, Completion, DeviceInfo, Persistence, Request, Result,
};
use forebay_btt::{Btt, BttDevice, FormatOptions, format};
use forebay_device::emulate::memory::EmulatedPmem;
use forebay_device::metered::Metered;
use forebay_device::pmem::PmemDevice;
use forebay_io::pmem::{Pmem as _, PmemMapping};
use forebay_io::rt::meter::{self, Account};
use forebay_io::sim::Rng;
use forebay_io::{Engine, Reactor, rt};
use forebay_transit::{Transit, TransitOptions, Workers, memory_bytes};
use hdrhistogram::Histogram;

use crate::settings::{BLOCK_BYTES, Load, Settings};
use crate::timeline::Timeline;

/// Writes with other contents, so that they differ.
const BUFFERS: usize = 64;

/// Subject of the measurement.
struct Target {
    device: Rc<dyn BlockDevice>,
    transit: Option<Rc<Transit>>,
    workers: Option<Rc<Workers>>,
}

impl From<Rc<dyn BlockDevice>> for Target {
    fn from(device: Rc<dyn BlockDevice>) -> Self {
        Self {
            device,
            transit: None,
            workers: None,
        }
    }
}

/// A device that does nothing, to see what a client takes by itself.
struct Null(DeviceInfo);

impl BlockDevice for Null {
    fn info(&self) -> DeviceInfo {
        self.0.clone()
    }

    fn submit(&self, _request: Request, done: Completion) {
        done.complete(Ok(()));
    }
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
    let raw = matches!(settings.system.as_str(), "pmem" | "null");
    if !raw {
        format(&mapping, &FormatOptions::new(BLOCK_BYTES, [7; 16]))?;
    }
    let memory = EmulatedPmem::new(Arc::new(mapping), settings.profile, settings.waiting);
    let under = PmemDevice::new(Arc::new(memory), "pmem", Persistence::Machine);
    if settings.system == "null" {
        let null: Rc<dyn BlockDevice> = Rc::new(Null(under.info()));
        return Ok(null.into());
    }
    if raw {
        let device: Rc<dyn BlockDevice> = Rc::new(under);
        return Ok(device.into());
    }
    let table = Arc::new(Btt::open(under.memory())?);
    let table = Arc::new(BttDevice::new(table, "btt", &under.info()));
    if settings.system == "btt" {
        let device: Rc<dyn BlockDevice> = Rc::new(table);
        return Ok(device.into());
    }
    let run = Arc::clone(&table);
    let workers = Workers::new(
        table.info(),
        Arc::new(move |request| run.run(request)),
        settings.threads,
    )?;
    let workers = Rc::new(workers);
    if settings.system == "workers" {
        let mut device: Rc<dyn BlockDevice> = Rc::clone(&workers) as _;
        if settings.meter {
            device = Metered::wrap(device, Account::Engine);
        }
        return Ok(Target {
            device,
            transit: None,
            workers: Some(workers),
        });
    }
    let policy = forebay_caiti::named(&settings.system)?;
    let options = TransitOptions {
        policy,
        evictions: settings.evictions,
        ..TransitOptions::new("transit", [1; 16])
    };
    let memory = Buf::zeroed(memory_bytes(settings.slots(), BLOCK_BYTES));
    // Touched, so that no page is missing later.
    memory.fill(0);
    let mut table: Rc<dyn BlockDevice> = Rc::new(table);
    if settings.meter {
        table = Metered::wrap(table, Account::Device);
    }
    let (transit, _) = Transit::open(table, Rc::clone(&workers) as _, memory, options)?;
    let mut device: Rc<dyn BlockDevice> = Rc::clone(&transit) as _;
    if settings.meter {
        device = Metered::wrap(device, Account::Engine);
    }
    Ok(Target {
        device,
        transit: Some(transit),
        workers: Some(workers),
    })
}

/// A sender of requests.
struct Client {
    device: Rc<dyn BlockDevice>,
    blocks: u64,
    reads: bool,
    rng: Rng,
    buffers: Vec<Buf>,
    times: RefCell<Histogram<u64>>,
    flushes: RefCell<Histogram<u64>>,
    timeline: Option<RefCell<Timeline>>,
    in_flight: Cell<usize>,
    sent: Cell<u64>,
    /// Writes after which a flush comes; none if zero.
    flush_every: u64,
    begin: Instant,
    time: Duration,
    /// Requests, at most.
    most: u64,
}

fn histogram() -> RefCell<Histogram<u64>> {
    RefCell::new(Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("bounds"))
}

fn elapsed_ns(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

impl Client {
    fn is_over(&self) -> bool {
        self.sent.get() >= self.most || self.begin.elapsed() >= self.time
    }

    fn note(&self, since: Instant) {
        let ns = elapsed_ns(since).max(1);
        self.times.borrow_mut().saturating_record(ns);
        if let Some(timeline) = &self.timeline {
            let at = since.saturating_duration_since(self.begin);
            timeline.borrow_mut().note(at, self.time, ns);
        }
    }

    /// The next request; and whether a flush follows it.
    fn next(&self) -> (Request, bool) {
        let at = self.rng.below(self.blocks) * u64::from(BLOCK_BYTES);
        let buf = self.buffers[self.rng.index(BUFFERS)].clone();
        self.sent.set(self.sent.get() + 1);
        let flush = self.flush_every > 0 && self.sent.get().is_multiple_of(self.flush_every);
        match self.reads {
            true => (Request::read(at, buf), flush),
            false => (Request::write(at, buf, false), flush),
        }
    }

    async fn flush_now(&self) {
        let begin = Instant::now();
        self.device.flush().await.expect("flushed");
        let ns = elapsed_ns(begin).max(1);
        self.flushes.borrow_mut().saturating_record(ns);
    }

    /// Sends what was to be sent at `due`.
    fn send(self: &Rc<Self>, due: Instant) {
        let (request, flush) = self.next();
        let mut io = self.device.start(request);
        if !flush
            && let Poll::Ready(result) =
                Pin::new(&mut io).poll(&mut Context::from_waker(Waker::noop()))
        {
            result.expect("served");
            return self.note(due);
        }
        let client = Rc::clone(self);
        client.in_flight.set(client.in_flight.get() + 1);
        rt::spawn(async move {
            io.await.expect("served");
            client.note(due);
            if flush {
                client.flush_now().await;
            }
            client.in_flight.set(client.in_flight.get() - 1);
        });
    }

    async fn closed(self: Rc<Self>) {
        while !self.is_over() {
            let due = Instant::now();
            // Others that were sent earlier go first, and the reactor looks for what has come, as
            // it does between requests that come over a socket.
            rt::next_turn().await;
            let (request, flush) = self.next();
            self.device.start(request).await.expect("served");
            self.note(due);
            if flush {
                self.flush_now().await;
            }
        }
        self.in_flight.set(self.in_flight.get() - 1);
    }

    async fn open(self: &Rc<Self>, rate: f64) {
        let mut due = self.begin;
        while !self.is_over() {
            if Instant::now() >= due {
                self.send(due);
                let uniform = (self.rng.draw() >> 11) as f64 / (1_u64 << 53) as f64;
                due += Duration::from_secs_f64(-(1.0 - uniform).ln() / rate);
            }
            rt::next_turn().await;
        }
    }

    async fn flush_at(self: Rc<Self>, interval: Duration) {
        let mut next = self.begin + interval;
        while next < self.begin + self.time {
            rt::sleep(next.saturating_duration_since(Instant::now())).await;
            self.flush_now().await;
            next += interval;
        }
    }

    async fn drive(self: &Rc<Self>, load: Load) {
        match load {
            Load::Closed(depth) => {
                self.in_flight.set(depth);
                for _ in 0..depth {
                    rt::spawn(Rc::clone(self).closed());
                }
            }
            Load::Open(rate) => self.open(rate).await,
        }
        while self.in_flight.get() > 0 {
            rt::next_turn().await;
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

/// Requests real-time priority, so that other programs do not show in the figures. Whether it was
/// given.
fn take_priority() -> bool {
    let mut chrt = Command::new("chrt");
    chrt.args(["--rr", "--all-tasks", "--pid", "10"]);
    chrt.arg(std::process::id().to_string());
    let output = chrt.output();
    output.is_ok_and(|output| output.status.success())
}

/// Measures.
pub(crate) fn run(settings: &Settings) -> Result<serde_json::Value> {
    Reactor::new(Engine::Auto)?.run(measure(settings.clone()))
}

async fn measure(settings: Settings) -> Result<serde_json::Value> {
    let target = open(&settings)?;
    let rng = Rng::new(settings.seed);
    let client = |time: Duration, most: u64, reads: bool| {
        let buffers = (0..BUFFERS).map(|index| {
            let buf = Buf::zeroed(BLOCK_BYTES as usize);
            buf.fill(index as u8);
            buf
        });
        Rc::new(Client {
            blocks: target.device.info().size_bytes / u64::from(BLOCK_BYTES),
            device: Rc::clone(&target.device),
            reads,
            rng: Rng::new(rng.draw()),
            buffers: buffers.collect(),
            times: histogram(),
            flushes: histogram(),
            timeline: settings.timeline.then(RefCell::default),
            in_flight: Cell::new(0),
            sent: Cell::new(0),
            flush_every: settings.flush_every_bytes / u64::from(BLOCK_BYTES),
            begin: Instant::now(),
            time,
            most,
        })
    };
    let real_time = settings.priority && take_priority();
    let slots = settings.slots() as u64;
    let mut most = u64::MAX;
    if settings.fill {
        most = slots / 2;
    } else if target.transit.is_some() {
        let warm = client(Duration::from_secs(60), slots + slots / 4, false);
        warm.drive(settings.load).await;
    }
    let woken = || target.workers.as_ref().map_or(0, |workers| workers.woken());
    let woken_before = woken();
    let before = target.transit.as_ref().map(|transit| transit.stats());
    let before = before.unwrap_or_default();
    let parts_before = target.transit.as_ref().map(|transit| transit.parts());
    let parts_before = parts_before.unwrap_or_default();
    let time = Duration::from_secs_f64(settings.amount);
    let client = client(time, most, settings.reads);
    if settings.meter {
        meter::start();
    }
    let stolen = steal();
    if !settings.flush_interval.is_zero() && settings.flush_interval < time {
        rt::spawn(Rc::clone(&client).flush_at(settings.flush_interval));
    }
    client.drive(settings.load).await;
    let took = client.begin.elapsed();
    let stolen = steal() - stolen;
    let spent = settings.meter.then(meter::spent).unwrap_or_default();
    let woken = woken() - woken_before;
    let stats = target.transit.as_ref().map(|transit| transit.stats());
    let stats = stats.unwrap_or_default();
    let parts = target.transit.as_ref().map(|transit| transit.parts());
    let parts: Vec<_> = (parts.unwrap_or_default().into_iter())
        .map(|(name, count, ns)| {
            let before = (parts_before.iter()).find(|(other, ..)| *other == name);
            let (_, before, ns_before) = before.copied().unwrap_or_default();
            (name, count - before, ns - ns_before)
        })
        .collect();
    let drain = Instant::now();
    target.device.flush().await?;
    let drain_ms = drain.elapsed().as_secs_f64() * 1e3;
    let (times, flushes) = (client.times.borrow(), client.flushes.borrow());
    let us = |ns: u64| ns as f64 / 1e3;
    let each = |time: Duration| time.as_nanos() as f64 / times.len().max(1) as f64;
    let timeline = client.timeline.as_ref().map(|grid| grid.borrow().cells());
    Ok(serde_json::json!({
        "system": settings.system,
        "load": settings.load.to_string(),
        "emulated": settings.profile.to_string(),
        "waiting": format!("{:?}", settings.waiting).to_lowercase(),
        "real_time": real_time,
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
        "written": stats.written - before.written,
        "rewritten": stats.rewritten - before.rewritten,
        "bypassed": stats.bypassed - before.bypassed,
        "waited": stats.waited - before.waited,
        "collided": stats.collided - before.collided,
        "evicted": stats.evicted - before.evicted,
        "woken": woken,
        "flushed": stats.flushed - before.flushed,
        "read_hits": stats.read_hits - before.read_hits,
        "slot_bytes": stats.slot_bytes,
        "engine_ns": each(spent.engine),
        "device_ns": each(spent.device),
        "parts": parts,
        "timeline": timeline,
    }))
}
