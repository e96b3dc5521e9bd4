//! Grids: tables of text, read from and written to CSV files.

use std::path::Path;

use super::Outcome;

/// Table of a study's results. The first columns name a row; the others are its figures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    /// Name of the file, without its extension.
    pub(crate) name: String,
    pub(crate) columns: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Grid {
    /// Grid without rows.
    ///
    /// # Panics
    /// If two columns have the same title.
    pub(crate) fn new(name: &str, columns: &[&str]) -> Self {
        assert!(twice(columns).is_none(), "{name}: a title twice");
        Self {
            name: name.to_owned(),
            columns: columns.iter().map(|title| (*title).to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If the number of cells differs from that of the columns.
    pub(crate) fn row(&mut self, cells: impl Into<Vec<String>>) {
        let cells = cells.into();
        assert_eq!(cells.len(), self.columns.len(), "a cell for each column");
        self.rows.push(cells);
    }

    /// Index of a column.
    ///
    /// # Errors
    /// If the grid has no such column.
    pub(crate) fn column(&self, title: &str) -> Outcome<usize> {
        let found = self.columns.iter().position(|column| column == title);
        found.ok_or_else(|| format!("grid {}: no column `{title}`", self.name))
    }

    /// Text of the CSV file (RFC 4180, lines end with a line feed).
    pub(super) fn to_csv(&self) -> String {
        let rows = std::iter::once(&self.columns).chain(&self.rows);
        rows.map(|row| csv_line(row)).collect()
    }

    /// Reads the text of a CSV file.
    ///
    /// # Errors
    /// If a row has more or fewer cells than there are columns, or a quote is not closed.
    pub(super) fn from_csv(name: &str, text: &str) -> Outcome<Self> {
        let mut lines = text.lines().enumerate();
        let mut next = || lines.next().map(|(nth, line)| (nth + 1, cells(line)));
        let bad = |line: usize, what: &str| format!("{name}.csv:{line}: {what}");
        let columns = match next() {
            Some((_, Some(columns))) => columns,
            _ => return Err(bad(1, "no line of titles")),
        };
        if let Some(title) = twice(&columns) {
            return Err(bad(1, &format!("the title `{title}` twice")));
        }
        let mut rows = Vec::new();
        while let Some((line, row)) = next() {
            let row = row.ok_or_else(|| bad(line, "a quote is not closed"))?;
            if row.len() != columns.len() {
                let what = format!("{} cells for {} columns", row.len(), columns.len());
                return Err(bad(line, &what));
            }
            rows.push(row);
        }
        Ok(Self {
            name: name.to_owned(),
            columns,
            rows,
        })
    }
}

/// First title that stands for two columns.
fn twice<T: PartialEq>(titles: &[T]) -> Option<&T> {
    let numbered = titles.iter().enumerate();
    let mut repeated = numbered.filter(|(nth, title)| titles[..*nth].contains(title));
    repeated.next().map(|(_, title)| title)
}

fn csv_line(row: &[String]) -> String {
    let quoted = row.iter().map(|cell| match cell.contains([',', '"']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.clone(),
    });
    quoted.collect::<Vec<_>>().join(",") + "\n"
}

/// Cells of a line; none if a quote is not closed.
fn cells(line: &str) -> Option<Vec<String>> {
    let mut cells = vec![String::new()];
    let mut quoted = false;
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '"' if quoted && characters.next_if_eq(&'"').is_some() => {
                cells.last_mut()?.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            other => cells.last_mut()?.push(other),
        }
    }
    (!quoted).then_some(cells)
}

/// Grids of a study.
#[derive(Clone, Debug, Default)]
pub(crate) struct Data(pub(crate) Vec<Grid>);

impl Data {
    /// Grid with this name.
    ///
    /// # Errors
    /// If the study has no such grid.
    pub(crate) fn grid(&self, name: &str) -> Outcome<&Grid> {
        let found = self.0.iter().find(|grid| grid.name == name);
        found.ok_or_else(|| format!("no grid `{name}`"))
    }

    /// Reads all CSV files of a folder.
    ///
    /// # Errors
    /// If the folder or a file cannot be read.
    pub(crate) fn read(folder: &Path) -> Outcome<Self> {
        let at = |error: std::io::Error| format!("{}: {error}", folder.display());
        let mut grids = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(at)? {
            let path = entry.map_err(at)?.path();
            if path.extension().is_some_and(|extension| extension == "csv") {
                let text = std::fs::read_to_string(&path).map_err(at)?;
                let name = path.file_stem().unwrap_or_default().to_string_lossy();
                grids.push(Grid::from_csv(&name, &text)?);
            }
        }
        grids.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(Self(grids))
    }

    /// Writes one CSV file a grid.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub(super) fn write(&self, folder: &Path) -> Outcome<()> {
        let at = |error: std::io::Error| format!("{}: {error}", folder.display());
        std::fs::create_dir_all(folder).map_err(at)?;
        for grid in &self.0 {
            let path = folder.join(format!("{}.csv", grid.name));
            std::fs::write(path, grid.to_csv()).map_err(at)?;
        }
        Ok(())
    }
}
