//! Marks on regions of 64 blocks: what the log must know before a clean copy may be overwritten in
//! place (`MaybeDirty`, rule 3) or before a write goes to the backing device beside a cached copy
//! (`Intent`, rule 5).
//!
//! A region has one mark at a time, so that after a crash there is one answer to who is newer. A mark
//! is set durably before the first operation that needs it, stays for those that follow, and is cleared
//! when the region has been quiet for a while.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::Result;
use forebay_io::rt;
use forebay_io::sync::WaitList;
use forebay_metadata::record::MarkState;
use forebay_policy::BlockKey;

use crate::commit::Entry;
use crate::engine::Engine;
use crate::map::{NO_RECORD, UNRECORDED};

/// Number of a region in the table.
pub(crate) type RegionId = u32;

/// Blocks in a region.
pub(crate) const REGION_BLOCKS: u64 = 64;
/// A mark is cleared after this much quiet.
const QUIET: Duration = Duration::from_secs(3);

#[derive(Debug)]
struct Region {
    volume: u16,
    region: u64,
    /// The durable state; during a change, the state before it.
    state: MarkState,
    /// The state that the log was given last.
    logged: MarkState,
    /// Somebody is changing the state.
    busy: bool,
    /// Operations in flight that rely on the state.
    users: u32,
    /// Slots that are dirty without a record that says so.
    unrecorded: u32,
    record_at: u32,
    last_used: Duration,
}

/// The regions that have a mark, or are getting one.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    table: RefCell<Table>,
    changed: WaitList,
}

#[derive(Debug, Default)]
struct Table {
    by_address: HashMap<(u16, u64), RegionId>,
    regions: Vec<Option<Region>>,
    free: Vec<RegionId>,
}

impl Table {
    fn get_or_insert(&mut self, volume: u16, region: u64) -> RegionId {
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
            busy: false,
            users: 0,
            unrecorded: 0,
            record_at: NO_RECORD,
            last_used: Duration::ZERO,
        });
        self.by_address.insert((volume, region), id);
        id
    }

    fn get(&mut self, id: RegionId) -> &mut Region {
        self.regions[id as usize]
            .as_mut()
            .expect("a region in use is in the table")
    }

    fn find(&mut self, key: BlockKey) -> Option<&mut Region> {
        let id = *self
            .by_address
            .get(&(key.volume(), key.block() / REGION_BLOCKS))?;
        Some(self.get(id))
    }

    fn remove(&mut self, id: RegionId) {
        if let Some(region) = self.regions[id as usize].take() {
            self.by_address.remove(&(region.volume, region.region));
            self.free.push(id);
        }
    }
}

impl Regions {
    /// What the log should say of a region; none if it is gone.
    pub(crate) fn logged(&self, id: RegionId) -> Option<(u16, u64, MarkState)> {
        let table = self.table.borrow();
        let region = table.regions.get(id as usize)?.as_ref()?;
        Some((region.volume, region.region, region.logged))
    }

    pub(crate) fn set_record(&self, id: RegionId, at: u32) {
        self.table.borrow_mut().get(id).record_at = at;
    }

    /// Place of the record that counts; none if the region is gone.
    pub(crate) fn record_at(&self, id: RegionId) -> Option<u32> {
        let table = self.table.borrow();
        table
            .regions
            .get(id as usize)?
            .as_ref()
            .map(|region| region.record_at)
    }

    /// A slot of this block turned dirty in place, without a record.
    pub(crate) fn unrecorded(&self, key: BlockKey) {
        if let Some(region) = self.table.borrow_mut().find(key) {
            region.unrecorded += 1;
        }
    }

    /// A record of such a slot was logged.
    pub(crate) fn recorded(&self, key: BlockKey) {
        if let Some(region) = self.table.borrow_mut().find(key) {
            debug_assert!(region.unrecorded > 0);
            region.unrecorded -= 1;
        }
    }

