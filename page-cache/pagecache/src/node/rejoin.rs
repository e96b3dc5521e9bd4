//! Rejoining a restarted directory, and leaving.

use super::{Effect, Fault, Node, Replicas, Ticket};
use crate::message::ToDirectory;

impl Node {
    /// Reports the node's state and its waiting operations to a restarted directory. Fills and
    /// merges in progress continue. The end of a write-back that the former directory requested
    /// must not be reported. A write-back that the new one requests must begin after that end.
    /// Messages of the former directory that this node has not received must not arrive any more.
    pub fn rejoin(&mut self, out: &mut Vec<Effect>) {
        // The new directory knows nothing of requests of the former one.
        self.flush_requests.clear();
        let forgets = self.faults.has(Fault::FillForgotten);
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
            // The new directory does not know the replicas: their frames are free.
            if !self.faults.has(Fault::ReplicaOutlivesDirectory) {
                self.replicas = Replicas::default();
            }
            // The new directory announces the dead nodes that still matter, and may not know the
            // forgotten ones.
            self.dead.clear();
            say(ToDirectory::Rejoin {
                first_frame: self.first_frame,
                frames: self.frames,
            });
            for mapping in self.mapped.iter_mut() {
                // The directory that requested the invalidation is gone. The new one requests it
                // again if needed.
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
            for (page, pending) in &self.pending {
                if let Some((place, access)) = pending.filling.filter(|_| !forgets) {
                    let page = *page;
                    say(ToDirectory::Filling {
                        page,
                        place,
                        access,
                    });
                }
            }
            say(ToDirectory::HadAll {});
        }
        for (page, pending) in &mut self.pending {
            if forgets {
                pending.filling = None;
            }
            let is_merged =
                self.unpublished.contains_key(page) && self.mapped.find(*page).is_some();
            if pending.filling.is_some() || is_merged {
                continue;
            }
            say(ToDirectory::Lookup {
                page: *page,
                access: pending.access,
            });
        }
        self.repeat_requests(out);
        self.repeat_leave(out);
    }

    /// Asks to leave. [`Effect::Done`] reports that no page is left in this node's memory. The node
    /// may read and write meanwhile.
    pub fn leave(&mut self, ticket: Ticket, out: &mut Vec<Effect>) {
        self.leaving = Some(ticket);
        self.repeat_leave(out);
    }

    /// Repeats the request to leave, if the node waits for its end. A page that the store has
    /// refused is evicted once more.
    pub fn repeat_leave(&self, out: &mut Vec<Effect>) {
        if self.leaving.is_some() {
            out.push(Effect::Send(ToDirectory::Leave {}));
        }
    }
}
