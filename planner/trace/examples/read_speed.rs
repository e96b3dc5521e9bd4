//! Speed of reading a trace: `cargo run --release -p forebay-trace --example read_speed FILE...`.
//!
//! Each file is in memory, compressed or not, so the device does not count. Time is that of the
//! processor, so other programs do not count.

use std::hint::black_box;
use std::io::Cursor;
use std::time::{Duration, Instant};

use forebay_trace::stats::{Stats, StatsOptions};
use forebay_trace::{OpenOptions, Trace};

/// Reads `content` once; with statistics, if there are any to take it in.
fn read(name: &str, content: &[u8], mut stats: Option<&mut Stats>) -> u64 {
    let content = Cursor::new(content.to_vec());
    let mut trace = Trace::from_reader(name, content, &OpenOptions::default()).expect("a trace");
    let (mut batch, mut requests) = (Vec::new(), 0);
    while trace.fill(&mut batch).expect("a sound trace") {
        requests += batch.len() as u64;
        match &mut stats {
            Some(stats) => stats.add(&batch),
            None => {
                black_box(&batch);
            }
        }
    }
    requests
}

/// Returns the time that this process has run on a processor.
fn processor_time() -> Duration {
    let said = std::fs::read_to_string("/proc/self/schedstat").expect("Linux says it");
    let ns = said.split(' ').next().and_then(|first| first.parse().ok());
    Duration::from_nanos(ns.expect("a number of nanoseconds"))
}

fn main() {
    for path in std::env::args().skip(1) {
        let content = std::fs::read(&path).expect("a file");
        let measure = |with_stats: bool| {
            let (begin, used, mut requests) = (Instant::now(), processor_time(), 0);
            while begin.elapsed() < Duration::from_secs(2) {
                let mut stats = with_stats.then(|| Stats::new(StatsOptions::default()));
                requests += read(&path, &content, stats.as_mut());
            }
            requests as f64 / (processor_time() - used).as_secs_f64() / 1e6
        };
        let (read, stats) = (measure(false), measure(true));
        println!("{path}: {read:.1} million requests a second; with statistics {stats:.1}");
    }
}
