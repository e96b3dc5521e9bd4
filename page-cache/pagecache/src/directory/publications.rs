//! Publications of a file's pages by all nodes, at the request of one.

use std::collections::BTreeMap;

use super::{Directory, Fault, Outbox};
use crate::message::{NodeId, ToNode, nodes};

/// A request for which some nodes have not published yet.
#[derive(Clone, Copy, Debug)]
struct Publication {
    /// Node that requested it.
    node: NodeId,
    /// That node's number for it.
    ticket: u64,
    /// Nodes that have not answered.
    awaited: u32,
}

/// Requests in progress, by their number. Numbers are those of generations. So an answer to an
/// earlier directory counts for none of them.
#[derive(Debug, Default)]
pub(super) struct Publications {
    requests: BTreeMap<u64, Publication>,
}

impl Directory {
    /// Asks all other nodes to publish their unpublished pages of a file.
    pub(super) fn publish_all(&mut self, node: NodeId, ticket: u64, inode: u64, out: &mut Outbox) {
        let awaited = self.living() & !node.bit();
        self.last_generation += 1;
        let request = self.last_generation;
        for other in nodes(awaited) {
            out.send(other, ToNode::PublishFile { request, inode });
        }
        let publication = Publication {
            node,
            ticket,
            awaited,
        };
        self.publications.requests.insert(request, publication);
        self.end_publications(out);
    }

    /// Notes that a node has published. The request may be that of an earlier directory, or of a
    /// node that died.
    pub(super) fn published_file(&mut self, from: NodeId, request: u64, out: &mut Outbox) {
        let is_premature = self.has(Fault::FirstAnswerCounts);
        if let Some(publication) = self.publications.requests.get_mut(&request) {
            publication.awaited &= if is_premature { 0 } else { !from.bit() };
            self.end_publications(out);
        }
    }

    /// Forgets the requests of a dead node, and awaits no answer of it.
    pub(super) fn forget_publications(&mut self, dead: NodeId, out: &mut Outbox) {
        let requests = &mut self.publications.requests;
        requests.retain(|_, publication| publication.node != dead);
        for publication in requests.values_mut() {
            publication.awaited &= !dead.bit();
        }
        self.end_publications(out);
    }

    fn end_publications(&mut self, out: &mut Outbox) {
        let requests = &mut self.publications.requests;
        for (_, ended) in requests.extract_if(.., |_, publication| publication.awaited == 0) {
            let ticket = ended.ticket;
            out.send(ended.node, ToNode::PublishedAll { ticket });
        }
    }
}
