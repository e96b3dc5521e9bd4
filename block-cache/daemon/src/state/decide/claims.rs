//! Finds that another daemon has served a volume in object storage: the last claim in its log
//! is of an unknown writer.

use forebay_block::Identity;

use super::{AttachRequest, Record, position};
use crate::state::epoch::CacheId;

/// Claim of a volume in object storage that a start is about to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Writer of the last claim in the log; `None` if there is none.
    pub last: Option<[u8; 16]>,
    /// Writer that is going to claim the log.
    pub next: [u8; 16],
    /// Whether the state directory knows the last writer by another volume of the same device.
    pub is_known: bool,
}

impl Claim {
    /// Returns the claim of a device that was served as these volumes, too.
    #[must_use]
    pub fn new(last: Option<[u8; 16]>, next: [u8; 16], others: &[(String, Record)]) -> Self {
        let knows = |last| others.iter().any(|(_, other)| other.writers.has(last));
        Self {
            last,
            next,
            is_known: last.is_some_and(knows),
        }
    }

    /// Whether a writer that the state directory does not know has claimed the log last. The record
    /// is of the volume that the log has. A record without a writer decides nothing.
    #[must_use]
    pub fn is_after_other(&self, record: Record) -> bool {
        let knows = |last| record.writers.has(last);
        let is_other = self.last.is_some_and(|last| !knows(last));
        record.writers.is_known() && is_other && !self.is_known
    }

    /// As [`Claim::is_after_other`], for a device with this identity and size in bytes. `own` is
    /// the record of its volume, and `others` are those of other volumes that were served from it.
    #[must_use]
    pub fn is_after_other_on(
        &self,
        (identity, size_bytes): (Identity, u64),
        own: Option<Record>,
        others: &[(String, Record)],
    ) -> bool {
        let is_this = |it: &Record| it.backing.overlaps(it.backing_bytes, identity, size_bytes);
        let own = own.filter(is_this);
        let mut known = own.into_iter().chain(others.iter().map(|(_, it)| *it));
        known.any(|record| self.is_after_other(record))
    }

    /// Returns the record to store durably before the claim. After it, either writer is known: the
    /// claim may be made or not. The first claim of a log is not announced. Without it there is no
    /// data, and an announcement would call the log older than the record.
    #[must_use]
    pub fn announced_in(&self, record: Record) -> Record {
        let Some(last) = self.last else {
            return record;
        };
        Record {
            writers: record.writers.with(last).with(self.next),
            ..record
        }
    }
}

/// Returns a request after writes of another daemon to unknown ranges, as the records state them
/// then. Returns `None` if there are none.
pub(super) fn after_other<'a>(request: &AttachRequest<'a>) -> Option<AttachRequest<'a>> {
    let (claim, record) = (request.claim?, request.record?);
    let is_same =
        (record.backing).overlaps(record.backing_bytes, request.backing, request.backing_bytes)
            && position(record.backing, request.backing) == Some(0);
    if !is_same || !claim.is_after_other(record) {
        return None;
    }
    Some(AttachRequest {
        record: Some(written_elsewhere(record).unwrap_or(record)),
        ranges: None,
        ..request.clone()
    })
}

/// Returns the new record of a volume after unknown ranges of its device were written, without its
/// cache and without its log of ranges. Its cache learns of that at the next attach. Returns `None`
/// if the record need not change.
pub(super) fn written_elsewhere(record: Record) -> Option<Record> {
    if record.logs_every_write() {
        // The log lacks these writes.
        return Some(Record {
            logged_since: None,
            ..record
        });
    }
    if !matches!(record.cache, CacheId::Uuid(_)) {
        return None;
    }
    Some(Record {
        epoch: record.epoch + 1,
        logged_since: Some(record.epoch),
        dirty_listed: record.lists_nothing(),
        ..record
    })
}
