//! Invariants of every simulated cache.

use std::collections::BTreeMap;

use forebay_policy::BlockSizes;
use proptest::prelude::*;

use super::*;
use crate::request::{Op, Request};

const K: u64 = 1 << 10;

fn model(sizes: &[u64], fill: Fill, replace: Replace, capacity_bytes: u64) -> CacheModel {
    let sizes: Vec<u64> = sizes.iter().map(|size| size * K).collect();
    let sizes = BlockSizes::new(&sizes).expect("right");
    CacheModel {
        sizes,
        capacity_bytes,
        replace,
        fill,
        write_back: match replace {
            Replace::Paper => WriteBack::Victim,
            Replace::Ours => WriteBack::Runs,
        },
        costs: Costs::CLOUD,
    }
}

fn request(op: Op, offset_bytes: u64, len_bytes: u32) -> Request {
    Request {
        time_ns: 0,
        offset_bytes,
        len_bytes,
        volume: 0,
        op,
    }
}

/// Checks that no blocks overlap, the request is covered, and groups hold blocks of their size.
fn check(cache: &Simulated, last: &Request) {
    let table = cache.table();
    let sizes = table.sizes();
    let mut units = BTreeMap::new();
    for id in table.blocks() {
        let (volume, region, span) = table.address(id);
        for unit in 0..span.units() {
            let key = (volume, region, u32::from(span.first) + unit);
            assert_eq!(units.insert(key, id), None, "{key:?} is cached twice");
        }
    }
    assert!(units.len() as u64 <= u64::from(table.units()));
    let unit = sizes.unit_bytes();
    for at in last.offset_bytes / unit..=(last.end_bytes() - 1) / unit {
        let per = u64::from(sizes.region_units());
        let key = (last.volume as u16, at / per, (at % per) as u32);
        assert!(units.contains_key(&key), "{key:?} is not cached");
    }
    assert_eq!(units.len() as u64 * unit, table.cached_bytes());
}

const FILLS: [Fill; 4] = [Fill::Whole, Fill::SubBlock, Fill::Demand, Fill::Learned];

proptest! {
    #[test]
    fn every_fill_covers_requests_and_overlaps_nothing(
        steps in prop::collection::vec((any::<bool>(), 0u64..60_000, 1u32..900), 1..300),
        fill in prop::sample::select(FILLS.to_vec()),
        replace in prop::sample::select(vec![Replace::Paper, Replace::Ours]),
        sizes in prop::sample::select(vec![vec![32u64], vec![32, 64, 128, 256], vec![4, 256]]),
    ) {
        // Large enough that no request displaces its own blocks.
        let model = model(&sizes, fill, replace, 16 << 20);
        let (mut cache, mut twin) = (Simulated::new(model), Simulated::new(model));
        for (write, sector, sectors) in steps {
            let op = if write { Op::Write } else { Op::Read };
            let request = request(op, sector * 512, sectors * 512);
            cache.request(&request);
            twin.request(&request);
            check(&cache, &request);
            prop_assert_eq!(cache.counts(), twin.counts(), "decisions are deterministic");
        }
        cache.write_back_all();
        let wrote = cache.counts().io.write_to_core.bytes;
        cache.write_back_all();
        prop_assert_eq!(cache.counts().io.write_to_core.bytes, wrote, "all was clean");
    }
}

#[test]
fn each_kind_of_fill_reads_the_expected_bytes() {
    let read = |fill: Fill| {
        let mut cache = Simulated::new(model(&[32], fill, Replace::Paper, 2 << 20));
        cache.request(&request(Op::Read, 40 * K, 4096));
        cache.request(&request(Op::Write, 64 * K + 1024, 8192));
        cache.write_back_all();
        let io = cache.counts().io;
        (io.read_from_core, io.write_to_core)
    };
    let volume = |bytes, ios| Volume { bytes, ios };
    // Whole: two blocks in, one out.
    assert_eq!(read(Fill::Whole), (volume(64 * K, 2), volume(32 * K, 1)));
    // Of the write, the partial first and last granule.
    assert_eq!(read(Fill::SubBlock), (volume(40 * K, 3), volume(12 * K, 1)));
    assert_eq!(read(Fill::Demand), (volume(12 * K, 3), volume(12 * K, 1)));
}

