//! Templates: Markdown with places that the renderer replaces by figures of the grids.
//!
//! Lines of prose that figures make longer than 100 characters are broken.
//!
//! A place stands in double braces and may span lines. It is the name of a value, or a command
//! and clauses separated by `|`; lists are separated by `;`:
//!
//! - `NAME`: the value with this name of a grid with the columns `name` and `value`.
//! - `table GRID`: the rows as a table.
//! - `count GRID`: the number of rows.
//! - `top N GRID`: the N rows with the largest figure in the column of the clause `by`, as a table.
//! - `bottom N GRID`: the N rows with the smallest figure in that column.
//! - `median GRID`: one row for each combination of the columns of the clause `by`, with the median
//!   of each other column. The median of an even number of figures is the smaller middle one. So
//!   each figure on a page is a figure of the grid.
//!
//! Clauses: `where COLUMN = VALUE; COLUMN ~ PART` selects rows that equal the value or contain the
//! part; `columns A; B` selects columns. Without `columns`, a table has all columns but those that
//! `where` fixes by `=`.

use super::Outcome;
use super::grid::{Data, Grid};

/// Replaces the places of a template.
///
/// # Errors
/// If a place is not closed, or names a grid, column or value that does not exist.
pub(super) fn render(template: &str, data: &Data) -> Outcome<String> {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let (place, after) = after
            .split_once("}}")
            .ok_or_else(|| format!("template: a place is not closed: {{{{{after:.40}"))?;
        text += before;
        text += fill(place, data)
            .map_err(|error| format!("template: {{{{{place}}}}}: {error}"))?
            .trim_end();
        rest = after;
    }
    Ok(wrap(&(text + rest)))
}

/// Most characters of a line of prose.
const COLUMNS: usize = 100;

/// Breaks lines of prose that figures made too long. Rows of tables, headings and words without a
/// space stay.
fn wrap(text: &str) -> String {
    let mut wrapped = String::with_capacity(text.len());
    for line in text.lines() {
        if line.chars().count() <= COLUMNS || line.starts_with(['|', '#']) {
            wrapped.extend([line, "\n"]);
            continue;
        }
        let words = line.trim_start();
        let leading = &line[..line.len() - words.len()];
        let indent = leading.to_owned() + if words.starts_with("- ") { "  " } else { "" };
        let mut broken = leading.to_owned();
        for (nth, word) in words.split(' ').enumerate() {
            if broken.chars().count() + 1 + word.chars().count() > COLUMNS && nth > 0 {
                wrapped.extend([broken.as_str(), "\n"]);
                broken.clone_from(&indent);
            } else if nth > 0 {
                broken.push(' ');
            }
            broken.push_str(word);
        }
        wrapped.extend([broken.as_str(), "\n"]);
    }
    wrapped
}

fn fill(place: &str, data: &Data) -> Outcome<String> {
    let words: Vec<&str> = place.split_whitespace().collect();
    let place = words.join(" ");
    let mut clauses = place.split(" | ");
    let head: Vec<&str> = clauses.next().unwrap_or_default().split(' ').collect();
    let clauses: Vec<&str> = clauses.collect();
    match head[..] {
        [name] => value(data, name),
        ["table", grid] => Ok(markdown(&select(data.grid(grid)?, &clauses)?)),
        ["count", grid] => {
            let rows = filter(data.grid(grid)?, clause(&clauses, "where"))?.rows;
            Ok(rows.len().to_string())
        }
        [order @ ("top" | "bottom"), rows, grid] => {
            let rows = rows.parse().map_err(|_| format!("no number: {rows}"))?;
            let mut sorted = sort(data.grid(grid)?, &clauses)?;
            if order == "bottom" {
                sorted.rows.reverse();
            }
            sorted.rows.truncate(rows);
            Ok(markdown(&select(&sorted, &clauses)?))
        }
        ["median", grid] => {
            let grid = select(data.grid(grid)?, &clauses)?;
            let by = clause(&clauses, "by").ok_or("no clause `by`")?;
            Ok(markdown(&medians(&grid, &list(by))?))
        }
        _ => Err("no such command".into()),
    }
}

fn value(data: &Data, name: &str) -> Outcome<String> {
    let grids = data
        .0
        .iter()
        .filter(|grid| grid.columns == ["name", "value"]);
    let mut values = grids.flat_map(|grid| &grid.rows);
    let row = values.find(|row| row[0] == name);
    row.map(|row| row[1].clone())
        .ok_or_else(|| format!("no value `{name}`"))
}

fn clause<'a>(clauses: &[&'a str], keyword: &str) -> Option<&'a str> {
    let mut found = clauses.iter().filter_map(|clause| {
        let (word, rest) = clause.split_once(' ')?;
        (word == keyword).then_some(rest)
    });
    found.next()
}

fn list(text: &str) -> Vec<&str> {
    text.split(';').map(str::trim).collect()
}

/// Rows that fulfil all conditions, and all columns.
fn filter(grid: &Grid, conditions: Option<&str>) -> Outcome<Grid> {
    let mut selected = grid.clone();
    for condition in conditions.map(list).unwrap_or_default() {
        if let Some((column, value)) = condition.split_once(" = ") {
            let column = grid.column(column)?;
            selected.rows.retain(|row| row[column] == value);
        } else if let Some((column, part)) = condition.split_once(" ~ ") {
            let column = grid.column(column)?;
            selected.rows.retain(|row| row[column].contains(part));
        } else {
            return Err(format!("no condition: {condition}"));
        }
    }
    Ok(selected)
}

