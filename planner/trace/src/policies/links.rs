//! Doubly linked lists over one array of nodes: eight bytes for each node.
//!
//! Unlike [`LruList`](super::LruList), which is one list, many lists share the array. So a node
//! moves from one list to another without a second pair of links.

/// No node.
pub(crate) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Link {
    older: u32,
    newer: u32,
}

/// Ends of one list. The owner knows the nodes on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    oldest: u32,
    newest: u32,
    len: usize,
}

impl List {
    pub(crate) const fn new() -> Self {
        Self {
            oldest: NONE,
            newest: NONE,
            len: 0,
        }
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the node at the old end, or [`NONE`].
    pub(crate) const fn oldest(&self) -> u32 {
        self.oldest
    }

    /// Returns the oldest node other than `held`, or [`NONE`].
    pub(super) fn oldest_but(&self, held: Option<u32>, links: &Links) -> u32 {
        if held == Some(self.oldest) && self.len > 0 {
            links.newer(self.oldest)
        } else {
            self.oldest
        }
    }
}

/// Links of the nodes.
#[derive(Debug)]
pub(crate) struct Links(Vec<Link>);

impl Links {
    /// Returns links for nodes `0..nodes`.
    pub(crate) fn new(nodes: usize) -> Self {
        let link = Link {
            older: NONE,
            newer: NONE,
        };
        Self(vec![link; nodes])
    }

    /// Adds a node that is on no list at the new end.
    #[inline]
    pub(crate) fn push(&mut self, list: &mut List, node: u32) {
        self.0[node as usize] = Link {
            older: list.newest,
            newer: NONE,
        };
        match list.newest {
            NONE => list.oldest = node,
            newest => self.0[newest as usize].newer = node,
        }
        list.newest = node;
        list.len += 1;
    }

    /// Removes a node from its list.
    #[inline]
    pub(crate) fn unlink(&mut self, list: &mut List, node: u32) {
        let Link { older, newer } = self.0[node as usize];
        match older {
            NONE => list.oldest = newer,
            older => self.0[older as usize].newer = newer,
        }
        match newer {
            NONE => list.newest = older,
            newer => self.0[newer as usize].older = older,
        }
        list.len -= 1;
    }

    /// Moves a node to the new end of its list.
    #[inline]
    pub(crate) fn touch(&mut self, list: &mut List, node: u32) {
        if list.newest != node {
            self.unlink(list, node);
            self.push(list, node);
        }
    }

    /// Replaces `node` by `by`, which is on no list.
    pub(super) fn replace(&mut self, list: &mut List, node: u32, by: u32) {
        let link = self.0[node as usize];
        self.0[by as usize] = link;
        match link.older {
            NONE => list.oldest = by,
            older => self.0[older as usize].newer = by,
        }
        match link.newer {
            NONE => list.newest = by,
            newer => self.0[newer as usize].older = by,
        }
    }

    /// Returns the next newer node on the same list, or [`NONE`].
    #[inline]
    pub(crate) fn newer(&self, node: u32) -> u32 {
        self.0[node as usize].newer
    }

    /// Returns the nodes of a list, from the oldest on.
    pub(super) fn iter(&self, list: &List) -> impl Iterator<Item = u32> + '_ {
        let mut at = list.oldest;
        std::iter::from_fn(move || {
            let node = at;
            if node == NONE {
                return None;
            }
            at = self.newer(node);
            Some(node)
        })
    }

    pub(crate) const fn memory_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Link>()
    }
}
