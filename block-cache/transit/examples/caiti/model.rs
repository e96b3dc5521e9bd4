//! A modelled run: the cache's own code (policies, slots, core) on a virtual clock. Its devices
//! have declared threads, a declared memory and measured service times. One of those is the time to
//! wake an evicting thread. Nothing else is modelled: neither shared processor caches nor waits
//! inside the kernel.
//!
//! A thread that sends writes pays the costs of a write before the device (`stack`), of the client,
//! and of the write into the slot. For each eviction it is occupied by choosing, handing over and
//! ending it. Writes that bypass the slots occupy it for the whole write to the table. So do
//! evictions of caches that evict in the writer's thread.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf};
use forebay_io::rt;
use forebay_io::sim::Rng;
use forebay_transit::{Policy, Transit, TransitOptions, memory_bytes};
use hdrhistogram::Histogram;

use crate::modelled::{Kind, Machine, Memory, Modelled};
use crate::settings::{BLOCK_BYTES, Evict, Load, Settings};

/// Blocks of the cache hold so few bytes here: only their number counts.
const HELD_BYTES: u32 = 512;

struct Client {
    machine: Rc<Machine>,
    device: Rc<dyn BlockDevice>,
    blocks: u64,
    before_ns: u64,
    rng: Rng,
    times: RefCell<Histogram<u64>>,
    sent: Cell<u64>,
    ended: Cell<u64>,
    /// Writes that do not count, and all.
    warm: u64,
    most: u64,
    in_flight: Cell<usize>,
    began: Cell<Duration>,
    flush_every: u64,
}

impl Client {
    /// A write of the thread `job`, which was to be sent at `due`.
    async fn write(&self, job: u64, due: Duration) {
        let jobs = self.machine.writers.len() as u64;
        let block = self.rng.below(self.blocks / jobs) * jobs + job;
        self.sent.set(self.sent.get() + 1);
        let thread = self.machine.writer(block);
        self.machine.work(thread, self.before_ns).await;
        let data = Buf::zeroed(HELD_BYTES as usize);
        let written = self.device.write(block * u64::from(HELD_BYTES), data);
        written.await.expect("modelled devices do not fail");
        let ended = self.ended.get() + 1;
        self.ended.set(ended);
        if ended == self.warm {
            self.began.set(rt::now());
        }
        if ended > self.warm {
            let time = (rt::now() - due).as_nanos();
            let mut times = self.times.borrow_mut();
            times.saturating_record(u64::try_from(time).unwrap_or(u64::MAX).max(1));
        }
        if self.flush_every > 0 && ended.is_multiple_of(self.flush_every) {
            self.device
                .flush()
                .await
                .expect("modelled devices do not fail");
        }
    }

    async fn closed(self: Rc<Self>, job: u64) {
        while self.sent.get() < self.most {
            self.write(job, rt::now()).await;
        }
        self.in_flight.set(self.in_flight.get() - 1);
    }

    async fn open(self: &Rc<Self>, rate: f64) {
        let mut due = rt::now();
        while self.sent.get() < self.most {
            rt::sleep(due.saturating_sub(rt::now())).await;
            let job = self.sent.get() % self.machine.writers.len() as u64;
            let client = Rc::clone(self);
            client.in_flight.set(client.in_flight.get() + 1);
            rt::spawn(async move {
                client.write(job, due).await;
                client.in_flight.set(client.in_flight.get() - 1);
            });
            let uniform = (self.rng.draw() >> 11) as f64 / (1_u64 << 53) as f64;
            due += Duration::from_secs_f64(-(1.0 - uniform).ln() / rate);
            // The next one counts itself when it runs.
            rt::sleep(Duration::from_nanos(1)).await;
        }
    }
}

/// Models.
pub(crate) fn run(settings: &Settings) -> Result<serde_json::Value, String> {
    let policy = match settings.system.as_str() {
        "pmem" | "btt" => None,
        name => Some(forebay_caiti::named(name).map_err(|error| error.report())?),
    };
    rt::block_on_simulated(settings.seed, model(settings.clone(), policy))
}

