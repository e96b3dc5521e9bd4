//! `cargo xtask bench amplification`: bytes written to the cache device for each byte of a client.
//!
//! The kernel counts them, in /sys/block/loopN/stat of loop devices under the cache and under the
//! backing device. The load is random 4 KiB writes to a daemon over NBD, each the first one to its
//! cache block, so each is a miss. Where the set is larger than the cache, each evicts a block.
//!
//! There are two figures: at the end of the load, and *settled*, when everything has been written
//! back and all records are written. The limits apply to the larger one.
//!
//! Each run ends with an emulated power cut: more writes, a part of them flushed, then `kill -9`.
//! The process journal is removed, as a reboot would. A real power cut also takes the unflushed
//! writes. Here the kernel's loop device keeps them. (The simulator and the guest test drop them.)
//! Then the daemon is restarted and every block is read.

mod blocks;
mod scenario;

use std::path::Path;

use super::{Outcome, require};
use crate::claims::{Claim, Kind, Report, Table, figure};
use scenario::{Durability, Row, Scenario};

/// Limits on bytes to the cache device per client byte.
const BAR_FLUSH_32: f64 = 1.05;
const BAR_FLUSH_EACH: f64 = 1.30;
const BAR_SYNC_32: f64 = 1.15;
/// Limit on device flushes, of cache and backing device, per client flush, and the allowance for
/// the cleaner and the regular commits.
const BAR_FLUSHES: f64 = 2.0;
const BACKGROUND_FLUSHES: f64 = 0.05;

const WRITES: u64 = 8192;
const QUICK_WRITES: u64 = 4096;

pub(super) fn run(binary: &Path, quick: bool) -> Outcome<Report<Row>> {
    require(&["losetup", "setpriv"])?;
    let writes = if quick { QUICK_WRITES } else { WRITES };
    println!(
        "{writes} writes of 4 KiB at random, each a miss, over NBD to a daemon in mode wb; bytes \
         and flushes are the \
         kernel's counters of the loop devices under cache and backing device.\n\
         Each run ends with an emulated power cut (kill -9, and the process journal removed as a \
         reboot \
         would; the loop device keeps unflushed writes that a real one may lose) and a check of \
         every block."
    );
    let mut rows = Vec::new();
    for scenario in scenarios(quick, writes) {
        eprintln!("{}", scenario.name());
        rows.push(scenario.run(binary)?);
    }
    print_rows(&rows);
    let claims = rows.iter().flat_map(claims_of).collect();
    Ok(Report {
        quick,
        claims,
        rows,
    })
}

fn scenarios(quick: bool, writes: u64) -> Vec<Scenario> {
    let mut all = Vec::new();
    // The default block, and the smallest one, which has the most metadata.
    let cache_blocks: &[u64] = if quick {
        &[32 << 10]
    } else {
        &[32 << 10, 4 << 10]
    };
    for &cache_block_bytes in cache_blocks {
        for evicts in [false, true] {
            for device_block_bytes in [512, 4096] {
                for (durability, depth, flush_every) in [
                    (Durability::Flush, 32, Some(32)),
                    (Durability::Flush, 1, Some(1)),
                    (Durability::Sync, 32, None),
                    (Durability::Sync, 1, None),
                ] {
                    all.push(Scenario {
                        durability,
                        depth,
                        flush_every,
                        evicts,
                        device_block_bytes,
                        cache_block_bytes,
                        writes,
                    });
                }
            }
        }
    }
    all
}

fn print_rows(rows: &[Row]) {
    println!(
        "\nbytes to the device per client byte; flushes of cache and backing device per client \
         flush (sync: per write)"
    );
    let mut table = Table::new(&[
        "load", "cache", "settled", "backing", "flushes", "evicted", "bypassed", "lost",
    ]);
    for row in rows {
        table.row(vec![
            row.scenario.clone(),
            figure(row.cache_at_end),
            figure(row.cache_settled),
            figure(row.backing_settled),
            figure(row.device_flushes_per_flush),
            row.evictions.to_string(),
            row.bypassed_writes.to_string(),
            row.lost_blocks.to_string(),
        ]);
    }
    table.print();
}

fn claims_of(row: &Row) -> Vec<Claim> {
    let claim = |what: &str, ours: f64, bar: Option<f64>| Claim {
        name: format!("{what}/{}", row.scenario),
        paper_or_peer: None,
        ours,
        unit: String::new(),
        kind: Kind::Counted,
        bar: bar.map_or_else(|| "none, reported".into(), |bar| format!("at most {bar}")),
        holds: bar.is_none_or(|bar| ours <= bar),
    };
    let mut claims = Vec::new();
    let bar = match (row.durability, row.flush_every, row.depth) {
        (Durability::Flush, Some(1), _) => {
            (row.device_block_bytes == 512).then_some(BAR_FLUSH_EACH)
        }
        (Durability::Flush, ..) => Some(BAR_FLUSH_32),
        (Durability::Sync, _, 1) => None,
        (Durability::Sync, ..) => Some(BAR_SYNC_32),
    };
    let mut amplification = claim(
        "write_amplification",
        row.cache_at_end.max(row.cache_settled),
        bar,
    );
    amplification.unit = "B/B".into();
    // A write that bypasses the cache costs the cache nothing, so figures with such writes are
    // void.
    amplification.holds &= row.bypassed_writes == 0;
    claims.push(amplification);
    if row.flush_every.is_some() {
        let most = BAR_FLUSHES + BACKGROUND_FLUSHES;
        let mut flushes = claim("device_flushes", row.device_flushes_per_flush, Some(most));
        flushes.bar = format!("at most {BAR_FLUSHES} (+{BACKGROUND_FLUSHES} in the background)");
        flushes.unit = "per flush".into();
        claims.push(flushes);
    }
    let mut reads = claim(
        "read_hits_write",
        row.read_hits_wrote_bytes as f64,
        Some(0.0),
    );
    reads.unit = "B".into();
    reads.holds &= row.read_hits > 0;
    claims.push(reads);
    let mut lost = claim("lost_after_power_cut", row.lost_blocks as f64, Some(0.0));
    lost.unit = "blocks".into();
    claims.push(lost);
    claims
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bar_is_on_some_run() {
        let all = scenarios(false, 1);
        assert_eq!(all.len(), 32);
        let quick = scenarios(true, 1);
        assert!(
            quick
                .iter()
                .all(|scenario| all.iter().any(|one| one.name() == scenario.name()))
        );
        assert!(quick.len() < all.len());
    }
}
