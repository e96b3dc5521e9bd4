//! Grid of the crashes of the engine.

use super::result::{Crash, DIRTY_PERCENTS, Trace, median_and_most, with_tree};
use crate::pages::Grid;
use crate::study::table::{number, percent, times};

pub(super) fn grid(traces: &[&Trace]) -> Grid {
    let mut columns = ["high mark", "trace", "tracking"]
        .map(String::from)
        .to_vec();
    for figure in ["dirty", "may be dirty", "compared", "written back"] {
        columns.extend(["median", "least", "most"].map(|of| format!("{figure}: {of}")));
    }
    columns.push("metadata".into());
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut grid = Grid::new("engine", &columns);
    for mark in DIRTY_PERCENTS {
        for trace in traces {
            for tracking in ["abt", "exact", "none"] {
                let crashes = trace.crashes.iter();
                let crashes: Vec<&Crash> = crashes
                    .filter(|crash| crash.dirty_percent == mark && crash.tracking == tracking)
                    .collect();
                if !crashes.is_empty() {
                    let mut cells = vec![format!("{mark}%"), trace.title.to_owned()];
                    cells.extend(row(tracking, &crashes));
                    grid.row(cells);
                }
            }
        }
    }
    grid
}

/// Values of the crash of a cache with a tree after which most was written back, over the dirty
/// bytes.
pub(super) fn worst(traces: &[Trace]) -> Option<[(&'static str, String); 6]> {
    let crashes = traces.iter().flat_map(|trace| {
        let crashes = with_tree(&trace.crashes, None);
        crashes.filter_map(|crash| Some((crash.written_over_dirty()?, trace.title, crash)))
    });
    let (most, title, crash) = crashes.max_by(|one, other| one.0.total_cmp(&other.0))?;
    Some([
        ("crash_times", times(most)),
        ("crash_trace", title.to_owned()),
        ("crash_mark", format!("{}%", crash.dirty_percent)),
        ("crash_at", format!("{}%", crash.at)),
        ("crash_dirty_blocks", number(crash.dirty_blocks)),
        ("crash_cached_blocks", number(crash.cached_blocks)),
    ])
}

fn row(tracking: &str, crashes: &[&Crash]) -> Vec<String> {
    let spread = |values: Vec<f64>, show: fn(f64) -> String| {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        match median_and_most(values) {
            Some((median, most)) => [show(median), show(least), show(most)],
            None => ["-", "-", "-"].map(String::from),
        }
    };
    let of = |part: fn(&Crash) -> Option<f64>, show| {
        let values = crashes.iter().filter_map(|crash| part(crash));
        spread(values.collect(), show)
    };
    let over = |part: u64, whole: u64| (whole > 0).then(|| part as f64 / whole as f64);
    let blocks = crashes
        .iter()
        .map(|crash| over(crash.found_dirty_blocks, crash.dirty_blocks));
    let dirty = crashes
        .iter()
        .map(|crash| over(crash.dirty_blocks, crash.cached_blocks));
    let ratio = crashes.iter().find(|crash| crash.at == 100);
    let mut cells = vec![match tracking {
        "exact" => "marks".to_owned(),
        other => other.to_owned(),
    }];
    cells.extend(spread(dirty.flatten().collect(), percent));
    cells.extend(spread(blocks.flatten().collect(), times));
    cells.extend(of(Crash::compared_over_dirty, times));
    cells.extend(of(Crash::written_over_dirty, times));
    cells.push(ratio.map_or("-".to_owned(), |crash| format!("{:.5}", crash.ratio())));
    cells
}
