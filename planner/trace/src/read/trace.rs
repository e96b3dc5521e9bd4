//! A trace: one or several files, from the first request to the last.

use std::io::Read;
use std::path::Path;

use forebay_block::{Error, ErrorKind, Result};

use super::merge::Merge;
use super::open::{self, Epoch, Named};
use super::sort::Sort;
use super::{Counts, OpenOptions, Progress};
use crate::{Format, Request, Volumes};

/// Most requests in a batch.
pub const BATCH_REQUESTS: usize = 4096;

/// Number of requests whose earliest is time zero: files are out of order only over short
/// distances.
const LOOK_AHEAD_REQUESTS: usize = 1 << 16;

/// Time from 1601, the epoch of Windows, to 1970, nanoseconds.
const WINDOWS_TO_UNIX_NS: u64 = 11_644_473_600 * 1_000_000_000;

/// Reader of a trace, batch by batch.
pub struct Trace {
    merge: Merge,
    sort: Sort,
    format: Format,
    epoch: Epoch,
    progress: Progress,
    size_bytes: u64,
    /// First requests, until they are returned.
    first: Vec<Request>,
    first_at: usize,
    more: bool,
    /// Error to return after the requests before it.
    failed: Option<Error>,
    zero_ns: Option<u64>,
    last_ns: u64,
    counts: Counts,
}

impl Trace {
    /// Opens the files of a trace. Several files are read concurrently and merged by time, as if
    /// their volumes had been used at the same time.
    ///
    /// # Errors
    /// If a file cannot be read, its format is not recognized, or the formats differ.
    pub fn open<P: AsRef<Path>>(paths: &[P], options: &OpenOptions) -> Result<Self> {
        let (named, size_bytes) = open::files(paths)?;
        Self::new(named, size_bytes, options)
    }

    /// Reads a trace from a reader other than a file. `name` is used in errors, for detecting the
    /// format, and as the volume of a format without volumes.
    ///
    /// # Errors
    /// Like [`Trace::open`].
    pub fn from_reader(
        name: &str,
        reader: impl Read + Send + 'static,
        options: &OpenOptions,
    ) -> Result<Self> {
        let named: Named = (name.to_owned(), Box::new(reader));
        Self::new(vec![named], 0, options)
    }

    fn new(named: Vec<Named>, size_bytes: u64, options: &OpenOptions) -> Result<Self> {
        let progress = Progress::default();
        let opened = open::open(named, options, &progress)?;
        let Some(first) = opened.first() else {
            let said = "a trace needs a file\nhelp: name one or more";
            return Err(Error::new(ErrorKind::InvalidInput, said));
        };
        let (format, epoch) = (first.format, first.epoch);
        if opened.iter().any(|file| file.epoch != epoch) {
            let said = "some of the files say when they were recorded and some do not: they cannot \
                        be put in order of time";
            return Err(Error::new(ErrorKind::InvalidInput, said));
        }
        let sources = opened.into_iter().map(|file| file.source);
        Ok(Self {
            merge: Merge::new(sources.collect()),
            sort: Sort::new(options.sort_window),
            format,
            epoch,
            progress,
            size_bytes,
            first: Vec::new(),
            first_at: 0,
            more: true,
            failed: None,
            zero_ns: None,
            last_ns: 0,
            counts: Counts::default(),
        })
    }

    /// Replaces the contents of `batch` with the next requests, at most [`BATCH_REQUESTS`]. Returns
    /// false, with an empty batch, at the end of the trace.
    ///
    /// # Errors
    /// If a file cannot be read, or a record is invalid and bad ones are not skipped. The requests
    /// before it were returned, and the trace has ended.
    pub fn fill(&mut self, batch: &mut Vec<Request>) -> Result<bool> {
        batch.clear();
        let zero_ns = match self.zero_ns {
            Some(zero_ns) => zero_ns,
            None => self.look_ahead(),
        };
        if self.first_at < self.first.len() {
            let end = (self.first_at + BATCH_REQUESTS).min(self.first.len());
            batch.extend_from_slice(&self.first[self.first_at..end]);
            self.first_at = end;
            if end == self.first.len() {
                self.first = Vec::new();
                self.first_at = 0;
            }
        }
        while batch.is_empty() && self.more {
            let filled = self.sort.fill(&mut self.merge, batch, BATCH_REQUESTS);
            self.note(filled);
        }
        if batch.is_empty() {
            return self.failed.take().map_or(Ok(false), Err);
        }
        let (mut last_ns, mut out_of_order, mut before_zero) = (self.last_ns, 0, 0);
        for request in batch.iter_mut() {
            before_zero += u64::from(request.time_ns < zero_ns);
            request.time_ns = request.time_ns.saturating_sub(zero_ns);
            out_of_order += u64::from(request.time_ns < last_ns);
            last_ns = request.time_ns;
        }
        self.last_ns = last_ns;
        self.counts.out_of_order += out_of_order;
        self.counts.before_zero += before_zero;
        Ok(true)
    }

    fn note(&mut self, filled: Result<bool>) {
        self.more = matches!(filled, Ok(true));
        self.failed = filled.err();
    }

    /// Reads the first requests to find time zero.
    #[cold]
    fn look_ahead(&mut self) -> u64 {
        while self.more && self.first.len() < LOOK_AHEAD_REQUESTS {
            let filled = self
                .sort
                .fill(&mut self.merge, &mut self.first, BATCH_REQUESTS);
            self.note(filled);
        }
        let zero_ns = self.first.iter().map(|request| request.time_ns).min();
        let zero_ns = zero_ns.unwrap_or(0);
        self.zero_ns = Some(zero_ns);
        zero_ns
    }

    /// Returns the format of the files.
    #[must_use]
    pub const fn format(&self) -> Format {
        self.format
    }

    /// Returns the volumes with requests so far.
    #[must_use]
    pub const fn volumes(&self) -> &Volumes {
        self.merge.volumes()
    }

    /// Returns the counts of records other than requests so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = self.merge.counts();
        counts.add(self.counts);
        counts
    }

    /// Returns remarks about how the files are read: sentences, each once.
    #[must_use]
    pub fn remarks(&self) -> Vec<&'static str> {
        self.merge.remarks()
    }

    /// Returns the time of the trace's zero, nanoseconds since 1970; zero if unknown. Valid after
    /// the first [`Trace::fill`].
    #[must_use]
    pub fn zero_unix_ns(&self) -> u64 {
        let zero_ns = self.zero_ns.unwrap_or(0);
        match self.epoch {
            Epoch::Unknown => 0,
            Epoch::Unix => zero_ns,
            Epoch::Windows => zero_ns.saturating_sub(WINDOWS_TO_UNIX_NS),
        }
    }

    /// Returns the progress, which stays up to date.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Returns the size of all files, compressed, bytes; zero if unknown.
    #[must_use]
    pub const fn size_bytes(&self) -> u64 {
        self.size_bytes
    }
}
