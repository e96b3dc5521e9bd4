//! The plot beside the page: how response times are distributed.

use super::SYSTEMS;
use super::results::{Results, Run, Side};

/// Reads or writes.
pub(super) type Which = fn(&Run) -> &Side;

/// Panels of the plot: a cell, its reads or writes, and the title.
pub(super) const PANELS: [(&str, Which, &str); 4] = [
    ("fillrandom 4096 B", writes, "fillrandom, 4 KiB: writes"),
    ("rocksdb A zipfian", reads, "YCSB A, Zipfian: reads"),
    ("varmail", writes, "varmail: changes"),
    ("fileserver", reads, "fileserver: reads"),
];
const COLOURS: [&str; 8] = [
    "#000000", "#e69f00", "#b35900", "#56b4e9", "#0072b2", "#d62728", "#cc79a7", "#009e73",
];
const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 50.0;
const TOP: f64 = 40.0;

fn reads(run: &Run) -> &Side {
    &run.reads
}

fn writes(run: &Run) -> &Side {
    &run.writes
}

/// Medians of the rounds at each percentile, in order: percent and microseconds.
pub(super) fn curve(results: &Results, system: &str, cell: &str, side: Which) -> Vec<(f64, f64)> {
    let first = results.runs(system, cell).next();
    let percents = first.into_iter().flat_map(|run| &side(run).percentiles_us);
    let point = |(percent, _): &(f64, f64)| {
        let us = results.median(system, cell, |run| side(run).at(*percent));
        (*percent, us)
    };
    percents
        .map(point)
        .filter(|(_, us)| us.is_finite())
        .collect()
}

/// The plot, as SVG.
pub(super) fn render(results: &Results) -> String {
    let (columns, step) = (2, HEIGHT + 90.0);
    let width = 2.0 * (WIDTH + 80.0);
    let height = 2.0 * step + 40.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for (number, (cell, side, title)) in PANELS.iter().enumerate() {
        let x = (number % columns) as f64 * (WIDTH + 80.0) + LEFT;
        let y = (number / columns) as f64 * step + TOP;
        svg += &panel(results, cell, *side, title, (x, y));
    }
    for (number, (system, colour)) in SYSTEMS.iter().zip(COLOURS).enumerate() {
        let x = LEFT + number as f64 * 125.0;
        let y = height - 20.0;
        svg += &format!(
            "<path d=\"M{x} {} h18\" stroke=\"{colour}\" stroke-width=\"2\"/><text x=\"{}\" \
             y=\"{y}\">{}</text>\n",
            y - 4.0,
            x + 22.0,
            system.replace("caiti-without", "w/o")
        );
    }
    svg + "</svg>\n"
}

/// Percent of the requests that took no longer than so many microseconds, which go up by tens.
fn panel(results: &Results, cell: &str, side: Which, title: &str, (x, y): (f64, f64)) -> String {
    let curves = SYSTEMS.map(|system| curve(results, system, cell, side));
    let all = || curves.iter().flatten().map(|(_, us)| us.max(0.1));
    let least = all().fold(f64::INFINITY, f64::min).log10().floor();
    let most = all().fold(0.0, f64::max).log10().ceil();
    let mut svg = format!(
        "<text x=\"{x}\" y=\"{}\" font-weight=\"bold\">{title}</text>\n",
        y - 12.0
    );
    if !least.is_finite() || most <= least {
        return svg + &format!("<text x=\"{x}\" y=\"{}\">not run</text>\n", y + 20.0);
    }
    let across = |us: f64| x + (us.max(0.1).log10() - least) / (most - least) * WIDTH;
    let down = |percent: f64| y + HEIGHT * (1.0 - percent / 100.0);
    for percent in [0.0, 25.0, 50.0, 75.0, 100.0] {
        let at = down(percent);
        svg += &format!(
            "<path d=\"M{x} {at:.1} h{WIDTH}\" stroke=\"#dddddd\"/><text x=\"{}\" y=\"{:.1}\" \
             text-anchor=\"end\">{percent}%</text>\n",
            x - 6.0,
            at + 4.0
        );
    }
    let mut power = least;
    while power <= most {
        let at = across(10_f64.powf(power));
        svg += &format!(
            "<path d=\"M{at:.1} {y} v{HEIGHT}\" stroke=\"#dddddd\"/><text x=\"{at:.1}\" \
             y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
            y + HEIGHT + 16.0,
            time(10_f64.powf(power))
        );
        power += 1.0;
    }
    for (curve, colour) in curves.iter().zip(COLOURS) {
        let points = curve
            .iter()
            .map(|(percent, us)| format!("{:.1},{:.1}", across(*us), down(*percent)));
        svg += &format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\n",
            points.collect::<Vec<_>>().join(" ")
        );
    }
    svg
}

/// A power of ten, in the unit that fits.
fn time(us: f64) -> String {
    match us {
        long if long >= 1e6 => format!("{:.0} s", long / 1e6),
        middle if middle >= 1e3 => format!("{:.0} ms", middle / 1e3),
        _ => format!("{us} us"),
    }
}
