//! Uses of pages: their places, and obstacles to a copy or a store.

use forebay_block::Result;

use super::{Client, Emulated, GIVE_WAY, Link, State};
use crate::message::{Access, PageId, Place};
use crate::node::{Acquired, Ticket};
use crate::segment::Frame;
use crate::store::Store;

impl<S: Store, L: Link> Client<S, L> {
    /// Returns the place of a page if it can be used now, and the ticket of the operation.
    pub(super) fn acquire(
        &self,
        state: &mut State,
        page: PageId,
        access: Access,
    ) -> Result<(Acquired, Ticket)> {
        let ticket = state.ticket();
        let acquired = state.node.acquire(page, access, ticket, &mut state.effects);
        if !state.effects.is_empty() {
            self.act(state)?;
        }
        Ok((acquired, ticket))
    }

    /// Like [`Client::acquire`], for a copy of the page.
    pub(super) fn acquire_copy(
        &self,
        state: &mut State,
        page: PageId,
    ) -> Result<(Acquired, Ticket)> {
        let ticket = state.ticket();
        let State { node, effects, .. } = &mut *state;
        let acquired = node.acquire_copy(page, ticket, effects);
        if !state.effects.is_empty() {
            self.act(state)?;
        }
        Ok((acquired, ticket))
    }

    /// Returns the emulated delay of a place, if it is in another node's memory.
    pub(super) fn slow(&self, state: &State, place: Place) -> Option<Emulated> {
        let ours = |share: std::ops::Range<u32>| share.contains(&place.frame);
        self.emulated
            .filter(|_| !state.node.share().is_some_and(ours))
    }

    /// Lets other threads run after a frame could not be used. If a node has been storing for long,
    /// it may have to be declared dead first.
    pub(super) fn give_way(found: Frame) {
        if matches!(found, Frame::Storing(_)) {
            std::thread::sleep(GIVE_WAY);
        }
    }

    pub(super) fn unpin(&self, state: &mut State, page: PageId) -> Result<()> {
        let State { node, effects, .. } = state;
        node.unpin(page, effects);
        self.act(state)
    }
}
