//! Dirty data that a failed flush of the data device has left in doubt.
//!
//! The device may show data that it does not have: a power loss would return the data before it. A
//! reader would take the shown data for durable after its next flush. A write-back would copy the
//! shown data to the backing device, and the slot would count as a clean copy of it.
//!
//! So each such slot is written once more, with the data that it shows. The next flush of the
//! device covers it, before the journal that names the slot is dropped. A crash before that leaves
//! the journal or, by power loss, the earlier data, which is dirty and was reported.
//!
//! A partial journal does not name every overwrite in place. Then all dirty data is written once
//! more.

use std::collections::BTreeMap;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf};
use forebay_metadata::journal::Recovered;
use forebay_policy::Slot;

use crate::failpoints::{Fault, planted};
use crate::geometry::Geometry;
use crate::map::{LIVE, Map};

/// Returns whether a failed flush may have taken acknowledged overwrites that a poisoned journal
/// does not name.
pub(super) fn has_unnamed_overwrites(data: &dyn BlockDevice, journal: &Recovered) -> bool {
    // A device without a volatile cache has the data that it shows.
    data.info().volatile_cache && journal.is_partial && !journal.in_flight
}

/// Writes the dirty data that a poisoned journal leaves in doubt once more. If the journal is
/// partial, that is all dirty data of the map. Leaves data that cannot be read or written: it was
/// reported. Leaves data at a hole, which is evidence of a truncation.
pub(super) async fn rewrite(
    data: &dyn BlockDevice,
    geometry: &Geometry,
    journal: &Recovered,
    map: &Map,
) {
    // A device without a volatile cache has the data that it shows.
    if !data.info().volatile_cache || planted(Fault::TrustShown) {
        return;
    }
    // An overwritten slot has several entries.
    let mut dirty: BTreeMap<(u32, u8), u64> = BTreeMap::new();
    for (_, record) in &journal.entries {
        *dirty.entry((record.slot, record.class)).or_default() |= record.dirty;
    }
    for ((slot, class), granules) in dirty {
        rewrite_slot(data, geometry, (Slot::new(slot), class), granules).await;
    }
    if !journal.is_partial || planted(Fault::TrustUnnamed) {
        return;
    }
    if has_unnamed_overwrites(data, journal) && map.dirty_blocks() > 0 {
        tracing::error!(
            dirty_blocks = map.dirty_blocks(),
            "a failed flush covered blocks that the process journal does not name: the last \
             overwrites of dirty blocks MAY BE LOST"
        );
    }
    for id in map.ids().filter(|id| map.has(*id, LIVE)) {
        let entry = map.state(id);
        rewrite_slot(data, geometry, (map.slot(id), entry.class), entry.dirty).await;
    }
}

/// Writes granules of a slot once more, given the class of its block.
async fn rewrite_slot(
    data: &dyn BlockDevice,
    geometry: &Geometry,
    (slot, class): (Slot, u8),
    granules: u64,
) {
    let whole = 0..u32::try_from(geometry.block_bytes(class)).expect("at most 1 MiB");
    for run in geometry.runs(class, granules, whole.clone()) {
        let buf = Buf::zeroed((run.end - run.start) as usize);
        let offset = geometry.data_offset(slot, run.start);
        let holes = data.holes(offset..offset + buf.len() as u64);
        if holes.is_some_and(|holes| !holes.is_empty()) {
            continue;
        }
        let rewritten = match data.read(offset, buf.clone()).await {
            Ok(()) => data.write(offset, buf).await,
            Err(error) => Err(error),
        };
        if let Err(error) = rewritten {
            tracing::warn!(
                offset,
                error = %error.report(),
                "a slot that was reported as lost cannot be rewritten"
            );
        }
    }
}