#[test]
fn granules_that_touch_each_other_are_one_read_across_blocks() {
    let mut cache = Simulated::new(model(&[32], Fill::SubBlock, Replace::Paper, 2 << 20));
    cache.request(&request(Op::Read, 32 * K, 512 * K as u32));
    let read = cache.counts().io.read_from_core;
    assert_eq!((read.bytes, read.ios), (512 * K, 2));
}

#[test]
fn a_request_waits_for_data_that_another_has_asked_for() {
    let mut cache = Simulated::new(model(&[256], Fill::SubBlock, Replace::Paper, 2 << 20));
    cache.request(&request(Op::Read, 0, 4096));
    let first = cache.counts().latency_sum_ns;
    assert_eq!(first / 1000, 3_000, "256 KiB at 125 MiB/s, and 1 ms");
    cache.request(&request(Op::Read, 128 * K, 4096));
    let second = cache.counts().latency_sum_ns - first;
    assert!(
        second > first,
        "it hits, and waits for the data: {second} ns"
    );
    assert_eq!(cache.counts().reads.hits, 1);
}

#[test]
fn dirty_neighbours_are_written_back_in_one_operation() {
    let ops = |sizes: &[u64], fill: Fill, write_back: WriteBack| {
        let model = CacheModel {
            write_back,
            ..model(sizes, fill, Replace::Paper, 2 << 20)
        };
        let mut cache = Simulated::new(model);
        for unit in 0..9 {
            cache.request(&request(Op::Write, unit * 32 * K, 32 * K as u32));
        }
        cache.write_back_all();
        let written = cache.counts().io.write_to_core;
        assert_eq!(written.bytes, 288 * K);
        written.ios
    };
    let several = [32, 64, 128, 256];
    assert_eq!(ops(&several, Fill::SubBlock, WriteBack::Victim), 9);
    assert_eq!(ops(&several, Fill::Learned, WriteBack::Runs), 2);
    // Blocks of one size have the same window.
    assert_eq!(ops(&[32], Fill::SubBlock, WriteBack::Victim), 9);
    assert_eq!(ops(&[32], Fill::SubBlock, WriteBack::Runs), 2);
    assert_eq!(ops(&[256], Fill::SubBlock, WriteBack::Victim), 2);
}

/// Streams of 4 KiB reads among random ones over a large range. Each improvement on the paper's
/// rule is measured in the same run.
#[test]
fn ours_reads_less_and_waits_less_than_the_papers_rule() {
    let mut seed = 1_u64;
    let mut random = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (seed >> 33) % below
    };
    let mut requests = Vec::new();
    for _ in 0..400 {
        let start = random(4096) * 256 * K;
        for step in 0..64 {
            requests.push(request(Op::Read, start + step * 4096, 4096));
            requests.push(request(Op::Read, (1 << 32) + random(1 << 18) * 4096, 4096));
        }
    }
    let run = |fill: Fill, replace: Replace| {
        let mut cache = Simulated::new(model(&[32, 64, 128, 256], fill, replace, 32 << 20));
        for request in &requests {
            cache.request(request);
        }
        let counts = cache.counts();
        (counts.io.core_bytes(), counts.latency_sum_ns)
    };
    let (paper, ours) = (
        run(Fill::SubBlock, Replace::Paper),
        run(Fill::Learned, Replace::Ours),
    );
    assert!(
        ours.0 * 2 < paper.0,
        "bytes: {} against {}",
        ours.0,
        paper.0
    );
    assert!(ours.1 < paper.1, "latency: {} against {}", ours.1, paper.1);
}

/// Requests far beyond any disk, as damaged traces have them.
#[test]
fn requests_beyond_the_largest_volume_are_counted_and_allocate_no_blocks() {
    for (sizes, fill) in [(&[4][..], Fill::Demand), (&[32, 256], Fill::Learned)] {
        let mut cache = Simulated::new(model(sizes, fill, Replace::Ours, 2 << 20));
        let most = cache.model.sizes.largest_volume_bytes();
        for offset in [most, u64::MAX - 4095, u64::MAX - 8191, most - 2048] {
            cache.request(&request(Op::Write, offset, 4096));
            cache.request(&request(Op::Read, offset, 4096));
        }
        assert_eq!((cache.counts().beyond, cache.table().len()), (8, 0));
        cache.request(&request(Op::Write, most - 4096, 4096));
        assert_eq!((cache.counts().beyond, cache.table().len()), (8, 1));
    }
}
