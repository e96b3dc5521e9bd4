//! When requests came and how long they took, as a picture of its own.

use super::SYSTEMS;
use super::runs::{Run, cell};

/// Of the program's grid (block-cache/transit/examples/caiti/timeline.rs).
const COLUMNS: u64 = 240;
const ROWS_A_DECADE: u64 = 8;
/// 100 ns to 1 s.
const ROWS: u64 = 7 * ROWS_A_DECADE;
const CELL: u64 = 2;
const PANEL: u64 = ROWS * CELL + 34;
const LEFT: u64 = 60;

/// One panel a system, below each other: a mark where requests were, darker for more.
pub(super) fn timelines(runs: &[Run], part: &str) -> String {
    let width = LEFT + COLUMNS * CELL * 2 + 10;
    let height = PANEL * SYSTEMS.len() as u64 + 10;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n"
    );
    for (nth, system) in (0..).zip(SYSTEMS) {
        let top = 22 + nth * PANEL;
        text += &format!("<text x=\"{LEFT}\" y=\"{}\">{system}</text>\n", top - 5);
        for (label, decade) in [("1 us", 1), ("100 us", 3), ("10 ms", 5)] {
            let y = top + (ROWS - decade * ROWS_A_DECADE) * CELL;
            text += &format!(
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{label}</text><path d=\"M{LEFT} \
                 {y}h{}\" stroke=\"#ddd\"/>\n",
                LEFT - 4,
                y + 4,
                COLUMNS * CELL * 2
            );
        }
        let cell = cell(runs, part, system);
        let grid = cell.0.first().and_then(|run| run.timeline.as_deref());
        for (least, most, color) in [
            (1, 10, "#9ecae1"),
            (10, 1000, "#4292c6"),
            (1000, u64::MAX, "#08306b"),
        ] {
            let cells = grid.unwrap_or_default().iter();
            let marks: String = cells
                .filter(|[_, row, count]| (least..most).contains(count) && *row < ROWS)
                .map(|[column, row, _]| {
                    let x = LEFT + column * CELL * 2;
                    let y = top + (ROWS - row) * CELL - CELL / 2;
                    format!("M{x} {y}h{}", CELL * 2)
                })
                .collect();
            text += &format!("<path d=\"{marks}\" stroke=\"{color}\" stroke-width=\"{CELL}\"/>\n");
        }
    }
    text + "</svg>\n"
}