/// Rows and columns that the clauses select.
fn select(grid: &Grid, clauses: &[&str]) -> Outcome<Grid> {
    let conditions = clause(clauses, "where");
    let selected = filter(grid, conditions)?;
    let columns: Vec<usize> = match clause(clauses, "columns") {
        Some(titles) => list(titles)
            .into_iter()
            .map(|title| grid.column(title))
            .collect::<Outcome<_>>()?,
        None => {
            let conditions = conditions.map(list).unwrap_or_default();
            let fixed = conditions.iter().filter_map(|one| one.split_once(" = "));
            let fixed: Vec<&str> = fixed.map(|(column, _)| column).collect();
            let columns = grid.columns.iter().enumerate();
            let open = columns.filter(|(_, title)| !fixed.contains(&title.as_str()));
            open.map(|(nth, _)| nth).collect()
        }
    };
    let take = |row: &Vec<String>| columns.iter().map(|nth| row[*nth].clone()).collect();
    Ok(Grid {
        name: grid.name.clone(),
        columns: take(&grid.columns),
        rows: selected.rows.iter().map(take).collect(),
    })
}

/// Rows that the clauses select, the largest figure of the column of `by` first.
fn sort(grid: &Grid, clauses: &[&str]) -> Outcome<Grid> {
    let column = grid.column(clause(clauses, "by").ok_or("no clause `by`")?)?;
    let mut sorted = filter(grid, clause(clauses, "where"))?;
    sorted.rows.retain(|row| figure(&row[column]).is_some());
    sorted.rows.sort_by(|one, other| {
        let of = |row: &[String]| figure(&row[column]).unwrap_or(f64::NEG_INFINITY);
        of(other).total_cmp(&of(one))
    });
    Ok(sorted)
}

fn medians(grid: &Grid, by: &[&str]) -> Outcome<Grid> {
    let keys: Vec<usize> = by
        .iter()
        .map(|title| grid.column(title))
        .collect::<Outcome<_>>()?;
    let key = |row: &[String]| keys.iter().map(|nth| row[*nth].clone()).collect::<Vec<_>>();
    let mut groups: Vec<(Vec<String>, Vec<&Vec<String>>)> = Vec::new();
    for row in &grid.rows {
        match groups.iter_mut().find(|(group, _)| *group == key(row)) {
            Some((_, rows)) => rows.push(row),
            None => groups.push((key(row), vec![row])),
        }
    }
    let figures: Vec<usize> = (0..grid.columns.len())
        .filter(|nth| !keys.contains(nth))
        .filter(|nth| grid.rows.iter().any(|row| figure(&row[*nth]).is_some()))
        .collect();
    let order: Vec<usize> = keys.iter().chain(&figures).copied().collect();
    let rows = groups.iter().map(|(group, rows)| {
        let medians = figures.iter().map(|nth| median(rows, *nth));
        group.iter().cloned().chain(medians).collect()
    });
    Ok(Grid {
        name: grid.name.clone(),
        columns: order.iter().map(|nth| grid.columns[*nth].clone()).collect(),
        rows: rows.collect(),
    })
}

fn median(rows: &[&Vec<String>], column: usize) -> String {
    let cells = rows.iter().map(|row| row[column].as_str());
    let mut cells: Vec<(f64, &str)> = cells
        .filter_map(|cell| Some((figure(cell)?, cell)))
        .collect();
    cells.sort_by(|one, other| one.0.total_cmp(&other.0));
    let middle = cells.len().saturating_sub(1) / 2;
    cells.get(middle).map_or("-", |(_, cell)| cell).to_owned()
}

/// Figure of a cell in its base unit: `19.6%`, `334 KiB`, `1,052`; none if the cell has words.
pub(super) fn figure(cell: &str) -> Option<f64> {
    let (number, unit) = cell.split_once(' ').unwrap_or((cell, ""));
    let scale = match unit {
        "" | "B" | "us" | "ns" | "s" => 1.0,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        "TiB" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let number = number.trim_end_matches('%').replace(',', "");
    number.parse::<f64>().ok().map(|number| number * scale)
}

/// The grid as a Markdown table. Columns of figures are aligned to the right; a cell `no` is bold.
pub(super) fn markdown(grid: &Grid) -> String {
    let is_figure = |cell: &String| cell == "-" || cell.is_empty() || figure(cell).is_some();
    let rule = (0..grid.columns.len()).map(|nth| {
        let figures = nth > 0 && grid.rows.iter().all(|row| is_figure(&row[nth]));
        if figures { "---:" } else { "---" }
    });
    let rule = rule.collect::<Vec<_>>().join("|");
    let mut text = format!("| {} |\n|{rule}|\n", grid.columns.join(" | "));
    for row in &grid.rows {
        let cells = row.iter().map(|cell| match cell.as_str() {
            "no" => "**no**",
            other => other,
        });
        text += &format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "));
    }
    text
}
