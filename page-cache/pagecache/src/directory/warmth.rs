//! Order of the published pages by their last use.

use super::entry::Entry;
use super::{Directory, NONE};

impl Directory {
    /// Adds a published page as the most recently used one.
    pub(super) fn link_warmest(&mut self, frame: u32) {
        let before = std::mem::replace(&mut self.warmest, frame);
        let entry = &mut self.entries[frame as usize];
        (entry.before, entry.after) = (before, NONE);
        match before {
            NONE => self.coldest = frame,
            before => self.entries[before as usize].after = frame,
        }
        self.published += 1;
    }

    /// Removes a published page.
    pub(super) fn unlink(&mut self, frame: u32) {
        let Entry { before, after, .. } = self.entries[frame as usize];
        match before {
            NONE => self.coldest = after,
            before => self.entries[before as usize].after = after,
        }
        match after {
            NONE => self.warmest = before,
            after => self.entries[after as usize].before = before,
        }
        self.published -= 1;
    }
}
