//! Open CAS's rule for data and metadata in write-back mode with the cleaner off, as the study
//! describes it (HotStorage '23, sections 3.3.1 to 3.3.3). This is our own implementation of its
//! I/O alone, for comparison.
//!
//! - Entries of cache lines have 12, 18 or 42 bytes, packed into pages of 4 KiB. An entry changes
//!   on media by a write of its whole page. Lines of one request with entries in one page share the
//!   write.
//! - A write to cached lines writes data alone. A write that misses writes data, then pages.
//! - Without a free line, the least recently used one is first read, written back, and its page
//!   rewritten.
//! - With a limit on evictions, a request that needs more bypasses the cache, and its cached lines
//!   are dropped.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;

use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf, IoFuture, Request, Result};

const PAGE_BYTES: u64 = 4096;

/// Returns the bytes of an entry for a line size.
fn entry_bytes(line_bytes: u64) -> u64 {
    match line_bytes {
        4096 => 12,
        16384 => 18,
        65536 => 42,
        other => panic!("the study has no lines of {other} bytes"),
    }
}

/// A cache of dirty lines.
pub(crate) struct OpenCas {
    cache: Rc<dyn BlockDevice>,
    core: Rc<dyn BlockDevice>,
    line_bytes: u64,
    /// Offset of the pages on the cache device.
    pages_at: u64,
    /// Cache line and last use of each cached core line.
    cached: HashMap<u64, (u64, u64)>,
    /// Cached core lines by last use.
    order: BTreeMap<u64, u64>,
    free: VecDeque<u64>,
    uses: u64,
    most_evictions: usize,
    /// Buffer for all reads and writes.
    data: Buf,
}

/// Returns the bytes of a cache device with `lines` lines.
pub(crate) fn device_bytes(line_bytes: u64, lines: u64) -> u64 {
    let entries = PAGE_BYTES / entry_bytes(line_bytes);
    lines * line_bytes + lines.div_ceil(entries) * PAGE_BYTES
}

/// Waits for all.
async fn all(started: Vec<IoFuture>) -> Result<()> {
    for one in started {
        one.await?;
    }
    Ok(())
}

impl OpenCas {
    /// Creates an empty cache on devices that are large enough.
    pub(crate) fn new(
        cache: Rc<dyn BlockDevice>,
        core: Rc<dyn BlockDevice>,
        line_bytes: u64,
        lines: u64,
        most_evictions: Option<usize>,
    ) -> Self {
        Self {
            cache,
            core,
            line_bytes,
            pages_at: lines * line_bytes,
            cached: HashMap::new(),
            order: BTreeMap::new(),
            free: (0..lines).collect(),
            uses: 0,
            most_evictions: most_evictions.unwrap_or(usize::MAX),
            data: Buf::zeroed(1 << 20),
        }
    }

    /// Writes whole lines, durably, at most 1 MiB.
    pub(crate) async fn write(&mut self, offset: u64, len: u64) -> Result<()> {
        let asked = offset / self.line_bytes..(offset + len) / self.line_bytes;
        let missing: Vec<u64> = (asked.clone())
            .filter(|core| !self.cached.contains_key(core))
            .collect();
        let evictions = missing.len().saturating_sub(self.free.len());
        if evictions > self.most_evictions {
            return self.write_invalidate(offset, len, asked).await;
        }
        // A request does not evict its own lines.
        for core in asked.clone() {
            if let Some((line, _)) = self.forget(core) {
                self.place(core, line);
            }
        }
        self.evict(evictions).await?;
        let mut placed = Vec::with_capacity(missing.len());
        for core in missing {
            let line = self.free.pop_front().expect("enough are free");
            self.place(core, line);
            placed.push(line);
        }
        let lines: Vec<u64> = asked.map(|core| self.cached[&core].0).collect();
        let runs = lines.chunk_by(|a, b| a + 1 == *b);
        let data = runs.map(|run| {
            let bytes = run.len() as u64 * self.line_bytes;
            self.put(&self.cache, run[0] * self.line_bytes, bytes)
        });
        all(data.collect()).await?;
        self.write_pages(&placed).await
    }

    async fn write_invalidate(
        &mut self,
        offset: u64,
        len: u64,
        asked: std::ops::Range<u64>,
    ) -> Result<()> {
        all(vec![self.put(&self.core, offset, len)]).await?;
        let dropped: Vec<u64> = asked
            .filter_map(|core| self.forget(core).map(|(line, _)| line))
            .collect();
        self.free.extend(&dropped);
        self.write_pages(&dropped).await
    }

    /// Reads the least recently used lines, writes them back, and then writes their pages.
    async fn evict(&mut self, count: usize) -> Result<()> {
        let victims: Vec<u64> = self.order.values().copied().take(count).collect();
        let line_bytes = self.line_bytes;
        let reads = victims.iter().map(|core| {
            let into = self.data.slice(0..line_bytes as usize);
            (self.cache).start(Request::read(self.cached[core].0 * line_bytes, into))
        });
        all(reads.collect()).await?;
        let writes = victims
            .iter()
            .map(|core| self.put(&self.core, core * line_bytes, line_bytes));
        all(writes.collect()).await?;
        let freed: Vec<u64> = victims
            .iter()
            .filter_map(|core| self.forget(*core).map(|(line, _)| line))
            .collect();
        self.free.extend(&freed);
        self.write_pages(&freed).await
    }

    /// Writes the pages with the entries of these lines. Adjacent pages share a write.
    async fn write_pages(&self, lines: &[u64]) -> Result<()> {
        let entries = PAGE_BYTES / entry_bytes(self.line_bytes);
        let mut pages: Vec<u64> = lines.iter().map(|line| line / entries).collect();
        pages.sort_unstable();
        pages.dedup();
        let runs = pages.chunk_by(|a, b| a + 1 == *b);
        let writes = runs.map(|run| {
            let at = self.pages_at + run[0] * PAGE_BYTES;
            self.put(&self.cache, at, run.len() as u64 * PAGE_BYTES)
        });
        all(writes.collect()).await
    }

    fn put(&self, device: &Rc<dyn BlockDevice>, offset: u64, len: u64) -> IoFuture {
        let from = self.data.slice(0..len as usize);
        device.start(Request::write(offset, from, false))
    }

    fn place(&mut self, core: u64, line: u64) {
        self.uses += 1;
        self.cached.insert(core, (line, self.uses));
        self.order.insert(self.uses, core);
    }

    fn forget(&mut self, core: u64) -> Option<(u64, u64)> {
        let (line, used) = self.cached.remove(&core)?;
        self.order.remove(&used);
        Some((line, used))
    }
}
