//! The generated parts of `docs/reference`, compared with the types that they describe.
//!
//! A page marks each generated part: `<!-- generated: NAME -->`, the part, `<!-- end -->`. The rest
//! of the page is written by hand. A test fails if a part differs from its rendering, and if a part
//! is missing from the page.

mod commands;
mod configuration;
mod status;

use std::env;
use std::fs;
use std::path::PathBuf;

/// The environment variable that makes the tests write the pages.
const WRITE: &str = "FOREBAY_WRITE_REFERENCE";

const BEGIN: &str = "<!-- generated: ";
const END: &str = "<!-- end -->";

/// A page with generated parts.
struct Page<'a> {
    /// Its file under `docs/reference`.
    file: &'static str,
    /// Names of its parts.
    parts: Vec<String>,
    /// Renders the part of a name. The part on the page is given too.
    render: &'a dyn Fn(&str, &str) -> String,
}

impl Page<'_> {
    /// Compares the page with its rendering, or writes it.
    ///
    /// # Panics
    /// If the page is stale.
    fn check(&self) {
        let path = folder().join(self.file);
        let text = fs::read_to_string(&path).expect("the page can be read");
        let rendered = match self.rendered(&text) {
            Ok(rendered) => rendered,
            Err(error) => panic!("docs/reference/{}: {error}", self.file),
        };
        if env::var_os(WRITE).is_some() {
            fs::write(&path, rendered).expect("the page can be written");
        } else if let Some(difference) = difference(&text, &rendered) {
            panic!(
                "docs/reference/{} is stale: run `cargo xtask reference --write` and commit it\n\
                 {difference}",
                self.file
            );
        }
    }

    /// Returns `text` with its generated parts rendered.
    ///
    /// # Errors
    /// A message if the parts of `text` are not those of the page.
    fn rendered(&self, text: &str) -> Result<String, String> {
        let mut rendered = String::with_capacity(text.len());
        let mut missing = self.parts.clone();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            rendered.push_str(line);
            rendered.push('\n');
            let name = line.strip_prefix(BEGIN);
            let Some(name) = name.and_then(|rest| rest.strip_suffix(" -->")) else {
                continue;
            };
            let Some(index) = missing.iter().position(|part| part == name) else {
                return Err(format!(
                    "{name:?} is no part of this page, or is there twice"
                ));
            };
            missing.remove(index);
            let mut present = String::new();
            loop {
                match lines.next() {
                    Some(END) => break,
                    Some(line) if !line.starts_with(BEGIN) => present.extend([line, "\n"]),
                    _ => return Err(format!("the part {name:?} has no {END:?}")),
                }
            }
            let part = (self.render)(name, &present);
            rendered.extend(["\n", &part, "\n", END, "\n"]);
        }
        match missing.first() {
            None => Ok(rendered),
            Some(name) => Err(format!(
                "the part is missing: add {BEGIN}{name} --> and {END}"
            )),
        }
    }
}

/// Returns `docs/reference`.
fn folder() -> PathBuf {
    let package = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let mut above = package
        .ancestors()
        .map(|folder| folder.join("docs/reference"));
    above
        .find(|folder| folder.is_dir())
        .expect("the book is above the package")
}

/// Returns the first line that differs, if there is one.
fn difference(text: &str, rendered: &str) -> Option<String> {
    if text == rendered {
        return None;
    }
    let same = text.lines().zip(rendered.lines());
    let same = same.take_while(|(left, right)| left == right).count();
    let line = |text: &str| text.lines().nth(same).unwrap_or_default().to_owned();
    let (number, is, wanted) = (same + 1, line(text), line(rendered));
    Some(format!(
        "line {number} is:       {is}\nline {number} has to be: {wanted}"
    ))
}

/// Returns a table in Markdown.
fn table(titles: &[&str], rows: &[Vec<String>]) -> String {
    let row = |cells: String| format!("|{cells}\n");
    let mut text = row(titles.iter().map(|title| format!(" {title} |")).collect());
    text += &row("---|".repeat(titles.len()));
    for cells in rows {
        let cell = |cell: &String| match cell.as_str() {
            "" => " |".to_owned(),
            cell => format!(" {cell} |"),
        };
        text += &row(cells.iter().map(cell).collect());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(text: &str) -> Result<String, String> {
        let page = Page {
            file: "",
            parts: vec!["a".to_owned(), "b".to_owned()],
            render: &|name, present| format!("{name}: {}\n", present.len()),
        };
        page.rendered(text)
    }

    #[test]
    fn parts_are_replaced_and_the_rest_stays() {
        let text =
            "x\n<!-- generated: b -->\n1\n<!-- end -->\ny\n<!-- generated: a -->\n<!-- end -->\n";
        let wanted = "x\n<!-- generated: b -->\n\nb: 2\n\n<!-- end -->\ny\n\
                      <!-- generated: a -->\n\na: 0\n\n<!-- end -->\n";
        assert_eq!(rendered(text).as_deref(), Ok(wanted));
        let difference = difference(text, wanted).expect("the page was stale");
        assert!(
            difference.starts_with("line 3 is:       1\n"),
            "{difference}"
        );
        assert_eq!(super::difference(wanted, wanted), None);
    }

    #[test]
    fn parts_that_are_missing_or_unknown_are_found() {
        for (text, said) in [
            (
                "<!-- generated: a -->\n<!-- end -->\n",
                "add <!-- generated: b -->",
            ),
            ("<!-- generated: c -->\n<!-- end -->\n", "\"c\" is no part"),
            ("<!-- generated: a -->\n", "has no"),
            (
                "<!-- generated: a -->\n<!-- generated: b -->\n<!-- end -->\n",
                "\"a\" has no",
            ),
            (
                "<!-- generated: a -->\n<!-- end -->\n<!-- generated: a -->\n<!-- end -->\n",
                "twice",
            ),
        ] {
            let error = rendered(text).expect_err(text);
            assert!(error.contains(said), "{error}");
        }
    }
}
