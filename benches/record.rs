//! `cargo bench --bench record`: the cost that a recording adds to recorded requests.
//!
//! The requests are 4 KiB hits in process. Samples with and without recording alternate, while a
//! thread empties the ring. Each pair of samples gives a ratio. The median counts.
//!
//! `--op read|write --requests N`, perhaps with `--recorded`, is for callgrind, as in the bench
//! `hit`. The ring has room for all entries then, and no thread empties it.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_benches::{Offsets, Stack, VOLUME_BYTES, hits};
use forebay_block::Result;
use forebay_io::{Engine, Reactor, rt};
use forebay_volume::record::{Drain, ring};

/// Requests of one sample.
const SAMPLE: u64 = 20_000;
/// Pairs of samples.
const PAIRS: usize = 301;
/// The daemon's value.
const RING_REQUESTS: usize = 1 << 17;
const TICK: Duration = Duration::from_millis(50);

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1).cloned()
    };
    let counted = value("--op").zip(value("--requests").and_then(|text| text.parse().ok()));
    if let Some((op, requests)) = counted {
        let recorded = arguments.iter().any(|argument| argument == "--recorded");
        return rt::block_on_simulated(1, async move {
            let stack = Stack::new().await?;
            let (recorder, drain) = ring(RING_REQUESTS);
            stack
                .volume
                .record(recorded.then(|| (Rc::new(recorder), 0)));
            let device = stack.volume.handle().open();
            let mut offsets = Offsets::over(VOLUME_BYTES);
            hits(&device, op == "write", requests, &mut offsets).await?;
            drop(drain);
            Ok(())
        });
    }
    Reactor::new(Engine::Threads)?.run(measure())
}

/// Empties a ring until `end` is set. Returns the number of entries.
fn empty(mut drain: Drain, end: &AtomicBool) -> u64 {
    let (mut bytes, mut count) = (Vec::new(), 0);
    while !end.load(Ordering::Relaxed) {
        std::thread::sleep(TICK);
        count += drain.take(&mut bytes, RING_REQUESTS) as u64;
        bytes.clear();
    }
    assert_eq!(drain.lost(), 0, "the ring was full");
    count
}

async fn measure() -> Result<()> {
    let stack = Stack::new().await?;
    let device = stack.volume.handle().open();
    let (recorder, drain) = ring(RING_REQUESTS);
    let recorder = Rc::new(recorder);
    let end = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&end);
    let reader = std::thread::spawn(move || empty(drain, &ended));
    println!(
        "4 KiB hits at random, in memory, one thread; median of {PAIRS} pairs of samples of \
         {SAMPLE}"
    );
    for (name, write) in [("read hit", false), ("write hit", true)] {
        let mut offsets = Offsets::over(VOLUME_BYTES);
        let (mut plain, mut ratios) = (Vec::with_capacity(PAIRS), Vec::with_capacity(PAIRS));
        for pair in 0..PAIRS {
            let mut times = [0.0; 2];
            // The order alternates.
            for at in [pair % 2, 1 - pair % 2] {
                stack
                    .volume
                    .record((at == 1).then(|| (Rc::clone(&recorder), 0)));
                let began = Instant::now();
                hits(&device, write, SAMPLE, &mut offsets).await?;
                times[at] = began.elapsed().as_nanos() as f64 / SAMPLE as f64;
                rt::yield_now().await;
            }
            plain.push(times[0]);
            ratios.push(times[1] / times[0]);
        }
        plain.sort_unstable_by(f64::total_cmp);
        ratios.sort_unstable_by(f64::total_cmp);
        println!(
            "{name:<10} {:>6.0} ns, recorded {:+.2}% (half of the pairs {:+.2}% to {:+.2}%)",
            plain[PAIRS / 2],
            (ratios[PAIRS / 2] - 1.0) * 100.0,
            (ratios[PAIRS / 4] - 1.0) * 100.0,
            (ratios[PAIRS * 3 / 4] - 1.0) * 100.0,
        );
    }
    end.store(true, Ordering::Relaxed);
    let recorded = reader.join().expect("the reader does not panic");
    println!("{recorded} requests were recorded");
    Ok(())
}
