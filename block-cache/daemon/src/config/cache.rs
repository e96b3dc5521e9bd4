//! `[cache]`: the fast devices, and the durability of acknowledged writes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_cache::{Admission, Cleaning, DirtyTracking};
use serde::Deserialize;
use toml::Spanned;

use super::duration::{self, COMMIT_INTERVALS};
use super::problem::Problems;
use crate::config::block_sizes::block_sizes;
use forebay_terminal::size::{Interval, Percent, Size};

/// Default size of the process journal, bytes.
pub const JOURNAL_BYTES: u64 = 4 << 20;
/// Default share of the cache that may be dirty, percent.
pub const DIRTY_LIMIT_PERCENT: u8 = 60;
/// Default limit on the time that metadata waits for a flush.
pub const COMMIT_INTERVAL: Duration = Duration::from_millis(500);

/// The cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Name of the device that holds cached data.
    pub data: String,
    /// Name of the device that holds the metadata; `None` if it is on the data device.
    pub metadata: Option<String>,
    /// Events that acknowledged writes survive.
    pub durability: Durability,
    /// High mark: above this dirty share of the cache, writes that miss bypass it, percent.
    pub dirty_limit_percent: u8,
    /// Low mark: below this dirty share, write-back is slow, percent.
    pub dirty_low_percent: u8,
    /// Cleaning policy.
    pub cleaning: Cleaning,
    /// Treatment of writes when the cache is full.
    pub admission: Admission,
    /// Longest time that metadata waits for a flush before it is written.
    pub commit_interval: Duration,
    /// Path of the process journal, and its line in the file; `None` for
    /// `/dev/shm/forebay-UUID.journal`.
    pub journal: Option<(PathBuf, usize)>,
    /// Size of the process journal, bytes.
    pub journal_bytes: u64,
    /// Cache block sizes, bytes, and their line in the file; `None` for those of the cache's
    /// format.
    pub block_sizes: Option<(Vec<u64>, usize)>,
    /// Method of finding data that was overwritten in place after a crash, and its line in the
    /// file; `None` for that of the cache's format.
    pub dirty_tracking: Option<(DirtyTracking, usize)>,
    /// Whether cached data should have checksums, and the line of this in the file.
    pub checksums: Option<(bool, usize)>,
    /// Line in the file.
    pub line: usize,
}

impl Cache {
    /// Returns the path of the process journal, if the configuration sets it.
    #[must_use]
    pub fn journal_path(&self) -> Option<&Path> {
        self.journal.as_ref().map(|(path, _)| &**path)
    }

    /// Returns the line in the file for problems of the process journal.
    #[must_use]
    pub fn journal_line(&self) -> usize {
        self.journal.as_ref().map_or(self.line, |(_, line)| *line)
    }
}

/// Events that acknowledged writes survive, besides the death of the process.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// Power loss, at once.
    Sync,
    /// Power loss, after the client's next flush.
    #[default]
    Flush,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCache {
    /// Device with cached data.
    ///
    /// - Type: device name
    /// - Range: of this machine
    pub(super) data: Spanned<String>,
    /// Device with the log.
    ///
    /// - Type: device name
    /// - Default: on `data`
    /// - Range: of this machine; `pmem` allowed
    pub(super) metadata: Option<Spanned<String>>,
    /// Effect of power loss.
    ///
    /// - Default: `"flush"`
    /// - Range: `flush`, `sync`
    durability: Option<Durability>,
    /// High mark: above it, writes that miss bypass the cache.
    ///
    /// - Default: `"60%"`
    /// - Range: 1% to 100%
    dirty_limit: Option<Spanned<Percent>>,
    /// Low mark: below it, `auto` does not hurry.
    ///
    /// - Default: a third of `dirty_limit`
    /// - Range: at most `dirty_limit`
    dirty_low: Option<Spanned<Percent>>,
    /// Write-back policy.
    ///
    /// - Type: text
    /// - Default: `"auto"`
    /// - Range: `auto`, `alru`, `acp`, `nop`
    cleaning: Option<Spanned<String>>,
    /// Writes without room.
    ///
    /// - Type: text
    /// - Default: `"always"`
    /// - Range: `always`, `measured`
    admission: Option<Spanned<String>>,
    /// Time between commits without a FLUSH.
    ///
    /// - Default: `"500ms"`
    /// - Range: 1ms to 1h
    commit_interval: Option<Spanned<Interval>>,
    /// Process journal.
    ///
    /// - Default: `/dev/shm/forebay-UUID.journal`
    /// - Range: on a tmpfs
    journal: Option<Spanned<PathBuf>>,
    /// Size of the process journal.
    ///
    /// - Default: `"4M"`
    /// - Range: 1M to 1G; rounded up to whole 4K
    journal_size: Option<Spanned<Size>>,
    /// Expected block sizes.
    ///
    /// - Default: as formatted
    /// - Range: powers of two, 4K to 1M
    block_sizes: Option<Spanned<Vec<Size>>>,
    /// Expected method of dirty tracking.
    ///
    /// - Type: text
    /// - Default: as formatted
    /// - Range: `exact`, `abt`, `none`
    dirty_tracking: Option<Spanned<String>>,
    /// Expected checksums.
    ///
    /// - Default: as formatted
    checksums: Option<Spanned<bool>>,
}

