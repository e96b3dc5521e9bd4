//! The traces that a command reads: how they are opened, which volumes count, how far it is.

use std::path::{Path, PathBuf};

use forebay_block::{Error, ErrorKind, Result};
use forebay_trace::read::Counts;
use forebay_trace::{Format, OpenOptions, Request, Trace, Volumes};
use indicatif::{ProgressBar, ProgressStyle};

/// How to read the files.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct ReadArguments {
    /// Leave out records that make no sense, and count them, in place of an error
    #[arg(long)]
    pub(super) skip_bad: bool,
    /// Put requests in order of time, as far as so many requests that wait allow; without it they
    /// come in the order of the file
    #[arg(long, value_name = "REQUESTS", default_value = "0")]
    pub(super) sort_window: usize,
    /// Only this volume; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(super) volume: Vec<String>,
    /// Only so many requests, the first ones
    #[arg(long, value_name = "REQUESTS", default_value_t = u64::MAX, hide_default_value = true)]
    pub(super) limit: u64,
}

/// A trace that is read for a command.
pub(super) struct Input {
    trace: Trace,
    wanted: Vec<String>,
    /// For each volume of the trace its number among those wanted.
    numbers: Vec<Option<u32>>,
    volumes: Volumes,
    /// Requests that may still come.
    left: u64,
    bar: ProgressBar,
}

impl Input {
    pub(super) fn open(
        paths: &[PathBuf],
        format: Option<Format>,
        arguments: &ReadArguments,
    ) -> Result<Self> {
        let options = OpenOptions {
            format,
            skip_bad: arguments.skip_bad,
            sort_window: arguments.sort_window,
        };
        let trace = Trace::open(paths, &options)?;
        let bar = bar(trace.size_bytes(), "{bytes} of {total_bytes}");
        Ok(Self {
            trace,
            wanted: arguments.volume.clone(),
            numbers: Vec::new(),
            volumes: Volumes::new(),
            left: arguments.limit,
            bar,
        })
    }

    /// The next requests of the volumes that count; false at the end.
    pub(super) fn fill(&mut self, batch: &mut Vec<Request>) -> Result<bool> {
        loop {
            if self.left == 0 {
                batch.clear();
                self.bar.finish_and_clear();
                return Ok(false);
            }
            if !self.trace.fill(batch)? {
                self.bar.finish_and_clear();
                return self.check_wanted().map(|()| false);
            }
            self.bar.set_position(self.trace.progress().read_bytes());
            if !self.wanted.is_empty() {
                self.select(batch);
            }
            batch.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left -= batch.len() as u64;
            if !batch.is_empty() {
                return Ok(true);
            }
        }
    }

    /// Leaves the requests of wanted volumes, numbered anew.
    fn select(&mut self, batch: &mut Vec<Request>) {
        let names = self.trace.volumes().names();
        for name in &names[self.numbers.len()..] {
            let wanted = self.wanted.contains(name);
            let number = wanted.then(|| self.volumes.number(name)).flatten();
            self.numbers.push(number);
        }
        batch.retain_mut(|request| {
            let number = self.numbers[request.volume as usize];
            request.volume = number.unwrap_or(0);
            number.is_some()
        });
    }

    fn check_wanted(&self) -> Result<()> {
        let known = self.trace.volumes().names();
        let Some(missing) = self.wanted.iter().find(|name| !known.contains(name)) else {
            return Ok(());
        };
        let mut some = known
            .iter()
            .take(20)
            .cloned()
            .collect::<Vec<_>>()
            .join(", ");
        if known.len() > 20 {
            some += ", ...";
        }
        let said = format!("the trace has no volume {missing:?}; it has {some}");
        Err(Error::new(ErrorKind::NotFound, said))
    }

    /// The volumes that had requests so far.
    pub(super) const fn volumes(&self) -> &Volumes {
        match self.wanted.is_empty() {
            true => self.trace.volumes(),
            false => &self.volumes,
        }
    }

    pub(super) const fn format(&self) -> Format {
        self.trace.format()
    }

    pub(super) fn counts(&self) -> Counts {
        self.trace.counts()
    }

    pub(super) fn zero_unix_ns(&self) -> u64 {
        self.trace.zero_unix_ns()
    }

    /// What to say about records that are not in the result.
    pub(super) fn remarks(&self) -> Vec<String> {
        let counts = self.counts();
        let mut remarks = Vec::new();
        if counts.bad > 0 {
            remarks.push(format!(
                "{} records made no sense and were left out",
                counts.bad
            ));
        }
        if counts.cut_bytes > 0 {
            remarks.push(format!(
                "the recording was cut off: its last {} bytes are no whole frame",
                counts.cut_bytes
            ));
        }
        if counts.lost > 0 {
            remarks.push(format!(
                "{} more requests were served and not recorded: the recorder could not keep up",
                counts.lost
            ));
        }
        if counts.before_zero > 0 {
            remarks.push(format!(
                "{} requests are earlier than the trace's beginning: their time is zero",
                counts.before_zero
            ));
        }
        remarks
    }
}

/// A progress bar on standard error, if that is a terminal.
pub(super) fn bar(total: u64, amounts: &str) -> ProgressBar {
    let style = format!("{{bar:40}} {{percent}}% {amounts}, {{eta}} left");
    let style =
        ProgressStyle::with_template(&style).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style)
}

/// The files as words.
pub(super) fn names(paths: &[PathBuf]) -> String {
    let names = paths
        .iter()
        .map(|path: &PathBuf| Path::display(path).to_string());
    names.collect::<Vec<_>>().join(", ")
}
