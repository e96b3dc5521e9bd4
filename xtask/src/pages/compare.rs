//! Comparison of pages and grids with what they are made from.

use std::path::{Path, PathBuf};

use super::grid::{Data, Grid};
use super::{Outcome, PAGES};

/// Remedy for a page that differs from its grids.
pub(crate) const RENDER: &str = "cargo xtask study render";

/// Grid by another run, and the number of its first columns that name a row.
pub(crate) type Rerun = (Grid, usize);

/// Pages that differ from their templates and grids, each with the first line that differs.
///
/// # Errors
/// If a page or grid cannot be read, or a template names a grid or column that does not exist.
pub(crate) fn stale_pages(root: &Path) -> Outcome<Vec<(PathBuf, String)>> {
    let mut stale = Vec::new();
    for page in PAGES {
        let (path, rendered) = (page.path(root), page.render(root)?);
        let text = std::fs::read_to_string(&path)
            .map_err(|error| format!("{}: {error}", path.display()))?;
        if let Some(difference) = first_difference(&text, &rendered) {
            stale.push((path, difference));
        }
    }
    Ok(stale)
}

/// The first line in which two texts differ; none if they are equal.
fn first_difference(text: &str, rendered: &str) -> Option<String> {
    if text == rendered {
        return None;
    }
    let (mut old, mut new) = (text.lines(), rendered.lines());
    let mut line = 0;
    loop {
        line += 1;
        match (old.next(), new.next()) {
            (None, None) => return Some("the end of the last line differs".into()),
            (one, other) if one == other => {}
            (one, other) => {
                let shown =
                    |line: Option<&str>| line.map_or("nothing".into(), |it| format!("{it:?}"));
                return Some(format!(
                    "line {line} is {}, rendered {}",
                    shown(one),
                    shown(other)
                ));
            }
        }
    }
}

/// Differences between the rows of `rerun` and the rows of `data` with the same first `keys`
/// cells. Rows that only `data` has are not compared.
///
/// # Errors
/// If `data` has no grid of this name and these columns.
pub(crate) fn differences(data: &Data, rerun: &Grid, keys: usize) -> Outcome<Vec<String>> {
    let grid = data.grid(&rerun.name)?;
    if grid.columns != rerun.columns {
        return Err(format!("grid {}: the columns differ", grid.name));
    }
    let mut differences = Vec::new();
    for row in &rerun.rows {
        let key = &row[..keys];
        let title = format!("{}.csv: {}", grid.name, key.join(", "));
        let Some(recorded) = grid.rows.iter().find(|other| other[..keys] == *key) else {
            differences.push(format!("{title}: no such row is recorded"));
            continue;
        };
        let cells = grid.columns.iter().zip(recorded.iter().zip(row));
        for (column, (recorded, now)) in cells.filter(|(_, (recorded, now))| recorded != now) {
            differences.push(format!("{title}: {column} is {recorded}, re-run {now}"));
        }
    }
    Ok(differences)
}
