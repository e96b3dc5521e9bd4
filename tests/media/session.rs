//! One run of Forebay on a machine's media: it is refused, or it serves.

use std::rc::Rc;
use std::time::{Duration, Instant};

use forebay::{Config, Engine, Reactor, Stack, Wishes};
use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf};
use forebay_io::rt;
use forebay_io::sim::Rng;
use forebay_testkit::stamp::{self, Content, SECTOR_BYTES};

use crate::world::{BLOCK, BLOCKS, VOLUMES};

/// Longest wait for threads of a process that died.
const PATIENCE: Duration = Duration::from_secs(5);

/// The value of a block: the volume of its last write, and that write's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Zero,
    Write { volume: usize, number: u64 },
}

/// The values of all blocks of all volumes.
pub(crate) type Contents = [[Value; BLOCKS as usize]; VOLUMES];

pub(crate) const ZEROES: Contents = [[Value::Zero; BLOCKS as usize]; VOLUMES];

/// The result of reading a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Value(Value),
    /// Bytes that no write produced.
    Garbage(String),
    /// The read failed.
    Failed(String),
}

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Without a shutdown.
    Death,
    /// By a clean stop.
    Stop,
}

/// The actions of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Decides the writes.
    pub(crate) seed: u64,
    /// Number of operations.
    pub(crate) operations: u64,
    pub(crate) end: End,
}

/// A run that served.
#[derive(Clone, Debug)]
pub(crate) struct Served {
    /// The blocks, as they read before the first write.
    pub(crate) found: Vec<Vec<Found>>,
    /// Whether the start reported damage or loss.
    pub(crate) reported: bool,
    /// The report of the recovery.
    pub(crate) recovery: String,
    /// Dirty bytes of each volume at the end.
    pub(crate) dirty_bytes: [u64; VOLUMES],
    /// Clean bytes of each volume in the cache at the end.
    pub(crate) clean_bytes: [u64; VOLUMES],
    /// A failed operation, or a failed stop.
    pub(crate) failure: Option<String>,
}

/// The values that the model knows, and the number of the last write.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) now: Contents,
    number: u64,
    /// Every earlier value of a block: its volume, its number, the value.
    past: Vec<(usize, usize, Value)>,
}

impl Model {
    pub(crate) fn new() -> Self {
        Self {
            now: ZEROES,
            number: 0,
            past: Vec::new(),
        }
    }

    /// Whether a backing device with these values lacks a newest value.
    pub(crate) fn differs_from(&self, volume: usize, found: &[Found]) -> bool {
        let newest = self.now[volume].iter();
        newest
            .zip(found)
            .any(|(now, found)| *found != Found::Value(*now))
    }

    /// Whether a block ever had this value.
    pub(crate) fn had(&self, volume: usize, block: usize, value: Value) -> bool {
        value == Value::Zero || self.past.contains(&(volume, block, value))
    }
}

/// Starts Forebay, reads everything, writes, and ends the run.
///
/// # Errors
/// Returns the report of a refused start.
pub(crate) fn run(config: &Config, plan: Plan, model: &mut Model) -> Result<Served, String> {
    let reactor = Reactor::new(Engine::Threads).expect("a reactor");
    let config = config.clone();
    let (result, after) = reactor.run({
        let mut model = model.clone();
        async move {
            let result = serve(&config, plan, &mut model).await;
            (result, model)
        }
    });
    *model = after;
    result
}

