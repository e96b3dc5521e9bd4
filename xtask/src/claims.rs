//! Claims of a benchmark, study or soak, in the form that `--json FILE` writes.

use std::io;
use std::path::Path;

use serde::Serialize;

/// Origin of a figure.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Measured on real hardware, by a clock.
    Measured,
    /// Measured by a clock, over a device that emulates the speed of another.
    Emulated,
    /// Computed.
    Modelled,
    /// Counted: bytes, instructions, losses.
    Counted,
}

/// A claim with its condition.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Claim {
    /// Subject of the claim, parts joined by `/`.
    pub(crate) name: String,
    /// Figure of the paper or of the comparable system, if any.
    pub(crate) paper_or_peer: Option<f64>,
    /// Our figure.
    pub(crate) ours: f64,
    /// Unit of both figures.
    pub(crate) unit: String,
    /// Origin of our figure.
    pub(crate) kind: Kind,
    /// Condition on our figure, in words: `at least 1.0`.
    pub(crate) bar: String,
    /// Whether the condition holds.
    pub(crate) holds: bool,
}

/// A command's result: claims, and the rows behind them.
#[derive(Debug)]
pub(crate) struct Report<R> {
    /// Whether this is a quick run (`--quick`).
    pub(crate) quick: bool,
    pub(crate) claims: Vec<Claim>,
    pub(crate) rows: Vec<R>,
}

impl<R: Serialize> Report<R> {
    /// Writes the report as one JSON object.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let whole = serde_json::json!({
            "machine": machine(),
            "quick": self.quick,
            "claims": self.claims,
            "rows": self.rows,
        });
        let mut text = serde_json::to_string_pretty(&whole).map_err(io::Error::other)?;
        text.push('\n');
        std::fs::write(path, text)
    }

    /// Whether every claim holds.
    pub(crate) fn holds(&self) -> bool {
        self.claims.iter().all(|claim| claim.holds)
    }

    /// Prints the claims, one a line.
    pub(crate) fn print_claims(&self) {
        let mut table = Table::new(&["claim", "paper or peer", "ours", "unit", "bar", ""]);
        for claim in &self.claims {
            let holds = if claim.holds { "holds" } else { "FAILS" };
            table.row(vec![
                claim.name.clone(),
                claim.paper_or_peer.map_or_else(String::new, figure),
                figure(claim.ours),
                claim.unit.clone(),
                claim.bar.clone(),
                holds.into(),
            ]);
        }
        table.print();
    }
}

/// Returns a number with its significant digits.
pub(crate) fn figure(value: f64) -> String {
    match value.abs() {
        whole if whole >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        small if small < 10.0 => format!("{value:.3}"),
        _ => format!("{value:.1}"),
    }
}

/// Columns for a terminal. The first ones are aligned to the left, the others to the right.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    /// The number of columns that are aligned to the left.
    text_columns: usize,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self {
            rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()],
            text_columns: 1,
        }
    }

    /// Aligns the first `count` columns to the left, instead of the first one alone.
    pub(crate) fn with_text_columns(self, count: usize) -> Self {
        Self {
            text_columns: count,
            ..self
        }
    }

    pub(crate) fn row(&mut self, row: Vec<String>) {
        assert_eq!(row.len(), self.rows[0].len(), "a cell for each column");
        self.rows.push(row);
    }

    pub(crate) fn print(&self) {
        let columns = self.rows[0].len();
        let width = |column: usize| {
            let lengths = self.rows.iter().map(|row| row[column].chars().count());
            lengths.max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).enumerate();
            let cells = cells.map(|(column, (cell, width))| match column {
                text if text < self.text_columns => format!("{cell:<width$}"),
                _ => format!("{cell:>width$}"),
            });
            println!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
        }
    }
}

/// Describes the machine. Figures hold for one machine.
pub(crate) fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.starts_with(key));
        let value = line.and_then(|line| line.split_once(':'));
        value.map_or_else(
            || "unknown".to_owned(),
            |(_, value)| value.trim().to_owned(),
        )
    };
    // These are the machine's processors, not those that this process may use.
    let cpuinfo = read("/proc/cpuinfo");
    let processors = cpuinfo
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let memory = field(&read("/proc/meminfo"), "MemTotal");
    let kilobytes: u64 = memory.trim_end_matches(" kB").parse().unwrap_or(0);
    format!(
        "{processors} x {}, {} MiB, Linux {}",
        field(&cpuinfo, "model name"),
        kilobytes / 1024,
        read("/proc/sys/kernel/osrelease").trim(),
    )
}
