//! What the engine itself did after crashes, on the page.

use super::result::{Crash, DIRTY_PERCENTS, Trace, median_and_most, with_tree};
use crate::study::table::{Table, percent};

const HOW: &str = "\
The first 100,000 requests of each trace, one after the other, by the engine, in mode `wb`, on simulated disks (a cache of 10% of the whole trace's working set, 20 to 60 us an operation; a backing device of 0.4 to 1.2 ms), with its own cleaning: `auto`, the high mark at 5, 20 or 50% dirty and the low one at half of it. So it writes back beside the clients, and is clean where they are slow: what was dirty at the crash is told.
Each write has data of its own. Power is lost at 40, 60, 80 and 100% of them, behind a flush; nothing that was not flushed survives. Then the cache is opened, its volume attached, and nobody writes until nothing is dirty; every sector that was ever written is compared with what was written last (none was lost). Medians, and the least and the most, of the four crashes.

- **Dirty**: of the cached blocks, at the crash. **May be dirty**: blocks over those. **Compared** and **written back**: bytes that were read from both devices, and bytes that were written to the backing device, over those that were dirty (in granules of 4 KiB).
- What is written back beyond what was dirty, its records call dirty: it was written back before the crash, and the record that says so was waiting for room in a batch.
- **Metadata**: writes of the tree, or marks, over the pieces of client writes, from the first one on, without a warm-up.";

pub(super) fn section(traces: &[Trace]) -> String {
    let mut text = format!("{HOW}\n");
    for mark in DIRTY_PERCENTS {
        let mut table = Table::new(&[
            "trace",
            "tracking",
            "dirty",
            "may be dirty, of dirty",
            "compared, of dirty",
            "written back, of dirty",
            "metadata, of writes",
        ]);
        for trace in traces.iter().rev() {
            for tracking in ["abt", "exact", "none"] {
                let crashes = trace.crashes.iter();
                let crashes: Vec<&Crash> = crashes
                    .filter(|crash| crash.dirty_percent == mark && crash.tracking == tracking)
                    .collect();
                if !crashes.is_empty() {
                    table.row(&row(trace.title, tracking, &crashes));
                }
            }
        }
        text += &format!("\nThe high mark at {mark}%:\n\n{}", table.0);
    }
    text
}

/// The crash of a cache with a tree after which most was written back, over what was dirty.
pub(super) fn worst(traces: &[Trace]) -> Option<String> {
    let crashes = traces.iter().flat_map(|trace| {
        let crashes = with_tree(&trace.crashes, None);
        crashes.filter_map(|crash| Some((crash.written_over_dirty()?, trace.title, crash)))
    });
    let (most, title, crash) = crashes.max_by(|one, other| one.0.total_cmp(&other.0))?;
    Some(format!(
        "- Worst of the engine: {most:.2} times the dirty bytes written back ({title}, the mark at {}%, power lost at {}% of the trace, {} of {} blocks dirty).",
        crash.dirty_percent, crash.at, crash.dirty_blocks, crash.cached_blocks
    ))
}

fn row(title: &str, tracking: &str, crashes: &[&Crash]) -> Vec<String> {
    let spread = |values: Vec<f64>, show: fn(f64) -> String| {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min);
        median_and_most(values).map_or("-".to_owned(), |(median, most)| {
            format!("{} ({} to {})", show(median), show(least), show(most))
        })
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
    vec![
        title.to_owned(),
        match tracking {
            "exact" => "marks".to_owned(),
            other => other.to_owned(),
        },
        spread(dirty.flatten().collect(), percent),
        spread(blocks.flatten().collect(), times),
        of(Crash::compared_over_dirty, times),
        of(Crash::written_over_dirty, times),
        ratio.map_or("-".to_owned(), |crash| format!("{:.5}", crash.ratio())),
    ]
}

pub(super) fn times(value: f64) -> String {
    match value {
        small if small < 100.0 => format!("{small:.2}"),
        large => format!("{large:.0}"),
    }
}
