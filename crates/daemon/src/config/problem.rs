//! What is wrong with a configuration: each problem names file, line and remedy, and all of them
//! are told at once.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use forebay_block::{Error, ErrorKind};

use super::size::HELP;

/// A byte range of the file, as the parser counts.
pub(super) type Span = Range<usize>;

/// Problems of one file, collected while it is read.
pub(super) struct Problems<'a> {
    path: &'a Path,
    text: &'a str,
    found: Vec<(usize, String, String)>,
    /// Problems that do not stop the daemon, as complete sentences with file and line.
    pub(super) warnings: Vec<String>,
}

impl<'a> Problems<'a> {
    pub(super) fn new(path: &'a Path, text: &'a str) -> Self {
        Self {
            path,
            text,
            found: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// The line, counted from 1, that holds byte `offset`.
    pub(super) fn line(&self, offset: usize) -> usize {
        let end = offset.min(self.text.len());
        1 + self.text.as_bytes()[..end]
            .iter()
            .filter(|&&byte| byte == b'\n')
            .count()
    }

    /// The directory that relative paths start from.
    pub(super) fn base(&self) -> PathBuf {
        let parent = self.path.parent().filter(|parent| *parent != Path::new(""));
        std::path::absolute(parent.unwrap_or(Path::new("."))).unwrap_or_default()
    }

    /// Notes that what stands at `span` is wrong, and how to put it right.
    pub(super) fn add(&mut self, span: &Span, what: impl Into<String>, help: impl Into<String>) {
        let line = self.line(span.start);
        self.found.push((line, what.into(), help.into()));
    }

    /// Like [`Problems::add`], where the line is known.
    pub(super) fn add_at(&mut self, line: usize, what: String, help: String) {
        self.found.push((line, what, help));
    }

    /// Notes something that deserves a look.
    pub(super) fn warn(&mut self, span: &Span, what: &str) {
        let line = self.line(span.start);
        let path = self.path.display();
        self.warnings.push(format!("{path}:{line}: {what}"));
    }

    /// What the TOML parser or a value's parser said.
    pub(super) fn add_syntax(&mut self, error: &toml::de::Error) {
        let span = error.span().unwrap_or(0..0);
        let message = error.message();
        let (what, help) = match message.split_once(HELP) {
            Some((what, help)) => (what, help.to_owned()),
            None => (message, syntax_help(message).to_owned()),
        };
        let line = self.line(span.start);
        let table = match message.starts_with("missing field") {
            true => format!("the table that starts here has a {what}"),
            false => what.to_owned(),
        };
        self.found.push((line, table, help));
    }

    pub(super) fn any(&self) -> bool {
        !self.found.is_empty()
    }

    /// All problems as one error, in the order of the file.
    pub(super) fn into_error(mut self) -> Error {
        self.found.sort_by_key(|(line, ..)| *line);
        let mut text = String::new();
        for (line, what, help) in &self.found {
            if !text.is_empty() {
                text.push('\n');
            }
            let _ = write!(text, "{}:{line}: {what}", self.path.display());
            let source = self.text.lines().nth(line - 1).map(str::trim_end);
            if let Some(source) = source.filter(|source| !source.is_empty()) {
                let _ = write!(text, "\n    {line:>4} | {source}");
            }
            let _ = write!(text, "\n    help: {help}");
        }
        // Said in whole sentences: the kind's name has nothing to add.
        Error::with_source(ErrorKind::InvalidInput, "", text)
    }
}

fn syntax_help(message: &str) -> &'static str {
    if message.starts_with("unknown field") {
        "remove the key, or use one of the names that are listed"
    } else if message.starts_with("unknown variant") {
        "use one of the values that are listed"
    } else if message.starts_with("missing field") {
        "add the key to this table"
    } else if message.starts_with("invalid type") {
        "write the value as the kind that is expected"
    } else if message.contains("duplicate") {
        "keep one of the two"
    } else {
        "correct the TOML at this place (strings need quotes, tables look like [[volume]])"
    }
}
