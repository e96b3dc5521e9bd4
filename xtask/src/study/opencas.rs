//! The Open CAS study's experiments, on emulated devices: docs/results/opencas.md.

mod page;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{commit, date};
use crate::bench::{Outcome, built_program, conclude, run_for_output};
use crate::claims::{Claim, Kind, Report};

/// What the study takes.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Lines of 4 KiB and two file sizes alone, and not into docs: for a look
    #[arg(long)]
    quick: bool,
    /// Where the page goes
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Write claims and rows to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One access of a file, as the program prints it.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Row {
    system: String,
    cache: String,
    backing: String,
    line_bytes: u64,
    write_bytes: u64,
    /// Of the cache.
    file_percent: u64,
    /// The first or the second.
    access: u64,
    bytes_per_s: f64,
    /// Bytes written to the cache device for each of the client's, metadata included.
    cache_written: f64,
    /// Of which to a device of its own.
    metadata_written: f64,
    cache_read: f64,
    backing_written: f64,
}

/// What is compared at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell<'a> {
    cache: &'a str,
    backing: &'a str,
    line_bytes: u64,
    write_bytes: u64,
    file_percent: u64,
    access: u64,
}

impl Row {
    fn cell(&self) -> Cell<'_> {
        Cell {
            cache: &self.cache,
            backing: &self.backing,
            line_bytes: self.line_bytes,
            write_bytes: self.write_bytes,
            file_percent: self.file_percent,
            access: self.access,
        }
    }
}

fn find<'a>(rows: &'a [Row], system: &str, cell: Cell<'_>) -> Option<&'a Row> {
    rows.iter()
        .find(|row| row.system == system && row.cell() == cell)
}

/// Runs the study. Whether the claims hold.
pub(super) fn study(root: &Path, options: &Options) -> Outcome<bool> {
    let began = Instant::now();
    let program = built_program(
        root,
        &["--package", "forebay-benches", "--bench", "opencas"],
    )?;
    let commit = commit(root)?;
    let mut command = Command::new(&program);
    if options.quick {
        command.arg("--quick");
    }
    let printed = run_for_output(command)?;
    let rows = (printed.lines())
        .map(|line| serde_json::from_str(line).map_err(|error| format!("{line}: {error}")))
        .collect::<Outcome<Vec<Row>>>()?;
    let report = Report {
        quick: options.quick,
        claims: claims(&rows),
        rows,
    };
    let out = options.out.clone().unwrap_or_else(|| match options.quick {
        true => program.with_file_name("opencas-quick.md"),
        false => root.join("docs/results/opencas.md"),
    });
    let head = format!(
        "# The Open CAS study\n\nWritten by `cargo xtask study opencas`, which took {:.0} min; no figure is typed by hand. Commit {commit}, {}.\n",
        began.elapsed().as_secs_f64() / 60.0,
        run_for_output(date())?,
    );
    let text = head + &page::body(&report);
    std::fs::write(&out, text).map_err(|error| format!("{}: {error}", out.display()))?;
    println!("written: {}", out.display());
    conclude(&report, options.json.as_deref())
}

/// Open CAS's lines of 4 KiB, each written by a request of its own, where its metadata costs most.
fn small<'a>(cache: &'a str, file_percent: u64, access: u64) -> Cell<'a> {
    Cell {
        cache,
        backing: "fast",
        line_bytes: 4096,
        write_bytes: 4096,
        file_percent,
        access,
    }
}

