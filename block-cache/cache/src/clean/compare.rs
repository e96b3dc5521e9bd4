//! Compares presumably dirty data with the backing device after a crash, and writes only
//! differences back.
//!
//! A block is presumed dirty if no record calls it dirty, but a mark, the bit-tree or the absence
//! of both does. The backing device already has most of these blocks. Their number depends on how
//! few metadata writes the dirty state may cost (docs/results/mapperx.md). Writing all of them back
//! costs many times the dirty data. Reading both copies first avoids these writes.
//!
//! Rule 4 holds if equal bytes on the backing device stay there. Three conditions ensure that:
//!
//! - The comparison runs only after a flush of this process. A server that loses power may show,
//!   and then lose, data that another process wrote and did not flush.
//! - There is no comparison if a flush may have failed since the bytes were written. The device may
//!   show lost data until power is lost (rule 9). This condition excludes failures in this process
//!   and failures that the superblock records. It also excludes a process that died in this boot of
//!   the machine, since the result of its last flush is unknown.
//! - Only data that a record calls clean and that has not been rewritten since is compared. The
//!   backing device had that data durably once.
//!
//! docs/internals/comparison.md has the argument.

use std::ops::Range;

use forebay_block::Buf;
use forebay_policy::BlockId;

use super::Cleaner;
use crate::failpoints::{Fault, planted};
use crate::map::{COMPARED, REWRITTEN};
use crate::volume::AttachedVolume;

/// Bytes of a block: the block, the offset of the bytes in it, and their range on the backing
/// device.
pub(crate) type Run = (BlockId, u32, Range<u64>);
/// Bytes of a block: the block, and their range on the backing device.
pub(crate) type OnBacking = (BlockId, Range<u64>);

impl Cleaner {
    fn is_comparable(volume: &AttachedVolume) -> bool {
        !volume.may_show_lost() && volume.backing.has_never_failed()
    }

    /// Returns the parts of `runs` that must be written back. The runs are adjacent on the backing
    /// device, and `buf` has their data.
    pub(crate) async fn find_differences(
        &self,
        volume: &AttachedVolume,
        runs: &[Run],
        buf: &Buf,
    ) -> Vec<OnBacking> {
        // Blocks that are rewritten meanwhile are not written back either.
        let is_compared = |run: &Run| {
            let map = self.map.borrow();
            map.has(run.0, COMPARED) && !map.has(run.0, REWRITTEN)
        };
        let mut wanted = Vec::with_capacity(runs.len());
        for same_kind in runs.chunk_by(|one, next| is_compared(one) == is_compared(next)) {
            let (from, to) = (same_kind[0].2.start, same_kind[same_kind.len() - 1].2.end);
            let theirs = match is_compared(&same_kind[0]) {
                true => self.read_comparable(volume, from, to).await,
                false => None,
            };
            let Some(theirs) = theirs else {
                wanted.extend(same_kind.iter().map(|(id, _, at)| (*id, at.clone())));
                continue;
            };
            let ours =
                buf.slice((from - runs[0].2.start) as usize..(to - runs[0].2.start) as usize);
            for run in same_kind {
                self.add_unequal(run, from, &ours, &theirs, &mut wanted);
            }
        }
        wanted
    }

    /// Returns the backing device's data, if it can be read and can no longer be lost.
    async fn read_comparable(&self, volume: &AttachedVolume, from: u64, to: u64) -> Option<Buf> {
        if !Self::is_comparable(volume) {
            return None;
        }
        if !volume.backing.has_flushed() {
            // Once, however many windows come here together.
            volume.first_flush().acquire(1).await;
            if !volume.backing.has_flushed() {
                // Where it fails nothing is compared.
                let _ = self.failures.flush_backing(volume).await;
            }
            volume.first_flush().release(1);
        }
        let theirs = Buf::scratch((to - from) as usize);
        let read = volume.backing.read_back(from, theirs.clone()).await;
        (read.is_ok() && volume.backing.has_flushed() && Self::is_comparable(volume))
            .then_some(theirs)
    }

    /// Adds the granules of a run that a record calls dirty, or that differ between the two
    /// buffers. `start` is the offset of the buffers on the backing device, in bytes.
    fn add_unequal(
        &self,
        run: &Run,
        start: u64,
        ours: &Buf,
        theirs: &Buf,
        wanted: &mut Vec<OnBacking>,
    ) {
        let (id, first, at) = run;
        let granule = self
            .geometry
            .granule_bytes(self.map.borrow().state(*id).class);
        let recorded = self.presumed.recorded(*id);
        for from in at.clone().step_by(granule as usize) {
            let to = (from + granule).min(at.end);
            let piece = (from - start) as usize..(to - start) as usize;
            let nth = (u64::from(*first) + from - at.start) / granule;
            if recorded >> nth & 1 == 0 || planted(Fault::CompareRecorded) {
                self.stats.compared_bytes.add(to - from);
                let skip = planted(Fault::CompareFirstGranule) && from != at.start;
                if skip || ours.slice(piece.clone()).equals(&theirs.slice(piece)) {
                    self.stats.same_bytes.add(to - from);
                    continue;
                }
            }
            match wanted.last_mut() {
                Some((last, before)) if *last == *id && before.end == from => before.end = to,
                _ => wanted.push((*id, from..to)),
            }
        }
    }
}
