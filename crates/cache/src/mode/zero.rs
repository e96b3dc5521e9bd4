//! Discard and write-zeroes: writes, with the same locks and the same order (rule 10).
//!
//! They go to the backing device, so that zeroing a terabyte does not fill the cache with zeroes. What
//! the cache holds dirty is zeroed in place, in both cases (it stays dirty: were it dropped, a crash in
//! between could bring back what lay under it); what it holds clean is dropped, durably, before the
//! backing device is touched.

use std::rc::Rc;

use forebay_block::{Buf, ErrorKind, Op, Request, Result};
use forebay_metadata::order::Site;
use forebay_policy::{BlockId, Span};

use super::around::drop_clean;
use crate::diverge;
use crate::engine::{Attached, Engine};
use crate::geometry::{Piece, Stretch};
use crate::map::{REWRITTEN, TRACED};
use crate::plant::{Fault, planted};

/// Regions that are locked at a time.
const STRETCH_REGIONS: usize = 64;

/// Discards a range (`unmap` is none) or makes it read as zeroes.
pub(crate) async fn zero(
    engine: &Rc<Engine>,
    volume: &Rc<Attached>,
    offset: u64,
    len: u64,
    unmap: Option<bool>,
    durable: bool,
) -> Result<()> {
    let mut parts = engine.geometry.parts(offset, len).peekable();
    let mut stretch: Vec<Stretch> = Vec::with_capacity(STRETCH_REGIONS);
    let (mut start, mut end) = (offset, offset);
    while let Some(part) = parts.next() {
        stretch.push(part);
        end += part.len() as u64;
        if stretch.len() == STRETCH_REGIONS || parts.peek().is_none() {
            let request = match unmap {
                None => Request::discard(start, end - start),
                Some(unmap) => Request::write_zeroes(start, end - start, false, unmap),
            };
            zero_stretch(engine, volume, &stretch, request, durable).await?;
            stretch.clear();
            start = end;
        }
    }
    Ok(())
}

async fn zero_stretch(
    engine: &Rc<Engine>,
    volume: &Rc<Attached>,
    parts: &[Stretch],
    request: Request,
    durable: bool,
) -> Result<()> {
    let mut locks = Vec::with_capacity(parts.len());
    for part in parts {
        locks.push(engine.lock_blocks(Site::here(), volume, part).await);
    }
    match zero_cached(engine, volume, parts, request.clone(), durable).await {
        Err(error) => diverge::zero(engine, volume, parts, request, durable, error).await,
        Ok(()) => Ok(()),
    }
}

async fn zero_cached(
    engine: &Rc<Engine>,
    volume: &Rc<Attached>,
    parts: &[Stretch],
    request: Request,
    durable: bool,
) -> Result<()> {
    // As in `write_locked`.
    engine.check_alive()?;
    let mut dropped = false;
    let mut zeroed = false;
    let mut result = Ok(());
    for part in parts {
        let units = engine.geometry.units(part);
        let found: Vec<(BlockId, Span)> = {
            let map = engine.map.borrow();
            map.overlapping(volume.id, part.region, units).collect()
        };
        for (slot, span) in found {
            if result.is_err() {
                break;
            }
            let piece = engine.geometry.piece(part, span);
            dropped |= drop_before_zeroing(engine, slot, &piece);
            result = zero_dirty(engine, volume, slot, &piece)
                .await
                .map(|zeroes| zeroed |= zeroes);
        }
    }
    if dropped {
        // The clean copies are durably gone before the backing device changes (rule 5); after an error,
        // too, because nothing that is tried again would find them to drop.
        engine.commit().await?;
    }
    result?;
    let discard = request.op == Op::Discard;
    match volume.backing.change(request, durable).await {
        // A device that cannot discard keeps what it has, which a discard allows.
        Err(error) if discard && error.kind() == ErrorKind::Unsupported => {}
        result => result?,
    }
    match zeroed {
        true if durable => engine.commit().await,
        // The device failed meanwhile: whether the zeroes are there nobody knows.
        true => engine.check_alive(),
        false => Ok(()),
    }
}

/// Drops what is clean. Returns whether a record may speak of it.
fn drop_before_zeroing(engine: &Engine, slot: BlockId, piece: &Piece) -> bool {
    let touched = engine.geometry.touched(piece);
    let before = engine.map.borrow().slot(slot);
    // The cleaner will not call clean what is dirty while this goes on.
    if !planted(Fault::ForgetDiscard) {
        engine.map.borrow_mut().add_flags(slot, REWRITTEN);
    }
    drop_clean(engine, slot, touched);
    touched & before.valid & !before.dirty != 0 && before.has(TRACED)
}

/// Zeroes what is dirty in place. Returns whether anything is.
async fn zero_dirty(
    engine: &Rc<Engine>,
    volume: &Attached,
    slot: BlockId,
    piece: &Piece,
) -> Result<bool> {
    let entry = engine.map.borrow().slot(slot);
    let dirty = engine.geometry.touched(piece) & entry.dirty;
    if dirty == 0 {
        return Ok(false);
    }
    let mark = engine.open_for_overwriting(entry.key).await?;
    if mark.is_some() {
        engine.announce(slot).await?;
    }
    for run in engine
        .geometry
        .runs(piece.block.class, dirty, piece.start..piece.end)
    {
        let zeroes = Buf::zeroed((run.end - run.start) as usize);
        engine.write_slot(volume, slot, run.start, zeroes).await?;
    }
    Ok(true)
}
