//! Grids that compare AdaCache's claims with the same figures of ours.

use super::simulation::{Row, SIZES, Simulation, Trace};
use super::table::{percent, ratio};
use crate::pages::Grid;

/// Largest figure of several traces, its trace, and the smallest figure.
fn most(traces: &[&Trace], value: &dyn Fn(&Simulation) -> Option<f64>) -> Option<String> {
    let mut values: Vec<(f64, &str)> = traces
        .iter()
        .filter_map(|trace| Some((value(&trace.result)?, trace.title.as_str())))
        .collect();
    values.sort_by(|one, other| other.0.total_cmp(&one.0));
    let (first, last) = (values.first()?, values.last()?);
    Some(format!(
        "up to {} ({}); least {}",
        percent(first.0),
        first.1,
        percent(last.0)
    ))
}

pub(super) fn paper(real: &[&Trace], sets: &[&Trace]) -> Grid {
    let columns = [
        "claim",
        "the paper",
        "system",
        "real traces",
        "the paper's selection",
    ];
    let mut grid = Grid::new("paper", &columns);
    let mut line =
        |claim: &str, says: &str, who: &str, value: &dyn Fn(&Simulation) -> Option<f64>| {
            let cell = |traces| most(traces, value).unwrap_or_else(|| "-".into());
            grid.row([claim, says, who, &cell(real), &cell(sets)].map(String::from));
        };
    let less = |of: fn(&Row) -> f64, ours: &'static str, theirs: &'static str| {
        move |result: &Simulation| Some(1.0 - of(result.row(ours)) / of(result.row(theirs)))
    };
    let core = |row: &Row| row.core_bytes() as f64;
    let cache = |row: &Row| row.cache_bytes() as f64;
    let blocks = |row: &Row| row.mean_cached_blocks();
    let memory = |row: &Row| row.memory_max_bytes as f64;
    let who = [
        ("its rule, against 256K whole", "whole/paper", "whole/256K"),
        ("ours, against 256K whole", "ours", "whole/256K"),
        ("ours, against 256K sub-block", "ours", "sub/256K"),
    ];
    for (who, ours, theirs) in who {
        line(
            "less backend I/O than 256K blocks",
            "up to 74%",
            who,
            &less(core, ours, theirs),
        );
    }
    for (who, ours, theirs) in who {
        line(
            "less cache I/O than 256K blocks",
            "up to 63%",
            who,
            &less(cache, ours, theirs),
        );
    }
    for (who, ours, of) in [
        (
            "its rule, mean blocks at 40 bytes each",
            "whole/paper",
            blocks as fn(&Row) -> f64,
        ),
        ("ours, the same", "ours", blocks),
        ("its rule, our metadata", "whole/paper", memory),
        ("ours, our metadata", "ours", memory),
    ] {
        line(
            "less memory than 32K blocks",
            "up to 41%",
            who,
            &less(of, ours, "whole/32K"),
        );
    }
    line(
        "drop of the read hit ratio against 256K",
        "up to 60%",
        "its rule",
        &|result| {
            let of = |name| result.row(name).reads.hit_ratio();
            Some(1.0 - of("whole/paper")? / of("whole/256K").filter(|ratio| *ratio > 0.0)?)
        },
    );
    line(
        "mean block beside mean missed request, apart",
        "1% at best",
        "its rule",
        &|result| {
            let row = result.row("whole/paper");
            Some((row.mean_block_bytes() / row.mean_missed_bytes() - 1.0).abs())
        },
    );
    grid
}

/// Modelled latency beside every fixed size with the same fill.
pub(super) fn latency<'a>(counting: impl Iterator<Item = &'a Trace>) -> Grid {
    let columns = [
        "trace",
        "its rule by best fixed, whole",
        "its rule by best fixed, sub-block",
        "ours by best fixed, whole",
        "ours by best fixed, sub-block",
        "the paper's claim",
        "ours",
    ];
    let mut grid = Grid::new("latency", &columns);
    for trace in counting {
        let result = &trace.result;
        let best = |family: &str| {
            let fixed = SIZES.map(|kib| result.row(&format!("{family}/{kib}")).latency_sum_ns);
            fixed.into_iter().min().unwrap_or(1) as f64
        };
        let over = |name: &str, family: &str| result.row(name).latency_sum_ns as f64 / best(family);
        let (paper, ours) = (over("whole/paper", "whole"), over("ours", "sub"));
        let holds = |ratio: f64| if ratio <= 1.0 { "holds" } else { "fails" }.to_owned();
        grid.row([
            trace.title.clone(),
            ratio(paper),
            ratio(over("sub/paper", "sub")),
            ratio(over("ours", "whole")),
            ratio(ours),
            holds(paper),
            holds(ours),
        ]);
    }
    grid
}
