//! Random operations on one file through two mounts, against a model of the file in memory.
//!
//! `FOREBAY_SEED` and `FOREBAY_OPERATIONS` select others. An error names the seed, the operation,
//! and the recent operations.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::blocks::{allocate, copy};
use super::cluster::{Cluster, MAPPED, can_mount};
use super::mapped::Map;
use super::open;

/// Longest file, bytes: more than the cluster's memory.
const LEN_MAX: u64 = 1_500_000;
/// Longest read or write, bytes.
const PART_MAX: u64 = 70_000;
/// Number of recent operations that an error shows.
const SHOWN: usize = 12;

#[derive(Clone, Copy, Debug)]
enum Operation {
    Write { offset: u64, len: u64 },
    Append { len: u64 },
    Read { offset: u64, len: u64 },
    MapRead { offset: u64, len: u64 },
    MapWrite { offset: u64, len: u64 },
    Truncate { size: u64 },
    Allocate { offset: u64, len: u64 },
    Zero { offset: u64, len: u64 },
    Punch { offset: u64, len: u64 },
    Copy { offset: u64, len: u64, to: u64 },
    Sync,
    Reopen,
    Rename,
    Size,
}

/// A fault in the model, so that the files differ from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// One byte of a write is lost.
    LostByte,
    /// Truncated data reappears when the file grows.
    NotCut,
}

/// Numbers from a seed (xorshift64*).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) % bound
    }
}

struct Run {
    /// Whether the file can be mapped shared.
    mapped: bool,
    random: Random,
    mounts: [PathBuf; 2],
    name: String,
    files: [File; 2],
    /// Expected content of the file, and the truncated data after it.
    model: Vec<u8>,
    cut: Vec<u8>,
    fault: Fault,
    done: u64,
}

impl Run {
    fn new(cluster: &Cluster, name: &str, seed: u64, fault: Fault, mapped: bool) -> Self {
        Self::on([1, 2], cluster, name, seed, fault, mapped)
    }

    /// Creates a run that uses the mounts of two nodes, which may be the same.
    fn on(
        nodes: [u8; 2],
        cluster: &Cluster,
        name: &str,
        seed: u64,
        fault: Fault,
        mapped: bool,
    ) -> Self {
        let below = if mapped { MAPPED } else { "" };
        let mounts = nodes.map(|number| cluster.mountpoint(number).join(below));
        fs::write(mounts[0].join(name), "").expect("made");
        Self {
            mapped,
            random: Random(seed.wrapping_mul(2) + 1),
            files: [open(&mounts[0].join(name)), open(&mounts[1].join(name))],
            mounts,
            name: name.to_owned(),
            model: Vec::new(),
            cut: Vec::new(),
            fault,
            done: 0,
        }
    }

    /// Runs operations. Returns the first error, with the recent operations.
    fn operations(&mut self, count: u64) -> Result<(), String> {
        let mut recent = VecDeque::new();
        for number in 0..count {
            let here = self.random.below(2) as usize;
            let operation = self.choose();
            recent.push_back(format!("{number} on {}: {operation:?}", here + 1));
            if recent.len() > SHOWN {
                recent.pop_front();
            }
            self.done = number;
            self.operate(operation, here)
                .map_err(|error| format!("{error}\n{recent:#?}"))?;
        }
        Ok(())
    }

    fn choose(&mut self) -> Operation {
        let random = &mut self.random;
        let end = self.model.len() as u64;
        // Often within the data, sometimes far beyond it; often at the edges of pages.
        let mut offset = match random.below(8) {
            0 => random.below(LEN_MAX),
            _ => random.below(end + 1),
        };
        if random.below(3) == 0 {
            offset = offset / 4096 * 4096;
        }
        let bound = [16, 4096, 9000, PART_MAX][random.below(4) as usize];
        let len = 1 + random.below(bound.min(LEN_MAX - offset).max(1));
        match random.below(115) {
            0..30 => Operation::Write { offset, len },
            30..38 if end + len < LEN_MAX => Operation::Append { len },
            30..70 => Operation::Read { offset, len },
            70..78 => Operation::MapRead { offset, len },
            78..82 if self.mapped => Operation::MapWrite { offset, len },
            78..86 => Operation::Truncate { size: offset },
            86..90 => Operation::Sync,
            90..93 => Operation::Reopen,
            93..95 => Operation::Rename,
            95..98 => Operation::Allocate { offset, len },
            98..101 => Operation::Zero { offset, len },
            101..106 => Operation::Punch { offset, len },
            106..110 => Operation::Copy {
                offset,
                len,
                to: random.below(LEN_MAX - len),
            },
            _ => Operation::Size,
        }
    }