impl RawCache {
    /// Whether an acknowledged write is durable.
    pub(super) fn is_sync(&self) -> bool {
        self.durability == Some(Durability::Sync)
    }

    pub(super) fn resolve(&self, problems: &mut Problems<'_>) -> Cache {
        if let Some(size) = &self.journal_size
            && !(1 << 20..=1 << 30).contains(&size.get_ref().0)
        {
            problems.add(
                &size.span(),
                "the process journal has between 1M and 1G",
                "write a size such as \"4M\", or leave `journal_size` out",
            );
        }
        if let Some(interval) = &self.commit_interval
            && interval.get_ref().0.is_zero()
        {
            problems.add(
                &interval.span(),
                "a commit interval of zero never rests",
                "write a time such as \"500ms\"; for durability at every write use durability = \
                 \"sync\"",
            );
        }
        let block_sizes = self.block_sizes.as_ref().and_then(|sizes| {
            match block_sizes(sizes.get_ref()) {
                Ok(bytes) => Some((bytes, problems.line(sizes.span().start))),
                Err(what) => {
                    let help =
                        "write block_sizes = [\"32K\", \"64K\", \"128K\", \"256K\"], or one size";
                    problems.add(&sizes.span(), what, help);
                    None
                }
            }
        });
        let dirty_tracking =
            self.dirty_tracking
                .as_ref()
                .and_then(|name| match name.get_ref().parse() {
                    Ok(tracking) => Some((tracking, problems.line(name.span().start))),
                    Err(error) => {
                        let error: forebay_block::Error = error;
                        let help = "write dirty_tracking = \"exact\", or leave it out";
                        problems.add(&name.span(), error.report(), help);
                        None
                    }
                });
        let checksums = (self.checksums.as_ref())
            .map(|wanted| (*wanted.get_ref(), problems.line(wanted.span().start)));
        let cleaning = self.cleaning.as_ref().map_or(Cleaning::default(), |name| {
            Cleaning::named(name.get_ref()).unwrap_or_else(|| {
                let what = format!("there is no cleaning policy {:?}", name.get_ref());
                let help = "write \"auto\", \"alru\", \"acp\" or \"nop\", or leave `cleaning` out";
                problems.add(&name.span(), what, help);
                Cleaning::default()
            })
        });
        let admission = (self.admission.as_ref()).map_or(Admission::default(), |name| {
            Admission::named(name.get_ref()).unwrap_or_else(|| {
                let what = format!("there is no admission {:?}", name.get_ref());
                let help = "write \"always\" or \"measured\", or leave `admission` out";
                problems.add(&name.span(), what, help);
                Admission::default()
            })
        });
        let percent = |given: &Option<Spanned<Percent>>| given.as_ref().map(|p| p.get_ref().0);
        let dirty_limit_percent = percent(&self.dirty_limit).unwrap_or(DIRTY_LIMIT_PERCENT);
        let dirty_low_percent = percent(&self.dirty_low).unwrap_or(dirty_limit_percent / 3);
        if let Some(low) = &self.dirty_low
            && dirty_low_percent > dirty_limit_percent
        {
            problems.add(
                &low.span(),
                format!(
                    "the low mark is above the high one, `dirty_limit`, of {dirty_limit_percent}%"
                ),
                "write a smaller share, or leave `dirty_low` out for a third of `dirty_limit`",
            );
        }
        Cache {
            checksums,
            cleaning,
            admission,
            dirty_low_percent,
            block_sizes,
            dirty_tracking,
            data: self.data.get_ref().clone(),
            metadata: self.metadata.as_ref().map(|name| name.get_ref().clone()),
            durability: self.durability.unwrap_or_default(),
            dirty_limit_percent,
            commit_interval: duration::check(
                &COMMIT_INTERVALS,
                self.commit_interval.as_ref(),
                "a `commit_interval`",
                problems,
            )
            .unwrap_or(COMMIT_INTERVAL),
            journal: self.journal.as_ref().map(|path| {
                let line = problems.line(path.span().start);
                (problems.base().join(path.get_ref()), line)
            }),
            journal_bytes: self.journal_size.as_ref().map_or(JOURNAL_BYTES, |size| {
                size.get_ref().0.next_multiple_of(4096)
            }),
            line: problems.line(self.data.span().start),
        }
    }
}
