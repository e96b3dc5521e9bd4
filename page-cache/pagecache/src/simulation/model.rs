//! Model: permitted results of reads, and required content of the store.
//!
//! The simulation is one thread, so every store into the cluster's memory ends at a known step.
//! There it becomes a *version* of its page. A read is correct if it returned a version that was
//! the newest at some step between its start and its end. This is linearizability for each page,
//! with known linearization points.

use std::collections::{BTreeMap, BTreeSet};

use super::Words;
use super::client::Purpose;
use crate::message::{NodeId, PageId};

/// Content of a page from a step on.
#[derive(Clone, Copy, Debug)]
struct Version {
    since: u64,
    words: Words,
    /// Version whose data this is: itself, or the one in the store if a death restored it.
    origin: usize,
}

/// The model. All functions return errors as text.
#[derive(Debug, Default)]
pub(super) struct Model {
    pages: BTreeMap<PageId, Vec<Version>>,
    /// Unpublished pages of the nodes, with a number that distinguishes successive ones.
    private: BTreeMap<(NodeId, PageId), (u64, Words)>,
    privates: u64,
    /// Last unflushed version that a node wrote of a page.
    unflushed: BTreeMap<(NodeId, PageId), usize>,
    /// Nodes that have lost an unflushed write to a file: a flush must report it.
    owed: BTreeSet<(NodeId, u64)>,
    /// Last version of a node's writes that a failed flush has covered.
    spoken: BTreeMap<(NodeId, PageId), usize>,
    /// Last version of a node's writes that the store had not when a death left its content.
    dropped: BTreeMap<(NodeId, PageId), usize>,
    /// Pages that the directory has named as lost and that were not filled since.
    named: BTreeSet<PageId>,
    /// Whether pages that are written together may differ, because of a death.
    pub(super) torn: bool,
    pub(super) losses: u64,
}

/// End of a flush, write-back or close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Done,
    /// It succeeded, and the node has a loss to report at the next flush.
    Owes,
    Failed,
}

/// State at the start of a flush.
#[derive(Clone, Debug)]
pub(super) struct SyncStart {
    inode: u64,
    owed: bool,
    writes: Vec<(PageId, usize)>,
    privates: Vec<(NodeId, PageId, u64)>,
}

/// Returns the store's content of a page that was never written.
pub(super) fn initial(page: PageId) -> Words {
    // Pages that are written together start with the same content.
    let index = if page.inode == super::client::GROUP {
        0
    } else {
        page.index
    };
    [(page.inode << 48) | (index << 32) | 1; super::PAGE_WORDS]
}

impl Model {
    fn versions(&mut self, page: PageId) -> &mut Vec<Version> {
        self.pages.entry(page).or_insert_with(|| {
            vec![Version {
                since: 0,
                words: initial(page),
                origin: 0,
            }]
        })
    }

    pub(super) fn current(&mut self, page: PageId) -> Words {
        self.versions(page).last().expect("there is a first").words
    }

    fn push(&mut self, page: PageId, now: u64, words: Words) -> usize {
        let versions = self.versions(page);
        let origin = versions.len();
        versions.push(Version {
            since: now,
            words,
            origin,
        });
        origin
    }

    /// Notes that a node has stored into a page.
    pub(super) fn commit(&mut self, node: NodeId, page: PageId, now: u64, words: Words) {
        let version = self.push(page, now, words);
        self.unflushed.insert((node, page), version);
    }

    /// Notes that a node died during a store: the part that it had stored is there.
    pub(super) fn tear(&mut self, page: PageId, now: u64, words: Words) {
        self.push(page, now, words);
    }

    pub(super) fn private(&self, node: NodeId, page: PageId) -> Option<(u64, Words)> {
        self.private.get(&(node, page)).copied()
    }

    pub(super) fn set_private(&mut self, node: NodeId, page: PageId, words: Words) {
        self.privates += 1;
        let number = match self.private(node, page) {
            Some((number, _)) => number,
            None => self.privates,
        };
        self.private.insert((node, page), (number, words));
    }

    /// Notes that a node's unpublished page is in a frame.
    pub(super) fn publish(
        &mut self,
        node: NodeId,
        page: PageId,
        now: u64,
        words: Words,
    ) -> Result<(), String> {
        if let Some((_, private)) = self.private.remove(&(node, page))
            && private != words
        {
            return Err(format!(
                "{page} of {node} is published as {words:x?}, not {private:x?}"
            ));
        }
        self.commit(node, page, now, words);
        Ok(())
    }

    /// Checks a read of a node that began at `start`, when it held `private`, and ends now.
    pub(super) fn check_read(
        &mut self,
        node: NodeId,
        page: PageId,
        (start, private): (u64, Option<(u64, Words)>),
        words: &Words,
    ) -> Result<(), String> {
        let now = self.private(node, page);
        let own = [private, now]
            .into_iter()
            .flatten()
            .any(|(_, own)| own == *words);
        if own {
            return Ok(());
        }
        let shared = private.is_none()
            || now.is_none_or(|(number, _)| private.is_none_or(|(old, _)| old != number));
        let versions = self.versions(page);
        // A version ends where the next begins.
        let first = versions
            .iter()
            .rposition(|version| version.since <= start)
            .unwrap_or(0);
        if shared
            && versions[first..]
                .iter()
                .any(|version| version.words == *words)
        {
            return Ok(());
        }
        let newest = versions.last().map(|version| version.words);
        Err(format!(
            "{node} read {words:x?} of {page} since step {start}; newest {newest:x?}, unpublished \
             {now:x?}"
        ))
    }

