//! The result of a recovery, in the log.

use std::ops::Range;
use std::sync::Arc;

use forebay_block::{Context as _, Result};
use forebay_cache::{LostRange, RecoveryReport, UNREPORTED_LOSS};

use crate::config::Config;
use crate::stack::{Wishes, offload};
use crate::state::StateDirectory;
use forebay_terminal::size::human_count;

/// Logs the losses that an opening found, and lists all of their ranges durably. Records which of
/// these volumes may lack data, so that no block device or virtual machine that outlives the daemon
/// continues without them. The opening forgets the losses afterwards, and its process may die then.
///
/// # Errors
/// The error of the state directory.
pub(in crate::stack) async fn note_losses(
    recovery: RecoveryReport,
    state: Arc<StateDirectory>,
    volumes: Vec<String>,
) -> Result<()> {
    log_losses(&recovery, LISTED);
    // The attach of a volume whose loss an earlier opening found records that.
    let recovery = RecoveryReport {
        unreported: Vec::new(),
        ..recovery
    };
    let lost = |volume: &String| Some((lost_with(&recovery, volume)?, volume.clone()));
    let lost: Vec<_> = volumes.iter().filter_map(lost).collect();
    // A damaged superblock may name no volume for a range.
    let unnamed = (kinds_of(&recovery).into_iter())
        .flat_map(|(ranges, _)| ranges)
        .map(|range| range.volume.clone())
        .filter(|volume| !volumes.contains(volume) && !volume.contains('/'));
    let mut listed: Vec<String> = unnamed.collect();
    listed.sort_unstable();
    listed.dedup();
    let lists: Vec<_> = (volumes.iter().chain(&listed))
        .flat_map(|volume| lists_of(&recovery, volume))
        .collect();
    if lost.is_empty() && lists.is_empty() {
        return Ok(());
    }
    let noted = offload(move || {
        let mut lists = lists.iter();
        lists.try_for_each(|(volume, fate, ranges)| state.note_lost(volume, fate, ranges))?;
        let mut lost = lost.iter();
        lost.try_for_each(|(reason, volume)| state.note_disk_gap(volume, Some(reason), true))
    });
    noted.await.context(|| "recording the losses above")
}

/// Largest number of ranges of one kind that the log of a daemon lists one by one. The log drops
/// lines if they come faster than its reader takes them.
const LISTED: usize = 64;

