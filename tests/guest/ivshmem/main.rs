//! A node in a virtual machine: `ivshmem POOL first|second`, with the other role in another
//! machine, over one disk.
//!
//! The pool's memory is that of a PCI device in both (see ../ivshmem.sh). A page that one has
//! written is in the memory that the other maps. No message passes between a store here and a load
//! there.
//!
//! The two synchronise through page 0 of the disk, through the cache. Each line `DONE ...` is a
//! check that held. The first that does not hold ends the program with an error.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use forebay_block::{Error, ErrorKind, Result};
use forebay_cluster::pool::Pool;
use forebay_cluster::{DeviceNode, InFlight, NodeId, Options, PAGE_BYTES};
use forebay_device::file::{FileDevice, FileDeviceOptions};

/// Pages from 1 to this number are written by one machine and read by the other.
const PAGES: u64 = 256;
/// Pages that both write at a time.
const MIXED: std::ops::Range<u64> = 300..316;
/// Number of writes of each by each machine.
const ROUNDS: u64 = 60;
/// The page that they write in turns, and the number of turns.
const TURNS: (u64, u64) = (320, 200);
/// Pages in the memory of the killed machine that the other wrote last.
const LOST: u64 = 64;
/// Longest wait for the other machine.
const PATIENCE: Duration = Duration::from_secs(100);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [pool, role] = &arguments[..] else {
        eprintln!("usage: ivshmem POOL first|second");
        return ExitCode::from(2);
    };
    let ended = match role.as_str() {
        "first" => join(pool, 1).and_then(|machine| first(&machine)),
        _ => join(pool, 2).and_then(second),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{role}: {}", error.report());
            ExitCode::FAILURE
        }
    }
}

/// A node and the disk that it reaches directly.
struct Machine {
    node: DeviceNode,
    number: u64,
    disk: PathBuf,
}

/// Joins, and repeats a join that fails for the way to the directory.
///
/// QEMU connects to the directory when the machine starts. The directory closes a connection that
/// does not identify itself in five seconds, and QEMU reconnects after a second. A join may
/// therefore meet a connection that closes, or wait for a greeting longer than it may.
fn join(pool: &str, number: u8) -> Result<Machine> {
    let begin = Instant::now();
    loop {
        match join_once(pool, number) {
            Err(error) if is_of_connection(&error) && begin.elapsed() < PATIENCE => {
                eprintln!("again: {}", error.report());
            }
            joined => return joined,
        }
    }
}

fn is_of_connection(error: &Error) -> bool {
    use ErrorKind::{Busy, Disconnected, Permission};
    matches!(error.kind(), Busy | Disconnected | Permission)
}

fn join_once(pool: &str, number: u8) -> Result<Machine> {
    let disk = Pool::new(Path::new(pool))?.source()?;
    let id = NodeId::new(number).expect("below 32");
    let mut options = Options::new(Path::new(pool), id, 1024);
    // Read-ahead would read pages that the check does not count.
    options.read_ahead_pages = 0;
    let node = DeviceNode::join(options, InFlight::Ends, async |source| {
        let direct = FileDeviceOptions {
            // This kernel's cache does not see the other machine's writes.
            direct: true,
            ..FileDeviceOptions::default()
        };
        FileDevice::open(source, direct)
    })?;
    let number = u64::from(number);
    Ok(Machine { node, number, disk })
}

impl Machine {
    /// Reads a page that consists of one repeated word. Returns the word.
    fn read(&self, page: u64) -> Result<u64> {
        let mut bytes = [0; PAGE_BYTES];
        self.node.read_at(page * PAGE_BYTES as u64, &mut bytes)?;
        Ok(whole(page, &bytes))
    }

    fn write(&self, page: u64, word: u64) -> Result<()> {
        let bytes = word.to_le_bytes().repeat(PAGE_BYTES / 8);
        self.node.write_at(page * PAGE_BYTES as u64, &bytes)
    }

