//! Mixes of file operations after filebench's webserver, webproxy, varmail and fileserver. These
//! are smaller: eight threads, each with fewer files of its own.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use forebay_tests::stamp::mix;

use crate::latency::{Kind, Latencies};
use crate::{Outcome, number};

const THREADS: u64 = 8;
const APPEND_BYTES: usize = 16 << 10;

/// Number and size of a thread's files.
#[derive(Clone, Copy, Debug)]
struct Set {
    files: u64,
    file_bytes: usize,
}

/// One pass of a mix.
type Pass = fn(&mut Worker) -> std::io::Result<()>;

fn mix_of(name: &str) -> Outcome<(Set, Pass)> {
    let small = Set {
        files: 500,
        file_bytes: 16 << 10,
    };
    Ok(match name {
        "webserver" => (small, Worker::webserver),
        "webproxy" => (small, Worker::webproxy),
        "varmail" => (
            Set {
                files: 125,
                ..small
            },
            Worker::varmail,
        ),
        "fileserver" => {
            let set = Set {
                files: 150,
                file_bytes: 128 << 10,
            };
            (set, Worker::fileserver)
        }
        _ => return Err(format!("there is no mix {name:?}")),
    })
}

pub(crate) fn run(words: &[&str]) -> Outcome<()> {
    let [name, folder, phase, seconds, seed] = words else {
        return Err("files takes five arguments".into());
    };
    let (set, pass) = mix_of(name)?;
    let limit = Duration::from_secs_f64(number(seconds, "SECONDS")?);
    let seed: u64 = number(seed, "SEED")?;
    let worker = |thread| Worker::new(Path::new(folder), set, thread, seed);
    if *phase == "prepare" {
        for thread in 0..THREADS {
            worker(thread)
                .prepare()
                .map_err(|error| format!("{folder}: {error}"))?;
        }
        return Ok(());
    }
    let began = Instant::now();
    let work = |thread| {
        let mut worker = worker(thread);
        while began.elapsed() < limit {
            pass(&mut worker).map_err(|error| format!("{name} in {folder}: {error}"))?;
        }
        Ok(worker.latencies)
    };
    let mut all = Latencies::new();
    thread::scope(|scope| {
        let running: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || work(n))).collect();
        for one in running {
            let done: Outcome<Latencies> = one.join().map_err(|_| "a thread panicked")?;
            all.add(&done?);
        }
        Ok::<(), String>(())
    })?;
    println!("{}", all.json(began.elapsed().as_secs_f64()));
    Ok(())
}

/// State of one thread.
struct Worker {
    folder: PathBuf,
    set: Set,
    bytes: Vec<u8>,
    state: u64,
    latencies: Latencies,
}

impl Worker {
    fn new(folder: &Path, set: Set, thread: u64, seed: u64) -> Self {
        let mut state = mix(seed ^ (thread << 32));
        let words = set.file_bytes.max(APPEND_BYTES).div_ceil(8);
        let bytes = std::iter::repeat_with(|| {
            state = mix(state);
            state.to_le_bytes()
        });
        Self {
            folder: folder.join(format!("thread-{thread}")),
            set,
            bytes: bytes.take(words).flatten().collect(),
            state: mix(seed + thread),
            latencies: Latencies::new(),
        }
    }

    fn prepare(&self) -> std::io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        for number in 0..self.set.files {
            fs::write(self.path(number), &self.bytes[..self.set.file_bytes])?;
        }
        Ok(())
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(number.to_string())
    }

    /// Returns one of the thread's files.
    fn any(&mut self) -> PathBuf {
        self.state = mix(self.state);
        self.path(self.state % self.set.files)
    }

    fn read(&mut self, path: &Path) -> std::io::Result<()> {
        self.latencies.operations += 1;
        self.latencies.timed(Kind::Read, || {
            let mut file = File::open(path)?;
            let mut bytes = vec![0; 128 << 10];
            while file.read(&mut bytes)? > 0 {}
            Ok(())
        })
    }

    /// Appends bytes to a file, which is created if it does not exist.
    fn append(&mut self, path: &Path, bytes: usize, sync: bool) -> std::io::Result<()> {
        self.latencies.operations += 1;
        let bytes = &self.bytes[..bytes];
        self.latencies.timed(Kind::Write, || {
            let mut file = OpenOptions::new().create(true).append(true).open(path)?;
            file.write_all(bytes)?;
            if sync { file.sync_all() } else { Ok(()) }
        })
    }

    fn remove(&mut self, path: &Path) -> std::io::Result<()> {
        self.latencies.operations += 1;
        self.latencies.timed(Kind::Write, || fs::remove_file(path))
    }

    /// Deletes a file and writes a new one.
    fn replace(&mut self, bytes: usize, sync: bool) -> std::io::Result<()> {
        let path = self.any();
        self.remove(&path)?;
        self.append(&path, bytes, sync)
    }

    /// Appends to the thread's log, which has a size limit.
    fn log(&mut self) -> std::io::Result<()> {
        let log = self.folder.join("log");
        if fs::metadata(&log).is_ok_and(|found| found.len() > 4 << 20) {
            fs::remove_file(&log)?;
        }
        self.append(&log, APPEND_BYTES, false)
    }

    fn webserver(&mut self) -> std::io::Result<()> {
        for _ in 0..10 {
            let path = self.any();
            self.read(&path)?;
        }
        self.log()
    }

    fn webproxy(&mut self) -> std::io::Result<()> {
        self.replace(self.set.file_bytes, false)?;
        for _ in 0..5 {
            let path = self.any();
            self.read(&path)?;
        }
        self.log()
    }

    fn varmail(&mut self) -> std::io::Result<()> {
        self.replace(APPEND_BYTES, true)?;
        let path = self.any();
        self.read(&path)?;
        // The next pass that picks a large mail box for replacement empties it.
        self.append(&path, APPEND_BYTES, true)?;
        let path = self.any();
        self.read(&path)
    }

    fn fileserver(&mut self) -> std::io::Result<()> {
        self.replace(self.set.file_bytes, false)?;
        let path = self.any();
        self.append(&path, APPEND_BYTES, false)?;
        let path = self.any();
        self.read(&path)?;
        self.latencies.operations += 1;
        let path = self.any();
        fs::metadata(path).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mix_reads_and_changes_its_files_and_keeps_their_number() {
        let folder = std::env::temp_dir().join(format!("forebay-mixes-{}", std::process::id()));
        for name in ["webserver", "webproxy", "varmail", "fileserver"] {
            let (set, pass) = mix_of(name).expect("there is such");
            let set = Set { files: 10, ..set };
            let mut worker = Worker::new(&folder.join(name), set, 0, 1);
            worker.prepare().expect("a folder for scratch");
            for _ in 0..20 {
                pass(&mut worker).expect("its files exist");
            }
            let json = worker.latencies.json(1.0);
            let count = |side: &str| json[side]["count"].as_u64().expect("a number");
            assert!(count("reads") >= 20 && count("writes") >= 20, "{json}");
            let there = fs::read_dir(&worker.folder).expect("there").count();
            assert!((10..=11).contains(&there), "{there} files of {name}");
        }
        fs::remove_dir_all(&folder).expect("removed");
    }
}