    /// At recovery: a region was found marked.
    pub(crate) fn restore(
        &self,
        volume: u16,
        number: u64,
        state: MarkState,
        place: u32,
    ) -> RegionId {
        let mut table = self.table.borrow_mut();
        let id = table.get_or_insert(volume, number);
        let region = table.get(id);
        region.state = state;
        region.logged = state;
        region.record_at = place;
        id
    }

    /// State of the region of a block.
    pub(crate) fn state(&self, key: BlockKey) -> MarkState {
        let mut table = self.table.borrow_mut();
        table
            .find(key)
            .map_or(MarkState::None, |region| region.state)
    }

    pub(crate) fn len(&self) -> usize {
        self.table.borrow().by_address.len()
    }

    pub(crate) fn wake(&self) {
        self.changed.wake_all();
    }

    /// Forgets a volume that was detached: its records count no more.
    pub(crate) fn forget_volume(&self, volume: u16) {
        let mut table = self.table.borrow_mut();
        let ids: Vec<RegionId> = table
            .by_address
            .iter()
            .filter(|((owner, _), _)| *owner == volume)
            .map(|(_, id)| *id)
            .collect();
        for id in ids {
            table.remove(id);
        }
    }
}

/// While this lives, the region keeps its mark.
#[must_use = "dropping it lets the mark go"]
#[derive(Debug)]
pub(crate) struct RegionUse {
    engine: Rc<Engine>,
    id: RegionId,
}

impl Drop for RegionUse {
    fn drop(&mut self) {
        let quiet = {
            let mut table = self.engine.regions.table.borrow_mut();
            let region = table.get(self.id);
            region.users -= 1;
            region.users == 0
        };
        if quiet {
            self.engine.regions.changed.wake_all();
        }
    }
}

impl Engine {
    /// Waits until the region of `key` durably has the mark `want`, and keeps it so for as long as the
    /// returned value lives. Called with the block's exclusive lock held.
    pub(crate) async fn enter_region(
        self: &Rc<Self>,
        key: BlockKey,
        want: MarkState,
    ) -> Result<RegionUse> {
        loop {
            self.check_alive()?;
            let id = {
                let mut table = self.regions.table.borrow_mut();
                let id = table.get_or_insert(key.volume(), key.block() / REGION_BLOCKS);
                let region = table.get(id);
                if region.busy {
                    None
                } else if region.state == want {
                    region.users += 1;
                    region.last_used = rt::now();
                    return Ok(RegionUse {
                        engine: Rc::clone(self),
                        id,
                    });
                } else {
                    region.busy = true;
                    Some(id)
                }
            };
            let Some(id) = id else {
                self.regions.changed.wait().await;
                continue;
            };
            let result = self.change_region(id, want).await;
            {
                let mut table = self.regions.table.borrow_mut();
                let region = table.get(id);
                region.busy = false;
                if result.is_ok() {
                    region.state = want;
                }
            }
            self.regions.changed.wake_all();
            result?;
        }
    }

    /// Changes a region's mark from whatever it is to `want`.
    async fn change_region(&self, id: RegionId, want: MarkState) -> Result<()> {
        loop {
            let users = self.regions.table.borrow_mut().get(id).users;
            if users == 0 {
                break;
            }
            self.regions.changed.wait().await;
        }
        let (volume, number, state) = {
            let mut table = self.regions.table.borrow_mut();
            let region = table.get(id);
            (region.volume, region.region, region.state)
        };
        if state != MarkState::None {
            self.make_exact(volume, number, state).await?;
        }
        self.regions.table.borrow_mut().get(id).logged = want;
        self.queue_entry(Entry::Mark(id));
        self.stats.marks.add(1);
        self.commit().await
    }

