//! Fills, merges and write-backs in progress, each in two halves, so that any event may occur
//! between them.

use super::world::World;
use super::{PAGE_BYTES, to_words};
use crate::directory::{Outbox, Placement};
use crate::fault::Fault;
use crate::message::{PageId, Place};
use crate::node::Effect;
use crate::store::Store;

const HALF: usize = PAGE_BYTES / 2;

/// An action of a node in progress.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) node: usize,
    page: PageId,
    place: Place,
    kind: Kind,
    /// State between the halves; `None` before the first.
    half: Option<Half>,
    /// Whether a former directory requested it: its end is not reported.
    is_former: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Fill,
    FillUnpublished,
    Merge,
    WriteBack,
}

#[derive(Debug)]
struct Half {
    bytes: [u8; PAGE_BYTES],
    sequence: u64,
}

impl Work {
    pub(super) fn new(node: usize, effect: Effect) -> Option<Self> {
        let (kind, page, place) = match effect {
            Effect::Fill { page, place } => (Kind::Fill, page, place),
            Effect::FillUnpublished { page, place } => (Kind::FillUnpublished, page, place),
            Effect::Merge { page, place } => (Kind::Merge, page, place),
            Effect::WriteBack { page, place } => (Kind::WriteBack, page, place),
            Effect::Copy { .. } | Effect::Send(_) | Effect::Ready(_) | Effect::Done { .. } => {
                return None;
            }
        };
        let half = None;
        Some(Self {
            node,
            page,
            place,
            kind,
            half,
            is_former: false,
        })
    }

    /// Returns the page that is being filled.
    pub(super) fn fills(&self) -> Option<PageId> {
        matches!(self.kind, Kind::Fill | Kind::FillUnpublished).then_some(self.page)
    }

    /// Notes that the node has found a new directory. Returns whether the work continues: a
    /// write-back that has not begun does not.
    pub(super) fn outlives_directory(&mut self) -> bool {
        self.is_former = self.kind == Kind::WriteBack;
        !self.is_former || self.half.is_some()
    }

    /// Returns whether it must wait for the end of the other work.
    pub(super) fn waits_for(&self, other: &Self) -> bool {
        !self.is_former
            && other.is_former
            && self.kind == Kind::WriteBack
            && self.place.frame == other.place.frame
    }

    /// Returns whether a former directory requested it.
    pub(super) const fn is_former(&self) -> bool {
        self.is_former
    }

    /// Returns whether it waits for the store.
    pub(super) fn uses_store(&self) -> bool {
        matches!(self.kind, Kind::Fill | Kind::WriteBack)
    }
}

impl World {
    pub(super) fn step_work(&mut self, index: usize) -> Result<(), String> {
        let mut work = self.work.swap_remove(index);
        if work.kind == Kind::WriteBack && work.half.is_none() && !self.segment.is_dirty(work.place)
        {
            let mut effects = Vec::new();
            let node = &mut self.peers[work.node].node;
            node.written_back(work.place, true, &mut effects);
            self.apply(work.node, effects);
            return Ok(());
        }
        let Some(half) = work.half.take() else {
            work.half = self.first_half(&work)?;
            self.work.push(work);
            return Ok(());
        };
        let mut effects = Vec::new();
        let Work {
            node, page, place, ..
        } = work;
        match work.kind {
            Kind::Fill if self.fails() => {
                // The frame stays open: the next fill opens it again.
                self.peers[node].node.filled(page, false, &mut effects);
            }
            Kind::Fill => {
                self.segment.store(place.frame, HALF, &half.bytes[HALF..]);
                let sequence = self.segment.unlock(place.frame);
                self.segment.set_clean(place, sequence);
                self.model
                    .check_fill(page, self.now, to_words(&half.bytes))?;
                self.peers[node].node.filled(page, true, &mut effects);
            }
            Kind::FillUnpublished => {
                self.segment.store(place.frame, HALF, &half.bytes[HALF..]);
                self.segment.unlock(place.frame);
                let id = self.peers[node].node.id();
                self.model
                    .publish(id, page, self.now, to_words(&half.bytes))?;
                self.peers[node].node.filled(page, true, &mut effects);
            }
            Kind::Merge => {
                self.segment.store(place.frame, HALF, &half.bytes[HALF..]);
                self.segment.unlock(place.frame);
                self.summary.merges += 1;
                let id = self.peers[node].node.id();
                self.model
                    .publish(id, page, self.now, to_words(&half.bytes))?;
                self.peers[node].node.merged(page, place, &mut effects);
            }
            Kind::WriteBack => {
                let ok = !self.fails();
                if ok {
                    self.shelf
                        .write_pages(page, &half.bytes)
                        .map_err(|error| error.report())?;
                    self.segment.set_clean(place, half.sequence);
                }
                if !work.is_former {
                    self.peers[node].node.written_back(place, ok, &mut effects);
                }
            }
        }
        self.apply(node, effects);
        Ok(())
    }