async fn model(settings: Settings, policy: Option<Policy>) -> Result<serde_json::Value, String> {
    let evictors = match settings.evict {
        Evict::Syncer => 1,
        _ => settings.cores.saturating_sub(settings.jobs),
    };
    let memory = Memory::new(settings.profile, settings.dimms);
    let machine = Rc::new(Machine::new(
        memory,
        settings.jobs,
        evictors,
        settings.service,
    ));
    let blocks = settings.medium_bytes / u64::from(BLOCK_BYTES);
    let modelled = |kind| -> Rc<dyn BlockDevice> {
        Rc::new(Modelled::new(&machine, kind, blocks, HELD_BYTES))
    };
    let slots = settings.slots();
    let mut transit = None;
    let device = match policy {
        None if settings.system == "pmem" => modelled(Kind::Raw),
        None => modelled(Kind::Table),
        Some(policy) => {
            let options = TransitOptions {
                policy,
                evictions: settings.evictions * evictors.max(1),
                ..TransitOptions::new("transit", [1; 16])
            };
            let memory = Buf::zeroed(memory_bytes(slots, HELD_BYTES));
            let evictor = modelled(Kind::Evictor(settings.evict));
            let opened = Transit::open(modelled(Kind::Table), evictor, memory, options);
            let (cache, _) = opened.map_err(|error| error.report())?;
            transit = Some(Rc::clone(&cache));
            cache
        }
    };
    let service = &settings.service;
    let warm = policy.map_or(1000, |_| slots as u64 + slots as u64 / 4);
    let place_ns = policy.map_or(0, |_| service.place_ns);
    let client = Rc::new(Client {
        machine: Rc::clone(&machine),
        device,
        blocks,
        before_ns: settings.stack_ns + service.client_ns + place_ns,
        rng: Rng::new(settings.seed),
        times: RefCell::new(Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("bounds")),
        sent: Cell::new(0),
        ended: Cell::new(0),
        warm,
        most: warm + settings.amount as u64,
        in_flight: Cell::new(0),
        began: Cell::new(Duration::ZERO),
        flush_every: settings.flush_every_bytes / u64::from(BLOCK_BYTES),
    });
    if !settings.flush_interval.is_zero() {
        let (device, interval) = (Rc::clone(&client.device), settings.flush_interval);
        rt::spawn(async move {
            loop {
                rt::sleep(interval).await;
                device.flush().await.expect("modelled devices do not fail");
            }
        });
    }
    match settings.load {
        Load::Closed(depth) => {
            client.in_flight.set(depth * settings.jobs);
            for nth in 0..depth * settings.jobs {
                let job = (nth % settings.jobs) as u64;
                rt::spawn(Rc::clone(&client).closed(job));
            }
        }
        Load::Open(rate) => client.open(rate).await,
    }
    while client.in_flight.get() > 0 {
        rt::sleep(Duration::from_micros(1)).await;
    }
    let took = rt::now() - client.began.get();
    let times = client.times.borrow();
    let us = |ns: u64| ns as f64 / 1e3;
    let stats = transit.map(|transit| transit.stats()).unwrap_or_default();
    Ok(serde_json::json!({
        "system": settings.system,
        "load": settings.load.to_string(),
        "cores": settings.cores,
        "jobs": settings.jobs,
        "cache_mib": settings.cache_bytes >> 20,
        "evict": format!("{:?}", settings.evict).to_lowercase(),
        "writes": times.len(),
        "seconds": took.as_secs_f64(),
        "iops": times.len() as f64 / took.as_secs_f64(),
        "mean_us": times.mean() / 1e3,
        "p99_us": us(times.value_at_quantile(0.99)),
        "p9999_us": us(times.value_at_quantile(0.9999)),
        "bypassed": stats.bypassed,
        "waited": stats.waited,
        "evicted": stats.evicted,
        "woken": machine.evictors.woken(),
    }))
}
