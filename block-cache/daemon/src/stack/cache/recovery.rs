//! The result of a recovery, in the log.

use std::sync::Arc;

use forebay_block::{Context as _, Result};
use forebay_cache::RecoveryReport;

use crate::stack::offload;
use crate::state::StateDirectory;

/// Logs the losses that an opening found. Records durably which of these volumes may lack data, so
/// that no block device or virtual machine that outlives the daemon continues without them. The
/// opening forgets the losses afterwards, and its process may die then.
///
/// # Errors
/// The error of the state directory.
pub(in crate::stack) async fn note_losses(
    recovery: RecoveryReport,
    state: Arc<StateDirectory>,
    volumes: Vec<String>,
) -> Result<()> {
    log_losses(&recovery);
    let lost = |volume: String| Some((lost_with(&recovery, &volume)?, volume));
    let lost: Vec<_> = volumes.into_iter().filter_map(lost).collect();
    if lost.is_empty() {
        return Ok(());
    }
    let noted = offload(move || {
        let mut lost = lost.iter();
        lost.try_for_each(|(reason, volume)| state.note_disk_gap(volume, Some(reason), true))
    });
    noted.await.context(|| "recording the losses above")
}

/// Logs the losses that an opening found.
pub(crate) fn log_losses(recovery: &RecoveryReport) {
    if recovery.damaged_records + recovery.unreadable_units > 0 {
        tracing::error!(
            damaged_records = recovery.damaged_records,
            unreadable_units = recovery.unreadable_units,
            "the cache's log is damaged: clean data that it may concern is not used, but dirty \
             data whose record was lost is gone; check what the clients stored, and see `forebay \
             check`"
        );
    }
    for range in &recovery.possible_losses {
        tracing::error!(
            volume = range.volume,
            offset = range.offset,
            len = range.len,
            "there was, or may have been, dirty data within: data that only the damaged records \
             described is LOST, and reads as the backing device has it"
        );
    }
    for cut in &recovery.cut {
        tracing::error!(
            volume = cut.volume,
            offset = cut.offset,
            len = cut.len,
            "LOST: dirty data that lay where the cache device was cut; it reads as the backing \
             device has it"
        );
    }
    for lost in &recovery.lost {
        tracing::error!(
            volume = lost.volume,
            offset = lost.offset,
            len = lost.len,
            "{}",
            recovery.loss()
        );
    }
}

/// Logs the result of the opening, except the [losses](log_losses), at the level that it deserves.
pub(super) fn log_result(recovery: &RecoveryReport, journal_loss_accepted: bool) {
    if recovery.never_used {
        tracing::info!("the cache is open, for the first time");
    } else {
        tracing::info!(
            clean_shutdown = recovery.clean_shutdown,
            cached_blocks = recovery.cached_blocks,
            dirty_blocks = recovery.dirty_blocks,
            journal_entries = recovery.journal_entries,
            "the cache is open"
        );
    }
    if journal_loss_accepted {
        tracing::warn!(
            "--accept-journal-loss: if the process journal was gone, what was acknowledged since \
             the last flush may be lost"
        );
    }
    if recovery.lost_tree_units > 0 {
        tracing::warn!(
            units = recovery.lost_tree_units,
            "units of the bit-tree could not be believed: all blocks under them count as dirty and \
             are written back; nothing is lost"
        );
    }
    if recovery.unverified_bytes > 0 {
        tracing::warn!(
            bytes = recovery.unverified_bytes,
            "cached data that may have been overwritten shortly before the crash, or never had a \
             checksum, is believed as it is, and written back where it counts as dirty: corruption \
             of it would go unnoticed"
        );
    }
    for range in &recovery.uncertain {
        tracing::warn!(
            volume = range.volume,
            offset = range.offset,
            len = range.len,
            "kept as dirty, or dropped as older than writes that bypassed the cache; newer records \
             are damaged, and one may have said otherwise: check what was stored there"
        );
    }
}

/// Returns the loss of a volume that an opening found. Damage of the log may concern any volume.
pub(in crate::stack) fn lost_with(recovery: &RecoveryReport, volume: &str) -> Option<&'static str> {
    let damaged = recovery.damaged_records + recovery.unreadable_units > 0;
    let unknown = || damaged.then_some("the log of its cache was damaged");
    lost_of(recovery, volume).or_else(unknown)
}

/// Returns the loss of a volume if the opening found ranges of this volume that are lost.
pub(in crate::stack) fn lost_of(recovery: &RecoveryReport, volume: &str) -> Option<&'static str> {
    if recovery.cut.iter().any(|range| range.volume == volume) {
        return Some(
            "its cache device was cut, and data of it lost, range by range in the daemon's log",
        );
    }
    if recovery.lost.iter().any(|range| range.volume == volume) {
        return Some(match recovery.lost_in_flight {
            true => {
                "its cache device failed while data of it was being written, range by range in the \
                 daemon's log"
            }
            false => "its cache lost data of it, range by range in the daemon's log",
        });
    }
    None
}
