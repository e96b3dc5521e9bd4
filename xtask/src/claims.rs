//! What a benchmark, study or soak claims, in the form that `--json FILE` writes.

use std::io;
use std::path::Path;

use serde::Serialize;

/// How a figure came about.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
#[expect(dead_code, reason = "the kinds are one list for every command")]
pub(crate) enum Kind {
    /// On real hardware, by a clock.
    Measured,
    /// By a clock, over something that declares another's speed.
    Emulated,
    /// Computed.
    Modelled,
    /// Counted: bytes, instructions, losses.
    Counted,
}

/// One claim, with what it takes to hold.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Claim {
    /// What it is about, parts joined by `/`.
    pub(crate) name: String,
    /// What the paper says or the peer does, if there is one.
    pub(crate) paper_or_peer: Option<f64>,
    /// What we do.
    pub(crate) ours: f64,
    /// Of both figures.
    pub(crate) unit: String,
    /// How ours came about.
    pub(crate) kind: Kind,
    /// What ours must be, in words: `at least 1.0`.
    pub(crate) bar: String,
    /// Whether it is.
    pub(crate) holds: bool,
}

/// A command's result: claims, and the rows they stand on.
#[derive(Debug, Serialize)]
pub(crate) struct Report<R> {
    /// Whether the run was a smaller one (`--quick`).
    pub(crate) quick: bool,
    pub(crate) claims: Vec<Claim>,
    pub(crate) rows: Vec<R>,
}

impl<R: Serialize> Report<R> {
    /// Writes the report as one JSON object.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn write(&self, path: &Path) -> io::Result<()> {
        let mut text = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        text.push('\n');
        std::fs::write(path, text)
    }

    /// Whether every claim holds.
    pub(crate) fn holds(&self) -> bool {
        self.claims.iter().all(|claim| claim.holds)
    }

    /// Prints the claims, one a line.
    pub(crate) fn print_claims(&self) {
        for claim in &self.claims {
            println!(
                "{} {}: {} {} (bar: {})",
                if claim.holds { "holds" } else { "FAILS" },
                claim.name,
                claim.ours,
                claim.unit,
                claim.bar
            );
        }
    }
}
