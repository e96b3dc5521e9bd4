//! Load of many hosts at once, by our own NVMe/TCP initiator.
//!
//! Usage: `hosts SECONDS STALL_MS HOST...`. Each host is
//! `DIRECTION,DEPTH,BYTES,MIB,nvme-tcp://127.0.0.1:4420/NQN`. Direction `read` or `write` sends
//! requests of `BYTES` bytes at random places of the first `MIB` MiB. Direction `fill` writes each
//! block once, in order. A host of depth 0 connects and sends no request. The example prints its
//! results as JSON for `cargo xtask bench hosts`. Writes destroy existing data.
//!
//! All hosts are connected before the first request. With a stall, no host receives anything for
//! that time, once all have sent requests. This shows the memory that a target uses for hosts that
//! do not read.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDeviceExt as _, Buf, Error, ErrorKind, Result};
use forebay_device::nvme_tcp::{NvmeTcpDevice, Uri};
use forebay_io::sync::WaitList;
use forebay_io::{Engine, Reactor, rt};

/// Time counted separately: both sides settle, and bursts are spent.
const FIRST: Duration = Duration::from_secs(1);
/// Time in which all requests reach the target, before a stall.
const ASKED: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
    Fill,
}

struct Plan {
    direction: Direction,
    depth: u64,
    bytes: u64,
    size_bytes: u64,
    uri: Uri,
}

struct Host {
    plan: Plan,
    device: Rc<NvmeTcpDevice>,
    buf: Buf,
    /// Next block of a fill.
    next: Cell<u64>,
    /// Answered requests in the first second, and after it.
    first: Cell<u64>,
    then: Cell<u64>,
}

struct Run {
    begin: Duration,
    until: Duration,
    running: Cell<u64>,
    ended: WaitList,
    failed: RefCell<Option<Error>>,
}

fn invalid(what: String) -> Error {
    Error::new(ErrorKind::InvalidInput, what)
}

fn number(text: &str) -> Result<u64> {
    let parsed = text.parse::<u64>();
    parsed.map_err(|_| invalid(format!("{text:?} is no number")))
}

impl Plan {
    fn parse(text: &str) -> Result<Self> {
        let parts: Vec<&str> = text.splitn(5, ',').collect();
        let [direction, depth, bytes, mib, uri] = &*parts else {
            return Err(invalid(format!(
                "{text:?} is no DIRECTION,DEPTH,BYTES,MIB,URI"
            )));
        };
        let direction = match *direction {
            "read" => Direction::Read,
            "write" => Direction::Write,
            "fill" => Direction::Fill,
            other => return Err(invalid(format!("{other:?} is not read, write or fill"))),
        };
        let plan = Self {
            direction,
            depth: number(depth)?,
            bytes: number(bytes)?,
            size_bytes: number(mib)? << 20,
            uri: uri.parse()?,
        };
        match plan.bytes {
            1.. if plan.bytes <= plan.size_bytes => Ok(plan),
            _ => Err(invalid(format!("{text:?} has no request in it"))),
        }
    }
}

impl Host {
    async fn connect(plan: Plan) -> Result<Self> {
        let device = NvmeTcpDevice::connect(&plan.uri).await?;
        let buf = Buf::scratch(usize::try_from(plan.bytes).expect("a request"));
        buf.fill(0xa5);
        Ok(Self {
            plan,
            device,
            buf,
            next: Cell::new(0),
            first: Cell::new(0),
            then: Cell::new(0),
        })
    }

    /// Sends one request at a time until the time is over or all blocks are filled.
    async fn ask(&self, run: &Run, seed: u64) -> Result<()> {
        let blocks = self.plan.size_bytes / self.plan.bytes;
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        loop {
            let block = if self.plan.direction == Direction::Fill {
                let next = self.next.get();
                self.next.set(next + 1);
                if next >= blocks {
                    return Ok(());
                }
                next
            } else {
                // xorshift
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % blocks
            };
            // The data of reads is ignored: all reads of a host share one buffer.
            let (at, buf) = (block * self.plan.bytes, self.buf.clone());
            match self.plan.direction {
                Direction::Read => self.device.read(at, buf).await?,
                Direction::Write | Direction::Fill => self.device.write(at, buf).await?,
            }
            let now = rt::now();
            if self.plan.direction != Direction::Fill && now >= run.until {
                return Ok(());
            }
            let count = match now - run.begin < FIRST {
                true => &self.first,
                false => &self.then,
            };
            count.set(count.get() + 1);
        }
    }
}

async fn drive(plans: Vec<Plan>, time: Duration, stall: Duration) -> Result<Vec<Rc<Host>>> {
    let mut hosts = Vec::new();
    for plan in plans {
        hosts.push(Rc::new(Host::connect(plan).await?));
    }
    let begin = rt::now();
    let run = Rc::new(Run {
        begin,
        until: begin + FIRST + time,
        running: Cell::new(0),
        ended: WaitList::new(),
        failed: RefCell::default(),
    });
    let mut seed = 0;
    // The tasks of all hosts alternate, so that no host's requests precede those of the others.
    let deepest = hosts.iter().map(|host| host.plan.depth).max().unwrap_or(0);
    for level in 0..deepest {
        for host in hosts.iter().filter(|host| level < host.plan.depth) {
            let (host, run) = (Rc::clone(host), Rc::clone(&run));
            run.running.set(run.running.get() + 1);
            seed += 1;
            rt::spawn(async move {
                if let Err(error) = host.ask(&run, seed).await {
                    run.failed.borrow_mut().get_or_insert(error);
                }
                run.running.set(run.running.get() - 1);
                run.ended.wake_all();
            });
        }
    }
    if stall > Duration::ZERO {
        rt::sleep(ASKED).await;
        std::thread::sleep(stall);
    }
    if deepest == 0 {
        rt::sleep(FIRST + time).await;
    }
    run.ended.until(|| run.running.get() == 0).await;
    match run.failed.take() {
        Some(error) => Err(error),
        None => Ok(hosts),
    }
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [seconds, stall_ms, hosts @ ..] = &*arguments else {
        return Err(invalid("usage: hosts SECONDS STALL_MS HOST...".to_owned()));
    };
    let plans = hosts.iter().map(|host| Plan::parse(host));
    let plans = plans.collect::<Result<Vec<_>>>()?;
    let time = Duration::from_secs(number(seconds)?);
    let stall = Duration::from_millis(number(stall_ms)?);
    Reactor::new(Engine::Auto)?.run(async move {
        let hosts = drive(plans, time, stall).await?;
        let counts = hosts
            .iter()
            .map(|host| format!("[{}, {}]", host.first.get(), host.then.get()));
        let losses: u64 = hosts.iter().map(|host| host.device.losses()).sum();
        println!(
            "{{\"losses\": {losses}, \"first_s\": {}, \"answered\": [{}]}}",
            FIRST.as_secs_f64(),
            counts.collect::<Vec<_>>().join(", ")
        );
        Ok(())
    })
}
