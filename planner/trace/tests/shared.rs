//! Real traces, where they are: what we read of them is what their manifest says.

use std::path::{Path, PathBuf};

use forebay_trace::stats::{Stats, StatsOptions, Summary};
use forebay_trace::{Format, OpenOptions, Trace};

/// The folder of real traces beside the repository; none, said loudly, where it is not.
fn folder() -> Option<PathBuf> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2)?;
    let traces = top.parent()?.join("shared").join("traces");
    let found = traces.join("manifest.json").exists().then_some(traces);
    if found.is_none() {
        println!("SKIPPED: no real traces beside the repository (../shared/traces)");
    }
    found
}

fn summary(path: &Path, format: Option<Format>, page_bytes: u64) -> (Summary, Format) {
    let options = OpenOptions {
        format,
        ..OpenOptions::default()
    };
    let mut trace = Trace::open(&[path], &options).expect("it opens");
    let mut stats = Stats::new(StatsOptions {
        page_bytes,
        ..StatsOptions::default()
    });
    let mut batch = Vec::new();
    while trace.fill(&mut batch).expect("it is sound") {
        stats.add(&batch);
    }
    assert_eq!(trace.counts().before_zero, 0, "{}", path.display());
    assert_eq!(trace.progress().read_bytes(), trace.size_bytes());
    (stats.summary(trace.volumes()), trace.format())
}

#[test]
fn statistics_are_those_of_the_manifest() {
    let Some(folder) = folder() else { return };
    let text = std::fs::read_to_string(folder.join("manifest.json")).expect("the manifest");
    let manifest: serde_json::Value = serde_json::from_str(&text).expect("it is JSON");
    let mut checked = 0;
    for file in manifest.as_array().expect("a list") {
        let path = file["path"].as_str().expect("a path");
        let Some(requests) = file["n"].as_u64() else {
            continue;
        };
        let page_bytes = file["wss_granularity"].as_u64().expect("a granularity");
        let (summary, format) = summary(&folder.join(path), None, page_bytes);
        println!("{path}: {format}, {requests} requests");
        for (what, ours, theirs) in [
            ("requests", summary.requests(), "n"),
            ("reads", summary.reads.requests, "R"),
            ("writes", summary.writes.requests, "W"),
            ("bytes read", summary.reads.bytes, "bytesR"),
            ("bytes written", summary.writes.bytes, "bytesW"),
            ("largest", u64::from(summary.max_bytes), "max_size"),
            ("volumes", summary.volumes.len() as u64, "devs"),
            ("working set", summary.working_set_bytes(), "wss_bytes"),
            ("out of order", summary.out_of_order, "out_of_order_rows"),
        ] {
            assert_eq!(Some(ours), file[theirs].as_u64(), "{path}: {what}");
        }
        if let Some(span_s) = file["span_s"].as_f64() {
            // The manifest's times were rounded to 64-bit floating point.
            let ours_s = summary.span_ns as f64 / 1e9;
            assert!(
                (ours_s - span_s).abs() < 1e-4,
                "{path}: {ours_s} and {span_s} s"
            );
        }
        let shares = &file["size_cdf_pct_le_4K_8K_16K_32K_64K_and_ge_128K"];
        let total = summary.sizes.total() as f64;
        let ours = (12..=16).map(|power| summary.sizes.at_most(power));
        let ours = ours.chain([summary.sizes.at_least(17)]);
        for (index, ours) in ours.enumerate() {
            let theirs = shares[index].as_f64().expect("a share");
            let ours = ours as f64 * 100.0 / total;
            assert!(
                (ours - theirs).abs() <= 0.0051,
                "{path}: {ours}% and {theirs}%"
            );
        }
        checked += 1;
    }
    assert_eq!(checked, 14, "every trace with statistics");
}

#[test]
fn the_forms_of_one_trace_agree() {
    let Some(folder) = folder() else { return };
    let path = |name: &str| folder.join("cloudphysics").join(name);
    let (binary, format) = summary(&path("cloudPhysicsIO.vscsi.zst"), None, 4096);
    assert_eq!(format, Format::Vscsi);
    let (csv, format) = summary(&path("cloudPhysicsIO.csv.zst"), None, 4096);
    assert_eq!(format, Format::VscsiCsv);
    for (what, binary, csv) in [
        ("reads", binary.reads, csv.reads),
        ("writes", binary.writes, csv.writes),
    ] {
        assert_eq!(binary, csv, "{what}");
    }
    assert_eq!(binary.working_set_pages, csv.working_set_pages);
    assert_eq!(csv.span_ns, 7_200_000_000_000);
    let oracle = path("cloudPhysicsIO.oracleGeneral.bin.zst");
    let (oracle, format) = summary(&oracle, None, 4096);
    assert_eq!(format, Format::OracleGeneral);
    assert_eq!(oracle.reads.requests, 113_872);
    assert_eq!(oracle.reads.bytes, 4_368_040_448);
    let (ids, format) = summary(&path("w106.u32le.bin.zst"), None, 16 << 10);
    assert_eq!(format, Format::BlockIds);
    assert_eq!(
        (ids.requests(), ids.working_set_pages),
        (5_292_456, 275_171)
    );
}
