//! `placement = "pool"`: pages that outlived the node in whose memory they are go to the store from here.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use forebay_block::{Error, ErrorKind, Result};
use forebay_pagecache::directory::{Outbox, Placement};
use forebay_pagecache::message::{PageId, Place};
use forebay_pagecache::store;

use super::{Options, Server};
use crate::PAGE_BYTES;
use crate::pool::{Nodes, Pool};
use crate::tree::Tree;

/// After the store has refused a page.
const AGAIN: Duration = Duration::from_secs(1);

/// What is to be written back, one page at a time between other work: nodes are heard meanwhile.
#[derive(Debug, Default)]
pub(super) struct Rescue {
    pages: VecDeque<(PageId, Place)>,
    tree: Option<Tree>,
    /// When the store may be asked again.
    not_before: Option<Instant>,
    pub(super) rescued: u64,
}

impl Rescue {
    pub(super) fn add(&mut self, pages: Vec<(PageId, Place)>) {
        self.pages.extend(pages);
    }

    /// How long whoever has something to write back may wait for other work.
    pub(super) fn patience(&self, otherwise: Duration) -> Duration {
        match (self.pages.is_empty(), self.not_before) {
            (true, _) | (false, Some(_)) => otherwise,
            (false, None) => Duration::ZERO,
        }
    }
}

impl Server {
    /// Writes one page back, if there is any.
    pub(super) fn rescue_one(&mut self) -> Result<()> {
        if self.rescue.not_before.is_some_and(|at| at > Instant::now()) {
            return Ok(());
        }
        self.rescue.not_before = None;
        let Some((page, place)) = self.rescue.pages.pop_front() else {
            return Ok(());
        };
        let dirty = self.segment.is_dirty(place);
        if let Err(error) = self.write_back(page, place) {
            tracing::error!(
                "page cache: {page} outlived its node, and the store refuses it; it is kept and tried again: {}",
                error.report()
            );
            self.rescue.not_before = Some(Instant::now() + AGAIN);
            self.rescue.pages.push_back((page, place));
            return Ok(());
        }
        self.rescue.rescued += u64::from(dirty);
        let mut out = Outbox::default();
        self.directory.rescued(place, &mut out);
        self.deliver(out)
    }

    fn write_back(&mut self, page: PageId, place: Place) -> Result<()> {
        let tree = match self.rescue.tree.take() {
            Some(tree) => tree,
            None => Tree::new(Path::new(&self.nodes.source), &self.pool)?,
        };
        let mut scratch = [0; PAGE_BYTES];
        let written = store::write_back(&self.segment, &tree, page, place, &mut scratch);
        self.rescue.tree = Some(tree);
        written
    }
}

/// Refuses to make a pool anew that holds what the store does not have.
pub(super) fn check_nothing_left(pool: &Pool, options: &Options, before: &Nodes) -> Result<()> {
    let there = pool.frames_there() == u64::from(before.pages);
    if options.placement == Placement::Node || before.pages == 0 || !there {
        return Ok(());
    }
    let frames = pool.join_frames()?;
    match (0..frames.frames()).find_map(|frame| frames.unsaved(frame)) {
        None => Ok(()),
        Some((page, _)) => Err(Error::new(
            ErrorKind::Busy,
            format!(
                "pool {}: it holds {page} of {}, which was not written back when its nodes ended: start a directory with the capacity ({} pages) and source of before, until it is ready, or remove the pool",
                pool.path().display(),
                before.source,
                before.pages
            ),
        )),
    }
}
