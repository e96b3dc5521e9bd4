//! The findings of an opening.

use std::fmt;
use std::pin::Pin;
use std::rc::Rc;

use forebay_block::Result;

use crate::lost_range::LostRange;

/// Findings of opening a cache.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    /// The last shutdown was clean.
    pub clean_shutdown: bool,
    /// The cache was open last in an earlier boot of the machine.
    pub power_was_lost: bool,
    /// There was no record at all: the cache is as it was formatted.
    pub never_used: bool,
    /// Blocks that are cached.
    pub cached_blocks: u64,
    /// Blocks that count as dirty.
    pub dirty_blocks: u64,
    /// Records of acknowledged writes that the process journal had and the log had not.
    pub journal_entries: u64,
    /// Damaged records in the log.
    pub damaged_records: u64,
    /// Units of the log that could not be read.
    pub unreadable_units: u64,
    /// Number of dirty blocks that no record calls dirty: those under a mark or in the bit-tree, or
    /// all.
    pub doubtful_blocks: u64,
    /// Units of the bit-tree that could not be believed, and count as all dirty.
    pub lost_tree_units: u32,
    /// Bytes of cached data whose checksums are not known; they are believed.
    pub unverified_bytes: u64,
    /// Number of blocks whose clean copy was dropped because a write may have bypassed it.
    pub distrusted_blocks: u64,
    /// Ranges that a failed flush of the cache device may have lost: [`RecoveryReport::loss`] has
    /// the message.
    pub lost: Vec<LostRange>,
    /// Whether none of the lost writes was acknowledged: with `durability = "sync"` they were
    /// overwriting earlier data.
    pub lost_in_flight: bool,
    /// Ranges that may have had dirty data by the superblock, if records are damaged. Data that
    /// only the damaged records named is lost.
    pub possible_losses: Vec<LostRange>,
    /// Ranges in which acknowledged writes may be lost with a missing or damaged process journal,
    /// whose loss the options accept. Empty if the superblock calls nothing dirty. `None` if no
    /// journal is missing.
    pub journal_losses: Option<Vec<LostRange>>,
    /// Dirty data that lay where the cache device was cut, and is lost.
    pub cut: Vec<LostRange>,
    /// Names of volumes whose last overwrites in place may be lost, anywhere in their dirty data. A
    /// failed flush covered blocks that the process journal does not name.
    pub unnamed_overwrites: Vec<String>,
    /// Names of volumes whose data an earlier opening found lost, or possibly lost. No start that
    /// served them has reported that.
    pub unreported: Vec<String>,
    /// Ranges that were decided in spite of a damaged record that may have said otherwise. They
    /// stay dirty and are written back, or were dropped as older than a bypassing write.
    pub uncertain: Vec<LostRange>,
}

/// Describes damage of the log, with the remedy; `None` if there is none.
pub(crate) fn damage_of_log(damaged_records: u64, unreadable_units: u64) -> Option<String> {
    (damaged_records + unreadable_units > 0).then(|| {
        format!(
            "the cache's log is damaged ({damaged_records} damaged records, {unreadable_units} \
             unreadable units): dirty data recorded only there IS LOST\n    \
             help: verify the data of all clients. Clean data that may be stale is not used. \
             `forebay check --repair` rewrites the log without the damage"
        )
    })
}

impl RecoveryReport {
    /// Returns the names of the volumes with data that this opening found lost. Data that damage of
    /// the log may have taken does not count.
    pub(crate) fn losers(&self) -> impl Iterator<Item = &str> {
        let kinds = [&self.lost, &self.cut];
        let ranges = kinds.into_iter().chain(&self.journal_losses).flatten();
        let names = ranges.map(|range| &range.volume);
        names.chain(&self.unnamed_overwrites).map(|name| &**name)
    }

    /// Describes damage of the log, with the remedy; `None` if there is none.
    #[must_use]
    pub fn damage_of_log(&self) -> Option<String> {
        damage_of_log(self.damaged_records, self.unreadable_units)
    }

    /// Returns the message for the [lost](Self::lost) ranges.
    #[must_use]
    pub const fn loss(&self) -> &'static str {
        match self.lost_in_flight {
            true => {
                "in flight, and not acknowledged, when a flush of the cache device failed: old \
                 data, new data, or both"
            }
            false => "acknowledged, not flushed, and LOST: a flush of the cache device failed",
        }
    }
}

/// Message for a loss that an earlier start or command found.
pub const UNREPORTED_LOSS: &str =
    "an earlier start found that data of it IS LOST, or may be: see `.lost` of its state directory";

type Received = Pin<Box<dyn Future<Output = Result<()>>>>;

/// Receives the losses that an opening found, before the cache forgets them, and makes durable what
/// others must know of them. A process that dies later has reported them. The opening may still
/// fail, and the next one reports them then, too.
///
/// A report comes before the first write to the log. If data was lost with a cut, or if the journal
/// does not name all data in doubt, a second report has [that](RecoveryReport::cut) alone.
#[derive(Clone)]
pub struct ReportSink(Rc<dyn Fn(RecoveryReport) -> Received>);

impl ReportSink {
    /// Returns a sink that calls `receive`. If that fails, so does the opening.
    #[must_use]
    pub fn new<F>(receive: impl Fn(RecoveryReport) -> F + 'static) -> Self
    where
        F: Future<Output = Result<()>> + 'static,
    {
        Self(Rc::new(move |report| Box::pin(receive(report))))
    }

    pub(crate) async fn receive(&self, report: &RecoveryReport) -> Result<()> {
        (self.0)(report.clone()).await
    }
}

impl fmt::Debug for ReportSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReportSink")
    }
}
