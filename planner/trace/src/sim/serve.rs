//! Serves the part of a request in one block, and counts its reads and writes.

use forebay_policy::{BlockId, Span};

use super::changes::Change;
use super::cost::Way;
use super::fetch::Fetch;
use super::maps::{bits, runs};
use super::model::{Fill, Part, Simulated};

/// Longest read of the backing device that combines missing granules, bytes.
const READ_MAX_BYTES: u64 = 256 << 10;

impl Simulated {
    /// Serves the part in one block. Returns how many of its bytes were in the cache.
    pub(super) fn serve(&mut self, part: Part, id: BlockId, span: Span, fresh: bool) -> u64 {
        let sizes = self.model.sizes;
        let base = u64::from(span.first) * sizes.unit_bytes();
        let size = sizes.block_bytes(span.class);
        let start = part.start.clamp(base, base + size);
        let end = part.end.clamp(base, base + size);
        if self.model.fill == Fill::Whole {
            return self.serve_whole(part.write, id, size, end - start, fresh);
        }
        let touched = self.touched(part, span);
        if part.write {
            return self.write_granules(part, id, touched, start, end);
        }
        let absent = self.granules(span) & !self.states[id.index()].valid;
        let fetched = match self.model.fill {
            Fill::Learned => part.wanted & absent,
            Fill::Demand => touched & absent,
            Fill::SubBlock | Fill::Whole if touched & absent != 0 => absent,
            Fill::SubBlock | Fill::Whole => 0,
        };
        let hit_bytes = self.read_granules(id, touched, start, end);
        self.fetch_granules(part, id, fetched);
        hit_bytes
    }

    fn serve_whole(&mut self, write: bool, id: BlockId, size: u64, bytes: u64, fresh: bool) -> u64 {
        if fresh {
            // After the write-back of victims.
            let at = self.clock.done();
            self.counts.io.read_from_core.add(size);
            let read = self.clock.core(Way::Read, at, size);
            self.counts.io.write_to_cache.add(size);
            self.clock.cache(Way::Write, read, size);
            self.clock.wait(read);
            self.traffic[id.index()].ready_ns = read;
        }
        let at = self.clock.now().max(self.traffic[id.index()].ready_ns);
        if write {
            self.counts.io.write_to_cache.add(bytes);
            let written = self.clock.cache(Way::Write, at, bytes);
            self.clock.wait(written);
            self.traffic[id.index()].dirty = u64::MAX;
            self.note(Change::Written, id);
        } else if !fresh {
            self.counts.io.read_from_cache.add(bytes);
            let read = self.clock.cache(Way::Read, at, bytes);
            self.clock.wait(read);
        }
        if fresh { 0 } else { bytes }
    }

    /// Returns the time of arrival of granules in flight; the present time if there are none.
    fn arrived(&self, id: BlockId, granules: u64) -> u64 {
        let now = self.clock.now();
        if self.arriving.iter().all(|(of, _)| *of != id) {
            return now;
        }
        let traffic = &self.traffic[id.index()];
        match traffic.pending & granules {
            0 => now,
            _ => now.max(traffic.ready_ns),
        }
    }

    /// Reads `bytes` from a block that has all of them.
    pub(super) fn read_cached(&mut self, id: BlockId, touched: u64, bytes: u64) {
        let at = self.arrived(id, touched);
        self.counts.io.read_from_cache.add(bytes);
        let read = self.clock.cache(Way::Read, at, bytes);
        self.clock.wait(read);
    }

    /// Reads the cached bytes of `start..end` of the region, granules `touched`, from a block.
    fn read_granules(&mut self, id: BlockId, touched: u64, start: u64, end: u64) -> u64 {
        let valid = self.states[id.index()].valid;
        let at = self.arrived(id, touched);
        let mut hit_bytes = 0;
        for (first, len) in runs(touched & valid) {
            let from = start.max(u64::from(first) * self.granule_bytes);
            let to = end.min(u64::from(first + len) * self.granule_bytes);
            hit_bytes += to - from;
            self.counts.io.read_from_cache.add(to - from);
            let read = self.clock.cache(Way::Read, at, to - from);
            self.clock.wait(read);
        }
        hit_bytes
    }

    /// Writes `start..end` of the region, granules `touched`, to a block. An absent granule that it
    /// covers in part is first filled from the backing device.
    fn write_granules(
        &mut self,
        part: Part,
        id: BlockId,
        touched: u64,
        start: u64,
        end: u64,
    ) -> u64 {
        let granule = self.granule_bytes;
        let absent = touched & !self.states[id.index()].valid;
        self.fetch_granules(
            part,
            id,
            absent
                & !bits(
                    (start + granule - 1) >> self.granule_shift,
                    end >> self.granule_shift,
                ),
        );
        self.states[id.index()].valid |= touched;
        self.traffic[id.index()].dirty |= touched;
        self.note(Change::Written, id);
        self.writes.push(end - start);
        if absent == 0 { end - start } else { 0 }
    }

    /// Adds granules of a block to the reads of the backing device.
    fn fetch_granules(&mut self, part: Part, id: BlockId, granules: u64) {
        let base = part.region * self.model.sizes.region_bytes();
        for (first, len) in runs(granules) {
            self.fetches.push(Fetch {
                start: base + u64::from(first) * self.granule_bytes,
                bytes: u64::from(len) * self.granule_bytes,
                id,
                mask: bits(u64::from(first), u64::from(first + len)),
            });
        }
        self.states[id.index()].valid |= granules;
    }

    /// Issues the request's reads of the backing device, then its writes.
    pub(super) fn issue(&mut self) {
        if !self.fetches.is_empty() {
            self.fetch();
        }
        let at = self.clock.done();
        for bytes in self.writes.drain(..) {
            self.counts.io.write_to_cache.add(bytes);
            let written = self.clock.cache(Way::Write, at, bytes);
            self.clock.wait(written);
        }
    }

    fn fetch(&mut self) {
        self.fetches.sort_unstable_by_key(|fetch| fetch.start);
        let now = self.clock.now();
        self.arriving.retain(|(_, ready_ns)| *ready_ns > now);
        let mut rest = &self.fetches[..];
        while let [first, ..] = rest {
            let (mut count, mut bytes) = (1, first.bytes);
            while let Some(more) = rest.get(count)
                && more.start == first.start + bytes
                && bytes + more.bytes <= READ_MAX_BYTES
            {
                bytes += more.bytes;
                count += 1;
            }
            let (run, behind) = rest.split_at(count);
            rest = behind;
            self.counts.io.read_from_core.add(bytes);
            let read = self.clock.core(Way::Read, now, bytes);
            self.clock.wait(read);
            for fetch in run {
                self.counts.io.write_to_cache.add(fetch.bytes);
                self.clock.cache(Way::Write, read, fetch.bytes);
                if fetch.mask != 0 {
                    let traffic = &mut self.traffic[fetch.id.index()];
                    if traffic.ready_ns <= now {
                        traffic.pending = 0;
                    }
                    traffic.pending |= fetch.mask;
                    traffic.ready_ns = traffic.ready_ns.max(read);
                    self.arriving.push((fetch.id, read));
                }
            }
        }
        self.fetches.clear();
    }
}