    /// Checks the store's content of a page at a fill: it is the newest version, or one that a
    /// death may leave.
    pub(super) fn check_fill(
        &mut self,
        page: PageId,
        now: u64,
        words: Words,
    ) -> Result<(), String> {
        let named = self.named.remove(&page);
        let versions = self.versions(page);
        if versions.last().is_some_and(|newest| newest.words == words) {
            return Ok(());
        }
        let found = versions.iter().rev().find(|version| version.words == words);
        let origin = found.map(|version| version.origin);
        let (Some(origin), true) = (origin, named) else {
            let newest = versions.last().map(|version| version.words);
            return Err(format!(
                "{page} is filled with {words:x?}, named as lost: {named}; newest {newest:x?}"
            ));
        };
        versions.push(Version {
            since: now,
            words,
            origin,
        });
        self.losses += 1;
        self.torn = true;
        let (owed, dropped) = (&mut self.owed, &mut self.dropped);
        self.unflushed.retain(|(node, written), version| {
            let lost = *written == page && *version > origin;
            if lost {
                owed.insert((*node, page.inode));
                dropped.insert((*node, page), *version);
            }
            !lost
        });
        Ok(())
    }

    pub(super) fn name_lost(&mut self, page: PageId) {
        self.named.insert(page);
    }

    /// Notes that a node is dead: its private state is lost.
    pub(super) fn died(&mut self, node: NodeId) {
        self.private.retain(|(owner, _), _| *owner != node);
        self.unflushed.retain(|(writer, _), _| *writer != node);
        self.owed.retain(|(writer, _)| *writer != node);
    }

    pub(super) fn sync_start(&self, node: NodeId, inode: u64) -> SyncStart {
        let of_file = |owner: &NodeId, page: &PageId| *owner == node && page.inode == inode;
        let writes = self
            .unflushed
            .iter()
            .filter(|((owner, page), _)| of_file(owner, page));
        let privates = self
            .private
            .iter()
            .filter(|((owner, page), _)| of_file(owner, page));
        SyncStart {
            inode,
            owed: self.owed.contains(&(node, inode)),
            writes: writes
                .map(|((_, page), version)| (*page, *version))
                .collect(),
            privates: privates
                .map(|((owner, page), (number, _))| (*owner, *page, *number))
                .collect(),
        }
    }

    /// Returns the state at the start of a publication by all nodes but one.
    pub(super) fn publication_start(&self, requester: NodeId, inode: u64) -> SyncStart {
        let privates = self.private.iter();
        let others =
            privates.filter(|((owner, page), _)| *owner != requester && page.inode == inode);
        SyncStart {
            inode,
            owed: false,
            writes: Vec::new(),
            privates: others
                .map(|((owner, page), (number, _))| (*owner, *page, *number))
                .collect(),
        }
    }

    /// Notes a failed flush, which covers all losses of the file up to now, whatever was stored
    /// meanwhile.
    pub(super) fn sync_failed(&mut self, node: NodeId, start: &SyncStart) {
        self.owed.remove(&(node, start.inode));
        let spoken = &mut self.spoken;
        self.unflushed.retain(|(owner, page), version| {
            let said = *owner == node && page.inode == start.inode;
            if said {
                spoken.insert((*owner, *page), *version);
            }
            !said
        });
    }

    /// Checks the end of a flush, write-back or close.
    pub(super) fn check_sync(
        &mut self,
        node: NodeId,
        start: &SyncStart,
        (purpose, end): (Purpose, End),
        stored: impl Fn(PageId) -> Words,
    ) -> Result<(), String> {
        for (owner, page, number) in &start.privates {
            if self
                .private(*owner, *page)
                .is_some_and(|(now, _)| now == *number)
            {
                return Err(format!(
                    "{page} is still unpublished on {owner} after a {purpose:?} of {node}"
                ));
            }
        }
        if matches!(purpose, Purpose::Close | Purpose::PublishAll) || end == End::Failed {
            return Ok(());
        }
        let owed = self.owed.contains(&(node, start.inode));
        if purpose == Purpose::Flush && start.owed && owed {
            return Err(format!(
                "a flush of {node} does not say that something was lost"
            ));
        }
        for (page, version) in &start.writes {
            let words = stored(*page);
            let versions = self.versions(*page);
            let held = versions.iter().rev().find(|version| version.words == words);
            let held = held.map_or(0, |version| version.origin);
            let spoken = self
                .spoken
                .get(&(node, *page))
                .is_some_and(|spoken| spoken >= version);
            let dropped = self.dropped.get(&(node, *page));
            let is_lost = end == End::Owes
                || self.named.contains(page)
                || dropped.is_some_and(|lost| lost >= version);
            let is_absent = held < *version && !spoken;
            // A write-back leaves the report of a loss to the next flush.
            if is_absent && is_lost && purpose == Purpose::WriteBack {
                continue;
            }
            if is_absent {
                return Err(format!(
                    "a {purpose:?} of {node} ended well without version {version} of {page}: the \
                     store has {held}"
                ));
            }
            if self.unflushed.get(&(node, *page)) == Some(version) {
                self.unflushed.remove(&(node, *page));
            }
        }
        Ok(())
    }

    /// Checks at the end that each version is in the store, in a frame, or named as lost.
    pub(super) fn check_end(
        &mut self,
        stored: impl Fn(PageId) -> Words,
        resident: impl Fn(PageId) -> Option<Words>,
    ) -> Result<(), String> {
        for (page, versions) in &self.pages {
            let newest = versions.last().expect("there is a first").words;
            let held = resident(*page).unwrap_or_else(|| stored(*page));
            if held != newest && !self.named.contains(page) {
                return Err(format!("{page} ends as {held:x?}, not {newest:x?}"));
            }
        }
        Ok(())
    }
}
