//! `forebay check --data` and `--repair`: reads all cached data, and repairs damage as far as
//! possible.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_block::{Context as _, ErrorKind, Result};
use forebay_cache::{
    DataReport, Devices, Inspection, LostRange, RecoveryReport, RepairOptions, RepairReport,
    ReportSink,
};
use forebay_io::system;
use serde_json::json;

use crate::stack::journal::{self, JournalOwner};
use crate::stack::{lists_of, log_losses, lost_with};
use crate::state::{Opening, StateDirectory, with_help};
use forebay_terminal::size::{human_bytes, human_count};

/// Work beyond the inspection of the metadata.
#[derive(Debug, Default)]
pub(super) struct Work {
    repaired: bool,
    report: RepairReport,
    noted: Noted,
}

/// Place where losses are recorded.
#[derive(Debug, Default)]
enum Noted {
    /// There is no loss to record, or no client that would continue without the data.
    #[default]
    Needless,
    /// No state directory is known.
    Nowhere,
    /// In this state directory, for these volumes.
    In(PathBuf, Vec<String>),
}

/// Records the losses that a repair finds, since the cache no longer shows them afterwards. Clients
/// that outlive the daemon (block devices of this machine, virtual machines) must not continue as
/// if all acknowledged writes were present.
pub(super) struct Losses {
    state: State,
    volumes: Vec<String>,
    log_is_damaged: bool,
}

/// State directory of the daemons that serve a cache.
enum State {
    /// No configuration names it.
    Unknown,
    /// It was never used.
    Unused,
    /// Locked by this process.
    Held(StateDirectory),
}

impl Losses {
    /// Locks the state directory of the daemons that serve the cache.
    ///
    /// # Errors
    /// As [`StateDirectory::open`].
    pub(super) fn of(state: Option<&Path>, found: &Inspection) -> Result<Self> {
        Ok(Self {
            state: match state {
                None => State::Unknown,
                Some(path) if !path.exists() => State::Unused,
                Some(path) => State::Held(StateDirectory::open(path)?),
            },
            volumes: found
                .volumes
                .iter()
                .map(|volume| volume.name.clone())
                .collect(),
            log_is_damaged: found.damaged_records + found.unreadable_units > 0,
        })
    }

    /// Returns the recorded generation of the cache; zero without a record.
    fn generation(&self, uuid: &[u8; 16]) -> Result<u64> {
        let State::Held(state) = &self.state else {
            return Ok(0);
        };
        let last = StateDirectory::opening_in(state.path(), uuid)?;
        Ok(last.map_or(0, |last| last.generation))
    }

    /// Records durably that the repair was an opening.
    fn note_opening(
        &self,
        uuid: &[u8; 16],
        report: &RepairReport,
        options: RepairOptions,
    ) -> Result<()> {
        let State::Held(state) = &self.state else {
            return Ok(());
        };
        let opening = Opening {
            generation: report.service.generation,
            media: report.service.media,
            place: options.place,
            data_place: options.data_place,
        };
        state.store_opening(uuid, &opening)
    }

    /// Logs the losses that the repair is about to forget, and lists their ranges durably. Records
    /// which volumes may lack data.
    fn note_found(&self, recovery: &RecoveryReport) -> Result<()> {
        log_losses(recovery, usize::MAX);
        if let State::Held(state) = &self.state {
            for (volume, fate, ranges) in
                (self.volumes.iter()).flat_map(|it| lists_of(recovery, it))
            {
                state.note_lost(&volume, fate, &ranges)?;
            }
        }
        let has_lost =
            |volume: &&String| self.log_is_damaged || lost_with(recovery, volume).is_some();
        self.note(self.volumes.iter().filter(has_lost)).map(drop)
    }

    /// Records durably that these volumes may lack data. Returns where.
    fn note<'a>(&self, volumes: impl Iterator<Item = &'a String>) -> Result<Noted> {
        let volumes: Vec<String> = volumes.cloned().collect();
        let state = match &self.state {
            _ if volumes.is_empty() => return Ok(Noted::Needless),
            State::Unknown => return Ok(Noted::Nowhere),
            State::Unused => return Ok(Noted::Needless),
            State::Held(state) => state,
        };
        let why = "`forebay check --repair` found that data of it is lost, or may be";
        for volume in &volumes {
            state.note_disk_gap(volume, Some(why), true)?;
        }
        Ok(Noted::In(state.path().to_path_buf(), volumes))
    }
}

/// Owner and path of a process journal.
pub(super) type Place<'a> = (&'a JournalOwner, &'a Path);

pub(super) fn options((whose, path): Place<'_>, data: bool, mend: bool) -> Result<RepairOptions> {
    Ok(RepairOptions {
        // A copy has no journal; a journal of another opening is an error.
        journal: match journal::own(whose, path, mend)? {
            Err(error) if error.kind() == ErrorKind::Busy => None,
            found => found?,
        },
        boot_id: system::boot_id()?,
        data,
        place: whose.place.clone(),
        moved: whose.moved,
        ..RepairOptions::default()
    })
}

