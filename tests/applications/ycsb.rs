//! YCSB's load and its workloads A (reads and updates, half each) and F (reads and
//! read-modify-writes, half each), by one client. See B. Cooper and others, "Benchmarking cloud
//! serving systems with YCSB", SoCC '10.

use std::path::Path;
use std::time::{Duration, Instant};

use forebay_tests::stamp::mix;

use crate::draw::Draw;
use crate::latency::{Kind, Latencies};
use crate::store::{self, Store};
use crate::{Outcome, number};

/// Returns the key of a record. Keys are scattered, as YCSB's are.
fn key(record: u64) -> Vec<u8> {
    format!("user{:020}", mix(record)).into_bytes()
}

/// Fills a value with bytes that no compression shrinks.
fn fill(value: &mut [u8], seed: u64) {
    let mut state = seed;
    for word in value.chunks_mut(8) {
        state = mix(state);
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
}

pub(crate) fn run(words: &[&str]) -> Outcome<()> {
    let [
        kind,
        folder,
        workload,
        distribution,
        records,
        value_bytes,
        seconds,
        seed,
    ] = words
    else {
        return Err("ycsb takes eight arguments".into());
    };
    let records: u64 = number(records, "RECORDS")?;
    let value_bytes: usize = number(value_bytes, "VALUE_BYTES")?;
    let seconds: f64 = number(seconds, "SECONDS")?;
    let seed: u64 = number(seed, "SEED")?;
    // As YCSB's own client, RocksDB does not sync each put, and SQLite does.
    let mut store = store::open(kind, Path::new(folder), *kind == "sqlite")?;
    let mut draw = Draw::new(distribution, records, seed)?;
    let began = Instant::now();
    let limit = Duration::from_secs_f64(seconds);
    let mut latencies = Latencies::new();
    let mut value = vec![0; value_bytes];
    for operation in 0_u64.. {
        let over = match *workload {
            "load" => operation >= records,
            _ => began.elapsed() >= limit,
        };
        if over {
            break;
        }
        fill(&mut value, mix(seed ^ (operation << 20)));
        one(
            &mut *store,
            workload,
            operation,
            &mut draw,
            &value,
            &mut latencies,
        )?;
    }
    drop(store);
    println!("{}", latencies.json(began.elapsed().as_secs_f64()));
    Ok(())
}

fn one(
    store: &mut dyn Store,
    workload: &str,
    operation: u64,
    draw: &mut Draw,
    value: &[u8],
    latencies: &mut Latencies,
) -> Outcome<()> {
    latencies.operations += 1;
    if workload == "load" {
        return latencies.timed(Kind::Write, || store.put(&key(operation), value));
    }
    let key = key(draw.record());
    let change = draw.below(2) == 0;
    let (reads, writes) = match workload {
        "a" => (!change, change),
        "f" => (true, change),
        _ => return Err(format!("there is no workload {workload:?}: load, a, f")),
    };
    if reads {
        let found = latencies.timed(Kind::Read, || store.get(&key))?;
        if found.is_none() {
            return Err(format!("{} is missing", String::from_utf8_lossy(&key)));
        }
    }
    if writes {
        latencies.timed(Kind::Write, || store.put(&key, value))?;
    }
    Ok(())
}
