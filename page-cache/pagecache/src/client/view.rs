//! Views of pages where they are.

use super::{Client, Link};
use crate::message::{PageId, Place};
use crate::store::Store;

/// A page's only copy, where it is. It does not go while this lives, so views are for short uses: all that are held
/// at a time are to be fewer than the cluster has frames.
#[derive(Debug)]
pub struct View<'a, S: Store, L: Link> {
    pub(super) client: &'a Client<S, L>,
    pub(super) page: PageId,
    pub(super) place: Place,
}

impl<S: Store, L: Link> View<'_, S, L> {
    /// Copies whole words out of the page as they are now. Words are never torn; a store of another program may be
    /// seen in part.
    ///
    /// # Panics
    /// If offset or length are not multiples of 8 or reach out of the page.
    pub fn load(&self, offset: usize, out: &mut [u8]) {
        self.client.segment.load(self.place.frame, offset, out);
    }
}

impl<S: Store, L: Link> Drop for View<'_, S, L> {
    fn drop(&mut self) {
        let mut state = self.client.lock_state();
        // If the link is gone, the next operation says so.
        let _ = self.client.unpin(&mut state, self.page);
    }
}
