//! Bar charts: a row for each cache.

use std::fmt::Write as _;

use super::figure;
use forebay_terminal::table::escape;

/// Width of the drawing in its units; the page shows them one to one if there is space.
const WIDTH: f64 = 560.0;
/// Width of the value after the longest bar.
const VALUE_WIDTH: f64 = 78.0;
/// Width of a bold letter, the widest average of fonts.
const LETTER_WIDTH: f64 = 7.6;
const BAR: f64 = 13.0;
const GAP: f64 = 3.0;
const BETWEEN_ROWS: f64 = 11.0;
/// Height of a heading of rows.
const HEAD: f64 = 24.0;

/// A row: a name, and a value for each series.
pub(super) struct Row {
    /// Heading of this row and its neighbours; empty if all are alike.
    pub(super) group: String,
    pub(super) label: String,
    pub(super) values: Vec<f64>,
    /// Whether the row is of a cache in the command line.
    pub(super) ours: bool,
}

/// A chart of horizontal bars.
pub(super) struct Bars<'a> {
    /// Id of the drawing, unique on the page.
    pub(super) id: &'a str,
    pub(super) title: &'a str,
    /// Explanation of the chart and its limits.
    pub(super) note: &'a str,
    /// Names of the series.
    pub(super) series: &'a [&'a str],
    /// Whether series are stacked on one bar, with their sum after it; otherwise below each other.
    pub(super) stacked: bool,
    /// End of the axis, if it is not the largest value.
    pub(super) end: Option<f64>,
    pub(super) rows: Vec<Row>,
    pub(super) unit: fn(f64) -> String,
}

impl Bars<'_> {
    /// Returns the chart as a `figure`.
    pub(super) fn render(&self) -> String {
        let lengths = self.rows.iter().map(|row| row.label.chars().count());
        let label_width = lengths.max().unwrap_or(0) as f64 * LETTER_WIDTH + 12.0;
        let long = |row: &Row| match self.stacked {
            true => row.values.iter().sum(),
            false => row.values.iter().copied().fold(0.0, f64::max),
        };
        let most = self.rows.iter().map(long).fold(0.0, f64::max);
        let end = self.end.unwrap_or(most);
        let scale = match end > 0.0 {
            true => (WIDTH - label_width - VALUE_WIDTH) / end,
            false => 0.0,
        };
        let bars = if self.stacked { 1 } else { self.series.len() } as f64;
        let row_height = bars * (BAR + GAP) - GAP;
        let mut svg = String::new();
        let mut top = BETWEEN_ROWS / 2.0;
        let mut group = "";
        for row in &self.rows {
            if row.group != group {
                group = &row.group;
                let _ = write!(
                    svg,
                    "<text class=\"group\" x=\"0\" y=\"{:.1}\">{} cache</text>",
                    top + HEAD - 11.0,
                    escape(group)
                );
                top += HEAD;
            }
            let class = if row.ours { " class=\"ours\"" } else { "" };
            let _ = write!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\"{class}>{}</text>",
                label_width - 10.0,
                top + row_height / 2.0 + 4.0,
                escape(&row.label)
            );
            match self.stacked {
                true => self.stack(&mut svg, row, label_width, top, scale),
                false => self.group(&mut svg, row, label_width, top, scale),
            }
            top += row_height + BETWEEN_ROWS;
        }
        let _ = write!(
            svg,
            "<line class=\"axis\" x1=\"{label_width:.1}\" x2=\"{label_width:.1}\" y1=\"0\" \
             y2=\"{:.1}\"/>",
            top - BETWEEN_ROWS / 2.0
        );
        let keys = match self.series.len() {
            1 => &[],
            _ => self.series,
        };
        let height = top - BETWEEN_ROWS / 2.0;
        figure(
            self.id,
            self.title,
            self.note,
            keys,
            (WIDTH, height.max(1.0)),
            &svg,
        )
    }

    fn group(&self, svg: &mut String, row: &Row, left: f64, top: f64, scale: f64) {
        for (nth, value) in row.values.iter().enumerate() {
            let y = top + nth as f64 * (BAR + GAP);
            self.bar(svg, row, nth, (left, y, value * scale));
            let _ = write!(
                svg,
                "<text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                left + value * scale + 6.0,
                y + BAR - 2.5,
                (self.unit)(*value)
            );
        }
    }

    fn stack(&self, svg: &mut String, row: &Row, left: f64, top: f64, scale: f64) {
        let mut x = left;
        for (nth, value) in row.values.iter().enumerate() {
            self.bar(svg, row, nth, (x, top, value * scale));
            x += value * scale;
        }
        let _ = write!(
            svg,
            "<text class=\"value\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            x + 6.0,
            top + BAR - 2.5,
            (self.unit)(row.values.iter().sum())
        );
    }

    /// Adds one bar, with the exact value for programs.
    fn bar(&self, svg: &mut String, row: &Row, nth: usize, (x, y, width): (f64, f64, f64)) {
        let value = row.values[nth];
        let _ = write!(
            svg,
            "<rect class=\"s{}\" data-value=\"{value}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" \
             height=\"{BAR}\">\
             <title>{}{}{}: {} {}</title></rect>",
            nth + 1,
            width.max(0.0),
            escape(&row.group),
            if row.group.is_empty() { "" } else { ", " },
            escape(&row.label),
            escape(self.series[nth]),
            (self.unit)(value),
        );
    }
}
