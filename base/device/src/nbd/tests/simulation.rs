//! Random lives of a device and its server, by seed.
//!
//! Connections break. The server loses its power, answers slowly, late or never, fails, and stays
//! away. Clients write, read and flush meanwhile.
//!
//! A model checks what the layers above rely on:
//!
//! - A read returns the last acknowledged data, or that of a failed write after it. A hole says the
//!   same as a read of zeroes.
//! - Data that was acknowledged before a successful flush survives a power loss. Exception: bytes
//!   that a failed flush has named since the acknowledgement.
//!
//! Clients never have two requests for one block at a time, like the cache.

use std::cell::RefCell;
use std::collections::BTreeSet;

use forebay_block::{Allocation, Error};
use forebay_wire::nbd::errno::EIO;

use super::*;
use crate::remote::fault::{self, Fault};

const BLOCKS: usize = 12;
const BLOCK_BYTES: usize = 4096;
const CLIENTS: u64 = 4;
/// Requests of a client in a life.
const REQUESTS: usize = 25;
/// Lives without a fault, and most lives until a planted fault is found.
const LIVES: u64 = 32;
const LIVES_WITH_FAULT: u64 = 400;
/// Number of threads. Lives mostly wait.
const THREADS: u64 = 8;
/// Short times, since the clock advances only twice as fast as a real one.
const TIMES: Times = Times {
    answer: Duration::from_millis(40),
    flush: Duration::from_millis(60),
    patience: Duration::from_millis(80),
    pause: Duration::from_millis(4),
    quarantine: Duration::from_millis(60),
};

/// A generator (xorshift).
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            random.below(2);
        }
        random
    }

    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % below
    }

    fn place(&mut self, below: usize) -> usize {
        usize::try_from(self.below(below as u64)).expect("small")
    }

    fn millis(&mut self, below: u64) -> Duration {
        Duration::from_millis(self.below(below))
    }
}

/// Knowledge about a block.
#[derive(Clone, Default)]
struct Block {
    /// Whether a client has a request for it.
    busy: bool,
    /// Values since the last one that a flush has covered, with that one, oldest first: the value,
    /// and whether it was acknowledged.
    values: Vec<(u8, bool)>,
    /// Number of values before these.
    before: usize,
    /// Value that was read in place of a newer acknowledged one. A flush must name the block.
    doubt: Option<u8>,
    /// Whether a flush has named the block since its last acknowledged value.
    named: bool,
}

impl Block {
    /// Returns the number of these values up to the last acknowledged one.
    fn acknowledged(&self) -> usize {
        let last = self
            .values
            .iter()
            .rposition(|(_, acknowledged)| *acknowledged);
        last.map_or(0, |last| last + 1)
    }

    /// Returns whether the block may have `value`: that of the last acknowledged write or of a
    /// failed one after it.
    fn may_be(&self, value: u8) -> bool {
        let from = self.acknowledged().saturating_sub(1);
        self.values[from..].iter().any(|(one, _)| *one == value)
    }

    fn was(&self, value: u8) -> bool {
        self.values.iter().any(|(one, _)| *one == value)
    }

    /// Notes a flush that succeeded. It covers the first `count` values of all.
    fn flushed(&mut self, count: usize) -> std::result::Result<(), String> {
        if let Some(value) = self.doubt.take() {
            return Err(format!("a flush succeeds, but {value} was read"));
        }
        // A named block stays undetermined until it is written once more.
        let covered = count.saturating_sub(self.before + 1);
        if !self.named {
            self.values.drain(..covered);
            self.before += covered;
        }
        Ok(())
    }
}

/// State of a life.
struct Life {
    blocks: RefCell<Vec<Block>>,
    /// First violation.
    violation: RefCell<Option<String>>,
    /// Last value of a block.
    value: std::cell::Cell<u8>,
}

impl Life {
    fn fail(&self, what: String) {
        self.violation.borrow_mut().get_or_insert(what);
    }

    /// Takes free blocks for a request: the first one, and their number.
    fn take(&self, random: &mut Random) -> Option<(usize, usize)> {
        let mut blocks = self.blocks.borrow_mut();
        let first = random.place(BLOCKS);
        let count = 1 + random.place(3.min(BLOCKS - first));
        let part = &mut blocks[first..first + count];
        if part.iter().any(|block| block.busy) {
            return None;
        }
        part.iter_mut().for_each(|block| block.busy = true);
        Some((first, count))
    }

    fn give_back(&self, (first, count): (usize, usize)) {
        let mut blocks = self.blocks.borrow_mut();
        blocks[first..first + count]
            .iter_mut()
            .for_each(|block| block.busy = false);
    }