fn claims(rows: &[Row]) -> Vec<Claim> {
    let value =
        |system, cell, what: fn(&Row) -> f64| find(rows, system, cell).map_or(f64::NAN, what);
    let counted = |name: &str, paper, ours: f64, bar: &str, holds| Claim {
        name: name.into(),
        paper_or_peer: paper,
        ours,
        unit: "x the client's bytes".into(),
        kind: Kind::Counted,
        bar: bar.into(),
        holds,
    };
    let written =
        |system, file, access| value(system, small("pmem", file, access), |row| row.cache_written);
    let (first, evicting) = (
        written("opencas-evict", 50, 1),
        written("opencas-evict", 125, 2),
    );
    let (own_first, own_evicting) = (written("lines", 50, 1), written("lines", 125, 2));
    let mut claims = vec![
        counted(
            "written/open cas/first access",
            Some(2.0),
            first,
            "from 1.99 to 2.01",
            (1.99..=2.01).contains(&first),
        ),
        counted(
            "written/open cas/every write evicts",
            Some(3.0),
            evicting,
            "from 2.99 to 3.01",
            (2.99..=3.01).contains(&evicting),
        ),
        counted(
            "written/lines/first access",
            Some(first),
            own_first,
            "at most 1.02",
            own_first <= 1.02,
        ),
        counted(
            "written/lines/every write evicts",
            Some(evicting),
            own_evicting,
            "at most 1.04",
            own_evicting <= 1.04,
        ),
    ];
    claims.extend(speeds(rows));
    claims
}

/// What is modelled: the devices' time.
fn speeds(rows: &[Row]) -> Vec<Claim> {
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
    for system in ["blocks", "lines"] {
        let worst = rows
            .iter()
            .filter(|row| row.system == system)
            .filter_map(|row| {
                let theirs = ["opencas-evict", "opencas-static"]
                    .iter()
                    .filter_map(|theirs| find(rows, theirs, row.cell()))
                    .map(|theirs| theirs.bytes_per_s);
                theirs
                    .reduce(f64::max)
                    .map(|theirs| row.bytes_per_s / theirs)
            })
            .fold(f64::INFINITY, f64::min);
        claims.push(modelled(
            &format!("worst cell/{system} by the better of open cas's"),
            None,
            worst,
            "at least 0.97",
            worst >= 0.97,
        ));
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

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        let mut rows = Vec::new();
        for system in ["opencas-evict", "opencas-static", "blocks", "lines"] {
            for cache in ["pmem", "nvme"] {
                for backing in ["fast", "slow"] {
                    for (write_bytes, file_percent, access) in [4096, 512 << 10]
                        .into_iter()
                        .flat_map(|write| [50, 125].map(|file| (write, file)))
                        .flat_map(|(write, file)| [1, 2].map(|access| (write, file, access)))
                    {
                        let theirs = system.starts_with("opencas");
                        let round = system == "opencas-static" && write_bytes > 4096;
                        let evicts = file_percent > 100;
                        rows.push(Row {
                            system: system.into(),
                            cache: cache.into(),
                            backing: backing.into(),
                            line_bytes: 4096,
                            write_bytes,
                            file_percent,
                            access,
                            bytes_per_s: match (theirs, round && evicts, backing) {
                                (true, true, "fast") => 3.0,
                                (true, true, _) => 0.5,
                                (true, ..) => access as f64,
                                _ => 4.0,
                            },
                            cache_written: match (theirs, evicts) {
                                (true, true) => 3.0,
                                (true, false) => 2.0,
                                _ => 1.01,
                            },
                            metadata_written: 0.0,
                            cache_read: 0.0,
                            backing_written: 0.0,
                        });
                    }
                }
            }
        }
        rows
    }

    #[test]
    fn claims_compare_the_cells_that_they_name() {
        let mut rows = rows();
        let claims = super::claims(&rows);
        assert_eq!(claims.len(), 13);
        assert!(claims.iter().all(|claim| claim.holds), "{claims:#?}");
        for row in &mut rows {
            if row.system == "lines" && row.access == 1 {
                row.bytes_per_s = 1.9;
                row.cache_written = 1.05;
            }
        }
        let failed: Vec<String> = (super::claims(&rows).into_iter())
            .filter(|claim| !claim.holds)
            .map(|claim| claim.name)
            .collect();
        assert_eq!(
            failed,
            [
                "written/lines/first access",
                "first access by second/lines/pmem",
                "first access by second/lines/nvme",
                "worst cell/lines by the better of open cas's"
            ]
        );
        assert!(
            page::body(&Report {
                quick: false,
                claims,
                rows
            })
            .contains("| 125% | 2 |")
        );
    }

    #[test]
    fn what_is_missing_holds_nothing() {
        assert!(
            claims(&[])
                .iter()
                .all(|claim| !claim.holds || claim.ours.is_infinite())
        );
    }
}
