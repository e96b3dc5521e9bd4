//! Problems of a configuration. Each has file, line and remedy, and all are reported together.

use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use forebay_block::{Error, ErrorKind, Result};

use forebay_terminal::size::HELP;

/// Longest part of a line that is shown, characters.
const SOURCE_CHARS: usize = 109;

/// A byte range of the file, as in the parser.
pub(super) type Span = Range<usize>;

/// Problems of one file, collected while it is read.
pub(super) struct Problems<'a> {
    path: &'a Path,
    text: &'a str,
    found: Vec<(Option<usize>, String, String)>,
    /// Lines of tables that lack a key: its wrong value was removed.
    muted: Vec<Span>,
    /// Lines that are not shown, since they may have a secret.
    withheld: Vec<usize>,
    /// Problems that do not stop the daemon, as complete sentences with file and line.
    pub(super) warnings: Vec<String>,
}

impl<'a> Problems<'a> {
    pub(super) fn new(path: &'a Path, text: &'a str) -> Self {
        Self {
            path,
            text,
            found: Vec::new(),
            muted: Vec::new(),
            withheld: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Returns the line, counted from 1, that holds byte `offset`.
    pub(super) fn line(&self, offset: usize) -> usize {
        let end = offset.min(self.text.len());
        1 + self.text.as_bytes()[..end]
            .iter()
            .filter(|&&byte| byte == b'\n')
            .count()
    }

    /// Returns the directory of relative paths.
    pub(super) fn base(&self) -> PathBuf {
        let parent = self.path.parent().filter(|parent| *parent != Path::new(""));
        std::path::absolute(parent.unwrap_or(Path::new("."))).unwrap_or_default()
    }

    /// Ignores further problems of the table around byte `offset`. They may follow from a value
    /// that was removed.
    pub(super) fn mute_table(&mut self, offset: usize) {
        let line = self.line(offset);
        let is_head = |(_, text): &(usize, &str)| text.trim_start().starts_with('[');
        let lines = self.text.lines().enumerate();
        let heads = lines.filter(is_head).map(|(index, _)| index + 1);
        let start = heads.clone().take_while(|head| *head <= line).last();
        let end = heads.into_iter().find(|head| *head > line);
        self.muted
            .push(start.unwrap_or(1)..end.unwrap_or(usize::MAX));
    }

    /// Shows the line of `span` in no report: it may have a secret.
    pub(super) fn withhold(&mut self, span: &Span) {
        self.withheld.push(self.line(span.start));
    }

    /// Adds a problem of the text at `span`, with the remedy.
    pub(super) fn add(&mut self, span: &Span, what: impl Into<String>, help: impl Into<String>) {
        self.add_at(self.line(span.start), what, help);
    }

    /// Like [`Problems::add`], with a known line; `None` for a value that is not in the file. If
    /// `what` is an error with a help of its own, that one is shown.
    pub(super) fn add_at(
        &mut self,
        line: impl Into<Option<usize>>,
        what: impl Into<String>,
        help: impl Into<String>,
    ) {
        let what = what.into();
        let (what, help) = match what.split_once(HELP) {
            Some((what, own)) => (what.to_owned(), own.to_owned()),
            None => (what, help.into()),
        };
        let line = line.into();
        let is_muted = |line: usize| self.muted.iter().any(|lines| lines.contains(&line));
        if !line.is_some_and(is_muted) {
            self.found.push((line, what, help));
        }
    }

    /// Adds a warning.
    pub(super) fn warn(&mut self, span: &Span, what: &str) {
        let line = self.line(span.start);
        let path = self.path.display();
        self.warnings.push(format!("{path}:{line}: {what}"));
    }

    /// Adds an error of the TOML parser or a value's parser.
    pub(super) fn add_syntax(&mut self, error: &toml::de::Error) {
        let span = error.span().unwrap_or(0..0);
        let message = error.message();
        let line = self.line(span.start);
        if let Some((what, help)) = self.wrong_brackets(line, message) {
            return self.add_at(line, what, help);
        }
        let (what, help) = match message.split_once(HELP) {
            Some((what, help)) => (what, help.to_owned()),
            None => {
                let help = nearest_help(message).or_else(|| self.right_form(&span, message));
                (message, help.unwrap_or_else(|| syntax_help(message)))
            }
        };
        let is_head = self
            .source(line)
            .is_some_and(|source| source.trim_start().starts_with('['));
        let help = match is_head && message.starts_with("unknown field") {
            true => with_brackets(&help),
            false => help,
        };
        let what = match message.starts_with("missing field") {
            true => format!("the table that starts here has a {what}"),
            // The help has the names that are expected.
            false => in_words(what.split(", expected one of ").next().unwrap_or(what)),
        };
        self.add_at(line, what, help);
    }

    /// Returns the problem of a table whose brackets are wrong: one table instead of several, or
    /// the reverse.
    fn wrong_brackets(&self, line: usize, message: &str) -> Option<(String, String)> {
        if !message.starts_with("invalid type: map, expected ") {
            return None;
        }
        let head = self.source(line)?.split('#').next()?.trim();
        let name = head.trim_matches(['[', ']']).trim();
        let single = matches!(name, "cache" | "server");
        let right = match single {
            true => format!("[{name}]"),
            false => format!("[[{name}]]"),
        };
        let known = single || matches!(name, "device" | "volume" | "export");
        (known && head.starts_with('[') && head != right).then(|| {
            let number = if single { "one" } else { "any number" };
            (
                format!("{head} is not how this table begins: there may be {number} of it"),
                format!("write {right}"),
            )
        })
    }

    /// Returns the remedy for a value of the wrong type, with the line as it should be. Returns
    /// `None` if the value does not show that.
    fn right_form(&self, span: &Span, message: &str) -> Option<String> {
        let (_, expected) = message
            .strip_prefix("invalid type: ")?
            .split_once(", expected ")?;
        let source = self.text.lines().nth(self.line(span.start) - 1)?;
        let value = self.text.get(span.clone())?;
        let (key, rest) = source.split_once('=')?;
        if !rest.trim_start().starts_with(value) {
            return None;
        }
        let key = key.trim();
        match without_quotes(value) {
            Some(inner) if is_form(expected, inner) => {
                Some(format!("write {key} = {inner}, without quotes"))
            }
            None if expected == "a string" && !value.starts_with(['[', '{']) => {
                Some(format!("write {key} = \"{value}\", with quotes"))
            }
            _ => expected
                .contains("such as")
                .then(|| format!("write {expected}")),
        }
    }

    /// Returns a line of the file, shortened for people.
    fn source(&self, line: usize) -> Option<&str> {
        let source = self.text.lines().nth(line.checked_sub(1)?)?.trim_end();
        let end = source.char_indices().nth(SOURCE_CHARS);
        Some(end.map_or(source, |(end, _)| &source[..end]))
    }

    pub(super) fn any(&self) -> bool {
        !self.found.is_empty()
    }

    /// Returns an error if there is any problem.
    pub(super) fn into_result(self) -> Result<()> {
        match self.any() {
            true => Err(self.into_error()),
            false => Ok(()),
        }
    }

    /// Returns all problems as one error, in the order of the file.
    pub(super) fn into_error(mut self) -> Error {
        self.found.sort_by_key(|(line, ..)| *line);
        let mut text = String::new();
        for (line, what, help) in &self.found {
            if !text.is_empty() {
                text.push('\n');
            }
            let path = self.path.display();
            let _ = match line {
                Some(line) => write!(text, "{path}:{line}: {what}"),
                None => write!(text, "{path}: {what}"),
            };
            if let Some(line) = line
                && !self.withheld.contains(line)
                && let Some(source) = self.source(*line).filter(|source| !source.is_empty())
            {
                let _ = write!(text, "\n    {line:>4} | {source}");
            }
            let _ = write!(text, "\n    help: {help}");
        }
        // The sentences are complete: the name of the kind adds nothing.
        Error::with_source(ErrorKind::InvalidInput, "", text)
    }
}

/// Returns the inside of a plain text of the file.
pub(super) fn without_quotes(value: &str) -> Option<&str> {
    let inner = ['"', '\'']
        .iter()
        .find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
    inner.map(str::trim).filter(|inner| !inner.is_empty())
}

/// Whether `value` is of the type that the parser expected instead of a text.
fn is_form(expected: &str, value: &str) -> bool {
    match expected {
        "a boolean" => matches!(value, "true" | "false"),
        _ if expected.starts_with("a whole number") => value.parse::<u64>().is_ok(),
        _ => false,
    }
}

/// Returns the listed name that is nearest to an unknown one, if one is near.
fn nearest_help(message: &str) -> Option<String> {
    let unknown = message.strip_prefix("unknown ")?;
    let noun = match unknown.split_once(' ')?.0 {
        "field" => "key",
        _ => "value",
    };
    // Names are between backticks: first the unknown one, then the others.
    let mut names = unknown.split('`').skip(1).step_by(2);
    let wrong = names.next()?;
    let nearest = names
        .map(|name| (strsim::damerau_levenshtein(wrong, name), name))
        .min_by_key(|(distance, _)| *distance)?;
    let (distance, name) = nearest;
    let close = distance * 3 <= wrong.len().max(name.len()) + 2;
    close.then(|| format!("did you mean `{name}`? Write that, or remove the {noun}"))
}

/// Puts the names of tables in a help into their brackets.
fn with_brackets(help: &str) -> String {
    let tables = [
        ("`device`", "`[[device]]`"),
        ("`volume`", "`[[volume]]`"),
        ("`export`", "`[[export]]`"),
        ("`cache`", "`[cache]`"),
        ("`server`", "`[server]`"),
    ];
    let help = help.replace("the key", "the table");
    tables
        .iter()
        .fold(help, |help, (name, head)| help.replace(name, head))
}

/// Replaces the name of a type of the parser by words.
fn in_words(message: &str) -> String {
    let Some((what, kind)) = message.rsplit_once(", expected ") else {
        return message.to_owned();
    };
    let kind = match kind {
        "a boolean" => "true or false",
        "a string" => "text in quotes",
        other => other,
    };
    format!("{what}, expected {kind}")
}

fn syntax_help(message: &str) -> String {
    let expected = message.split_once(", expected ");
    let expected = expected.map_or("no other", |(_, expected)| expected);
    if message.starts_with("unknown field") {
        return format!("remove the key, or use {expected}");
    }
    if message.starts_with("unknown variant") {
        return format!("use {expected}");
    }
    let help = if message.starts_with("missing field") {
        "add the key to this table"
    } else if message.starts_with("invalid type") || message.starts_with("invalid value") {
        "write the value as the kind that is expected: numbers without quotes, text with them"
    } else if message.contains("duplicate") {
        "keep one of the two"
    } else {
        "correct the TOML at this place (strings need quotes, tables look like [[volume]])"
    };
    help.to_owned()
}
