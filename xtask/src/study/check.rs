//! `cargo xtask study check`: the deterministic figures of the pages, by another run.
//!
//! The check re-runs a part of each study whose figures are counted or modelled, and compares each
//! row with the recorded grids under docs/results/data. It re-runs, in about the given time on two
//! processors:
//!
//! - *dpc*: all systems and workloads at four nodes with the declared costs (`times`, `counts`).
//! - *opencas*: lines of 4 KiB and files of 50 and 125% of the cache (`bytes`, `speeds`).
//! - *mapperx-timing*: blocks of 64 KiB (`runs`).
//! - *adacache*: all configurations of the traces in [`jobs::SHORT`] (`traces`, `cells`).
//! - *mapperx*: all trackers on the traces in [`jobs::SHORT`], without the engine (`traces`,
//!   `trees`).
//!
//! The others are not re-run. Figures of *applications* and the measured ones of *caiti* and *dpc*
//! are by the clock. The model of *caiti* takes measured service times, which are recorded in whole
//! nanoseconds only.

use std::path::Path;
use std::time::Instant;

use super::jobs::{self, shared_folder};
use super::{dpc, mapperx, opencas, sections};
use crate::bench::{Outcome, built_program};
use crate::pages::{
    ADACACHE, DPC, Data, MAPPERX, MAPPERX_TIMING, OPENCAS, Page, Rerun, differences, stale_pages,
};
use crate::steps::Verdict;

/// A study that the check re-runs.
struct Part {
    page: Page,
    run: fn(&Path) -> Outcome<Vec<Rerun>>,
    /// Whether it reads the traces beside the repository.
    needs_traces: bool,
}

const PARTS: [Part; 5] = [
    Part {
        page: DPC,
        run: dpc::rerun,
        needs_traces: false,
    },
    Part {
        page: OPENCAS,
        run: opencas::rerun,
        needs_traces: false,
    },
    Part {
        page: MAPPERX_TIMING,
        run: mapperx::rerun_timing,
        needs_traces: false,
    },
    Part {
        page: ADACACHE,
        run: adacache,
        needs_traces: true,
    },
    Part {
        page: MAPPERX,
        run: mapperx::rerun,
        needs_traces: true,
    },
];

/// Rows of AdaCache's short traces.
fn adacache(root: &Path) -> Outcome<Vec<Rerun>> {
    let program = built_program(root, &jobs::PROGRAM)?;
    let traces = jobs::run(&program, jobs::short(root))?;
    Ok(vec![
        (sections::trace_grid(&traces), 2),
        (sections::cells(&traces), 3),
    ])
}

/// Result of the check.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) verdict: Verdict,
    /// Work that was done, such as the number of rows.
    pub(crate) counted: String,
}

/// Re-runs the parts, prints each difference, and fails if there is one.
///
/// # Errors
/// If a study cannot be run, or a grid cannot be read.
pub(crate) fn check(root: &Path) -> Outcome<Checked> {
    let mut findings = Vec::new();
    for (path, difference) in stale_pages(root)? {
        findings.push(format!("{}: {difference}", path.display()));
    }
    let (mut rows, mut texts) = (0, Vec::new());
    for part in PARTS {
        let study = part.page.study;
        if part.needs_traces && shared_folder(root).is_none() {
            println!("SKIPPED study {study}: there is no ../shared/traces (or $FOREBAY_TRACES)");
            texts.push(format!("{study} skipped"));
            continue;
        }
        let began = Instant::now();
        let rerun = (part.run)(root)?;
        let found = compare(&part.page.data(root)?, &rerun)?;
        let count: usize = rerun.iter().map(|(grid, _)| grid.rows.len()).sum();
        println!(
            "study {study}: {count} rows in {} s, {} differences",
            began.elapsed().as_secs(),
            found.len()
        );
        let named = |difference| format!("docs/results/data/{study}/{difference}");
        findings.extend(found.into_iter().map(named));
        texts.push(format!("{study} {count}"));
        rows += count;
    }
    for finding in &findings {
        println!("{finding}");
    }
    if !findings.is_empty() {
        println!("help: run `cargo xtask study NAME`, and see whether its claims still hold");
    }
    Ok(Checked {
        verdict: Verdict::of(findings.is_empty() && rows > 0),
        counted: format!("{rows} rows: {}", texts.join(", ")),
    })
}

/// Differences of all grids of a study.
///
/// # Errors
/// If a grid has no rows or is not recorded.
fn compare(data: &Data, rerun: &[Rerun]) -> Outcome<Vec<String>> {
    let mut found = Vec::new();
    for (grid, keys) in rerun {
        if grid.rows.is_empty() {
            return Err(format!("grid {}: the re-run has no rows", grid.name));
        }
        found.extend(differences(data, grid, *keys)?);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    /// Grids that the parts re-run, and the columns that name a row.
    const GRIDS: [(Page, &str, usize); 9] = [
        (DPC, "times", 1),
        (DPC, "counts", 2),
        (OPENCAS, "bytes", 3),
        (OPENCAS, "speeds", 6),
        (MAPPERX_TIMING, "runs", 3),
        (ADACACHE, "traces", 2),
        (ADACACHE, "cells", 3),
        (MAPPERX, "traces", 1),
        (MAPPERX, "trees", 7),
    ];

    #[test]
    fn the_recorded_grids_match_themselves() {
        for (page, name, keys) in GRIDS {
            let data = page.data(&root()).unwrap();
            let same = data.grid(name).unwrap().clone();
            assert_eq!(compare(&data, &[(same, keys)]), Ok(Vec::new()), "{name}");
        }
    }

    #[test]
    fn a_changed_figure_is_found() {
        for (page, name, keys) in GRIDS {
            let data = page.data(&root()).unwrap();
            let recorded = data.grid(name).unwrap();
            let last = recorded.rows.len() - 1;
            for column in keys..recorded.columns.len() {
                let mut planted = recorded.clone();
                planted.rows[last][column] += "1";
                let found = compare(&data, &[(planted, keys)]).unwrap();
                assert_eq!(found.len(), 1, "{name}: {found:?}");
                let title = &recorded.columns[column];
                assert!(found[0].contains(&format!(": {title} is ")), "{found:?}");
            }
        }
    }

    #[test]
    fn a_row_that_is_not_recorded_is_found() {
        for (page, name, keys) in GRIDS {
            let mut data = page.data(&root()).unwrap();
            let rerun = data.grid(name).unwrap().clone();
            for grid in data.0.iter_mut().filter(|grid| grid.name == name) {
                grid.rows.pop();
            }
            let found = compare(&data, &[(rerun, keys)]).unwrap();
            assert_eq!(found.len(), 1, "{name}: {found:?}");
            assert!(found[0].ends_with("no such row is recorded"), "{found:?}");
        }
    }

    #[test]
    fn a_grid_without_rows_is_an_error() {
        let data = DPC.data(&root()).unwrap();
        let mut empty = data.grid("times").unwrap().clone();
        empty.rows.clear();
        assert!(compare(&data, &[(empty, 1)]).is_err());
        let mut other = data.grid("times").unwrap().clone();
        other.columns[1] = "two-nodes".into();
        assert!(compare(&data, &[(other, 1)]).is_err());
    }

    #[test]
    fn the_short_traces_are_recorded() {
        for page in [ADACACHE, MAPPERX] {
            let data = page.data(&root()).unwrap();
            let traces = data.grid("traces").unwrap();
            let column = traces.column("trace").unwrap();
            for title in jobs::SHORT {
                let mut rows = traces.rows.iter();
                assert!(rows.any(|row| row[column] == title), "{title}");
            }
        }
    }
}
