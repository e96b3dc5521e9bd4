//! Load of random 4 KiB requests on the device of a URI, by our own initiators.
//!
//! Usage: `load nvme-tcp://127.0.0.1:4420/NQN read 32 5 256`: direction, queue depth, seconds, MiB.
//! With `spin` at the end, it polls for answers and never sleeps. The example prints its results as
//! JSON for `cargo xtask bench nvme-tcp`. Writes destroy existing data.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf, Error, ErrorKind, Result};
use forebay_device::nbd::NbdDevice;
use forebay_device::nvme_tcp::NvmeTcpDevice;
use forebay_io::sync::WaitList;
use forebay_io::{Engine, Reactor, rt};

const REQUEST_BYTES: u64 = 4096;
/// Width of a latency class, and number of classes: up to 200 ms, then one class for the rest.
const CLASS: Duration = Duration::from_nanos(100);
const CLASSES: usize = 2_000_000;
/// Warm-up that is not measured.
const BEFORE: Duration = Duration::from_millis(300);

struct Load {
    device: Rc<dyn BlockDevice>,
    write: bool,
    blocks: u64,
    /// Start and end of the measurement.
    from: Duration,
    until: Duration,
    latencies: RefCell<Vec<u32>>,
    requests: Cell<u64>,
    running: Cell<u64>,
    ended: WaitList,
    failed: RefCell<Option<Error>>,
}

impl Load {
    async fn one(self: Rc<Self>, number: u64) {
        let buf = Buf::zeroed(REQUEST_BYTES as usize);
        buf.fill(0xa5);
        let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        loop {
            // xorshift
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let at = state % self.blocks * REQUEST_BYTES;
            let begin = rt::now();
            let done = match self.write {
                true => self.device.write(at, buf.clone()).await,
                false => self.device.read(at, buf.clone()).await,
            };
            if let Err(error) = done {
                self.failed.borrow_mut().get_or_insert(error);
                break;
            }
            let end = rt::now();
            if end >= self.until {
                break;
            }
            if begin >= self.from {
                let class = (end - begin).as_nanos() / CLASS.as_nanos();
                let class = usize::try_from(class).unwrap_or(CLASSES).min(CLASSES - 1);
                self.latencies.borrow_mut()[class] += 1;
                self.requests.set(self.requests.get() + 1);
            }
        }
        self.running.set(self.running.get() - 1);
        self.ended.wake_all();
    }

    /// Returns the latency at this percentile of the requests, us.
    fn percentile(&self, share: f64) -> f64 {
        let wanted = (self.requests.get() as f64 * share).ceil() as u64;
        let mut seen = 0;
        let latencies = self.latencies.borrow();
        let class = latencies.iter().position(|&count| {
            seen += u64::from(count);
            seen >= wanted
        });
        (class.unwrap_or(CLASSES) as f64 + 0.5) * CLASS.as_secs_f64() * 1e6
    }
}

async fn open(uri: &str) -> Result<Rc<dyn BlockDevice>> {
    if uri.starts_with("nvme-tcp://") {
        return Ok(NvmeTcpDevice::connect(&uri.parse()?).await?);
    }
    Ok(NbdDevice::connect(&uri.parse()?).await?)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (spins, arguments) = match &*arguments {
        [all @ .., last] if last == "spin" => (true, all),
        all => (false, all),
    };
    let [uri, direction, depth, seconds, size_mib] = arguments else {
        let what = "usage: load URI read|write DEPTH SECONDS MIB [spin]";
        return Err(Error::new(ErrorKind::InvalidInput, what));
    };
    let number = |text: &str| {
        let what = || Error::new(ErrorKind::InvalidInput, format!("{text:?} is no number"));
        text.parse::<u64>().map_err(|_| what())
    };
    let (depth, seconds) = (number(depth)?, number(seconds)?);
    let (uri, write) = (uri.clone(), direction == "write");
    let blocks = (number(size_mib)? << 20) / REQUEST_BYTES;
    Reactor::new(Engine::Auto)?.run(async move {
        if spins {
            forebay_io::never_sleep()?;
        }
        let device = open(&uri).await?;
        let from = rt::now() + BEFORE;
        let load = Rc::new(Load {
            device,
            write,
            blocks,
            from,
            until: from + Duration::from_secs(seconds),
            latencies: RefCell::new(vec![0; CLASSES]),
            requests: Cell::new(0),
            running: Cell::new(depth),
            ended: WaitList::new(),
            failed: RefCell::default(),
        });
        for number in 1..=depth {
            rt::spawn(Rc::clone(&load).one(number));
        }
        load.ended.until(|| load.running.get() == 0).await;
        if let Some(error) = load.failed.take() {
            return Err(error);
        }
        println!(
            "{{\"requests\": {}, \"iops\": {:.1}, \"p50_us\": {:.2}, \"p99_us\": {:.2}}}",
            load.requests.get(),
            load.requests.get() as f64 / seconds as f64,
            load.percentile(0.5),
            load.percentile(0.99),
        );
        Ok(())
    })
}