    /// Returns the step that both have reached.
    fn step(&self) -> Result<u64> {
        let mut word = [0; 8];
        self.node.read_at(0, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    fn set_step(&self, step: u64) -> Result<()> {
        self.node.write_at(0, &step.to_le_bytes())
    }

    fn wait(&self, what: &str, until: impl Fn() -> Result<bool>) -> Result<()> {
        let begin = Instant::now();
        while !until()? {
            assert!(
                begin.elapsed() < PATIENCE,
                "timeout: {what}; step {}, page 1 {:x}, {:?}",
                self.step()?,
                self.read(1)?,
                self.node.counts()
            );
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Both write whole pages and read them: each page is from one write. Then they write one page
    /// in turns.
    fn mix(&self) -> Result<()> {
        for round in 0..ROUNDS {
            for page in MIXED {
                self.write(page, page << 32 | round << 8 | self.number)?;
                let found = self.read(page)?;
                let (of, writer) = (found >> 32, found & 0xff);
                assert!(of == page && (1..=2).contains(&writer), "{page}: {found:x}");
            }
        }
        println!(
            "DONE {ROUNDS} rounds of whole pages, written by both at a time and read: none torn"
        );
        let (page, turns) = TURNS;
        for turn in (0..turns).filter(|turn| turn % 2 == self.number - 1) {
            self.wait("the other's turn", || {
                let now = self.read(page)?;
                assert!(now <= turn, "turn {now} before {turn}");
                Ok(now == turn)
            })?;
            self.write(page, turn + 1)?;
        }
        Ok(())
    }

    /// Returns the number of reads that this machine sent to the disk.
    fn disk_reads(&self) -> u64 {
        let disk = std::fs::canonicalize(&self.disk).expect("it is there");
        let name = disk.file_name().expect("a device").to_owned();
        let path = Path::new("/sys/class/block").join(name).join("stat");
        let stat = std::fs::read_to_string(path).expect("a block device");
        let first = stat.split_whitespace().next().map(str::parse);
        first.expect("a field").expect("a number")
    }
}

fn whole(page: u64, bytes: &[u8]) -> u64 {
    let word = u64::from_le_bytes(bytes[..8].try_into().expect("8"));
    let same = bytes.chunks_exact(8).all(|part| part == &bytes[..8]);
    assert!(same, "page {page} is torn");
    word
}

/// The first role: writes, is read, is overwritten, then waits for its kill.
fn first(machine: &Machine) -> Result<()> {
    for page in 1..=PAGES {
        machine.write(page, page << 8 | 1)?;
    }
    machine.set_step(1)?;
    machine.wait(
        "the other has read and written",
        || Ok(machine.step()? == 2),
    )?;
    let before = machine.node.counts();
    for page in 1..=PAGES {
        assert_eq!(machine.read(page)?, page << 8 | 2);
    }
    let after = machine.node.counts();
    assert_eq!(after.misses, before.misses, "they are in its own memory");
    println!(
        "DONE {PAGES} pages show at once what the other machine stored into this one's memory: {} \
         local hits, 0 messages",
        after.hits_local - before.hits_local
    );
    machine.set_step(3)?;
    machine.mix()?;
    for page in 1..=LOST {
        machine.write(page, page << 8 | 3)?;
    }
    machine.node.fsync()?;
    machine.wait("all turns", || Ok(machine.read(TURNS.0)? == TURNS.1))?;
    machine.set_step(4)?;
    machine.wait("the other has written", || Ok(machine.step()? == 5))?;
    println!("READY to be killed");
    loop {
        // The kill falls into this write.
        machine.write(LOST + 1, 7)?;
    }
}

/// The second role: reads, writes, and outlives the first.
fn second(machine: Machine) -> Result<()> {
    let own = machine.number;
    machine.wait("the first has written", || Ok(machine.step()? == 1))?;
    let (disk, before) = (machine.disk_reads(), machine.node.counts());
    let mut views = 0;
    for _ in 0..2 {
        for page in 1..=PAGES {
            let mut bytes = [0; PAGE_BYTES];
            machine.node.map(page)?.load(0, &mut bytes);
            assert_eq!(whole(page, &bytes), page << 8 | 1);
            views += 1;
        }
    }
    let after = machine.node.counts();
    let (misses, hits) = (
        after.misses - before.misses,
        after.hits_remote - before.hits_remote,
    );
    assert_eq!(machine.disk_reads(), disk, "no page was read from the disk");
    assert_eq!(misses, PAGES, "a message for the first use of each");
    assert!(hits >= PAGES, "{hits} hits in the other's memory");
    assert_eq!(after.hits_local, before.hits_local);
    println!(
        "DONE {views} views of the other machine's {PAGES} pages: {misses} first uses, {hits} \
         remote hits, 0 local hits, 0 reads of the disk"
    );
    for page in 1..=PAGES {
        machine.write(page, page << 8 | own)?;
    }
    machine.set_step(2)?;
    machine.wait("the first has read", || Ok(machine.step()? == 3))?;
    machine.mix()?;
    println!(
        "DONE {} turns at one page, each seen by the other before its own",
        TURNS.1
    );
    machine.wait("the first has flushed", || Ok(machine.step()? == 4))?;
    machine.node.fsync()?;
    for page in 1..=LOST {
        machine.write(page, page << 8 | 4)?;
    }
    machine.set_step(5)?;
    machine.wait(
        "the first is dead, and its pages come from the disk",
        || Ok(machine.read(1)? == 1 << 8 | 3),
    )?;
    let lost = machine.node.fsync();
    let lost = lost.expect_err("what this machine wrote there is lost, and fsync says so");
    assert_eq!(lost.kind(), ErrorKind::Lost, "{lost:?}");
    machine.node.fsync()?;
    println!("DONE the first's death: one fsync says `{lost}`, the next is good");
    for page in 1..=LOST {
        let found = machine.read(page)?;
        assert_eq!(found, page << 8 | 3, "what the first has flushed is there");
        machine.write(page, page << 8 | 5)?;
    }
    machine.node.fsync()?;
    println!("DONE {LOST} pages show what the first had flushed, and are written again");
    drop(machine.node);
    Ok(())
}
