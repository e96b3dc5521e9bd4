//! `[cache]`: the fast devices and what an acknowledgement promises.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_cache::{Admission, Cleaning, DirtyTracking};
use serde::Deserialize;
use toml::Spanned;

use super::duration::{self, COMMIT_INTERVALS};
use super::problem::Problems;
use crate::config::block_sizes::block_sizes;
use forebay_terminal::size::{Interval, Percent, Size};

/// Size of the process journal where the configuration says nothing.
pub const JOURNAL_BYTES: u64 = 4 << 20;
/// Share of the cache that may be dirty where the configuration says nothing.
pub const DIRTY_LIMIT_PERCENT: u8 = 60;
/// Longest time that metadata waits for a flush where the configuration says nothing.
pub const COMMIT_INTERVAL: Duration = Duration::from_millis(500);

/// The cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// The name of the device that holds cached data.
    pub data: String,
    /// The name of the device that holds the metadata; none where it lies on the data device.
    pub metadata: Option<String>,
    /// What an acknowledged write survives.
    pub durability: Durability,
    /// The high mark: above this dirty share of the cache, writes that miss go round it.
    pub dirty_limit_percent: u8,
    /// The low mark: below this dirty share, writing back is in no hurry.
    pub dirty_low_percent: u8,
    /// When dirty blocks are written back.
    pub cleaning: Cleaning,
    /// What becomes of writes for which there is no room.
    pub admission: Admission,
    /// Longest time that metadata waits for a flush before it is written anyway.
    pub commit_interval: Duration,
    /// Where the process journal lies, and the line that says so; none for
    /// `/dev/shm/forebay-UUID.journal`.
    pub journal: Option<(PathBuf, usize)>,
    /// Size of the process journal, bytes.
    pub journal_bytes: u64,
    /// The cache block sizes, bytes, and the line that names them; none for those that the cache
    /// was formatted with.
    pub block_sizes: Option<(Vec<u64>, usize)>,
    /// How the cache knows after a crash what was overwritten in place, and the line that says so;
    /// none for what it was formatted with.
    pub dirty_tracking: Option<(DirtyTracking, usize)>,
    /// Whether cached data is expected to have checksums, and the line that says so.
    pub checksums: Option<(bool, usize)>,
    /// The line of the file.
    pub line: usize,
}

impl Cache {
    /// Where the process journal lies, if the configuration says so.
    #[must_use]
    pub fn journal_path(&self) -> Option<&Path> {
        self.journal.as_ref().map(|(path, _)| &**path)
    }

    /// The line of the file that a complaint about the process journal belongs to.
    #[must_use]
    pub fn journal_line(&self) -> usize {
        self.journal.as_ref().map_or(self.line, |(_, line)| *line)
    }
}

/// What an acknowledged write survives besides the death of the process.
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
    pub(super) data: Spanned<String>,
    pub(super) metadata: Option<Spanned<String>>,
    durability: Option<Durability>,
    dirty_limit: Option<Spanned<Percent>>,
    dirty_low: Option<Spanned<Percent>>,
    cleaning: Option<Spanned<String>>,
    admission: Option<Spanned<String>>,
    commit_interval: Option<Spanned<Interval>>,
    journal: Option<Spanned<PathBuf>>,
    journal_size: Option<Spanned<Size>>,
    block_sizes: Option<Spanned<Vec<Size>>>,
    dirty_tracking: Option<Spanned<String>>,
    checksums: Option<Spanned<bool>>,
}

impl RawCache {
    /// Whether an acknowledgement means that a write is durable.
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
