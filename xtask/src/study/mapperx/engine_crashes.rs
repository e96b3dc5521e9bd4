//! Crashes of the engine: a grid of how much was dirty, and how much recovery wrote back.

use super::result::{Crash, DIRTY_PERCENTS, Trace, median_and_most, with_tree};
use crate::pages::Grid;
use crate::study::table::{number, percent, times};

/// Returns the grid: a row for each high mark, trace and kind of dirty tracking that has crashes.
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
                let is_of_row =
                    |crash: &&Crash| crash.dirty_percent == mark && crash.tracking == tracking;
                let crashes: Vec<&Crash> = trace.crashes.iter().filter(is_of_row).collect();
                if crashes.is_empty() {
                    continue;
                }
                let mut cells = vec![format!("{mark}%"), trace.title.to_owned()];
                cells.extend(row(tracking, &crashes));
                grid.row(cells);
            }
        }
    }
    grid
}

/// Returns the fields of the page about the worst crash of a cache with a tree. After that crash,
/// most bytes were written back for each dirty byte.
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

/// Returns the cells of a row from the kind of tracking on.
fn row(tracking: &str, crashes: &[&Crash]) -> Vec<String> {
    let name = match tracking {
        "exact" => "marks",
        other => other,
    };
    let at_end = crashes.iter().find(|crash| crash.at == 100);
    let metadata = at_end.map_or("-".to_owned(), |crash| format!("{:.5}", crash.ratio()));
    let mut cells = vec![name.to_owned()];
    cells.extend(spread(crashes, dirty_over_cached, percent));
    cells.extend(spread(crashes, found_over_dirty, times));
    cells.extend(spread(crashes, Crash::compared_over_dirty, times));
    cells.extend(spread(crashes, Crash::written_over_dirty, times));
    cells.push(metadata);
    cells
}

/// Returns the median, least and largest value of a figure, as text. Crashes without the figure do
/// not count.
fn spread(
    crashes: &[&Crash],
    figure: fn(&Crash) -> Option<f64>,
    show: fn(f64) -> String,
) -> [String; 3] {
    let values: Vec<f64> = crashes.iter().filter_map(|crash| figure(crash)).collect();
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    match median_and_most(values) {
        Some((median, most)) => [show(median), show(least), show(most)],
        None => ["-", "-", "-"].map(String::from),
    }
}

/// Dirty blocks over cached blocks at the crash.
fn dirty_over_cached(crash: &Crash) -> Option<f64> {
    over(crash.dirty_blocks, crash.cached_blocks)
}

/// Blocks that the next process takes for dirty over those that were.
fn found_over_dirty(crash: &Crash) -> Option<f64> {
    over(crash.found_dirty_blocks, crash.dirty_blocks)
}

fn over(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
