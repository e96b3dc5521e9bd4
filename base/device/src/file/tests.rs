use super::*;
use crate::emulate::{EmulateDevice, Profile};
use forebay_block::{Allocation, BlockDeviceExt, Buf, ErrorKind, Extents};
use forebay_io::{Engine, Reactor};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Runs `test` on a reactor with each I/O engine, and reports an engine that is not allowed here.
fn on_each_engine<F: Future<Output = ()> + 'static>(test: impl Fn() -> F) {
    for engine in [Engine::Uring, Engine::Threads] {
        match Reactor::new(engine) {
            Ok(reactor) => reactor.run(test()),
            Err(error) => eprintln!("SKIPPED: {engine:?}: {}", error.report()),
        }
    }
}

/// An unused path. Its file is removed on drop.
struct Scratch(PathBuf);

impl Scratch {
    fn new(directory: &Path, name: &str) -> Self {
        let path = directory.join(format!("forebay-device-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn create(size_bytes: u64) -> FileDeviceOptions {
    FileDeviceOptions {
        name: "c0".into(),
        direct: true,
        exclusive: true,
        create_bytes: Some(size_bytes),
        ..FileDeviceOptions::default()
    }
}

#[test]
fn a_file_keeps_written_data() {
    on_each_engine(|| async {
        let scratch = Scratch::new(&std::env::temp_dir(), "keeps");
        let device = FileDevice::open(&scratch.0, create(8 << 20)).expect("made");
        let info = device.info();
        assert_eq!((info.name.as_str(), info.size_bytes), ("c0", 8 << 20));
        assert!(info.volatile_cache && info.fua && info.emulated.is_none());
        let data = Buf::scratch(1 << 20);
        data.fill(0xa5);
        device
            .write(1 << 20, data.slice(0..8192))
            .await
            .expect("written");
        device.write_fua(2 << 20, data).await.expect("written");
        device.discard(2 << 20, 1 << 19).await.expect("discarded");
        device
            .write_zeroes((2 << 20) + (1 << 19), 4096)
            .await
            .expect("zeroed");
        device.flush().await.expect("flushed");
        drop(device);

        let options = FileDeviceOptions {
            read_only: true,
            ..FileDeviceOptions::default()
        };
        let device = FileDevice::open(&scratch.0, options).expect("opened");
        assert_eq!(device.info().name, scratch.0.display().to_string());
        let back = Buf::scratch(4 << 20);
        device.read(0, back.clone()).await.expect("read");
        let back = back.to_vec();
        let written = (1 << 20)..(1 << 20) + 8192;
        assert!(back[written].iter().all(|&byte| byte == 0xa5));
        assert!(
            back[(2 << 20) + (1 << 19)..][..4096]
                .iter()
                .all(|&byte| byte == 0)
        );
        assert!(
            back[(2 << 20) + (1 << 19) + 4096..3 << 20]
                .iter()
                .all(|&byte| byte == 0xa5)
        );
        let error = device
            .write(0, Buf::zeroed(4096))
            .await
            .expect_err("read-only");
        assert_eq!(error.kind(), ErrorKind::ReadOnly);
    });
}

#[test]
fn open_errors_name_the_cause() {
    on_each_engine(|| async {
        let scratch = Scratch::new(&std::env::temp_dir(), "wrong");
        let kind = |options| match FileDevice::open(&scratch.0, options) {
            Ok(_) => panic!("opened"),
            Err(error) => {
                let path = scratch.0.display().to_string();
                assert!(error.report().contains(&path), "{}", error.report());
                error.kind()
            }
        };
        assert_eq!(kind(FileDeviceOptions::default()), ErrorKind::NotFound);
        let _held = FileDevice::open(&scratch.0, create(1 << 20)).expect("made");
        assert_eq!(kind(create(1 << 20)), ErrorKind::Busy);
    });
}

#[test]
fn memory_is_not_called_media() {
    let table = "30 1 0:40 / /run/a rw,nosuid shared:2 - tmpfs tmpfs rw\n\
                 31 1 8:1 / / rw - ext4 /dev/sda1 rw\n";
    assert!(file_system_in_memory(table, "0:40"));
    assert!(!file_system_in_memory(table, "8:1"));
    assert!(!file_system_in_memory(table, "0:4"));
    if !Path::new("/dev/shm").is_dir() {
        eprintln!("SKIPPED: a file in memory: /dev/shm is missing");
        return;
    }
    on_each_engine(|| async {
        let scratch = Scratch::new(Path::new("/dev/shm"), "memory");
        let device = FileDevice::open(&scratch.0, create(1 << 20)).expect("made");
        assert_eq!(device.info().persistence, Persistence::Machine);
    });
}

/// A loop device, detached on drop.
struct Loop(String);

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

#[test]
fn a_raw_block_device_is_a_device() {
    let scratch = Scratch::new(&std::env::temp_dir(), "raw");
    std::fs::File::create(&scratch.0)
        .and_then(|file| file.set_len(16 << 20))
        .expect("made");
    let attached = Command::new("losetup")
        .args(["--find", "--show", "--sector-size", "4096"])
        .arg(&scratch.0)
        .output();
    let device = match attached {
        Ok(output) if output.status.success() => {
            Loop(String::from_utf8_lossy(&output.stdout).trim().to_owned())
        }
        other => {
            eprintln!("SKIPPED: a raw block device: no loop device available: {other:?}");
            return;
        }
    };
    let path = PathBuf::from(&device.0);
    on_each_engine(|| {
        let path = path.clone();
        async move {
            let options = FileDeviceOptions {
                create_bytes: None,
                ..create(0)
            };
            let device = FileDevice::open(&path, options.clone()).expect("opened");
            let info = device.info();
            assert_eq!(
                (info.size_bytes, info.logical_block_bytes),
                (16 << 20, 4096)
            );
            let data = Buf::scratch(64 << 10);
            data.fill(3);
            device.write_fua(1 << 20, data).await.expect("written");
            device.write_zeroes(1 << 20, 4096).await.expect("zeroed");
            device.discard(0, 1 << 20).await.expect("discarded");
            device.flush().await.expect("flushed");
            let back = Buf::scratch(8192);
            device.read(1 << 20, back.clone()).await.expect("read");
            let back = back.to_vec();
            assert!(back[..4096].iter().all(|&byte| byte == 0));
            assert!(back[4096..].iter().all(|&byte| byte == 3));
            let misaligned = device.read(512, Buf::scratch(512)).await;
            assert_eq!(
                misaligned.expect_err("512 of 4096").kind(),
                ErrorKind::InvalidInput
            );
            let busy = FileDevice::open(&path, options).map(|_| ());
            assert_eq!(busy.expect_err("held").kind(), ErrorKind::Busy);
        }
    });
}

/// Through the reactors' timers.
#[test]
fn an_emulated_disk_is_never_too_fast_on_a_reactor() {
    on_each_engine(|| async {
        let scratch = Scratch::new(&std::env::temp_dir(), "time");
        let profile = Profile {
            read_latency_us: 3000,
            bandwidth_bytes_per_s: 100_000_000,
            ..Profile::default()
        };
        let file = FileDevice::open(&scratch.0, create(1 << 20)).expect("made");
        let device = EmulateDevice::wrap(file, profile);
        let declared = Duration::from_nanos(3_040_960);
        for _ in 0..20 {
            let start = Instant::now();
            device.read(0, Buf::scratch(4096)).await.expect("read");
            let time = start.elapsed();
            assert!(time >= declared, "{time:?} is too fast");
        }
    });
}

#[test]
fn a_file_tells_its_holes_and_a_zeroed_range_reads_as_zeroes() {
    on_each_engine(|| async {
        let scratch = Scratch::new(&std::env::temp_dir(), "extents");
        let device = FileDevice::open(&scratch.0, create(8 << 20)).expect("made");
        let hole = async |at: u64| {
            let found = device.extents(at..at + 4096).await.expect("an answer");
            assert_eq!(found.end(), Some(at + 4096));
            found.iter().next().expect("an extent").allocation != Allocation::Data
        };
        if !hole(0).await {
            eprintln!("SKIPPED: this file system does not tell where a file has holes");
            return;
        }
        let data = Buf::scratch(1 << 20);
        data.fill(0xa5);
        // Writes with and without FUA are data as soon as they are acknowledged.
        device.write(1 << 20, data.clone()).await.expect("written");
        device
            .write_fua(4 << 20, data.clone())
            .await
            .expect("written");
        let found = device.extents(0..8 << 20).await.expect("an answer");
        let mut expected = Extents::default();
        for (end, allocation) in [
            (1 << 20, Allocation::Hole),
            (2 << 20, Allocation::Data),
            (4 << 20, Allocation::Hole),
            (5 << 20, Allocation::Data),
            (8 << 20, Allocation::Hole),
        ] {
            expected.push(expected.end().unwrap_or(0)..end, allocation);
        }
        assert_eq!(found, expected);
        // No block is a hole after its write, with another query beside the write.
        for block in 0..256_u64 {
            let at = (6 << 20) + block * 4096;
            assert!(hole(at).await, "block {block} was not written");
            let mut asked = std::pin::pin!(device.extents(6 << 20..7 << 20));
            let first = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(asked.as_mut().poll(cx).is_ready())
            });
            assert!(!first.await, "a thread answers");
            device
                .write(at, data.slice(0..4096))
                .await
                .expect("written");
            asked.await.expect("an answer");
            assert!(!hole(at).await, "block {block} was written");
        }
        device.discard(1 << 20, 1 << 20).await.expect("discarded");
        assert!(hole(1 << 20).await);
        assert!(!hole(4 << 20).await);
    });
}
