//! The table of regions, by number and by address.

use std::collections::HashMap;
use std::time::Duration;

use forebay_metadata::record::MarkState;

use super::MarkId;
use crate::map::NO_RECORD;

/// A region that has a mark, if only in memory, or is getting one.
#[derive(Debug)]
pub(crate) struct Region {
    pub(super) volume: u16,
    pub(super) region: u64,
    /// The durable state; during a change, the state before it.
    pub(super) state: MarkState,
    /// The state that the log was given last.
    pub(super) logged: MarkState,
    /// It has a mark in the log, or is getting one.
    pub(super) marked: bool,
    /// Whether the state is being changed.
    pub(super) busy: bool,
    /// Operations in flight that rely on the state.
    pub(super) users: u32,
    /// Blocks that are dirty without a record that says so.
    pub(super) unrecorded: u32,
    pub(super) record_at: u32,
    pub(super) last_used: Duration,
}

impl Region {
    /// Returns the volume's number.
    pub(crate) const fn volume(&self) -> u16 {
        self.volume
    }

    /// Returns the durable state; during a change, the state before it.
    pub(crate) const fn state(&self) -> MarkState {
        self.state
    }

    /// Returns whether the log has a mark of it, or is getting one.
    pub(crate) const fn is_marked(&self) -> bool {
        self.marked
    }

    /// Returns whether no operation relies on the state and no task changes it.
    pub(crate) const fn is_idle(&self) -> bool {
        !self.busy && self.users == 0
    }

    /// Returns whether the records of its blocks say all that they hold.
    pub(crate) fn is_exact(&self) -> bool {
        self.state != MarkState::MaybeDirty || self.unrecorded == 0
    }

    /// Returns the time of the last use.
    pub(crate) const fn last_used(&self) -> Duration {
        self.last_used
    }
}

/// Regions; a number stays with its region until it is removed.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) by_address: HashMap<(u16, u64), MarkId>,
    pub(super) regions: Vec<Option<Region>>,
    /// Unused numbers.
    free: Vec<MarkId>,
    /// Regions that have a mark in the log.
    pub(super) marked: usize,
}

impl Table {
    pub(super) fn get_or_insert(&mut self, volume: u16, region: u64) -> MarkId {
        if let Some(&id) = self.by_address.get(&(volume, region)) {
            return id;
        }
        let id = self.free.pop().unwrap_or_else(|| {
            self.regions.push(None);
            u32::try_from(self.regions.len() - 1).expect("fewer than 2^31 regions")
        });
        self.regions[id as usize] = Some(Region {
            volume,
            region,
            state: MarkState::None,
            logged: MarkState::None,
            marked: false,
            busy: false,
            users: 0,
            unrecorded: 0,
            record_at: NO_RECORD,
            last_used: Duration::ZERO,
        });
        self.by_address.insert((volume, region), id);
        id
    }

    pub(super) fn get(&mut self, id: MarkId) -> &mut Region {
        self.regions[id as usize]
            .as_mut()
            .expect("a region in use is in the table")
    }

    pub(super) fn find(&mut self, address: (u16, u64)) -> Option<&mut Region> {
        let id = *self.by_address.get(&address)?;
        Some(self.get(id))
    }

    /// Counts a region among those that take room in the log, or no more.
    pub(super) fn set_marked(&mut self, id: MarkId, marked: bool) {
        let before = std::mem::replace(&mut self.get(id).marked, marked);
        self.marked = self.marked + usize::from(marked) - usize::from(before);
    }

    pub(super) fn remove(&mut self, id: MarkId) {
        if let Some(region) = self.regions[id as usize].take() {
            self.by_address.remove(&(region.volume, region.region));
            self.marked -= usize::from(region.marked);
            self.free.push(id);
        }
    }
}