    fn first_half(&mut self, work: &Work) -> Result<Option<Half>, String> {
        let Work { page, place, .. } = *work;
        let id = self.peers[work.node].node.id();
        let mut bytes = [0; PAGE_BYTES];
        let mut sequence = 0;
        match work.kind {
            Kind::Fill => {
                self.shelf
                    .read_pages(page, &mut bytes)
                    .map_err(|error| error.report())?;
                self.segment.open(page, place, id);
                self.segment.store(place.frame, 0, &bytes[..HALF]);
            }
            Kind::FillUnpublished | Kind::Merge => {
                let unpublished = self.peers[work.node].node.unpublished(page);
                bytes.copy_from_slice(unpublished.ok_or(format!("{page} is not unpublished"))?);
                if work.kind == Kind::FillUnpublished {
                    self.segment.open(page, place, id);
                } else if self.segment.lock(place, id).is_err() {
                    return Ok(None);
                }
                self.segment.store(place.frame, 0, &bytes[..HALF]);
            }
            Kind::WriteBack => match self.segment.read_once(place, &mut bytes) {
                Ok(found) => {
                    sequence = found;
                    if self.fault == Some(Fault::CleanBeforeStored) {
                        self.segment.set_clean(place, sequence);
                    }
                }
                Err(_) => return Ok(None),
            },
        }
        Ok(Some(Half { bytes, sequence }))
    }

    /// Writes back a page that outlived its node; or fails and tries again later, or gives it up.
    pub(super) fn rescue(&mut self, index: usize) -> Result<(), String> {
        // A failing store refuses these more often than others, since a page that is given up would
        // be rare.
        if self.store_fails > 0 && self.rng.chance(1, 3) {
            if self.rng.chance(1, 2) {
                let (_, place) = self.rescues.swap_remove(index);
                if self.segment.is_dirty(place) {
                    self.summary.unrescued += 1;
                    self.segment.give_up(place.frame);
                    let mut out = Outbox::default();
                    self.directory.unrescued(&[place], &mut out);
                    self.deliver(out)?;
                    // A restarted directory reports pages that the one before did not report.
                    let reported = self.fault != Some(Fault::UnreportedLoss);
                    let wanted = self.fault == Some(Fault::GivenUpForgotten);
                    if reported && (wanted || (self.crashes_left > 0 && self.rng.chance(1, 2))) {
                        // The directory ends before the writers of the page are notified, with the
                        // messages in flight.
                        self.crashes_left = self.crashes_left.saturating_sub(1);
                        self.crash();
                        for peer in &mut self.peers {
                            peer.down.clear();
                        }
                    }
                    return Ok(());
                }
                let mut out = Outbox::default();
                self.directory.rescued(place, &mut out);
                return self.deliver(out);
            }
            return Ok(());
        }
        let (page, place) = self.rescues.swap_remove(index);
        if self.segment.is_dirty(place) {
            let mut bytes = [0; PAGE_BYTES];
            let read = self.segment.read_once(place, &mut bytes);
            let sequence = read.map_err(|found| format!("{page} to be rescued: {found:?}"))?;
            let written = self.shelf.write_pages(page, &bytes);
            written.map_err(|error| error.report())?;
            self.segment.set_clean(place, sequence);
            self.summary.rescues += 1;
        }
        let mut out = Outbox::default();
        self.directory.rescued(place, &mut out);
        self.deliver(out)
    }

    /// Returns whether no page is lost with its node.
    pub(super) fn pages_survive(&self) -> bool {
        self.config.placement == Placement::Pool && self.store_fails == 0
    }

    fn fails(&self) -> bool {
        self.store_fails > 0 && self.rng.chance(1, self.store_fails)
    }

    /// Notes that the node died during it.
    pub(super) fn abandon_work(&mut self, work: &Work) {
        let Some(half) = &work.half else { return };
        match work.kind {
            // No other node knows the frame.
            Kind::Fill | Kind::FillUnpublished => {}
            Kind::Merge => self.tear(work.page, work.place),
            // The store may have accepted it before the fence.
            Kind::WriteBack => {
                if self.rng.chance(1, 2) {
                    let written = self.shelf.write_pages(work.page, &half.bytes);
                    written.expect("this store writes whole pages");
                }
            }
        }
    }

    /// Notes that a node died during a store into this frame: the part that it had stored is there.
    pub(super) fn tear(&mut self, page: PageId, place: Place) {
        let mut bytes = [0; PAGE_BYTES];
        self.segment.load(place.frame, 0, &mut bytes);
        self.model.tear(page, self.now, to_words(&bytes));
    }
}