async fn serve(config: &Config, plan: Plan, model: &mut Model) -> Result<Served, String> {
    let begin = Instant::now();
    let stack = loop {
        match Stack::open(config, &Wishes::default()).await {
            Ok(stack) => break stack,
            Err(error) => {
                let report = error.report();
                // A thread of the dead process may still hold it. Such a thread ends by itself.
                if !report.contains("another daemon holds the state directory")
                    || begin.elapsed() > PATIENCE
                {
                    return Err(report);
                }
                rt::sleep(Duration::from_millis(10)).await;
            }
        }
    };
    if let Err(error) = stack.ready().await {
        let report = error.report();
        let _ = stack.close().await;
        return Err(report);
    }
    let devices: Vec<_> = (0..VOLUMES)
        .map(|volume| stack.volume(&format!("v{volume}")).expect("there").open())
        .collect();
    let status = stack.status();
    let cache = status.cache.expect("a cache");
    let reported = cache.damaged_records > 0 || cache.recovery.to_lowercase().contains("lost");
    let mut found = Vec::new();
    for device in &devices {
        let mut blocks = Vec::new();
        for block in 0..BLOCKS {
            blocks.push(read(device, block).await);
        }
        found.push(blocks);
    }
    let mut failure = None;
    let rng = Rng::labelled(plan.seed, 31);
    for _ in 0..plan.operations {
        if let Err(error) = act(&stack, &devices, &rng, model).await {
            failure = Some(error);
            break;
        }
    }
    let (mut dirty_bytes, mut clean_bytes) = ([0; VOLUMES], [0; VOLUMES]);
    for (index, volume) in stack.status().volumes.into_iter().enumerate() {
        dirty_bytes[index] = volume.dirty_bytes;
        clean_bytes[index] = volume.cached_bytes.saturating_sub(volume.dirty_bytes);
    }
    if plan.end == End::Stop {
        drop(devices);
        if let Err(error) = stack.close().await {
            failure.get_or_insert(format!("stop: {}", error.report()));
        }
    }
    // Dropping the stack is the death of the process.
    Ok(Served {
        found,
        reported,
        recovery: cache.recovery,
        dirty_bytes,
        clean_bytes,
        failure,
    })
}

/// Runs one operation of a client.
async fn act(
    stack: &Stack,
    devices: &[Rc<dyn BlockDevice>],
    rng: &Rng,
    model: &mut Model,
) -> Result<(), String> {
    let volume = rng.index(VOLUMES);
    let device = &devices[volume];
    let first = rng.below(BLOCKS);
    let count = (1 + rng.below(4)).min(BLOCKS - first);
    let done = match rng.below(16) {
        0..=8 => {
            model.number += 1;
            let number = model.number;
            let buf = Buf::zeroed((count * BLOCK) as usize);
            let sector = first * BLOCK / SECTOR_BYTES as u64;
            stamp::fill(&buf, volume, sector, number);
            for block in first..first + count {
                let value = Value::Write { volume, number };
                model.now[volume][block as usize] = value;
                model.past.push((volume, block as usize, value));
            }
            device.write(first * BLOCK, buf).await
        }
        9..=12 => {
            let buf = Buf::scratch((count * BLOCK) as usize);
            device.read(first * BLOCK, buf).await
        }
        13 | 14 => device.flush().await,
        _ => stack.write_back(None).await.map(|_| ()),
    };
    done.map_err(|error| error.report())
}

async fn read(device: &Rc<dyn BlockDevice>, block: u64) -> Found {
    let buf = Buf::scratch(BLOCK as usize);
    if let Err(error) = device.read(block * BLOCK, buf.clone()).await {
        return Found::Failed(error.report());
    }
    identify(&buf.to_vec(), block)
}

/// Returns the value that the bytes of a block hold.
pub(crate) fn identify(bytes: &[u8], block: u64) -> Found {
    let first = block * BLOCK / SECTOR_BYTES as u64;
    let mut value = None;
    for (index, sector) in bytes.chunks_exact(SECTOR_BYTES).enumerate() {
        let sector: &[u8; SECTOR_BYTES] = sector.try_into().expect("a sector");
        let at = first + index as u64;
        let of = |volume: usize| match stamp::identify(sector, volume, at)? {
            Content::Zero => Ok(Value::Zero),
            Content::Write(number) => Ok(Value::Write { volume, number }),
        };
        let found = match of(0).or_else(|_: String| of(1)) {
            Ok(found) => found,
            Err(garbage) => return Found::Garbage(garbage),
        };
        if *value.get_or_insert(found) != found {
            return Found::Garbage(format!("sectors of two writes in block {block}"));
        }
    }
    Found::Value(value.expect("a block has sectors"))
}

/// Returns the values that the bytes of a backing device hold.
pub(crate) fn values(bytes: &[u8]) -> Vec<Found> {
    let blocks = bytes.chunks_exact(BLOCK as usize).enumerate();
    blocks
        .map(|(block, bytes)| identify(bytes, block as u64))
        .collect()
}
