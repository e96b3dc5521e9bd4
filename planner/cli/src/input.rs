//! Input traces of a command: opening, selection of volumes, and progress.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use forebay_block::{Error, ErrorKind, Result};
use forebay_trace::read::{Counts, TimeUnit};
use forebay_trace::{Format, OpenOptions, Request, Trace, Volumes};
use indicatif::{ProgressBar, ProgressStyle};

use forebay_terminal::number::whole;
use forebay_terminal::size::human_count;

/// Options for reading the files.
#[derive(Debug, clap::Args)]
pub struct ReadArguments {
    /// Skip and count invalid records, instead of reporting an error
    #[arg(long)]
    pub skip_bad: bool,
    /// Sort requests by time within a window of this many; by default they stay in the order of the
    /// file
    #[arg(long, value_name = "REQUESTS", default_value = "0",
        value_parser = whole::<usize>(0..=u64::MAX))]
    pub sort_window: usize,
    /// Unit of the trace's times, if it differs from that of the format: ns, 100ns, us, ms or s
    #[arg(long, value_name = "UNIT")]
    pub time_unit: Option<TimeUnit>,
    /// Read only this volume; may be given several times
    #[arg(long, value_name = "NAME")]
    pub volume: Vec<String>,
    /// Read only this many requests, the first ones
    #[arg(long, value_name = "REQUESTS", default_value_t = u64::MAX, hide_default_value = true,
        value_parser = whole::<u64>(1..=u64::MAX))]
    pub limit: u64,
}

/// Input trace of a command.
pub struct Input {
    files: Vec<PathBuf>,
    trace: Trace,
    wanted: Vec<String>,
    /// Number of each volume of the trace among the selected ones.
    numbers: Vec<Option<u32>>,
    volumes: Volumes,
    /// Remaining number of requests.
    left: u64,
    limit: u64,
    bar: ProgressBar,
}

impl Input {
    /// Opens the files as one trace, with a progress bar.
    ///
    /// # Errors
    /// A file that cannot be read, or whose format is unknown.
    pub fn open(
        paths: &[PathBuf],
        format: Option<Format>,
        arguments: &ReadArguments,
    ) -> Result<Self> {
        let options = OpenOptions {
            format,
            skip_bad: arguments.skip_bad,
            sort_window: arguments.sort_window,
            time_unit: arguments.time_unit,
        };
        let trace = Trace::open(paths, &options)?;
        let bar = bar(trace.size_bytes(), "{bytes} of {total_bytes}");
        Ok(Self {
            files: paths.to_vec(),
            trace,
            wanted: arguments.volume.clone(),
            numbers: Vec::new(),
            volumes: Volumes::new(),
            left: arguments.limit,
            limit: arguments.limit,
            bar,
        })
    }

