//! Text, line by line.

use forebay_block::Result;

use super::input::Input;
use super::{Bad, Counts, LineFormat, Place, Source};
use crate::{Request, Volumes};

/// No format has longer lines: what is longer is no trace, or damaged.
const MAX_LINE_BYTES: usize = 64 << 10;

pub(super) struct LineReader {
    input: Input,
    format: Box<dyn LineFormat>,
    volumes: Volumes,
    counts: Counts,
    skip_bad: bool,
    line: u64,
    /// In the middle of a line that is too long.
    too_long: bool,
}

impl LineReader {
    /// Reads `input`; `volumes` has the file's own volume, where the format has none.
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
        }
    }

    /// Takes whole lines from the window until the batch is full. True if it is.
    fn lines(&mut self, batch: &mut Vec<Request>, full: usize, last: bool) -> Result<bool> {
        let mut at = 0;
        let mut failed = None;
        let data = self.input.data();
        while batch.len() < full {
            let rest = &data[at..];
            let end = match memchr::memchr(b'\n', rest) {
                Some(end) => end,
                None if last && !rest.is_empty() => rest.len(),
                None => break,
            };
            let line = &rest[..end];
            at += (end + 1).min(rest.len());
            self.line += 1;
            if self.too_long {
                self.too_long = false;
                continue;
            }
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                continue;
            }
            let decoded = if line.len() > MAX_LINE_BYTES {
                Err(Bad::TOO_LONG)
            } else {
                self.format.line(line, &mut self.volumes)
            };
            match decoded {
                Ok(Some(request)) => batch.push(request),
                Ok(None) => self.counts.ignored += 1,
                Err(_) if self.skip_bad => self.counts.bad += 1,
                Err(bad) => {
                    failed = Some(bad.error(self.input.name(), Place::Line(self.line), line));
                    break;
                }
            }
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
                // The file ends, perhaps without a newline.
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
}
