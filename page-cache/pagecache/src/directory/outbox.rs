//! Output of the directory.

use forebay_block::Error;

use crate::message::{NodeId, PageId, Place, ToNode};
use crate::segment::Segment;

/// Contribution of a node to the cluster, as in [`ToNode::Joined`]. The directory's host stores it
/// for a restarted directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Number of the node.
    pub node: NodeId,
    /// First frame.
    pub first_frame: u32,
    /// Number of frames.
    pub frames: u32,
    /// Maximum number of unpublished pages.
    pub unpublished_pages: u32,
    /// Whether it is alive. Other nodes may still map places in a dead node's memory.
    pub alive: bool,
}

/// Output of the directory: messages and losses. The caller takes both after each call.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Messages, in the order in which they must be sent.
    pub messages: Vec<(NodeId, ToNode)>,
    /// Dirty pages that were lost with a node.
    pub lost: Vec<PageId>,
    /// Written pages in a dead node's memory that no node maps. They are lost if the store does not
    /// hold them. The caller must call [`Outbox::take_lost`] before it discards frames.
    pub written: Vec<(PageId, Place)>,
    /// Frames whose page is given up though it may be dirty. The caller must call
    /// [`Segment::discard`] on them before it sends any message. Otherwise a
    /// restarted directory would find the page again.
    pub discarded: Vec<u32>,
    /// Unmapped pages in dead nodes' memory. The caller must write them back, then call
    /// [`super::Directory::rescued`]. Only with [`super::Placement::Pool`].
    pub rescues: Vec<(PageId, Place)>,
    /// Nodes whose number and frames may be reused from now on. The caller must call
    /// [`Segment::forget_given_up`] on their frames.
    pub forgotten: Vec<Share>,
    /// Nodes that have sent a message that no correct node sends, and the error, as for
    /// [`super::Directory::receive`].
    pub refused: Vec<(NodeId, Error)>,
}

impl Outbox {
    pub(super) fn send(&mut self, node: NodeId, message: ToNode) {
        self.messages.push((node, message));
    }

    /// Returns the pages that were lost, by the state of their frames.
    pub fn take_lost(&mut self, segment: &Segment) -> Vec<PageId> {
        let mut lost = std::mem::take(&mut self.lost);
        let written = self.written.drain(..);
        let dirty = written.filter(|(_, place)| segment.is_dirty(*place));
        lost.extend(dirty.map(|(page, _)| page));
        lost
    }
}