/// Returns the number of bytes of cached data without a known checksum. Changes nothing.
pub(super) async fn count_unverified(devices: &Devices, place: Place<'_>) -> Result<u64> {
    let counted = forebay_cache::count_unverified(devices, &options(place, false, false)?).await;
    counted.context(|| "cannot tell what is not verified")
}

/// Reads all cached data. Changes nothing.
pub(super) async fn verify(devices: &Devices, place: Place<'_>) -> Result<Work> {
    let data = forebay_cache::verify(devices, &options(place, true, false)?)
        .await
        .context(|| "cannot read what is cached")?;
    Ok(Work {
        repaired: false,
        report: RepairReport {
            data: Some(data),
            ..RepairReport::default()
        },
        noted: Noted::Needless,
    })
}

/// Repairs the cache as far as possible.
pub(super) async fn repair(
    devices: &Devices,
    place: Place<'_>,
    data: bool,
    losses: Losses,
) -> Result<Work> {
    let (whose, losses) = (place.0, Rc::new(losses));
    let noting = Rc::clone(&losses);
    let report_sink =
        ReportSink::new(move |recovery| std::future::ready(noting.note_found(&recovery)));
    let options = RepairOptions {
        generation: losses.generation(&whose.uuid)?,
        data_place: whose.data_place.clone(),
        report_sink: Some(report_sink),
        ..options(place, data, true)?
    };
    let report = forebay_cache::repair(devices, &options)
        .await
        .map_err(|error| {
            match error.kind() {
                // About the process journal: the user must decide before any write.
                ErrorKind::Lost => with_help(
                    &error,
                    "",
                    "a start of the daemon decides on the process journal, and the repair comes \
                     after it",
                ),
                _ => error
                    .context("the repair has stopped\nhelp: repeat it; it names data that is lost"),
            }
        })?;
    losses.note_opening(&whose.uuid, &report, options)?;
    let has_lost = |volume: &&String| losses.log_is_damaged || has_lost(&report, volume);
    let noted = losses.note(losses.volumes.iter().filter(has_lost))?;
    Ok(Work {
        repaired: true,
        report,
        noted,
    })
}

/// Whether a report names lost data of a volume.
fn has_lost(report: &RepairReport, volume: &str) -> bool {
    let corrupt = report.data.iter().flat_map(|data| &data.corrupt);
    let mut corrupt = corrupt.filter(|range| range.volume == volume);
    corrupt.next().is_some() || lost_with(&report.recovery, volume).is_some()
}

fn named(range: &LostRange) -> String {
    format!(
        "volume {}: {} bytes at {}",
        range.volume, range.len, range.offset
    )
}

/// Describes dirty data that is corrupt, with the remedy.
pub(super) fn corrupt(range: &LostRange) -> String {
    format!(
        "LOST: {}: dirty, and corrupt on the cache device\n    \
         help: rewrite the whole range from a backup",
        named(range)
    )
}

/// Describes a loss that an earlier opening found, with the remedy.
pub(super) fn unreported_loss(volume: &str) -> String {
    format!(
        "LOST: volume {volume}: an earlier start found that data of it IS LOST, or may be\n    \
         help: see its log and `{volume}.lost` in its state directory; serve the volume, or forget \
         it (`forebay forget {volume}`), to end this report"
    )
}

impl Work {
    /// Whether a repair was requested.
    pub(super) const fn is_repair(&self) -> bool {
        self.repaired
    }

    /// Returns the number of bytes read without a known checksum; `None` if no data was read.
    pub(super) fn unverified_bytes(&self) -> Option<u64> {
        self.report.data.as_ref().map(|data| data.unverified_bytes)
    }

    /// Whether all data was read. The [lines](Work::lines) then name all corrupt dirty data.
    pub(super) const fn has_read_data(&self) -> bool {
        self.report.data.is_some()
    }

    /// Whether dirty data was read that is corrupt. The next check finds it, too.
    pub(super) fn has_corrupt_dirty_data(&self) -> bool {
        (self.report.data.as_ref()).is_some_and(|data| !data.corrupt.is_empty())
    }

    /// Whether dirty data cannot be read.
    pub(super) fn has_unreadable_dirty_data(&self) -> bool {
        (self.report.data.as_ref()).is_some_and(|data| !data.unreadable.is_empty())
    }

    /// Whether data is lost, or damage remains.
    pub(super) fn is_damaged(&self) -> bool {
        let forgotten = |data: &DataReport| data.forgotten_bytes > 0 && !self.repaired;
        self.report.has_losses() || self.report.data.as_ref().is_some_and(forgotten)
    }

