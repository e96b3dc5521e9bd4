//! Writes of pages.

use forebay_block::Result;

use super::{Client, Link, State};
use crate::message::{Access, PageId};
use crate::node::{Acquired, Ticket, WroteWhole};
use crate::store::Store;

impl<S: Store, L: Link> Client<S, L> {
    /// Writes `bytes` at `offset` of a page. All readers of the page see them at once.
    ///
    /// # Errors
    /// Errors of the store, `TimedOut` after the limit, or `Disconnected`.
    ///
    /// # Panics
    /// If the bytes reach beyond the page.
    pub fn write(&self, page: PageId, offset: usize, bytes: &[u8]) -> Result<()> {
        if bytes.len() == self.segment.page_size_bytes() {
            let mut state = self.lock_state();
            let ticket = state.ticket();
            let State { node, effects, .. } = &mut *state;
            let wrote = node.write_whole(page, bytes, ticket, effects);
            self.act(&mut state)?;
            match wrote {
                WroteWhole::Unpublished => return Ok(()),
                WroteWhole::Publishing => return self.wait(state, page, ticket),
                WroteWhole::InPlace => {}
            }
        }
        loop {
            let mut state = self.lock_state();
            match self.acquire(&mut state, page, Access::Write)? {
                (Acquired::Mapped(place), _) => {
                    state.node.pin(page);
                    let node = state.node.id();
                    let slow = self.slow(&state, place);
                    drop(state);
                    let written = self.segment.write(place, node, offset, bytes);
                    slow.inspect(|emulated| emulated.spend(bytes.len()));
                    let mut state = self.lock_state();
                    if written.is_ok() {
                        state.node.stored(page, place);
                    }
                    self.unpin(&mut state, page)?;
                    drop(state);
                    match written {
                        Ok(_) => return Ok(()),
                        Err(found) => Self::give_way(found),
                    }
                }
                (Acquired::Unpublished, _) => {
                    let target = state
                        .node
                        .unpublished(page)
                        .expect("the node has just said so");
                    target[offset..offset + bytes.len()].copy_from_slice(bytes);
                    return Ok(());
                }
                (Acquired::Wait, ticket) => self.wait(state, page, ticket)?,
            }
        }
    }

    /// Writes consecutive whole pages, of which `first` is the first. Calls `stored` after each. As
    /// [`Client::write`] for each page, in any order. Pages that are in no memory are looked up
    /// several at a time.
    ///
    /// # Errors
    /// As for [`Client::write`]. Some of the pages may be written then.
    pub fn write_pages(&self, first: PageId, bytes: &[u8], mut stored: impl FnMut()) -> Result<()> {
        let size = self.segment.page_size_bytes();
        // Half of the unpublished pages: other threads write too.
        let batch = self.lock_state().node.unpublished_max() / 2;
        let (inode, mut index) = (first.inode, first.index);
        for chunk in bytes.chunks(size * batch.max(1)) {
            let pages = chunk.chunks(size).zip(index..);
            let pages: Vec<_> = pages
                .map(|(bytes, index)| (PageId { inode, index }, bytes))
                .collect();
            for (page, bytes) in self.write_batch(&pages)? {
                self.write(page, 0, bytes)?;
            }
            index += pages.len() as u64;
            pages.iter().for_each(|_| stored());
        }
        Ok(())
    }

    /// Writes whole pages that are in no memory, with one packet. Returns the others.
    fn write_batch<'a>(&self, pages: &[(PageId, &'a [u8])]) -> Result<Vec<(PageId, &'a [u8])>> {
        let (mut publishing, mut others) = (Vec::new(), Vec::new());
        let mut state = self.lock_state();
        for (page, bytes) in pages {
            let ticket = state.ticket();
            let State { node, effects, .. } = &mut *state;
            match node.write_whole(*page, bytes, ticket, effects) {
                WroteWhole::Unpublished => {}
                WroteWhole::Publishing => publishing.push((*page, ticket)),
                WroteWhole::InPlace => others.push((*page, *bytes)),
            }
        }
        self.act(&mut state)?;
        drop(state);
        let mut publishing = publishing.into_iter();
        while let Some((page, ticket)) = publishing.next() {
            if let Err(error) = self.wait(self.lock_state(), page, ticket) {
                self.forget(publishing.map(|(_, ticket)| ticket));
                return Err(error);
            }
        }
        Ok(others)
    }

    /// Stops waiting for operations. They stay in progress.
    fn forget(&self, tickets: impl Iterator<Item = Ticket>) {
        let mut state = self.lock_state();
        for ticket in tickets {
            state.node.cancel(ticket);
            state.outcomes.remove(&ticket);
        }
    }
}
