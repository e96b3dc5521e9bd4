//! How a cache is opened.

use std::time::Duration;

use forebay_block::Buf;
use forebay_metadata::replay::Progress as OpeningProgress;
use forebay_policy::cleaning::Cleaning;

use crate::online_open::OpeningMap;
use crate::options::{Admission, Durability, Settings};
use crate::recovery_report::ReportSink;

/// Options for opening a cache.
#[derive(Clone, Debug)]
pub struct CacheOptions {
    /// Durability that an acknowledgement promises.
    pub durability: Durability,
    /// Memory that outlives the process, for acknowledged records that are not in the log yet.
    /// Without it a write waits for the log even with [`Durability::Flush`].
    pub journal: Option<Buf>,
    /// The boot of the machine.
    pub boot_id: [u8; 16],
    /// Above this share of dirty blocks, writes that miss go to the backing device.
    pub dirty_limit_percent: u8,
    /// Below this share of dirty blocks, writing them back is in no hurry.
    pub dirty_low_percent: u8,
    /// When dirty blocks are written back.
    pub cleaning: Cleaning,
    /// Whether no volume is written back until
    /// [`Cache::allow_write_back`](crate::Cache::allow_write_back). The last volume of a start may
    /// refuse it; the backing devices of the others then stay as they were.
    pub hold_write_back: bool,
    /// Policy for writes that find no room.
    pub admission: Admission,
    /// Interval at which the map is made durable without a request for it.
    pub commit_interval: Duration,
    /// Time that devices may take for requests in flight when a volume is detached or the cache is
    /// closed. After that they are reported as late.
    pub patience: Duration,
    /// Open although the process journal of a process that died in this boot is gone: acknowledged
    /// writes may be lost.
    pub accept_journal_loss: bool,
    /// Highest generation of the cache that a place outside it knows. This opening takes a higher
    /// one.
    pub generation: u64,
    /// Path of the cache's device, for messages; empty if unknown. Of two devices that of the
    /// metadata.
    pub place: String,
    /// Path of the data device where the metadata lies elsewhere; empty if unknown.
    pub data_place: String,
    /// The cache was copied to its devices, which take the place of the former ones: the process
    /// journal that was left on those counts here.
    pub moved: bool,
    /// Receives the progress of the opening.
    pub progress: Option<OpeningProgress>,
    /// Receives the report before the cache forgets the losses in it.
    pub report_sink: Option<ReportSink>,
    /// Answers reads of volumes that are served while the cache is being opened.
    pub opening_map: Option<OpeningMap>,
}

impl CacheOptions {
    /// Flush durability without a journal, and the default limits.
    #[must_use]
    pub const fn new(boot_id: [u8; 16]) -> Self {
        Self {
            durability: Durability::Flush,
            journal: None,
            boot_id,
            dirty_limit_percent: 75,
            dirty_low_percent: 20,
            cleaning: Cleaning::Auto,
            hold_write_back: false,
            admission: Admission::Always,
            commit_interval: Duration::from_secs(1),
            patience: Duration::from_secs(60),
            accept_journal_loss: false,
            generation: 0,
            place: String::new(),
            data_place: String::new(),
            moved: false,
            progress: None,
            report_sink: None,
            opening_map: None,
        }
    }

    /// Returns the settings that the parts of an open cache look at.
    pub(crate) fn settings(&self) -> Settings {
        Settings {
            durability: self.durability,
            journal: self.journal.clone(),
            boot_id: self.boot_id,
            dirty_limit_percent: self.dirty_limit_percent,
            dirty_low_percent: self.dirty_low_percent,
            cleaning: self.cleaning,
            hold_write_back: self.hold_write_back,
            admission: self.admission,
            commit_interval: self.commit_interval,
            patience: self.patience,
            generation: self.generation,
            place: self.place.clone(),
            data_place: self.data_place.clone(),
        }
    }
}