    /// Reads the next requests of the selected volumes. Returns false at the end.
    pub fn fill(&mut self, batch: &mut Vec<Request>) -> Result<bool> {
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

    /// Removes requests of other volumes, and renumbers the rest.
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

    /// Checks, at the end of the trace, that it had the selected volumes.
    fn check_wanted(&self) -> Result<()> {
        let known = self.trace.volumes().names();
        if let Some(missing) = self.wanted.iter().find(|name| !known.contains(name)) {
            let said = match known {
                [] => format!("the trace has no volume {missing:?}, nor any other"),
                _ => format!(
                    "the trace has no volume {missing:?}; it has {}",
                    some(known)
                ),
            };
            return Err(Error::new(ErrorKind::NotFound, said));
        }
        let counts = self.counts();
        if self.left < self.limit {
            return Ok(());
        }
        if counts.bad > 0 {
            let said = format!(
                "no request is left: {} could not be read as {}\n\
                 help: name another format (--format), or fetch the file a second time",
                human_count(counts.bad, "record"),
                self.format()
            );
            return Err(Error::new(ErrorKind::InvalidInput, said));
        }
        if self.wanted.is_empty() {
            return Ok(());
        }
        let said = format!(
            "the trace has no request for {}; it has volumes {}",
            some(&self.wanted),
            some(known)
        );
        Err(Error::new(ErrorKind::NotFound, said))
    }

    /// Refuses a trace without requests.
    ///
    /// # Errors
    /// `InvalidInput` if there was no request.
    pub fn check_not_empty(&self) -> Result<()> {
        if self.left < self.limit {
            return Ok(());
        }
        let ignored = match self.counts().ignored {
            0 => String::new(),
            ignored => format!(
                ", of {} that ask for nothing",
                human_count(ignored, "record")
            ),
        };
        let said = format!(
            "{}: there is no request in it, read as {}{ignored}\n\
             help: name another file, or another format (--format)",
            names(&self.files),
            self.format()
        );
        Err(Error::new(ErrorKind::InvalidInput, said))
    }

    /// Returns the volumes with requests so far.
    pub const fn volumes(&self) -> &Volumes {
        match self.wanted.is_empty() {
            true => self.trace.volumes(),
            false => &self.volumes,
        }
    }

    /// Returns whether --limit ended the input, possibly before the end of the trace.
    pub const fn is_cut(&self) -> bool {
        self.left == 0
    }

    /// Returns the format that the files have.
    pub const fn format(&self) -> Format {
        self.trace.format()
    }

    /// Returns the counts of records that are not in the result.
    pub fn counts(&self) -> Counts {
        self.trace.counts()
    }

    /// Returns the time of the trace's zero, nanoseconds since 1970.
    pub fn zero_unix_ns(&self) -> u64 {
        self.trace.zero_unix_ns()
    }

    /// Returns remarks about records that are not in the result.
    pub fn remarks(&self) -> Vec<String> {
        let counts = self.counts();
        let mut remarks = Vec::new();
        let mut say = |count, what: &str, said: &str| {
            if count > 0 {
                remarks.push(format!("{} {said}", human_count(count, what)));
            }
        };
        say(
            counts.bad,
            "record",
            "left out, since they could not be read (--skip-bad)",
        );
        say(
            counts.cut_bytes,
            "byte",
            "at the end are no whole frame: the recording was cut off",
        );
        say(
            counts.lost,
            "more request",
            "served and not recorded: the recorder could not keep up",
        );
        say(
            counts.before_zero,
            "request",
            "earlier than the trace's beginning: their time is zero",
        );
        remarks.extend(self.trace.remarks().into_iter().map(str::to_owned));
        let known = self.trace.volumes().names();
        for name in self.wanted.iter().filter(|name| !known.contains(name)) {
            remarks.push(format!(
                "there is no request for volume {name:?} before the end that --limit sets"
            ));
        }
        remarks
    }
}

/// Returns the first of many names.
pub fn some(names: &[String]) -> String {
    let mut some = names
        .iter()
        .take(20)
        .cloned()
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > 20 {
        some += &format!(" and {} more", names.len() - 20);
    }
    some
}

/// Returns whether two names refer to one existing file, through any links.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| {
        let metadata = std::fs::metadata(path).ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    identity(one).is_some_and(|own| identity(other) == Some(own))
}

/// Refuses an output that is one of the input files, under any name or link.
///
/// # Errors
/// `InvalidInput` that names both.
pub fn refuse_input(output: &Path, inputs: &[PathBuf]) -> Result<()> {
    let same = inputs.iter().find(|input| is_same_file(output, input));
    same.map_or(Ok(()), |input| {
        let said = format!(
            "this is the trace that is read ({}), which would be overwritten\n\
             help: name another file to write than {}",
            input.display(),
            output.display()
        );
        Err(Error::new(ErrorKind::InvalidInput, said))
    })
}

/// Returns the file names as text, since JSON has no other names.
pub fn json_names(paths: &[PathBuf]) -> Vec<String> {
    let names = paths.iter().map(|path| path.to_string_lossy());
    names.map(Into::into).collect()
}

/// Returns a progress bar on standard error, if that is a terminal.
pub fn bar(total: u64, amounts: &str) -> ProgressBar {
    let style = format!("{{bar:40}} {{percent}}% {amounts}, {{eta}} left");
    let style =
        ProgressStyle::with_template(&style).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style)
}

/// Returns the file names as a list in words.
pub fn names(paths: &[PathBuf]) -> String {
    let names = paths
        .iter()
        .map(|path: &PathBuf| Path::display(path).to_string());
    names.collect::<Vec<_>>().join(", ")
}
