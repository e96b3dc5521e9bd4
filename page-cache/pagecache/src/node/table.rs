//! Page table of the node.

use hashbrown::HashTable;

use crate::message::{Access, PageId, Place};

/// A page that this node may use without a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping {
    pub(super) page: PageId,
    pub(super) place: Place,
    pub(super) access: Access,
    /// Number of views and stores in progress.
    pub(super) pins: u32,
    /// Whether it is unmapped at the last unpin. New operations may not use it.
    pub(super) leaving: bool,
    /// Value of `Node::pressure` at the last report that the page is in use.
    pub(super) pressure: u32,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    mappings: HashTable<Mapping>,
}

impl Table {
    pub(super) fn find(&self, page: PageId) -> Option<&Mapping> {
        self.mappings
            .find(page.hash64(), |mapping| mapping.page == page)
    }

    pub(super) fn find_mut(&mut self, page: PageId) -> Option<&mut Mapping> {
        self.mappings
            .find_mut(page.hash64(), |mapping| mapping.page == page)
    }

    pub(super) fn insert(&mut self, mapping: Mapping) {
        let hasher = |mapping: &Mapping| mapping.page.hash64();
        self.mappings
            .insert_unique(mapping.page.hash64(), mapping, hasher);
    }

    pub(super) fn remove(&mut self, page: PageId) -> Option<Mapping> {
        let found = self
            .mappings
            .find_entry(page.hash64(), |mapping| mapping.page == page);
        found.ok().map(|entry| entry.remove().0)
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Mapping> {
        self.mappings.iter_mut()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Mapping> {
        self.mappings.iter()
    }
}