    async fn write(&self, device: &NbdDevice, random: &mut Random, place: (usize, usize)) {
        let (first, count) = place;
        let how = random.below(8);
        let value = match how {
            0 => 0,
            _ => {
                self.value.set(self.value.get() % 255 + 1);
                self.value.get()
            }
        };
        let offset = (first * BLOCK_BYTES) as u64;
        let len = count * BLOCK_BYTES;
        let data = Buf::copied(&vec![value; len]);
        for block in &mut self.blocks.borrow_mut()[first..first + count] {
            block.values.push((value, false));
        }
        let done = match how {
            0 => device.write_zeroes(offset, len as u64).await,
            1 => device.write_fua(offset, data).await,
            _ => device.write(offset, data).await,
        };
        for block in &mut self.blocks.borrow_mut()[first..first + count] {
            if done.is_ok() {
                let last = block.values.last_mut().expect("it was noted");
                last.1 = true;
                block.named = false;
                block.doubt = None;
            }
        }
    }

    async fn read(&self, device: &NbdDevice, (first, count): (usize, usize)) {
        let into = Buf::zeroed(count * BLOCK_BYTES);
        let offset = (first * BLOCK_BYTES) as u64;
        if device.read(offset, into.clone()).await.is_err() {
            return;
        }
        let data = into.to_vec();
        let mut blocks = self.blocks.borrow_mut();
        for (number, data) in data.chunks(BLOCK_BYTES).enumerate() {
            let (value, number) = (data[0], first + number);
            if data.iter().any(|byte| *byte != value) {
                self.fail(format!("block {number} is torn"));
            }
            self.see(&mut blocks[number], number, value);
        }
    }

    /// Asks for extents. A hole says that the block is zero.
    async fn query(&self, device: &NbdDevice, (first, count): (usize, usize)) {
        let range = (first * BLOCK_BYTES) as u64..((first + count) * BLOCK_BYTES) as u64;
        let Ok(found) = device.extents(range).await else {
            return;
        };
        let mut blocks = self.blocks.borrow_mut();
        let holes = found
            .iter()
            .filter(|extent| extent.allocation != Allocation::Data);
        for at in holes.flat_map(|hole| hole.bytes.clone().step_by(BLOCK_BYTES)) {
            let number = usize::try_from(at).expect("small") / BLOCK_BYTES;
            self.see(&mut blocks[number], number, 0);
        }
    }

    /// Checks a value of a block that the device has shown.
    fn see(&self, block: &mut Block, number: usize, value: u8) {
        if !block.may_be(value) && !block.named {
            match block.was(value) {
                true => block.doubt = Some(value),
                false => self.fail(format!("block {number} was {value} long ago")),
            }
        }
    }

    async fn flush(&self, device: &NbdDevice) -> bool {
        let counts: Vec<_> = (self.blocks.borrow().iter())
            .map(|block| block.before + block.acknowledged())
            .collect();
        let doubts: Vec<_> = (self.blocks.borrow().iter())
            .map(|block| block.doubt)
            .collect();
        let done = device.flush().await;
        let mut blocks = self.blocks.borrow_mut();
        match &done {
            Ok(()) => {
                for (number, block) in blocks.iter_mut().enumerate() {
                    // A doubt that came up meanwhile is for the next flush.
                    let newer = block.doubt.filter(|_| doubts[number].is_none());
                    if newer.is_some() {
                        continue;
                    }
                    if let Err(what) = block.flushed(counts[number]) {
                        self.fail(format!("block {number}: {what}"));
                    }
                }
            }
            Err(error) => {
                for number in named(error) {
                    blocks[number].named = true;
                    blocks[number].doubt = None;
                }
            }
        }
        done.is_ok()
    }
}

/// Returns the blocks that an error of a flush names.
fn named(error: &Error) -> BTreeSet<usize> {
    let report = error.report();
    let Some((_, ranges)) = report.split_once("MAY BE LOST at bytes ") else {
        return BTreeSet::new();
    };
    let mut blocks = BTreeSet::new();
    for range in ranges.split([',', ' ', '\n']) {
        if let Some((from, to)) = range.split_once("..")
            && let (Ok(from), Ok(to)) = (from.parse::<usize>(), to.parse::<usize>())
        {
            let end = to.div_ceil(BLOCK_BYTES).min(BLOCKS);
            blocks.extend(from / BLOCK_BYTES..end);
        }
    }
    blocks
}

/// Decides about a request.
fn act(random: &mut Random, asked: u16, calm: bool) -> Act {
    let quarantine = u64::try_from(TIMES.quarantine.as_millis()).expect("short");
    match random.below(200) {
        _ if calm => Act::Answer,
        0..=1 => Act::Cut,
        2..=4 => Act::Late(random.millis(quarantine)),
        5..=7 => Act::PowerLoss,
        8 => Act::Fail(EIO),
        9 => Act::Silence,
        // It lands before the quarantine ends that begins with the loss of this connection.
        10..=14 => Act::Slow(random.millis(quarantine)),
        15..=60 => Act::Slow(random.millis(4)),
        // Others are acknowledged meanwhile.
        61..=160 if asked == command::FLUSH => Act::Slow(random.millis(12)),
        _ => Act::Answer,
    }
}