    fn operate(&mut self, operation: Operation, here: usize) -> Result<(), String> {
        let said = |error: std::io::Error| format!("{operation:?}: {error}");
        let path = self.mounts[here].join(&self.name);
        match operation {
            Operation::Write { offset, len } => {
                let bytes = self.bytes(len);
                self.files[here]
                    .write_all_at(&bytes, offset)
                    .map_err(said)?;
                self.put(offset, &bytes);
            }
            Operation::Append { len } => {
                let bytes = self.bytes(len);
                let file = OpenOptions::new().append(true).open(&path);
                file.and_then(|mut file| file.write_all(&bytes))
                    .map_err(said)?;
                self.put(self.model.len() as u64, &bytes);
            }
            Operation::Read { offset, len } => {
                let mut out = vec![0xEE; len as usize];
                let count = self.files[here].read_at(&mut out, offset).map_err(said)?;
                self.check(offset, &out[..count], len)?;
            }
            Operation::MapRead { offset, len } => {
                // The kernel learns of a file that grew on the other node when it reads its size,
                // as programs do.
                self.files[here].metadata().map_err(said)?;
                let end = (offset + len).min(self.model.len() as u64);
                if offset < end {
                    let file = &self.files[here];
                    let map = Map::new(file, end, !self.mapped).map_err(said)?;
                    let out = map.load(offset as usize..end as usize);
                    self.check(offset, &out, len)?;
                }
            }
            Operation::MapWrite { offset, len } => {
                let end = (offset + len).min(self.model.len() as u64);
                if offset < end {
                    let bytes = self.bytes(end - offset);
                    let map = Map::new(&self.files[here], end, false).map_err(said)?;
                    map.store(offset as usize, &bytes);
                    self.put(offset, &bytes);
                }
            }
            Operation::Truncate { size } => {
                self.files[here].set_len(size).map_err(said)?;
                self.resize(size as usize);
            }
            Operation::Allocate { offset, len } => {
                let end = offset + len;
                allocate(&self.files[here], 0, offset..end).map_err(said)?;
                let size = self.model.len().max(end as usize);
                self.resize(size);
            }
            Operation::Zero { offset, len } => {
                let (end, mode) = (offset + len, libc::FALLOC_FL_ZERO_RANGE);
                allocate(&self.files[here], mode, offset..end).map_err(said)?;
                self.put(offset, &vec![0; len as usize]);
            }
            Operation::Punch { offset, len } => {
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                allocate(&self.files[here], mode, offset..offset + len).map_err(said)?;
                let end = (offset + len).min(self.model.len() as u64);
                if offset < end {
                    self.put(offset, &vec![0; (end - offset) as usize]);
                }
            }
            Operation::Copy { offset, len, to } => {
                // As for mappings.
                let file = &self.files[here];
                let end = (offset + len).min(file.metadata().map_err(said)?.len());
                // The kernel refuses ranges that overlap.
                if offset < end && (to >= offset + len || to + len <= offset) {
                    let len = (end - offset) as usize;
                    let copied = copy((file, offset), (file, to), len).map_err(said)?;
                    if copied != len {
                        return Err(format!("{copied} bytes in place of {len}"));
                    }
                    let bytes = self.model[offset as usize..end as usize].to_vec();
                    self.put(to, &bytes);
                }
            }
            Operation::Sync => {
                self.files[here].sync_all().map_err(said)?;
            }
            Operation::Reopen => {
                let opened = OpenOptions::new().read(true).write(true).open(&path);
                self.files[here] = opened.map_err(said)?;
            }
            Operation::Rename => {
                let name = format!("{}-{}", self.name.trim_end_matches(|c| c != 'x'), self.done);
                fs::rename(&path, self.mounts[here].join(&name)).map_err(said)?;
                self.name = name;
            }
            Operation::Size => {
                let seen = self.files[here].metadata().map_err(said)?.len();
                if seen != self.model.len() as u64 {
                    return Err(format!("{seen} bytes in place of {}", self.model.len()));
                }
            }
        }
        Ok(())
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        let first = self.random.below(1 << 40);
        let byte = |at: u64| (first.wrapping_add(at.wrapping_mul(0x9E37_79B9)) >> 7) as u8 | 1;
        (0..len).map(byte).collect()
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) {
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        if end > self.model.len() {
            self.resize(end);
        }
        self.model[start..end].copy_from_slice(bytes);
        if self.fault == Fault::LostByte && self.done > 100 {
            self.model[start] = !bytes[0];
        }
    }

