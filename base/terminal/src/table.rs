//! Tables, for the terminal (left-aligned text, right-aligned numbers, two spaces between columns)
//! and for the status page.

use std::fmt::Write as _;

/// A table under construction.
#[derive(Clone, Debug)]
pub struct Table {
    rows: Vec<Vec<String>>,
    right: Vec<bool>,
}

impl Table {
    /// Returns a table with these column titles. A title that begins with `>` makes a column of
    /// numbers, aligned to the right.
    #[must_use]
    pub fn new(titles: &[&str]) -> Self {
        let right: Vec<_> = titles.iter().map(|title| title.starts_with('>')).collect();
        let titles = titles
            .iter()
            .map(|title| title.trim_start_matches('>').to_owned());
        Self {
            rows: vec![titles.collect()],
            right,
        }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If the number of cells differs from the number of titles.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.right.len(), "a row has a cell a column");
        self.rows.push(cells);
    }

    /// Returns the table as lines of text, indented by `indent` spaces.
    #[must_use]
    pub fn render(&self, indent: usize) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..self.right.len()).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = " ".repeat(indent);
            for (column, cell) in row.iter().enumerate() {
                let pad = " ".repeat(widths[column] - cell.chars().count());
                let gap = if column == 0 { "" } else { "  " };
                let (before, after) = if self.right[column] {
                    (pad, String::new())
                } else {
                    (String::new(), pad)
                };
                line.extend([gap, &before, cell, &after]);
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }

    /// Returns the table as HTML. Cells of numbers have the class `n`.
    #[must_use]
    pub fn html(&self) -> String {
        let mut html = String::from("<table>");
        for (number, row) in self.rows.iter().enumerate() {
            let kind = if number == 0 { "th" } else { "td" };
            html.push_str("<tr>");
            for (cell, right) in row.iter().zip(&self.right) {
                let class = if *right { " class=\"n\"" } else { "" };
                let _ = write!(html, "<{kind}{class}>{}</{kind}>", escape(cell));
            }
            html.push_str("</tr>");
        }
        html + "</table>"
    }
}

/// Escapes text for HTML.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&["name", ">bytes", "what"]);
        table.row(vec!["a".into(), "5".into(), "x".into()]);
        table.row(vec!["longer".into(), "1234567".into(), "y z".into()]);
        let expected = "  name      bytes  what\n  a             5  x\n  longer  1234567  y z\n";
        assert_eq!(table.render(2), expected);
        let html = table.html();
        assert!(html.starts_with("<table><tr><th>name</th><th class=\"n\">bytes</th>"));
        assert!(
            html.contains("<td class=\"n\">1234567</td><td>y z</td>"),
            "{html}"
        );
    }
}