async fn client(life: Rc<Life>, device: Rc<NbdDevice>, mut random: Random) {
    for _ in 0..REQUESTS {
        rt::sleep(random.millis(4)).await;
        if random.below(8) == 0 {
            life.flush(&device).await;
            continue;
        }
        let Some(place) = life.take(&mut random) else {
            continue;
        };
        match random.below(3) {
            0 if random.below(4) == 0 => life.query(&device, place).await,
            0 => life.read(&device, place).await,
            _ => life.write(&device, &mut random, place).await,
        }
        life.give_back(place);
    }
}

/// Lives a life. Returns the first violation.
fn live(seed: u64) -> Option<String> {
    let mut random = Random::new(seed);
    let calm = Rc::new(std::cell::Cell::new(false));
    let (script, quiet) = (RefCell::new(Random::new(!seed)), Rc::clone(&calm));
    let server = Server::with_seed(seed, move |_, asked| {
        act(&mut script.borrow_mut(), asked, quiet.get())
    });
    let offer = server.offer();
    let connections = match random.below(2) {
        0 => 1,
        _ => {
            offer.flags.set(offer.flags.get() | export::CAN_MULTI_CONN);
            3
        }
    };
    offer.structured.set(random.below(2) == 0);
    let life = Rc::new(Life {
        blocks: RefCell::new(vec![
            Block {
                values: vec![(0, true)],
                ..Block::default()
            };
            BLOCKS
        ]),
        violation: RefCell::default(),
        value: std::cell::Cell::new(0),
    });
    let uri: Uri = server.uri().parse().expect("a URI");
    let observed = Rc::clone(&life);
    server.run(async move {
        let settings = Settings {
            connections,
            times: TIMES,
        };
        let device = NbdDevice::connect_with(&uri, settings).await;
        let device = device.expect("connected");
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let random = Random::new(seed ^ number << 32);
                let done = Rc::new(std::cell::Cell::new(false));
                let (life, device, ended) = (Rc::clone(&life), Rc::clone(&device), done.clone());
                rt::spawn(async move {
                    client(life, device, random).await;
                    ended.set(true);
                });
                done
            })
            .collect();
        while clients.iter().any(|done| !done.get()) {
            rt::sleep(random.millis(100)).await;
            // Now and then the server is away, at times for longer than the patience.
            offer.absent.set(true);
            let most = if random.below(8) == 0 { 150 } else { 10 };
            rt::sleep(random.millis(most)).await;
            offer.absent.set(false);
        }
        calm.set(true);
        // Late copies land first.
        rt::sleep(2 * TIMES.quarantine).await;
        for first in 0..BLOCKS {
            life.read(&device, (first, 1)).await;
        }
        while !life.flush(&device).await {
            rt::sleep(Duration::from_millis(4)).await;
        }
        for first in 0..BLOCKS {
            life.read(&device, (first, 1)).await;
        }
    });
    server.lose_power();
    for (number, block) in observed.blocks.borrow().iter().enumerate() {
        let value = server.byte(number * BLOCK_BYTES);
        let allowed = match block.named {
            true => block.was(value),
            false => block.may_be(value),
        };
        if !allowed {
            let values = &block.values;
            observed.fail(format!("block {number} is {value} at the end: {values:?}"));
        }
        if block.doubt.is_some() {
            observed.fail(format!("block {number} is in doubt at the end"));
        }
    }
    observed.violation.take()
}

#[test]
fn random_lives_lose_nothing() {
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for seed in (0..LIVES).filter(|seed| seed % THREADS == thread) {
                    assert_eq!(live(seed), None, "seed {seed}");
                }
            });
        }
    });
}

#[test]
fn each_planted_fault_is_found() {
    // Each with a seed before the life that found it at last.
    let faults = [
        (Fault::ResendLate, 0),
        (Fault::FlushAcrossLoss, 0),
        (Fault::FlushCoversLater, 409),
        (Fault::LostUnreported, 127),
        (Fault::NoQuarantine, 0),
        (Fault::NoQuarantineOfResend, 25),
    ];
    std::thread::scope(|scope| {
        for (fault, first) in faults {
            scope.spawn(move || {
                // All devices of this thread have it.
                fault::plant(Some(fault));
                let mut seeds = first..first + LIVES_WITH_FAULT;
                let found = seeds.find_map(|seed| Some((seed, live(seed)?)));
                let (seed, violation) = found.unwrap_or_else(|| panic!("{fault:?} was not found"));
                println!("{fault:?}: seed {seed}: {violation}");
            });
        }
    });
}
