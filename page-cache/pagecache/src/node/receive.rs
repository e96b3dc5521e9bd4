//! Processing of the directory's messages.

use forebay_block::{Error, ErrorKind, Result};

use super::{Access, Effect, Fault, Mapping, Node, PageId, Place};
use crate::message::{ToDirectory, ToNode};

impl Node {
    /// Processes one message of the directory.
    ///
    /// # Errors
    /// `InvalidInput` if no correct directory would send it now. The caller must close the
    /// connection and end the node.
    pub fn receive(&mut self, message: ToNode, out: &mut Vec<Effect>) -> Result<()> {
        match message {
            ToNode::Joined {
                first_frame,
                frames,
                unpublished_pages,
            } => {
                (self.first_frame, self.frames) = (first_frame, frames);
                self.unpublished_max = unpublished_pages as usize;
                self.joined = true;
            }
            ToNode::Fill {
                page,
                place,
                access,
            } => {
                let Some(pending) = self.pending.get_mut(&page) else {
                    return Err(self.refused(&message, "the node did not ask for it"));
                };
                pending.filling = Some((place, access));
                if self.faults.has(Fault::PublishUnfilled) {
                    let publish = ToDirectory::Publish { place };
                    out.push(Effect::Send(publish));
                }
                out.push(if self.unpublished.contains_key(&page) {
                    Effect::FillUnpublished { page, place }
                } else {
                    Effect::Fill { page, place }
                });
            }
            ToNode::Map {
                page,
                place,
                access,
            } => self.receive_map(page, place, access, &message, out)?,
            ToNode::Replica { page, place, copy } => {
                let is_mapped = |found: &&Mapping| found.place == place;
                if self.mapped.find(page).filter(is_mapped).is_none() {
                    return Err(self.refused(&message, "the node does not map it"));
                }
                self.begin_replica(page, place, copy, out);
            }
            ToNode::Protect { page, place } => self.protect(page, place, out),
            ToNode::DropReplica { page, .. } => self.drop_replica(page, out),
            ToNode::Invalidate { page, place } => {
                self.pressure = self.pressure.wrapping_add(1);
                let is_premature = self.faults.has(Fault::AcknowledgeMapped);
                let Some(mapping) = self.mapped.find_mut(page).filter(|m| m.place == place) else {
                    return Err(self.refused(&message, "the node does not map it"));
                };
                mapping.leaving = true;
                match mapping.pins == 0 || is_premature {
                    true => self.unmap(page, out),
                    false => self.drop_replica(page, out),
                }
            }
            ToNode::WriteBack { page, place } => out.push(Effect::WriteBack { page, place }),
            ToNode::Flushed { page, place, ok } => self.sync_flushed(page, place, ok, out),
            ToNode::Locked { ticket } => {
                let Some((_, held)) = self.locks.get_mut(&ticket) else {
                    return Err(self.refused(&message, "the node did not ask for it"));
                };
                *held = true;
                out.push(Effect::Done { ticket, ok: true });
            }
            ToNode::Died {
                node,
                first_frame,
                frames,
            } => {
                self.dead.insert(first_frame, (first_frame + frames, node));
                self.unsettled = true;
            }
            ToNode::Forget { node } => {
                self.lose_unflushed();
                self.dead.retain(|_, (_, dead)| *dead != node);
                out.push(Effect::Send(ToDirectory::Forgotten { node }));
            }
            ToNode::Left {} => {
                let left = |ticket| Effect::Done { ticket, ok: true };
                out.extend(self.leaving.take().map(left));
            }
            ToNode::PublishFile { request, inode } => self.publish_file(inode, request, out),
            ToNode::PublishedAll { ticket } => self.published_all(ticket, out),
            ToNode::FlushAll { ticket } => self.flush_requests.push_back(ticket),
            ToNode::Refused { why } => {
                return Err(Error::new(ErrorKind::Permission, why.of(self.id())));
            }
            ToNode::Hello { .. } => {
                return Err(self.refused(&message, "the node has answered that"));
            }
        }
        Ok(())
    }

    fn receive_map(
        &mut self,
        page: PageId,
        place: Place,
        access: Access,
        message: &ToNode,
        out: &mut Vec<Effect>,
    ) -> Result<()> {
        let Some(pending) = self.pending.get_mut(&page).filter(|p| p.filling.is_none()) else {
            return Err(self.refused(message, "the node did not ask for it"));
        };
        let waiting = std::mem::take(&mut pending.waiting);
        match self.mapped.find_mut(page) {
            Some(mapping) if mapping.place == place => mapping.access = access,
            Some(_) => return Err(self.refused(message, "the node maps it elsewhere")),
            None => self.map(page, place, access),
        }
        if self.unpublished.contains_key(&page) {
            // Another node has published the page first. This node's page is newer and is stored
            // over it. Operations on it continue to wait.
            self.pin(page);
            out.push(Effect::Merge { page, place });
            if let Some(pending) = self.pending.get_mut(&page) {
                pending.waiting = waiting;
            }
        } else {
            self.pending.remove(&page);
            out.extend(waiting.into_iter().map(Effect::Ready));
        }
        Ok(())
    }

    fn refused(&self, message: &ToNode, why: &str) -> Error {
        let node = self.id();
        let context = format!("page cache, {node}: the directory sent {message:?}: {why}");
        Error::new(ErrorKind::InvalidInput, context)
    }
}
