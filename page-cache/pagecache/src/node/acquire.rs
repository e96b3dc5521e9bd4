//! Uses of pages: where a page is, and pins for views and stores.

use super::{Access, Acquired, Effect, Fault, Node, PageId, Place, Ticket};
use crate::message::ToDirectory;

impl Node {
    /// Returns the place of the page if it may be used with this access now. Otherwise looks it up;
    /// an effect for `ticket` requests the retry.
    pub fn acquire(
        &mut self,
        page: PageId,
        access: Access,
        ticket: Ticket,
        out: &mut Vec<Effect>,
    ) -> Acquired {
        let acquired = self.find(page, access, ticket, out);
        if let Acquired::Mapped(place) = acquired {
            self.count_hit(place);
        }
        acquired
    }

    /// Does what [`Node::acquire`] does, without the count of hits.
    pub(super) fn find(
        &mut self,
        page: PageId,
        access: Access,
        ticket: Ticket,
        out: &mut Vec<Effect>,
    ) -> Acquired {
        if let Some(unpublished) = self.unpublished.get(&page) {
            if !unpublished.publishing {
                return Acquired::Unpublished;
            }
            // The unpublished page is newer than any that other nodes may have published. No
            // operation here uses the page before it is merged.
            self.look_up(page, Access::Write, out).waiting.push(ticket);
            return Acquired::Wait;
        }
        if let Some(mapping) = self.mapped.find_mut(page)
            && !mapping.leaving
            && mapping.access >= access
        {
            let place = mapping.place;
            if mapping.pressure != self.pressure {
                mapping.pressure = self.pressure;
                out.push(Effect::Send(ToDirectory::Used { place }));
            }
            return Acquired::Mapped(place);
        }
        self.counts.misses += 1;
        let is_new = !self.pending.contains_key(&page);
        self.look_up(page, access, out).waiting.push(ticket);
        if access == Access::Read && is_new {
            let next = page.index.saturating_add(1);
            self.read_ahead(page.inode, page.index..next, out);
        }
        Acquired::Wait
    }

    /// Keeps a page mapped until [`Node::unpin`], for a view or a store. Call it right after
    /// [`Node::acquire`] returned the place.
    ///
    /// # Panics
    /// If the page is not mapped there.
    pub fn pin(&mut self, page: PageId) {
        let mapping = self
            .mapped
            .find_mut(page)
            .expect("only mapped pages are pinned");
        mapping.pins += 1;
    }

    /// Ends a pin. A page that was to be invalidated meanwhile is unmapped now.
    ///
    /// # Panics
    /// If the page is not pinned.
    pub fn unpin(&mut self, page: PageId, out: &mut Vec<Effect>) {
        let pinned = self
            .mapped
            .find_mut(page)
            .filter(|mapping| mapping.pins > 0);
        let Some(mapping) = pinned else {
            assert!(
                self.faults.has(Fault::AcknowledgeMapped),
                "{page} is not pinned"
            );
            return;
        };
        mapping.pins -= 1;
        if mapping.leaving && mapping.pins == 0 {
            self.unmap(page, out);
        }
    }

    /// Gives up the permission to store into a page, unless it is in use: by a store, perhaps.
    pub(super) fn protect(&mut self, page: PageId, place: Place, out: &mut Vec<Effect>) {
        let ignores = self.faults.has(Fault::ProtectPinned);
        let mapping = self.mapped.find_mut(page);
        let unused = mapping.filter(|mapping| {
            mapping.place == place && !mapping.leaving && (mapping.pins == 0 || ignores)
        });
        let ok = unused
            .map(|mapping| mapping.access = Access::Read)
            .is_some();
        out.push(Effect::Send(ToDirectory::Protected { place, ok }));
    }

    pub(super) fn count_hit(&mut self, place: Place) {
        match self.is_local(place) {
            true => self.counts.hits_local += 1,
            false => self.counts.hits_remote += 1,
        }
    }

    /// Returns whether a place is in this node's memory.
    pub(super) fn is_local(&self, place: Place) -> bool {
        (self.first_frame..self.first_frame + self.frames).contains(&place.frame)
    }
}
