//! `cargo bench --bench reactors`: the cost of a request from another reactor than the engine's,
//! and the gain from a second reactor.
//!
//! Clients send 4 KiB read hits on the engine's reactor, on another one, and on both. They sum each
//! block that they read, in place of the work of a protocol on its own reactor.

use std::rc::Rc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use forebay_benches::{Offsets, REQUEST_BYTES, Stack, VOLUME_BYTES};
use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf, Error, ErrorKind, Result};
use forebay_io::sync::Promise;
use forebay_io::{Engine, Reactor, rt, spawn_reactor};
use forebay_volume::VolumeHandle;

/// Time of a sample.
const SAMPLE: Duration = Duration::from_secs(1);
/// Samples of one row. The median counts.
const SAMPLES: usize = 5;
/// Rows: name, requests in flight on the engine's reactor, and on the other one.
const ROWS: [(&str, usize, usize); 5] = [
    ("engine's reactor, depth 1", 1, 0),
    ("another reactor, depth 1", 0, 1),
    ("engine's reactor, depth 32", 32, 0),
    ("another reactor, depth 32", 0, 32),
    ("both, depth 16 each", 16, 16),
];

fn main() -> Result<()> {
    Reactor::new(Engine::Auto)?.run(async {
        let stack = Stack::new().await?;
        println!(
            "4 KiB read hits at random, in memory, each block summed by its client; median of \
             {SAMPLES} samples of {} s",
            SAMPLE.as_secs()
        );
        for (name, here, there) in ROWS {
            let mut samples = Vec::with_capacity(SAMPLES);
            for _ in 0..SAMPLES {
                samples.push(sample(&stack, here, there).await?);
            }
            samples.sort_unstable();
            let a_second = samples[SAMPLES / 2] as f64 / SAMPLE.as_secs_f64();
            println!(
                "{name:<28} {:>8.0} k requests/s {:>8.0} ns a request",
                a_second / 1e3,
                1e9 / a_second
            );
        }
        Ok(())
    })
}

/// Returns the number of requests that one sample completes.
async fn sample(stack: &Stack, here: usize, there: usize) -> Result<u64> {
    let (send, receive) = mpsc::channel();
    let handle = stack.volume.handle();
    let until = Instant::now() + SAMPLE;
    let other = spawn_reactor("other", Engine::Auto, {
        let handle = handle.clone();
        move || async move {
            let _ = send.send(clients(handle, there, until).await);
        }
    })?;
    let ours = clients(handle, here, until).await?;
    // The other reactor needs this one to end its requests.
    let theirs = loop {
        match receive.try_recv() {
            Ok(theirs) => break theirs?,
            Err(mpsc::TryRecvError::Empty) => rt::sleep(Duration::from_millis(1)).await,
            Err(mpsc::TryRecvError::Disconnected) => {
                return Err(Error::new(ErrorKind::Io, "the other reactor died"));
            }
        }
    };
    drop(other);
    Ok(ours + theirs)
}

/// Runs clients with one request in flight each. Returns the number of their requests.
async fn clients(handle: VolumeHandle, count: usize, until: Instant) -> Result<u64> {
    let tasks: Vec<_> = (0..count)
        .map(|client| {
            let device = handle.open();
            let done = Promise::new();
            let task = done.clone();
            // Each client has its own sequence of offsets.
            let offsets = Offsets::over(VOLUME_BYTES).skip(1000 * client);
            rt::spawn(async move { task.set(one(device, offsets, until).await) });
            done
        })
        .collect();
    let mut requests = 0;
    for task in tasks {
        requests += task.get().await?;
    }
    Ok(requests)
}

async fn one(
    device: Rc<dyn BlockDevice>,
    offsets: impl Iterator<Item = u64>,
    until: Instant,
) -> Result<u64> {
    let buf = Buf::zeroed(usize::try_from(REQUEST_BYTES).expect("small"));
    let mut bytes = vec![0; buf.len()];
    let mut requests = 0;
    for offset in offsets {
        if requests % 16 == 0 && Instant::now() >= until {
            break;
        }
        device.read(offset, buf.clone()).await?;
        buf.copy_to(0, &mut bytes);
        std::hint::black_box(bytes.iter().map(|byte| u64::from(*byte)).sum::<u64>());
        requests += 1;
        if requests % 16 == 0 {
            rt::yield_now().await;
        }
    }
    Ok(requests)
}
