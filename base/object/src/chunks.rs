//! Reads of chunks of objects.

use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use forebay_block::Result;
use futures_util::StreamExt as _;
use futures_util::stream::{self, TryStreamExt as _};

use crate::batch::unpack;
use crate::format::checkpoint::Entry;
use crate::format::log::Chunk;
use crate::format::{CHUNK_SECTORS, chunk_bytes, corrupt, log_name};
use crate::link::Link;
use crate::objects::{Content, Object};
use crate::replay::WithHelp as _;

/// Chunks between two that are needed, which are read with them: one request costs more.
const MAX_GAP: usize = 2;
/// Maximum number of chunks of one read (8 MiB).
const MAX_RUN: usize = 256;
/// Maximum number of reads of one request at once.
const MAX_READS: usize = 32;

/// An object in the store, from which data are read.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) seq: u64,
    header_bytes: u32,
    chunks: Rc<[Chunk]>,
    payload_sectors: u32,
}

impl Source {
    /// Returns the source of an object that is in the store.
    pub(crate) fn of(object: &Object) -> Option<Self> {
        let Content::Stored(header_bytes, chunks) = &object.content else {
            return None;
        };
        Some(Self {
            seq: object.seq,
            header_bytes: *header_bytes,
            chunks: Rc::clone(chunks),
            payload_sectors: object.payload_sectors,
        })
    }

    /// Returns the source of an object that a snapshot names.
    pub(crate) fn of_entry(entry: &Entry) -> Self {
        Self {
            seq: entry.seq,
            header_bytes: entry.header_bytes,
            chunks: entry.chunks.clone().into(),
            payload_sectors: entry.payload_sectors,
        }
    }

    /// Returns the number of chunks.
    pub(crate) fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Returns the length of all chunks, bytes.
    pub(crate) fn stored_bytes(&self) -> u64 {
        let bytes = self.bytes(0..self.chunks.len());
        bytes.end - bytes.start
    }

    /// Returns the place of chunks in the object, bytes.
    fn bytes(&self, chunks: Range<usize>) -> Range<u64> {
        let len = |chunks: &[Chunk]| {
            chunks
                .iter()
                .map(|it| it.stored_bytes() as u64)
                .sum::<u64>()
        };
        let begin = u64::from(self.header_bytes) + len(&self.chunks[..chunks.start]);
        begin..begin + len(&self.chunks[chunks])
    }
}

/// Returns the chunks that have these sectors of a payload.
pub(crate) fn chunks_with(sectors: Range<u32>) -> Range<usize> {
    let begin = sectors.start / CHUNK_SECTORS;
    begin as usize..sectors.end.div_ceil(CHUNK_SECTORS) as usize
}

/// Joins chunks, which ascend, to runs that one read fetches.
pub(crate) fn runs_of(chunks: impl IntoIterator<Item = Range<usize>>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for chunks in chunks {
        match runs.last_mut() {
            Some(last)
                if chunks.start <= last.end + MAX_GAP
                    && chunks.end.max(last.end) - last.start <= MAX_RUN =>
            {
                last.end = last.end.max(chunks.end);
            }
            _ => runs.push(chunks),
        }
    }
    runs
}

/// Raw chunks of an object.
pub(crate) struct Run {
    pub(crate) source: Source,
    first: usize,
    chunks: Vec<Bytes>,
}

impl Run {
    /// Calls `copy` with the parts of these sectors of the payload that are here, in ascending
    /// order: first sector, and data.
    pub(crate) fn each(&self, sectors: Range<u32>, mut copy: impl FnMut(u32, &[u8])) {
        for index in chunks_with(sectors.clone()) {
            let here = index.checked_sub(self.first);
            let Some(chunk) = here.and_then(|here| self.chunks.get(here)) else {
                continue;
            };
            let base = u32::try_from(index).expect("bounded") * CHUNK_SECTORS;
            let start = sectors.start.max(base);
            let end = sectors.end.min(base + CHUNK_SECTORS);
            let at = |sector: u32| crate::objects::bytes_of(sector - base);
            copy(start, &chunk[at(start)..at(end)]);
        }
    }
}

/// Reads and verifies a run of chunks.
///
/// # Errors
/// `NotFound` without the object. `Corrupt` if a chunk does not verify. Errors of the store.
async fn read_run(link: &Link<'_>, source: Source, run: Range<usize>) -> Result<Run> {
    let name = log_name(source.seq);
    let bytes = source.bytes(run.clone());
    let content = link.read(&name, bytes.clone()).await?;
    let what = || format!("object {name} of {} from byte {}", link.name(), bytes.start);
    let mut chunks = Vec::with_capacity(run.len());
    let mut at = 0;
    for index in run.clone() {
        let chunk = source.chunks[index];
        let end = at + chunk.stored_bytes();
        let stored = (end <= content.len()).then(|| content.slice(at..end));
        let raw_bytes = chunk_bytes(source.payload_sectors, index);
        let raw = stored.and_then(|stored| unpack(chunk, &stored, raw_bytes));
        let flaw = || corrupt("its data differ from what was written");
        chunks.push(raw.ok_or_else(flaw).with_help(what)?);
        at = end;
    }
    Ok(Run {
        source,
        first: run.start,
        chunks,
    })
}

/// Reads runs of chunks, several at once. Calls `take` with each.
///
/// # Errors
/// As `read_run`. The name of the object that failed is not part of `NotFound`.
pub(crate) async fn read_runs(
    link: &Link<'_>,
    runs: Vec<(Source, Range<usize>)>,
    mut take: impl FnMut(Run),
) -> Result<()> {
    let reads = runs
        .into_iter()
        .map(|(source, run)| read_run(link, source, run));
    let mut reads = stream::iter(reads).buffer_unordered(MAX_READS);
    while let Some(run) = reads.try_next().await? {
        take(run);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_chunks_are_read_at_once() {
        let runs = runs_of([0..1, 3..4, 7..9, 8..10, 12..400]);
        assert_eq!(runs, [0..4, 7..10, 12..400]);
        assert_eq!(chunks_with(63..65), 0..2);
        assert_eq!(chunks_with(64..128), 1..2);
    }
}
