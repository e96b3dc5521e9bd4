//! Views of pages in their frames.

use super::{Client, Link};
use crate::message::{PageId, Place};
use crate::store::Store;

/// A page's only copy, in its frame. The page cannot leave while the view lives. So views are for
/// short uses: there must be fewer of them at a time than frames in the cluster.
#[derive(Debug)]
pub struct View<'a, S: Store, L: Link> {
    pub(super) client: &'a Client<S, L>,
    pub(super) page: PageId,
    pub(super) place: Place,
}

impl<S: Store, L: Link> View<'_, S, L> {
    /// Copies whole words out of the page. Words are never torn. A store of another program may be
    /// visible in part.
    ///
    /// # Panics
    /// If offset or length are not multiples of 8, or reach beyond the page.
    pub fn load(&self, offset: usize, out: &mut [u8]) {
        self.client.segment.load(self.place.frame, offset, out);
    }
}

impl<S: Store, L: Link> Drop for View<'_, S, L> {
    fn drop(&mut self) {
        let mut state = self.client.lock_state();
        // If the link is gone, the next operation reports it.
        let _ = self.client.unpin(&mut state, self.page);
    }
}
