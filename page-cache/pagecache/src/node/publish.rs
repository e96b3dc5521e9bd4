//! Publication of pages that only this node has.

use super::{Effect, Node, PageId, Place};
use crate::message::Access;

impl Node {
    pub(super) fn begin_publish(&mut self, page: PageId, out: &mut Vec<Effect>) {
        if let Some(unpublished) = self.unpublished.get_mut(&page)
            && !std::mem::replace(&mut unpublished.publishing, true)
        {
            self.look_up(page, Access::Write, out);
        }
    }

    /// Notes that an unpublished page is in a frame.
    pub(super) fn published(&mut self, page: PageId, place: Place, out: &mut Vec<Effect>) {
        let unpublished = self.unpublished.remove(&page);
        self.stored(page, place);
        if let (Some(unpublished), Some(written)) = (&unpublished, self.unflushed.get(page)) {
            let mut written = *written;
            written.since = written.since.min(unpublished.since);
            self.unflushed.insert(page, written);
        }
        let writer = unpublished.and_then(|unpublished| unpublished.writer);
        out.extend(writer.map(|ticket| Effect::Done { ticket, ok: true }));
        self.sync_published(page, out);
    }
}