    /// Makes the block records of a region say all that its mark says, so that the mark can go.
    async fn make_exact(&self, volume: u16, number: u64, state: MarkState) -> Result<()> {
        if state == MarkState::Intent
            && let Some(attached) = self.volume_by_id(volume)
        {
            // What went round the cache is durable before its announcement goes (rule 5).
            self.flush_backing(&attached).await?;
        }
        for block in number * REGION_BLOCKS..(number + 1) * REGION_BLOCKS {
            let slot = {
                let map = self.map.borrow();
                map.find(BlockKey::new(volume, block))
                    .filter(|slot| map.slot(*slot).has(UNRECORDED))
            };
            if let Some(slot) = slot {
                self.queue_record(slot);
            }
        }
        self.commit().await
    }

    /// Clears the marks of regions that have been quiet; all of them with `every`.
    pub(crate) async fn clear_marks(&self, every: bool) -> Result<()> {
        let now = rt::now();
        let quiet: Vec<(RegionId, u16, u64, MarkState)> = {
            let mut table = self.regions.table.borrow_mut();
            let ids: Vec<RegionId> = table.by_address.values().copied().collect();
            let mut quiet = Vec::new();
            for id in ids {
                let region = table.get(id);
                let idle = !region.busy && region.users == 0;
                let old = region.last_used + QUIET <= now;
                let exact = region.state != MarkState::MaybeDirty || region.unrecorded == 0;
                if idle && (every || old && exact) {
                    region.busy = true;
                    quiet.push((id, region.volume, region.region, region.state));
                }
            }
            quiet
        };
        if quiet.is_empty() {
            return Ok(());
        }
        let mut result = Ok(());
        let mut volumes: Vec<u16> = quiet
            .iter()
            .filter(|(.., state)| *state == MarkState::Intent)
            .map(|(_, volume, ..)| *volume)
            .collect();
        volumes.sort_unstable();
        volumes.dedup();
        // One backing device that fails keeps the marks of its own volume, no others.
        let mut failing = Vec::new();
        for volume in volumes {
            if let Some(attached) = self.volume_by_id(volume)
                && let Err(error) = self.flush_backing(&attached).await
            {
                failing.push(volume);
                if every {
                    result = Err(error);
                }
            }
        }
        if result.is_ok() && every {
            let unrecorded: Vec<u32> = {
                let map = self.map.borrow();
                (0..map.len())
                    .map(|slot| u32::try_from(slot).expect("at most 2^31 slots"))
                    .filter(|slot| map.slot(*slot).has(UNRECORDED))
                    .collect()
            };
            for slot in unrecorded {
                self.queue_record(slot);
            }
        }
        if result.is_ok() {
            result = self.commit().await;
        }
        let mut table = self.regions.table.borrow_mut();
        for (id, volume, region, _) in quiet {
            // A volume that was detached meanwhile took its regions along.
            if table.by_address.get(&(volume, region)) != Some(&id) {
                continue;
            }
            if result.is_ok() && !failing.contains(&volume) {
                // From here on the region counts as unmarked: a new mark is logged after this.
                self.queue_entry(Entry::Unmark { volume, region });
                table.remove(id);
            } else {
                table.get(id).busy = false;
            }
        }
        drop(table);
        self.regions.changed.wake_all();
        result
    }

    /// The task that clears marks, and flushes backing devices for the records that wait for it: a
    /// client that never flushes should find its data cached after a crash all the same.
    pub(crate) async fn mark_timer(self: Rc<Self>) {
        while !self.stopping.get() {
            rt::sleep(QUIET).await;
            if self.commit.failure().is_some() {
                continue;
            }
            // A failed flush is told to the clients of the volume; marks and records simply wait.
            if !self.deferred.borrow().is_empty() {
                let volumes: Vec<_> = self.volumes.borrow().values().cloned().collect();
                for volume in volumes.iter().filter(|volume| volume.backing.unflushed()) {
                    let _ = self.flush_backing(volume).await;
                }
            }
            if self.regions.len() > 0 {
                let _ = self.clear_marks(false).await;
            }
        }
    }
}
