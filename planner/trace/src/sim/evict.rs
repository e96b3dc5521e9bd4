//! Eviction, and the write-back that it needs.

use forebay_policy::{BlockId, BlockTable, Evictability, clean_with};

use super::changes::Change;
use super::cost::Way;
use super::maps::{bits, runs};
use super::model::{Fill, Simulated, WriteBack};

impl Simulated {
    /// Makes room ahead of need. Returns whether it evicted or wrote back a block.
    pub(super) fn make_room(&mut self) -> bool {
        let traffic = &self.traffic;
        let look = |_: &BlockTable, id: BlockId| match traffic[id.index()].dirty {
            0 => Evictability::Now,
            _ => Evictability::Later,
        };
        let (ahead, table) = (&mut self.ahead, &mut self.table);
        let picked = self.replacer.pick(ahead, table, look);
        let moved = !picked.leaving.is_empty() || !picked.dirty.is_empty();
        for id in picked.leaving {
            self.evict(id);
        }
        for id in picked.dirty {
            self.write_back(id);
        }
        moved
    }

    pub(super) fn evict(&mut self, id: BlockId) {
        self.write_back(id);
        let (volume, region, span) = self.table.address(id);
        let granules = self.granules(span);
        if let Some(footprint) = &mut self.footprint {
            footprint.evicted(volume, region, granules);
        }
        // Reads in flight do not fill the block.
        self.fetches.iter_mut().for_each(|fetch| fetch.forget(id));
        self.note(Change::Removed, id);
        let group = self.table.group_of(id);
        self.table.remove(id);
        self.replacer.removed(&self.table, group);
        self.counts.evicted_blocks += 1;
    }

    pub(super) fn write_back(&mut self, id: BlockId) {
        let dirty = self.traffic[id.index()].dirty;
        if dirty == 0 {
            return;
        }
        match (self.model.fill, self.model.write_back) {
            (Fill::Whole, _) => {
                self.traffic[id.index()].dirty = 0;
                self.note(Change::Cleaned, id);
                let bytes = self.model.sizes.block_bytes(self.table.class(id));
                let read = self.read_victim(bytes);
                let written = self.write_core(read, bytes);
                self.clock.wait(written);
            }
            (_, WriteBack::Victim) => {
                self.traffic[id.index()].dirty = 0;
                self.note(Change::Cleaned, id);
                for (_, len) in runs(dirty) {
                    let bytes = u64::from(len) * self.granule_bytes;
                    let read = self.read_victim(bytes);
                    self.write_core(read, bytes);
                }
            }
            (_, WriteBack::Runs) => self.write_back_with(id, dirty),
        }
    }

    /// Writes back a block, with the dirty granules in its *window*. A window has 64 granules: one
    /// region with several block sizes, several regions with one.
    fn write_back_with(&mut self, id: BlockId, dirty: u64) {
        let (volume, region, _) = self.table.address(id);
        let granules = 1 << (self.region_shift - self.granule_shift);
        let regions = 64 / granules;
        let first_region = region / regions * regions;
        let mut blocks = std::mem::take(&mut self.window);
        let mut all = 0;
        for nth in 0..regions {
            for (id, _) in self.table.find(volume, first_region + nth) {
                let dirty = self.traffic[id.index()].dirty;
                if dirty != 0 {
                    let shift = nth * granules;
                    all |= dirty << shift;
                    blocks.push((id, shift));
                }
            }
        }
        let victim = dirty << ((region - first_region) * granules);
        for (first, len) in runs(clean_with(victim, all)) {
            let run = bits(u64::from(first), u64::from(first + len));
            let mut read = self.clock.now();
            for (id, shift) in &blocks {
                let piece = self.traffic[id.index()].dirty & (run >> shift);
                if piece != 0 {
                    self.traffic[id.index()].dirty &= !piece;
                    if self.traffic[id.index()].dirty == 0 {
                        self.note(Change::Cleaned, *id);
                    }
                    let bytes = u64::from(piece.count_ones()) * self.granule_bytes;
                    read = read.max(self.read_victim(bytes));
                }
            }
            self.write_core(read, u64::from(len) * self.granule_bytes);
        }
        blocks.clear();
        self.window = blocks;
    }

    fn read_victim(&mut self, bytes: u64) -> u64 {
        self.counts.io.read_from_cache.add(bytes);
        let at = self.clock.now();
        self.clock.cache(Way::Read, at, bytes)
    }

    fn write_core(&mut self, at_ns: u64, bytes: u64) -> u64 {
        self.counts.io.write_to_core.add(bytes);
        self.clock.core(Way::Write, at_ns, bytes)
    }
}
