//! Reads that occupy no thread while they wait.

use std::time::Instant;

use forebay_block::Result;

use super::locked::{Locked, Waiter, note_wait};
use super::{Client, Link};
use crate::message::PageId;
use crate::node::{Acquired, Ticket};
use crate::segment::Frame;
use crate::store::Store;

/// Outcome of [`Client::begin_read`].
pub enum Begun<'a, S: Store, L: Link> {
    /// The page is read.
    Read,
    /// The page is requested.
    Waits(Waiting<'a, S, L>),
    /// [`Client::read`] has to read the page: it waits for a store of another node, or for emulated
    /// memory.
    Blocks,
}

/// A read whose page is requested. The node is locked.
pub struct Waiting<'a, S: Store, L: Link> {
    state: Locked<'a, S, L>,
    page: PageId,
    ticket: Ticket,
}

impl<S: Store, L: Link> Client<S, L> {
    /// Reads a whole page, or begins to read it. It does not wait.
    ///
    /// # Errors
    /// If the link is gone.
    ///
    /// # Panics
    /// If `out` does not have the length of a page.
    pub fn begin_read(&self, page: PageId, out: &mut [u8]) -> Result<Begun<'_, S, L>> {
        if self.emulated.is_some() {
            return Ok(Begun::Blocks);
        }
        loop {
            let mut state = self.lock_state();
            let (acquired, ticket) = self.acquire_copy(&mut state, page)?;
            match acquired {
                Acquired::Mapped(place) => {
                    drop(state);
                    match self.segment.read(place, out) {
                        Ok(_) => return Ok(Begun::Read),
                        Err(Frame::Storing(_)) => return Ok(Begun::Blocks),
                        Err(_) => {}
                    }
                }
                Acquired::Unpublished => {
                    let bytes = state.node.unpublished(page);
                    out.copy_from_slice(bytes.expect("the node has just said so"));
                    return Ok(Begun::Read);
                }
                Acquired::Wait => {
                    return Ok(Begun::Waits(Waiting {
                        state,
                        page,
                        ticket,
                    }));
                }
            }
        }
    }
}

impl<S: Store, L: Link> Waiting<'_, S, L> {
    /// Calls `then` when the read may be repeated, or with its error: as of [`Client::read`]. The
    /// call comes from a thread of the node or from this one. It must not wait: the thread may be
    /// the one that receives packets.
    pub fn then(self, then: impl FnOnce(Result<()>) + Send + 'static) {
        let Self {
            mut state,
            page,
            ticket,
        } = self;
        note_wait();
        let limit = state.client.limit;
        let waiter = Waiter::Then {
            page,
            deadline: limit.and_then(|limit| Instant::now().checked_add(limit)),
            then: Box::new(then),
        };
        if let Some(outcome) = state.outcomes.remove(&ticket) {
            state.deferred.woken.push((waiter, Ok(outcome)));
        } else if let Some(error) = state.broken.clone() {
            state.deferred.woken.push((waiter, Err(error)));
        } else {
            state.waiters.insert(ticket, waiter);
        }
    }
}
