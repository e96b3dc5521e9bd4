//! Random operations on one file through two mounts, against a model of the file in memory.
//!
//! `FOREBAY_SEED` and `FOREBAY_OPERATIONS` choose others. An error names the seed, the operation, and what came before.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::cluster::{Cluster, can_mount};
use super::open;

/// Longest file, bytes: more than the cluster's memory.
const LEN_MAX: u64 = 1_500_000;
/// Longest read or write, bytes.
const PART_MAX: u64 = 70_000;
/// Operations that an error tells.
const TOLD: usize = 12;

#[derive(Clone, Copy, Debug)]
enum Operation {
    Write { offset: u64, len: u64 },
    Append { len: u64 },
    Read { offset: u64, len: u64 },
    MapRead { offset: u64, len: u64 },
    Truncate { size: u64 },
    Sync,
    Reopen,
    Rename,
    Size,
}

/// An error that is put into the model, so that the files differ from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// One byte of a write is lost.
    LostByte,
    /// What was cut off comes back when the file grows again.
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
    random: Random,
    mounts: [PathBuf; 2],
    name: String,
    files: [File; 2],
    /// The file as it should be, and what was cut off behind it.
    model: Vec<u8>,
    cut: Vec<u8>,
    fault: Fault,
    done: u64,
}

impl Run {
    fn new(cluster: &Cluster, name: &str, seed: u64, fault: Fault) -> Self {
        let mounts = [cluster.mountpoint(1), cluster.mountpoint(2)];
        fs::write(mounts[0].join(name), "").expect("made");
        Self {
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

    /// Many operations; the first error, with what came before it.
    fn operations(&mut self, count: u64) -> Result<(), String> {
        let mut told = VecDeque::new();
        for number in 0..count {
            let here = self.random.below(2) as usize;
            let operation = self.choose();
            told.push_back(format!("{number} on {}: {operation:?}", here + 1));
            if told.len() > TOLD {
                told.pop_front();
            }
            self.done = number;
            self.operate(operation, here)
                .map_err(|error| format!("{error}\n{told:#?}"))?;
        }
        Ok(())
    }

    fn choose(&mut self) -> Operation {
        let random = &mut self.random;
        let end = self.model.len() as u64;
        // Often where something is, sometimes far behind it; often at the edges of pages.
        let mut offset = match random.below(8) {
            0 => random.below(LEN_MAX),
            _ => random.below(end + 1),
        };
        if random.below(3) == 0 {
            offset = offset / 4096 * 4096;
        }
        let bound = [16, 4096, 9000, PART_MAX][random.below(4) as usize];
        let len = 1 + random.below(bound.min(LEN_MAX - offset).max(1));
        match random.below(100) {
            0..30 => Operation::Write { offset, len },
            30..38 if end + len < LEN_MAX => Operation::Append { len },
            30..70 => Operation::Read { offset, len },
            70..78 => Operation::MapRead { offset, len },
            78..86 => Operation::Truncate { size: offset },
            86..90 => Operation::Sync,
            90..93 => Operation::Reopen,
            93..95 => Operation::Rename,
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
                // The kernel knows of a file that grew elsewhere when it has asked for its size, as programs do.
                self.files[here].metadata().map_err(said)?;
                let end = (offset + len).min(self.model.len() as u64);
                if offset < end {
                    let out = map_read(&self.files[here], offset, end).map_err(said)?;
                    self.check(offset, &out, len)?;
                }
            }
            Operation::Truncate { size } => {
                self.files[here].set_len(size).map_err(said)?;
                self.resize(size as usize);
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

/// What a private mapping shows that is made now.
fn map_read(file: &File, offset: u64, end: u64) -> std::io::Result<Vec<u8>> {
    let first = offset / 4096 * 4096;
    let len = (end - first) as usize;
    // SAFETY: a new mapping where the system likes it; nobody has an address there.
    let mapped = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ,
            libc::MAP_PRIVATE,
            file.as_raw_fd(),
            first as libc::off_t,
        )
    };
    if mapped == libc::MAP_FAILED {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the mapping is as long, and of a file that is at least as long; nobody changes the file meanwhile.
    let bytes = unsafe { std::slice::from_raw_parts(mapped.cast::<u8>(), len) };
    let out = bytes[(offset - first) as usize..].to_vec();
    // SAFETY: the mapping from above; nobody has an address in it any more.
    match unsafe { libc::munmap(mapped, len) } {
        0 => Ok(out),
        _ => Err(std::io::Error::last_os_error()),
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
        let mut run = Run::new(&cluster, &format!("f{seed}x"), seed, Fault::None);
        let done = run.operations(count);
        done.unwrap_or_else(|error| panic!("FOREBAY_SEED={seed}: {error}"));
        files.push((run.name, run.model));
    }
    one.end();
    two.end();
    for (name, model) in files {
        let stored = fs::read(cluster.source().join(&name)).expect("there");
        assert!(stored == model, "{name}: the store has something else");
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
        let mut run = Run::new(&cluster, &format!("{fault:?}x"), 9, fault);
        let found = run.operations(1000);
        let found = found.expect_err("the file is not as this model has it");
        assert!(found.contains("in place of"), "{fault:?}: {found}");
    }
}