    /// Describes the results, each with its remedy.
    pub(super) fn lines(&self, has_checksums: bool) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(data) = &self.report.data {
            lines.extend(self.data_lines(data, has_checksums));
        }
        let RepairReport {
            superblocks,
            recovery,
            ..
        } = &self.report;
        for device in superblocks {
            lines.push(format!(
                "REPAIRED: rewrote the damaged copy of the superblock on {device}"
            ));
        }
        if recovery.lost_tree_units > 0 {
            lines.push(format!(
                "REPAIRED: rewrote {} of the bit-tree; all blocks that they cover count as dirty",
                human_count(u64::from(recovery.lost_tree_units), "unit")
            ));
        }
        if recovery.damaged_records + recovery.unreadable_units > 0 {
            let within = match &recovery.possible_losses[..] {
                [] => "its ranges are unknown",
                _ => "it was within the ranges above that MAY BE LOST",
            };
            lines.push(format!(
                "REPAIRED: rewrote the log without {} and {}\n\
                 LOST: dirty data that only these recorded; {within}\n    \
                 help: verify the data of all clients",
                human_count(recovery.damaged_records, "damaged record"),
                human_count(recovery.unreadable_units, "unreadable unit"),
            ));
        }
        lines.extend(recovery.unreported.iter().map(|it| unreported_loss(it)));
        lines.extend(recovery.unnamed_overwrites.iter().map(|volume| {
            format!("LOST: volume {volume}: the last overwrites of its dirty data MAY BE LOST")
        }));
        for range in &recovery.cut {
            lines.push(format!(
                "LOST: {}: dirty data in the truncated part of the cache device",
                named(range)
            ));
        }
        for range in &recovery.lost {
            let range = named(range);
            lines.push(match recovery.lost_in_flight {
                true => format!(
                    "UNCERTAIN: {range}: in flight when the cache device failed: old data, new \
                     data, or both"
                ),
                false => format!(
                    "LOST: {range}: acknowledged, not flushed, and a flush of the cache device \
                     failed"
                ),
            });
        }
        for range in &recovery.uncertain {
            let range = named(range);
            lines.push(format!(
                "UNCERTAIN: {range}: may be older than the last write, since newer log records are \
                 damaged\n    \
                 help: compare the range with a backup"
            ));
        }
        match &self.noted {
            Noted::Needless => {}
            Noted::Nowhere => lines.push(
                "NOT RECORDED: without the configuration, the state directory is unknown: clients \
                 may miss the loss\n    \
                 help: before the next start, remove the volumes' block devices (`forebay \
                 remove-ublk`),\n          \
                 and restart virtual machines. Else they continue as if no data were lost"
                    .to_owned(),
            ),
            Noted::In(state, volumes) => lines.push(format!(
                "RECORDED in {}: loss of data of volume {}\n    \
                 help: remove waiting block devices (`forebay remove-ublk`), and restart virtual \
                 machines:\n          \
                 the next start does not let them continue",
                state.display(),
                volumes.join(", ")
            )),
        }
        lines
    }

    fn data_lines(&self, data: &DataReport, has_checksums: bool) -> Vec<String> {
        let read = human_bytes(data.read_bytes);
        let mut lines = vec![match has_checksums {
            true => format!(
                "{read} of cached data read, {} of it unverified for lack of a valid checksum",
                human_bytes(data.unverified_bytes)
            ),
            false => format!("{read} of cached data read; it has no checksums to verify"),
        }];
        if data.forgotten_bytes > 0 {
            let bytes = human_bytes(data.forgotten_bytes);
            lines.push(match self.repaired {
                true => format!(
                    "REPAIRED: dropped {bytes} of corrupt or unreadable clean data; the backing \
                     devices have it"
                ),
                false => format!(
                    "DAMAGE: {bytes} of clean data are corrupt or unreadable; no data is lost: the \
                     backing devices have it\n    \
                     help: `forebay check --data --repair` drops this data from the cache"
                ),
            });
        }
        lines.extend(data.corrupt.iter().map(corrupt));
        for range in &data.unreadable {
            let range = named(range);
            lines.push(format!(
                "PROBLEM: {range}: dirty, and unreadable on the cache device"
            ));
        }
        lines
    }

    pub(super) fn as_json(&self) -> serde_json::Value {
        let ranges = |ranges: &[LostRange]| -> Vec<_> {
            let range = |range: &LostRange| {
                json!({
                    "volume": range.volume,
                    "offset_bytes": range.offset,
                    "len_bytes": range.len,
                })
            };
            ranges.iter().map(range).collect()
        };
        let recovery = &self.report.recovery;
        json!({
            "repaired": self.repaired,
            "superblocks": self.report.superblocks,
            "damaged_records": recovery.damaged_records,
            "unreadable_units": recovery.unreadable_units,
            "tree_units": recovery.lost_tree_units,
            "lost": ranges(&recovery.lost),
            "cut": ranges(&recovery.cut),
            "lost_in_flight": recovery.lost_in_flight,
            "unnamed_overwrites": recovery.unnamed_overwrites,
            "unreported": recovery.unreported,
            "doubted": ranges(&recovery.uncertain),
            "data": self.report.data.as_ref().map(|data| json!({
                "read_bytes": data.read_bytes,
                "unverified_bytes": data.unverified_bytes,
                "forgotten_bytes": data.forgotten_bytes,
                "corrupt": ranges(&data.corrupt),
                "unreadable": ranges(&data.unreadable),
            })),
        })
    }
}
