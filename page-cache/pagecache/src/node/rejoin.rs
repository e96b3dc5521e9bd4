//! Coming back to a directory that was started anew, and leaving.

use super::{Effect, Node, Ticket};
use crate::message::ToDirectory;

impl Node {
    /// The directory was started anew: says what this node has and what it waits for. No fill, merge or write-back is
    /// under way when this is called. What the directory said before its end and this node has not heard is not to
    /// arrive any more.
    pub fn rejoin(&mut self, out: &mut Vec<Effect>) {
        let mut say = |message| out.push(Effect::Send(message));
        if !self.joined {
            say(ToDirectory::Join {
                frames: self.config.frames,
                unpublished_pages: self.config.unpublished_pages,
            });
            for (ticket, (range, _)) in &self.locks {
                let (ticket, range) = (*ticket, *range);
                say(ToDirectory::Lock { ticket, range });
            }
        } else {
            self.lose_unflushed();
            // The next one says who is dead of those who matter still, and which are forgotten it may not know.
            self.dead.clear();
            say(ToDirectory::Rejoin {
                first_frame: self.first_frame,
                frames: self.frames,
            });
            for mapping in self.mapped.iter_mut() {
                // Who asked for it is no more: it goes when it is asked for again.
                mapping.leaving = false;
                let (page, place, access) = (mapping.page, mapping.place, mapping.access);
                say(ToDirectory::Have {
                    page,
                    place,
                    access,
                });
            }
            for (ticket, (range, held)) in &self.locks {
                let (ticket, range, held) = (*ticket, *range, *held);
                say(ToDirectory::Relock {
                    ticket,
                    range,
                    held,
                });
            }
            say(ToDirectory::HadAll {});
        }
        for (page, pending) in &mut self.pending {
            pending.filling = None;
            say(ToDirectory::Lookup {
                page: *page,
                access: pending.access,
            });
        }
        self.ask_again(out);
        if self.leaving.is_some() {
            out.push(Effect::Send(ToDirectory::Leave {}));
        }
    }

    /// Asks to go; [`Effect::Done`] says that no page is left in this node's memory. It may go on reading and writing
    /// meanwhile.
    pub fn leave(&mut self, ticket: Ticket, out: &mut Vec<Effect>) {
        self.leaving = Some(ticket);
        out.push(Effect::Send(ToDirectory::Leave {}));
    }
}
