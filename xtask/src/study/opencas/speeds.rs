//! Claims about time.

use super::{Cell, Processor, Row, find, small};
use crate::claims::{Claim, Kind};

/// Returns the modelled claims: the devices' time.
pub(super) fn of_devices(rows: &[Row]) -> Vec<Claim> {
    let value = |system, cell| find(rows, system, cell).map_or(f64::NAN, |row| row.bytes_per_s);
    let modelled = |name: &str, paper, ours: f64, bar: &str, holds| Claim {
        name: name.into(),
        paper_or_peer: paper,
        ours,
        unit: "times".into(),
        kind: Kind::Modelled,
        bar: bar.into(),
        holds,
    };
    let mut claims = Vec::new();
    for (cache, paper) in [("pmem", 0.60), ("nvme", 0.52)] {
        let gap = |system| value(system, small(cache, 50, 1)) / value(system, small(cache, 50, 2));
        let (theirs, ours) = (gap("opencas-evict"), gap("lines"));
        claims.push(modelled(
            &format!("first access by second/open cas/{cache}"),
            Some(paper),
            theirs,
            "below 0.75: the study's finding",
            theirs < 0.75,
        ));
        claims.push(modelled(
            &format!("first access by second/lines/{cache}"),
            Some(theirs),
            ours,
            "at least 0.95",
            ours >= 0.95,
        ));
    }
    for (backing, better) in [("fast", true), ("slow", false)] {
        // 128 lines a request.
        let many = Cell {
            backing,
            write_bytes: 128 * 4096,
            ..small("pmem", 125, 2)
        };
        let ratio = value("opencas-static", many) / value("opencas-evict", many);
        claims.push(modelled(
            &format!("static write-invalidate by evicting/open cas/{backing}"),
            None,
            ratio,
            if better { "above 1" } else { "below 1" },
            if better { ratio > 1.0 } else { ratio < 1.0 },
        ));
    }
    // The study's figure: beside a file that fits.
    let against_fitting = |backing| {
        let access = |file_percent| Cell {
            backing,
            write_bytes: 128 * 4096,
            ..small("pmem", file_percent, 2)
        };
        value("opencas-static", access(125)) / value("opencas-static", access(50))
    };
    let (fast, slow) = (against_fitting("fast"), against_fitting("slow"));
    claims.push(modelled(
        "static write-invalidate, larger than the cache by smaller/open cas/slow",
        Some(fast),
        slow,
        "below that on the fast one: the study's finding",
        slow < fast,
    ));
    let mut worst_cell = |name: &str, worst: f64| {
        let holds = worst >= 0.97;
        claims.push(modelled(name, None, worst, "at least 0.97", holds));
    };
    let rules = ["opencas-evict", "opencas-static"];
    for system in ["blocks", "lines", "blocks-measured", "lines-measured"] {
        worst_cell(
            &format!("worst cell/{system} by the better of open cas's"),
            worst(rows, system, &rules, &[1, 2]),
        );
    }
    for (system, plain) in [("blocks-measured", "blocks"), ("lines-measured", "lines")] {
        worst_cell(
            &format!("worst cell, first access/{system} by the better of open cas's"),
            worst(rows, system, &rules, &[1]),
        );
        worst_cell(
            &format!("worst cell/{system} by {plain}"),
            worst(rows, system, &[plain], &[1, 2]),
        );
    }
    let half = |cache| Cell {
        write_bytes: 512 << 10,
        ..small(cache, 50, 2)
    };
    let ratio = value("lines", half("pmem")) / value("lines", half("nvme"));
    claims.push(modelled(
        "second access, 512 KiB/pmem by nvme",
        Some(0.75),
        ratio,
        "at least 1",
        ratio >= 1.0,
    ));
    claims
}

/// The least that a system reaches of the best of some others in a cell of these accesses.
fn worst(rows: &[Row], system: &str, others: &[&str], accesses: &[u64]) -> f64 {
    let own = rows.iter().filter(|row| row.system == system);
    let shares = own
        .filter(|row| accesses.contains(&row.access))
        .filter_map(|row| {
            let others = others
                .iter()
                .filter_map(|other| find(rows, other, row.cell()));
            let best = others.map(|other| other.bytes_per_s).reduce(f64::max);
            best.map(|best| row.bytes_per_s / best)
        });
    shares.fold(f64::INFINITY, f64::min)
}

/// Returns the nanoseconds that a client waits for a write of 4 KiB: the devices' modelled time and
/// the processor's measured time.
pub(super) fn of_client(rows: &[Row], processor: &[Processor], system: &str, access: u64) -> f64 {
    let row = find(rows, system, small("pmem", 50, access));
    let own = |one: &&Processor| one.system == system && one.access == access;
    let own = processor.iter().find(own);
    row.zip(own).map_or(f64::NAN, |(row, own)| {
        4096.0 * 1e9 / row.bytes_per_s + own.processor_ns
    })
}

/// Time of a write of 4 KiB over NBD without the hit in process, in nanoseconds.
///
/// A daemon with all data in memory does 44,100 writes a second at queue depth 1 on this machine
/// (docs/results/foundation.md). The hit in process is subtracted.
pub(super) const NBD_NS: f64 = 1e9 / 44_100.0 - 266.0;

/// Returns the claims that include the processor's time.
pub(super) fn of_clients(rows: &[Row], processor: &[Processor]) -> Vec<Claim> {
    let took = |access| of_client(rows, processor, "lines", access);
    let claim = |name: &str, beside_ns: f64| {
        let ratio = (took(2) + beside_ns) / (took(1) + beside_ns);
        Claim {
            name: format!("first access by second, with {name}/lines/pmem"),
            paper_or_peer: Some(0.60),
            ours: ratio,
            unit: "times".into(),
            kind: Kind::Modelled,
            bar: "at least 0.95".into(),
            holds: ratio >= 0.95,
        }
    };
    vec![
        claim("the processor's time", 0.0),
        claim("the processor's time and NBD's", NBD_NS),
    ]
}

/// Returns the additional nanoseconds of a bypassing request with which static write-invalidate
/// would lose against evicting on the slow device.
pub(super) fn to_lose_ns(rows: &[Row]) -> f64 {
    let many = Cell {
        backing: "slow",
        write_bytes: 128 * 4096,
        ..small("pmem", 125, 2)
    };
    let row = |system| find(rows, system, many);
    let took = |row: &Row| many.write_bytes as f64 * 1e9 / row.bytes_per_s;
    row("opencas-static")
        .zip(row("opencas-evict"))
        .map_or(f64::NAN, |(round, evict)| {
            (took(evict) - took(round)) / round.backing_written
        })
}
