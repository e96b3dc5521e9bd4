//! `cargo bench --bench adaptive`: the cost of blocks of several sizes beside blocks of one size.
//!
//! It measures the decision about a request, the simulation of a request, and memory. It counts the
//! processor time of one thread, so that other programs disturb less.
//!
//! `--json` prints one object. `--trace FILE` names the simulator's trace, in libCacheSim's
//! oracleGeneral format. A missing file is created, so that other simulators can read the same
//! trace.

mod decide;
mod simulator;

use std::path::PathBuf;

use forebay_policy::BlockSizes;
use forebay_trace::sim::Replace;
use serde_json::{Value, json};

const KIB: u64 = 1 << 10;

/// Rules to compare.
#[derive(Clone, Copy, Debug)]
struct Rules {
    name: &'static str,
    sizes_kib: &'static [u64],
    replace: Replace,
    learned: bool,
}

const RULES: [Rules; 3] = [
    Rules {
        name: "fixed 32K",
        sizes_kib: &[32],
        replace: Replace::Paper,
        learned: false,
    },
    Rules {
        name: "AdaCache's",
        sizes_kib: &[32, 64, 128, 256],
        replace: Replace::Paper,
        learned: false,
    },
    Rules {
        name: "ours",
        sizes_kib: &[32, 64, 128, 256],
        replace: Replace::Ours,
        learned: true,
    },
];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let (mut as_json, mut trace) = (false, None);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => as_json = true,
            "--trace" => trace = arguments.next().map(PathBuf::from),
            // An argument that Cargo adds.
            _ => {}
        }
    }
    let decisions: Vec<Value> = RULES.iter().map(decide::measure).collect();
    let (references, simulated) = simulator::measure(trace.as_deref());
    let all = json!({
        "decisions": decisions,
        "references": references,
        "simulator": simulated,
    });
    if as_json {
        println!("{all}");
    } else {
        print(&all);
    }
}

fn print(all: &Value) {
    println!("deciding about a request, ns, by its size:");
    for row in all["decisions"].as_array().into_iter().flatten() {
        print!("{:<11}", row["name"].as_str().unwrap_or_default());
        for case in row["cases"].as_array().into_iter().flatten() {
            print!(
                " {} {:.0}",
                case["sizes"].as_str().unwrap_or_default(),
                case["ns"].as_f64().unwrap_or_default()
            );
        }
        println!(
            "; {:.1} bytes of table a block",
            row["bytes_a_block"].as_f64().unwrap_or_default()
        );
    }
    println!("\nsimulating, the trace's decoding included:");
    for row in all["simulator"].as_array().into_iter().flatten() {
        println!(
            "{:<32} {:.2} million requests a second, {:.0} bytes a cached block",
            row["name"].as_str().unwrap_or_default(),
            row["requests_per_s"].as_f64().unwrap_or_default() / 1e6,
            row["bytes_a_block"].as_f64().unwrap_or_default()
        );
    }
}

fn sizes(kib: &[u64]) -> BlockSizes {
    let sizes: Vec<u64> = kib.iter().map(|kib| kib * KIB).collect();
    BlockSizes::new(&sizes).expect("powers of two")
}
