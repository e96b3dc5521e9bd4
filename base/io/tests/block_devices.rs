//! Raw block devices, on loop devices. Needs root and free loop devices.

use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_block::{Buf, ErrorKind, Request, Result, completion_pair};
use forebay_io::file::{File, FileOptions, check_device_writable};
use forebay_io::{Engine, Reactor};

const SIZE_BYTES: u64 = 16 << 20;

/// A loop device on a file of its own; both are removed on drop.
struct Loop {
    device: PathBuf,
    file: PathBuf,
}

impl Loop {
    fn new(name: &str, sector_bytes: u32) -> Result<Self, String> {
        let name = format!("forebay-loop-{}-{name}", std::process::id());
        let file = std::env::temp_dir().join(name);
        std::fs::File::create(&file)
            .and_then(|file| file.set_len(SIZE_BYTES))
            .map_err(|error| format!("a file for it: {error}"))?;
        let sector = format!("--sector-size={sector_bytes}");
        let output = Command::new("losetup")
            .args(["--find", "--show", "--direct-io=on", &sector])
            .arg(&file)
            .output();
        let output = output.map_err(|error| format!("losetup: {error}"))?;
        if !output.status.success() {
            let _ = std::fs::remove_file(&file);
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        }
        let device = String::from_utf8_lossy(&output.stdout).trim().into();
        Ok(Self { device, file })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.device).status();
        let _ = std::fs::remove_file(&self.file);
    }
}

fn on_both(name: &str, sector_bytes: u32, test: impl AsyncFn(&Path) + Copy + 'static) {
    for engine in [Engine::Uring, Engine::Threads] {
        let reactor = match Reactor::new(engine) {
            Ok(reactor) => reactor,
            Err(error) => {
                eprintln!("SKIPPED on io_uring: {}", error.report());
                continue;
            }
        };
        let device = match Loop::new(name, sector_bytes) {
            Ok(device) => device,
            Err(reason) => {
                eprintln!("SKIPPED: no loop device with {sector_bytes}-byte sectors: {reason}");
                return;
            }
        };
        let path = device.device.clone();
        reactor.run(async move { test(&path).await });
        drop((reactor, device));
    }
}

const HELD: FileOptions = FileOptions {
    read_only: false,
    direct: true,
    exclusive: true,
    locks_as_writer: false,
    create_bytes: None,
    known_by_path: false,
    stop: None,
};

async fn request(file: &File, request: Request) -> Result<()> {
    let (done, future) = completion_pair();
    file.submit(request, done);
    future.await
}

#[test]
fn a_block_device_tells_its_geometry_and_takes_every_request() {
    on_both("every", 4096, async |path| {
        let file = File::open(path, &HELD).expect("it is free");
        let geometry = file.geometry();
        assert!(geometry.block_device);
        assert_eq!(geometry.size_bytes, SIZE_BYTES);
        assert_eq!(geometry.logical_block_bytes, 4096);
        assert!(geometry.discard, "loop devices on this file system discard");
        let data = Buf::scratch(1 << 20);
        data.fill(0x5A);
        for (offset, fua) in [(0, false), (1 << 20, true)] {
            let write = Request::write(offset, data.clone(), fua);
            request(&file, write).await.expect("writes");
        }
        // A part of a buffer may lie at any sector.
        let odd = data.slice(512..512 + 8192);
        let write = Request::write(2 << 20, odd, true);
        request(&file, write).await.expect("writes");
        request(&file, Request::flush()).await.expect("flushes");
        for zeroing in [
            Request::discard(0, 256 << 10),
            Request::write_zeroes(512 << 10, 65536, true, true),
            Request::write_zeroes(768 << 10, 65536, true, false),
        ] {
            let (offset, len) = (zeroing.offset, zeroing.len as usize);
            request(&file, zeroing).await.expect("zeroes");
            let got = Buf::scratch(len + 4096);
            let read = Request::read(offset, got.clone());
            request(&file, read).await.expect("reads");
            assert!(got.slice(0..len).is_zero(), "at {offset}");
            assert_eq!(got.slice(len..len + 4096).to_vec(), vec![0x5A; 4096]);
        }
        let past = Request::write(SIZE_BYTES, Buf::zeroed(4096), false);
        let refused = request(&file, past).await.expect_err("past the end");
        assert_eq!(refused.kind(), ErrorKind::OutOfRange);
        let small = Request::read(512, Buf::zeroed(512));
        let refused = request(&file, small).await.expect_err("no whole block");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    });
}

#[test]
fn a_block_device_is_held_alone() {
    on_both("alone", 512, async |path| {
        let first = File::open(path, &HELD).expect("it is free");
        assert_eq!(first.geometry().logical_block_bytes, 512);
        let refused = File::open(path, &HELD).expect_err("it is held");
        assert_eq!(refused.kind(), ErrorKind::Busy);
        let name = path.display().to_string();
        assert!(refused.report().contains(&name), "{refused:?}");
        drop(first);
        File::open(path, &HELD).expect("free again");
    });
}

/// A device made read-only. Its setting would apply to the next device with its number, so it is
/// undone in every case.
struct ReadOnly<'a>(&'a Path);

impl<'a> ReadOnly<'a> {
    fn set(path: &'a Path) -> Self {
        let set = Command::new("blockdev").arg("--setro").arg(path).status();
        assert!(set.is_ok_and(|set| set.success()), "blockdev of util-linux");
        Self(path)
    }
}

impl Drop for ReadOnly<'_> {
    fn drop(&mut self) {
        let _ = Command::new("blockdev").arg("--setrw").arg(self.0).status();
    }
}

#[test]
fn a_block_device_that_takes_no_writes_is_opened_for_reading_only() {
    on_both("read-only", 512, async |path| {
        check_device_writable(path).expect("it takes writes");
        let set = ReadOnly::set(path);
        let refused = File::open(path, &HELD).expect_err("it takes no writes");
        assert_eq!(refused.kind(), ErrorKind::ReadOnly);
        assert!(refused.report().contains("--setrw"), "{refused:?}");
        let refused = check_device_writable(path).expect_err("it takes no writes");
        assert_eq!(refused.kind(), ErrorKind::ReadOnly);
        let options = FileOptions {
            read_only: true,
            ..HELD
        };
        let file = File::open(path, &options).expect("it can be read");
        let read = Request::read(0, Buf::scratch(4096));
        request(&file, read).await.expect("reads");
        drop((file, set));
        File::open(path, &HELD).expect("it takes writes again");
    });
}