/// The kinds of losses that an opening finds: the ranges, and their fate.
fn kinds_of(recovery: &RecoveryReport) -> [(&[LostRange], &'static str); 4] {
    [
        (
            recovery.journal_losses.as_deref().unwrap_or_default(),
            "acknowledged writes to this range MAY BE LOST with the process journal",
        ),
        (
            &recovery.possible_losses,
            "dirty data of this range MAY BE LOST: any that only the damaged records described \
             reads as the backing device has it",
        ),
        (
            &recovery.cut,
            "LOST: dirty data where the cache device was truncated; it reads as the backing \
             device has it",
        ),
        (&recovery.lost, recovery.loss()),
    ]
}

/// Returns the lists of the lost ranges of a volume: volume, fate, and ranges.
pub(crate) fn lists_of(
    recovery: &RecoveryReport,
    volume: &str,
) -> Vec<(String, &'static str, Vec<Range<u64>>)> {
    let of_kind = |(ranges, fate): (&[LostRange], &'static str)| {
        let ranges: Vec<_> = (ranges.iter())
            .filter(|range| range.volume == volume)
            .map(|range| range.offset..range.offset + range.len)
            .collect();
        (!ranges.is_empty()).then(|| (volume.to_owned(), fate, ranges))
    };
    kinds_of(recovery).into_iter().filter_map(of_kind).collect()
}

/// Logs the first `listed` ranges, each with its fate, and the number of the others.
fn log_ranges(ranges: &[LostRange], fate: &str, listed: usize) {
    for range in ranges.iter().take(listed) {
        tracing::error!(
            volume = range.volume,
            offset = range.offset,
            len = range.len,
            "{fate}"
        );
    }
    if let Some(more) = ranges.len().checked_sub(listed).filter(|more| *more > 0) {
        tracing::error!(
            "{more} more ranges of this kind\n    \
             help: the files VOLUME.lost in the state directory list all of them"
        );
    }
}

/// Logs that acknowledged writes are given up with the process journal.
fn log_journal_losses(ranges: &[LostRange]) {
    let bytes: u64 = ranges.iter().map(|range| range.len).sum();
    let within = match ranges.len() {
        0 => "none: the superblock calls nothing dirty".to_owned(),
        count => format!("{}, {bytes} bytes", human_count(count as u64, "range")),
    };
    tracing::error!(
        "--accept-journal-loss gives up the process journal: ACKNOWLEDGED WRITES MAY BE LOST\n    \
         help: check what the clients stored last in the ranges that may be concerned: {within}"
    );
}

/// Records durably which volumes of the cache may lack writes, since this start accepts the loss of
/// the process journal. Volumes of the configuration are left out.
pub(super) async fn note_accepted_loss(
    config: &Config,
    wishes: &Wishes,
    state: &Arc<StateDirectory>,
    mut names: Vec<String>,
) -> Result<()> {
    names.retain(|name| !config.volumes.iter().any(|volume| volume.name == *name));
    let lost = names
        .into_iter()
        .filter_map(|name| Some((wishes.gap(&name)?, name)));
    let (lost, state): (Vec<_>, _) = (lost.collect(), Arc::clone(state));
    offload(move || {
        let mut lost = lost.iter();
        lost.try_for_each(|(why, name)| state.note_disk_gap(name, Some(why), true))
    })
    .await
}

/// Logs the losses that an opening found, and the first `listed` ranges of each kind.
pub(crate) fn log_losses(recovery: &RecoveryReport, listed: usize) {
    if let Some(ranges) = &recovery.journal_losses {
        log_journal_losses(ranges);
    }
    if let Some(damage) = recovery.damage_of_log() {
        tracing::error!("{damage}");
    }
    for (ranges, fate) in kinds_of(recovery) {
        log_ranges(ranges, fate, listed);
    }
    for volume in &recovery.unreported {
        tracing::error!(volume, "{UNREPORTED_LOSS}");
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
    if journal_loss_accepted && recovery.journal_losses.is_none() {
        tracing::info!("--accept-journal-loss had no effect: no write of the cache is lost");
    }
    if recovery.lost_tree_units > 0 {
        tracing::warn!(
            units = recovery.lost_tree_units,
            "units of the bit-tree are damaged: all blocks under them count as dirty and are \
             written back; nothing is lost"
        );
    }
    if recovery.unverified_bytes > 0 {
        tracing::warn!(
            bytes = recovery.unverified_bytes,
            "cached data without a valid checksum, as after a crash, is used and written back \
             unverified"
        );
    }
    for range in &recovery.uncertain {
        tracing::warn!(
            "volume {:?}: {} bytes at {}: a damaged record of the log leaves their state \
             uncertain\n    \
             help: check the data there",
            range.volume,
            range.len,
            range.offset
        );
    }
}

/// Returns the loss of a volume that an opening found. Damage of the log may concern any volume.
pub(crate) fn lost_with(recovery: &RecoveryReport, volume: &str) -> Option<&'static str> {
    let damaged = recovery.damaged_records + recovery.unreadable_units > 0;
    let unknown = || damaged.then_some("the log of its cache was damaged");
    lost_of(recovery, volume).or_else(unknown)
}

/// Returns the loss of a volume if the opening found ranges of this volume that are lost.
pub(in crate::stack) fn lost_of(recovery: &RecoveryReport, volume: &str) -> Option<&'static str> {
    if recovery.cut.iter().any(|range| range.volume == volume) {
        return Some(
            "its cache device was truncated, and data of it LOST: its file `.lost` in the state \
             directory has the ranges",
        );
    }
    if recovery.lost.iter().any(|range| range.volume == volume) {
        return Some(match recovery.lost_in_flight {
            true => {
                "its cache device failed while data of it was being written: its file `.lost` in \
                 the state directory has the ranges"
            }
            false => {
                "its cache LOST data of it: its file `.lost` in the state directory has the ranges"
            }
        });
    }
    let is_in = |names: &[String]| names.iter().any(|name| name == volume);
    if is_in(&recovery.unnamed_overwrites) {
        return Some(
            "its cache device failed, and the last overwrites of its dirty data MAY BE LOST",
        );
    }
    is_in(&recovery.unreported).then_some(UNREPORTED_LOSS)
}
