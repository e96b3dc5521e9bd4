//! The order in which the cleaner comes to dirty blocks.

use forebay_policy::{BlockId, DirtyOrder};

use super::{LIVE, Map};

impl Map {
    pub(super) fn queue_dirty(&mut self, id: BlockId) {
        let (volume, region, _) = self.table.address(id);
        let window = region / self.geometry.window_regions();
        self.dirty_order(volume).insert(window);
    }

    fn dirty_order(&mut self, volume: u16) -> &mut DirtyOrder {
        let number = usize::from(volume);
        if number >= self.dirty_orders.len() {
            (self.dirty_orders).resize_with(number + 1, DirtyOrder::default);
        }
        &mut self.dirty_orders[number]
    }

    /// Reserves memory to track the dirty blocks of a volume of this size.
    pub(crate) fn expect_volume(&mut self, volume: u16, size_bytes: u64) {
        let last = self.geometry.region_at(size_bytes.saturating_sub(1));
        let window = last / self.geometry.window_regions();
        self.dirty_order(volume).reserve(window);
    }

    /// Removes the next windows of a volume from the cleaner's queue. Returns its dirty blocks, in
    /// order.
    pub(crate) fn pop_dirty(&mut self, volume: u16) -> Vec<BlockId> {
        let Some(windows) = self.dirty_order(volume).pop() else {
            return Vec::new();
        };
        let regions = self.geometry.window_regions();
        let mut blocks = Vec::new();
        let (mut at, end) = (windows.start * regions, windows.end * regions);
        while at < end {
            let (region, is_cached) = self.next_cached(volume, at..end, &mut { u32::MAX });
            if !is_cached {
                break;
            }
            at = region + 1;
            blocks.extend(self.table.find(volume, region).filter_map(|(id, span)| {
                let dirty = self.has(id, LIVE) && self.maps(id, span.class).1 != 0;
                dirty.then_some(id)
            }));
        }
        blocks.sort_unstable_by_key(|id| self.state(*id).key);
        blocks
    }

    /// Requeues a block for the cleaner, in case it is still dirty.
    pub(crate) fn requeue_dirty(&mut self, id: BlockId) {
        if self.has(id, LIVE) && self.state(id).dirty != 0 {
            self.queue_dirty(id);
        }
    }

    /// Returns the number of queued windows of a volume.
    pub(crate) fn dirty_windows(&self, volume: u16) -> usize {
        (self.dirty_orders.get(usize::from(volume))).map_or(0, DirtyOrder::len)
    }

    /// Returns the number of times that the cleaner reached the end of a volume.
    pub(crate) fn dirty_rounds(&self, volume: u16) -> u64 {
        (self.dirty_orders.get(usize::from(volume))).map_or(0, DirtyOrder::rounds)
    }

    /// Moves the cleaner's hand to where most of a volume is dirty: [`DirtyOrder::seek_fullest`].
    pub(crate) fn seek_fullest(&mut self, volume: u16, end: usize) -> usize {
        self.dirty_order(volume).seek_fullest(end)
    }
}
