//! Line charts over sizes: shares of a whole, on a logarithmic axis of bytes.

use std::fmt::Write as _;

use super::figure;
use forebay_terminal::size::human_bytes;

const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 290.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 44.0;
/// Most labels of sizes that fit side by side.
const MAX_TICKS: u32 = 9;

/// One point.
#[derive(Clone, Copy)]
pub(super) struct Point {
    pub(super) bytes: u64,
    /// Share, 0 to 1.
    pub(super) share: f64,
    /// Standard error of the share; 0 if it is exact.
    pub(super) error: f64,
}

/// A chart of one line.
pub(super) struct Line<'a> {
    pub(super) id: &'a str,
    pub(super) title: &'a str,
    pub(super) note: &'a str,
    /// Title of the horizontal axis.
    pub(super) axis: &'a str,
    pub(super) points: Vec<Point>,
    /// Sizes to mark with a vertical line.
    pub(super) marks: Vec<u64>,
}

impl Line<'_> {
    /// Returns the chart as a `figure`.
    pub(super) fn render(&self) -> String {
        let power = |bytes: u64| (bytes.max(1) as f64).log2();
        let sizes = self.points.iter().map(|point| point.bytes);
        let sizes = sizes.chain(self.marks.iter().copied());
        let least = sizes.clone().min().map_or(9.0, power).floor();
        let most = sizes.max().map_or(10.0, power).ceil().max(least + 1.0);
        let x =
            |bytes: u64| LEFT + (power(bytes) - least) / (most - least) * (WIDTH - LEFT - RIGHT);
        let y = |share: f64| TOP + (1.0 - share.clamp(0.0, 1.0)) * (HEIGHT - TOP - BOTTOM);
        let mut svg = String::new();
        for quarter in 0..=4 {
            let share = f64::from(quarter) / 4.0;
            let _ = write!(
                svg,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"tick\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}%</text>",
                WIDTH - RIGHT,
                LEFT - 7.0,
                y(share) + 4.0,
                quarter * 25,
                y = y(share),
            );
        }
        let (first, last) = (least as u32, most as u32);
        let step = (last - first).div_ceil(MAX_TICKS).max(1) as usize;
        for power in (first..=last).step_by(step) {
            let _ = write!(
                svg,
                "<text class=\"tick\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                x(1 << power),
                HEIGHT - BOTTOM + 17.0,
                human_bytes(1 << power)
            );
        }
        let _ = write!(
            svg,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 6.0,
            self.axis
        );
        for mark in &self.marks {
            let _ = write!(
                svg,
                "<line class=\"mark\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" \
                 y2=\"{}\"><title>{}</title></line>",
                HEIGHT - BOTTOM,
                human_bytes(*mark),
                x = x(*mark),
            );
        }
        let path = |shares: &dyn Fn(&Point) -> f64, back: bool| {
            let mut points: Vec<String> = self
                .points
                .iter()
                .map(|point| format!("{:.1},{:.1}", x(point.bytes), y(shares(point))))
                .collect();
            if back {
                points.reverse();
            }
            points.join(" ")
        };
        if self.points.iter().any(|point| point.error > 0.0) {
            let _ = write!(
                svg,
                "<polygon class=\"band\" points=\"{} {}\"/>",
                path(&|point| point.share + 2.0 * point.error, false),
                path(&|point| point.share - 2.0 * point.error, true),
            );
        }
        let _ = write!(
            svg,
            "<polyline class=\"line\" points=\"{}\"/>",
            path(&|point| point.share, false)
        );
        for point in &self.points {
            let _ = write!(
                svg,
                "<circle class=\"s1\" data-value=\"{}\" cx=\"{:.1}\" cy=\"{:.1}\" \
                 r=\"3\"><title>{}: {:.1}%</title></circle>",
                point.share,
                x(point.bytes),
                y(point.share),
                human_bytes(point.bytes),
                point.share * 100.0
            );
        }
        figure(self.id, self.title, self.note, &[], (WIDTH, HEIGHT), &svg)
    }
}