    fn resize(&mut self, size: usize) {
        let before = self.model.len();
        if size < before {
            self.cut = self.model.split_off(size);
            return;
        }
        self.model.resize(size, 0);
        if self.fault == Fault::NotCut {
            let back = self.cut.len().min(size - before);
            self.model[before..before + back].copy_from_slice(&self.cut[..back]);
        }
        self.cut.clear();
    }

    fn check(&self, offset: u64, seen: &[u8], asked: u64) -> Result<(), String> {
        let start = (offset as usize).min(self.model.len());
        let end = (offset as usize + asked as usize).min(self.model.len());
        let expected = &self.model[start..end];
        if seen.len() != expected.len() {
            return Err(format!(
                "{} bytes in place of {}",
                seen.len(),
                expected.len()
            ));
        }
        match seen
            .iter()
            .zip(expected)
            .position(|(one, other)| one != other)
        {
            None => Ok(()),
            Some(at) => Err(format!(
                "at {}: {} in place of {}",
                start + at,
                seen[at],
                expected[at]
            )),
        }
    }
}

fn number_from(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn a_file_on_two_mounts_is_the_file_of_the_model() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("fsx");
    let (one, two) = (cluster.node(1), cluster.node(2));
    let count = number_from("FOREBAY_OPERATIONS").unwrap_or(1200);
    let seeds = number_from("FOREBAY_SEED").map_or(1..4, |seed| seed..seed + 1);
    let mut files = Vec::new();
    for seed in seeds {
        for mapped in [false, true] {
            let mut run = Run::new(&cluster, &format!("f{seed}x"), seed, Fault::None, mapped);
            let done = run.operations(count);
            done.unwrap_or_else(|error| panic!("FOREBAY_SEED={seed}, mapped {mapped}: {error}"));
            let below = if mapped { MAPPED } else { "" };
            files.push((cluster.source().join(below).join(run.name), run.model));
        }
    }
    one.end();
    two.end();
    for (path, model) in files {
        let stored = fs::read(&path).expect("there");
        let path = path.display();
        assert!(stored == model, "{path}: the store has something else");
    }
}

#[test]
fn a_file_on_a_relaxed_mount_is_the_file_of_the_model() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("fsx-relaxed");
    let (one, two) = (cluster.relaxed_node(1), cluster.relaxed_node(2));
    let count = number_from("FOREBAY_OPERATIONS").unwrap_or(1200);
    let mut files = Vec::new();
    for seed in number_from("FOREBAY_SEED").map_or(4..7, |seed| seed..seed + 1) {
        let name = format!("f{seed}x");
        let mut run = Run::on([1, 1], &cluster, &name, seed, Fault::None, false);
        let done = run.operations(count);
        done.unwrap_or_else(|error| panic!("FOREBAY_SEED={seed}: {error}"));
        let Run {
            files: open,
            model,
            name,
            ..
        } = run;
        // The closes publish the writes.
        drop(open);
        let seen = fs::read(cluster.mountpoint(2).join(&name)).expect("there");
        assert!(seen == model, "{name}: the other node sees something else");
        files.push((cluster.source().join(name), model));
    }
    one.end();
    two.end();
    for (path, model) in files {
        let stored = fs::read(&path).expect("there");
        let path = path.display();
        assert!(stored == model, "{path}: the store has something else");
    }
}

#[test]
fn errors_in_the_model_are_found() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("fsx-faults");
    let _nodes = [cluster.node(1), cluster.node(2)];
    for fault in [Fault::LostByte, Fault::NotCut] {
        let mut run = Run::new(&cluster, &format!("{fault:?}x"), 9, fault, false);
        let found = run.operations(1000);
        let found = found.expect_err("the file is not as this model has it");
        assert!(found.contains("in place of"), "{fault:?}: {found}");
    }
}
