//! Simulates one trace with all configurations of `cargo xtask study adacache`, in one pass. Takes
//! a job as JSON and prints the counts as JSON. The study judges them.
//!
//! A job is `{"files": [PATH...], "percents": [10]}`. Its files are read one after another. It may
//! also have:
//!
//! - `volume`: name of the only volume that counts
//! - `limit`: number of requests
//! - `format`: format of the files
//! - `scale`: factor for offsets and lengths, for traces whose blocks have another size than their
//!   format says
//! - `few`: whether to run fewer configurations
//! - `generated`, in place of `files`: `{"preset": "msr", "volume": 0, "requests": 1000000, "seed":
//!   1}`

mod rows;
mod source;

use forebay_trace::stats::{Stats, StatsOptions, Summary};
use forebay_trace::{Op, Volumes};
use serde_json::{Value, json};

use rows::{Choice, Row};
use source::{Outcome, Source};

/// Largest end of a request. Block addresses have no room for more.
const MAX_END_BYTES: u64 = 1 << 56;
/// Number of requests that one configuration simulates before the next one does.
const CHUNK_REQUESTS: usize = 1 << 17;

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

/// Runs a job. Returns its counts.
fn run(job: &str) -> Outcome<Value> {
    let job: Value = serde_json::from_str(job).map_err(|error| format!("the job: {error}"))?;
    let percents = job["percents"]
        .as_array()
        .ok_or("the job has no percents")?;
    let percents: Option<Vec<u64>> = percents.iter().map(Value::as_u64).collect();
    let percents = percents.ok_or("the job's percents are no numbers")?;
    let summary = summary(&job)?;
    let mut rows = Vec::new();
    for (index, percent) in percents.iter().enumerate() {
        let capacity_bytes = summary.working_set_bytes() * percent / 100;
        // Only the first size of the cache runs all configurations.
        let choice = match (index, job["few"].as_bool()) {
            (0, Some(true)) => Choice::Families,
            (0, _) => Choice::All,
            _ => Choice::SubBlock,
        };
        rows.extend(rows::rows(*percent, capacity_bytes, choice));
    }
    let mut source = Source::open(&job)?;
    let (mut batch, mut chunk) = (Vec::new(), Vec::new());
    let mut has_more = true;
    while has_more {
        chunk.clear();
        while has_more && chunk.len() < CHUNK_REQUESTS {
            has_more = source.fill(&mut batch)?;
            chunk.extend_from_slice(&batch);
        }
        // One row at a time, so that its tables stay in the processor's caches.
        for row in &mut rows {
            chunk.iter().for_each(|request| row.request(request));
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

/// Returns the statistics of the trace. Its working set decides how large the caches are.
fn summary(job: &Value) -> Outcome<Summary> {
    let mut source = Source::open(job)?;
    let mut stats = Stats::new(StatsOptions::default());
    let mut batch = Vec::new();
    let mut last_volume = 0;
    while source.fill(&mut batch)? {
        batch.retain(|request| matches!(request.op, Op::Read | Op::Write));
        if let Some(far) = batch
            .iter()
            .find(|request| request.end_bytes() > MAX_END_BYTES)
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
