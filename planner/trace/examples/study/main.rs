//! Job of `cargo xtask study adacache` for each trace: all its configurations, in one pass. The
//! program takes a job as JSON and prints the counts as JSON.
//!
//! A job is `{"files": [PATH...], "percents": [10]}`. The files are read one after another.
//! Optional members:
//!
//! - `volume`: name of the only volume that counts.
//! - `limit`: maximum number of requests.
//! - `format`: format of the files.
//! - `scale`: factor of offsets and lengths, if a block has another size than its format says.
//! - `few`: fewer configurations.
//! - `generated`, in place of files: `{"preset": "msr", "volume": 0, "requests": 1000000, "seed":
//!   1}`.

mod rows;
mod source;

use forebay_trace::stats::{Stats, StatsOptions, Summary};
use forebay_trace::{Op, Volumes};
use serde_json::{Value, json};

use rows::{Choice, Row};
use source::{Outcome, Source};

/// Maximum offset of a block. No volume has larger ones.
const MAX_OFFSET_BYTES: u64 = 1 << 56;
/// Requests that a configuration takes at a time.
const TURN_REQUESTS: usize = 1 << 17;

fn main() {
    let argument = std::env::args().nth(1).unwrap_or_default();
    match run(&argument) {
        Ok(result) => println!("{result}"),
        Err(error) => {
            eprintln!("study: {error}");
            std::process::exit(1);
        }
    }
}

fn run(job: &str) -> Outcome<Value> {
    let job: Value = serde_json::from_str(job).map_err(|error| format!("the job: {error}"))?;
    let percents = job["percents"]
        .as_array()
        .ok_or("the job has no percents")?;
    let percents: Option<Vec<u64>> = percents.iter().map(Value::as_u64).collect();
    let percents = percents.ok_or("the job's percents are no numbers")?;
    let summary = summary(&job)?;
    let mut rows = Vec::new();
    for (nth, percent) in percents.iter().enumerate() {
        let capacity_bytes = summary.working_set_bytes() * percent / 100;
        let choice = match (nth, job["few"].as_bool()) {
            (0, Some(true)) => Choice::Families,
            (0, _) => Choice::All,
            _ => Choice::SubBlock,
        };
        rows.extend(rows::rows(*percent, capacity_bytes, choice));
    }
    let mut source = Source::open(&job)?;
    let (mut batch, mut many, mut more) = (Vec::new(), Vec::new(), true);
    while more {
        many.clear();
        // A configuration finds its tables in the processor's caches while it goes on.
        while more && many.len() < TURN_REQUESTS {
            more = source.fill(&mut batch)?;
            many.extend_from_slice(&batch);
        }
        for row in &mut rows {
            many.iter().for_each(|request| row.request(request));
        }
    }
    let sizes = (9..=20).map(|power| json!([1_u64 << power, summary.sizes.at_most(power)]));
    Ok(json!({
        "reads": summary.reads.requests,
        "writes": summary.writes.requests,
        "read_bytes": summary.reads.bytes,
        "write_bytes": summary.writes.bytes,
        "working_set_bytes": summary.working_set_bytes(),
        "volumes": summary.volumes.len(),
        "sizes_at_most": sizes.collect::<Vec<_>>(),
        "rows": rows.into_iter().map(Row::finish).collect::<Vec<_>>(),
    }))
}

/// The trace's statistics, of which the working set decides how large the caches are.
fn summary(job: &Value) -> Outcome<Summary> {
    let mut source = Source::open(job)?;
    let mut stats = Stats::new(StatsOptions::default());
    let mut batch = Vec::new();
    let mut last_volume = 0;
    while source.fill(&mut batch)? {
        batch.retain(|request| matches!(request.op, Op::Read | Op::Write));
        if let Some(far) = batch
            .iter()
            .find(|request| request.end_bytes() > MAX_OFFSET_BYTES)
        {
            return Err(format!("a request at byte {}", far.offset_bytes));
        }
        let volumes = batch.iter().map(|request| request.volume);
        last_volume = volumes.max().unwrap_or(0).max(last_volume);
        stats.add(&batch);
    }
    let mut volumes = Volumes::new();
    for number in 0..=last_volume {
        let _ = volumes.number(&number.to_string());
    }
    Ok(stats.summary(&volumes))
}
