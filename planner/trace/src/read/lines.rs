//! Text formats, line by line.

use forebay_block::Result;

use super::input::Input;
use super::title::{BYTE_ORDER_MARK, is_title};
use super::{Bad, Counts, LineFormat, Place, Source};
use crate::{Request, Volumes};

/// Longest line of a format, bytes: a longer one is not a trace, or damaged.
const MAX_LINE_BYTES: usize = 64 << 10;

pub(super) struct LineReader {
    input: Input,
    format: Box<dyn LineFormat>,
    volumes: Volumes,
    counts: Counts,
    skip_bad: bool,
    line: u64,
    /// Whether the position is within a line that is too long.
    too_long: bool,
    /// Names of the columns, if the file begins with them.
    title: Option<Vec<u8>>,
    /// Whether no line was read yet.
    is_first: bool,
    /// Whether all records have the same number of columns.
    checks_shape: bool,
    /// Shape of the last record with a newline.
    shape: Shape,
}

/// Shape of a complete record: its numbers of commas and words, and whether it ends with a bracket.
#[derive(Clone, Copy, Default)]
struct Shape {
    commas: usize,
    words: usize,
    bracket: bool,
}

impl Shape {
    fn of(line: &[u8]) -> Self {
        Self {
            commas: memchr::memchr_iter(b',', line).count(),
            words: (line
                .split(u8::is_ascii_whitespace)
                .filter(|word| !word.is_empty()))
            .count(),
            bracket: line.trim_ascii_end().ends_with(b"]"),
        }
    }

    /// Returns whether a record without a newline has less than this one, which precedes it.
    fn is_cut(self, last: &[u8]) -> bool {
        let last = Self::of(last);
        match self.bracket {
            // A process name may have blanks.
            true => !last.bracket,
            false => last.commas < self.commas || last.words < self.words,
        }
    }
}

impl LineReader {
    /// Returns a reader of `input`. `volumes` has the file's own volume, if the format has none.
    pub(super) fn new(
        input: Input,
        format: Box<dyn LineFormat>,
        volumes: Volumes,
        skip_bad: bool,
    ) -> Self {
        Self {
            input,
            format,
            volumes,
            counts: Counts::default(),
            skip_bad,
            line: 0,
            too_long: false,
            title: None,
            is_first: true,
            checks_shape: true,
            shape: Shape::default(),
        }
    }

    /// Accepts any shape of the last record: the records of the format differ in their columns.
    pub(super) fn with_any_shape(self) -> Self {
        Self {
            checks_shape: false,
            ..self
        }
    }

    /// Parses whole lines of the window until the batch is full. Returns whether it is.
    fn lines(&mut self, batch: &mut Vec<Request>, full: usize, last: bool) -> Result<bool> {
        let mut at = 0;
        let mut failed = None;
        let mut whole = None;
        let data = self.input.data();
        while batch.len() < full {
            let rest = &data[at..];
            let end = match memchr::memchr(b'\n', rest) {
                Some(end) => end,
                None if last && !rest.is_empty() => rest.len(),
                None => break,
            };
            let line = &rest[..end];
            let is_ended = end < rest.len();
            at += (end + 1).min(rest.len());
            self.line += 1;
            if self.too_long {
                self.too_long = false;
                continue;
            }
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let line = match self.line {
                1 => line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line),
                _ => line,
            };
            if line.is_empty() {
                continue;
            }
            let decoded = if line.len() > MAX_LINE_BYTES {
                Err(Bad::TOO_LONG)
            } else if !is_ended && self.checks_shape && self.shape.is_cut(line) {
                Err(Bad::CUT_OFF)
            } else {
                self.format.line(line, &mut self.volumes)
            };
            let decoded = match decoded {
                // Joined files may have a title each.
                Err(_) if self.title.as_deref() == Some(line) => Ok(None),
                Err(_) if self.is_first && is_title(line) => {
                    self.title = Some(line.to_owned());
                    Ok(None)
                }
                decoded => decoded,
            };
            self.is_first = false;
            match decoded {
                Ok(Some(request)) => {
                    batch.push(request);
                    whole = is_ended.then_some(line).or(whole);
                }
                Ok(None) => self.counts.ignored += 1,
                Err(_) if self.skip_bad => self.counts.bad += 1,
                Err(bad) => {
                    failed = Some(bad.error(self.input.name(), Place::Line(self.line), line));
                    break;
                }
            }
        }
        if let Some(line) = whole {
            self.shape = Shape::of(line);
        }
        self.input.consume(at);
        failed.map_or_else(|| Ok(batch.len() >= full), Err)
    }
}

impl Source for LineReader {
    fn fill(&mut self, batch: &mut Vec<Request>, limit: usize) -> Result<bool> {
        let full = batch.len() + limit;
        loop {
            if self.lines(batch, full, false)? {
                return Ok(true);
            }
            if self.input.more()? {
                continue;
            }
            let rest = self.input.data();
            if rest.len() <= MAX_LINE_BYTES {
                // The file ends, with or without a newline.
                return self.lines(batch, full, true);
            }
            if !self.too_long {
                self.too_long = true;
                self.counts.bad += 1;
                if !self.skip_bad {
                    let place = Place::Line(self.line + 1);
                    return Err(Bad::TOO_LONG.error(self.input.name(), place, rest));
                }
            }
            let whole = rest.len();
            self.input.consume(whole);
        }
    }

    fn volumes(&self) -> &Volumes {
        &self.volumes
    }

    fn counts(&self) -> Counts {
        self.counts
    }

    fn remark(&self) -> Option<&'static str> {
        self.format.remark()
    }
}
