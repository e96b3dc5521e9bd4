//! `placement = "pool"`: pages that outlived the node in whose memory they are go to the store from here.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel};
use std::time::{Duration, Instant};

use forebay_block::{Error, ErrorKind, Result};
use forebay_pagecache::directory::{Outbox, Placement};
use forebay_pagecache::message::{PageId, Place};
use forebay_pagecache::segment::Segment;
use forebay_pagecache::store;

use super::connection::Input;
use super::{Options, Server};
use crate::PAGE_BYTES;
use crate::pool::{Nodes, Pool};
use crate::tree::Tree;

/// After the store has refused every page that there is.
const AGAIN: Duration = Duration::from_millis(500);

/// What becomes of a page.
#[derive(Debug)]
pub(super) struct Tried {
    page: PageId,
    place: Place,
    /// The store has it.
    saved: bool,
    /// It had not before.
    dirty: bool,
}

/// What is to be written back, by a thread of its own: a store that is slow or refuses holds nobody up but those who
/// want these pages.
#[derive(Debug)]
pub(super) struct Rescue {
    inputs: SyncSender<Input>,
    /// The way to the thread, once there is something for it to do.
    pages: Option<Sender<(PageId, Place)>>,
    pub(super) rescued: u64,
}

impl Rescue {
    pub(super) const fn new(inputs: SyncSender<Input>) -> Self {
        Self {
            inputs,
            pages: None,
            rescued: 0,
        }
    }
}

impl Server {
    /// Has pages written back.
    pub(super) fn rescue(&mut self, pages: Vec<(PageId, Place)>) -> Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        let to = match &self.rescue.pages {
            Some(to) => to,
            None => {
                let (to, pages) = channel();
                let rescuer = Rescuer {
                    source: PathBuf::from(&self.nodes.source),
                    pool: self.pool.clone(),
                    segment: Arc::clone(&self.segment),
                    patience: self.options.rescue,
                    tree: None,
                    refused: VecDeque::new(),
                };
                let inputs = self.rescue.inputs.clone();
                std::thread::Builder::new()
                    .name("pagecache-rescue".into())
                    .spawn(move || rescuer.run(&pages, &inputs))?;
                self.rescue.pages.insert(to)
            }
        };
        for page in pages {
            if to.send(page).is_err() {
                // It ends with us alone, unless it failed: then whoever starts the directory anew rescues what is left.
                return Err(Error::new(
                    ErrorKind::ShuttingDown,
                    "the thread that saves dead nodes' pages has failed: start the directory again, which goes on where it was",
                ));
            }
        }
        Ok(())
    }

    /// A page is in the store, or given up.
    pub(super) fn rescued(&mut self, tried: Tried) -> Result<()> {
        let mut out = Outbox::default();
        if tried.saved {
            self.rescue.rescued += u64::from(tried.dirty);
            self.directory.rescued(tried.place, &mut out);
        } else {
            tracing::error!(
                "page cache: the store has refused {} for {:?}, so it counts as lost with its node",
                tried.page,
                self.options.rescue
            );
            self.directory.unrescued(tried.place, &mut out);
        }
        self.deliver(out)
    }
}

/// The thread's.
struct Rescuer {
    source: PathBuf,
    pool: Pool,
    segment: Arc<Segment>,
    patience: Duration,
    tree: Option<Tree>,
    /// Pages that the store has refused, and since when.
    refused: VecDeque<(PageId, Place, Instant)>,
}

impl Rescuer {
    /// Writes back what comes, each page until the store takes it or has refused it for long enough. Ends when nobody
    /// is there any more who would say what is next.
    fn run(mut self, pages: &Receiver<(PageId, Place)>, inputs: &SyncSender<Input>) {
        // How many of the refused are to be asked for again before there is a pause.
        let mut turn = 0;
        loop {
            let next = if self.refused.is_empty() {
                pages.recv().map_err(|_| true)
            } else if turn == 0 {
                let waited = pages.recv_timeout(AGAIN);
                turn = self.refused.len();
                waited.map_err(|why| why == std::sync::mpsc::RecvTimeoutError::Disconnected)
            } else {
                let found = pages.try_recv();
                found.map_err(|why| why == std::sync::mpsc::TryRecvError::Disconnected)
            };
            let (page, place, since) = match next {
                Ok((page, place)) => (page, place, None),
                Err(true) => return,
                Err(false) => {
                    let Some((page, place, since)) = self.refused.pop_front() else {
                        continue;
                    };
                    turn -= 1;
                    (page, place, Some(since))
                }
            };
            if let Some(tried) = self.write_back(page, place, since)
                && inputs.send(Input::Rescued(tried)).is_err()
            {
                return;
            }
        }
    }

    /// Tries once; nothing if it is to be tried again.
    fn write_back(&mut self, page: PageId, place: Place, since: Option<Instant>) -> Option<Tried> {
        let dirty = self.segment.is_dirty(place);
        let written = self.write(page, place);
        let since_now = since.unwrap_or_else(Instant::now);
        if let Err(error) = &written {
            if since.is_none() {
                tracing::error!(
                    "page cache: {page} outlived its node, and the store refuses it; it is kept and tried again for {:?}: {}",
                    self.patience,
                    error.report()
                );
            }
            if since_now.elapsed() < self.patience {
                self.refused.push_back((page, place, since_now));
                return None;
            }
        }
        let saved = written.is_ok();
        Some(Tried {
            page,
            place,
            saved,
            dirty,
        })
    }

    fn write(&mut self, page: PageId, place: Place) -> Result<()> {
        let tree = match self.tree.take() {
            Some(tree) => tree,
            None => Tree::new(&self.source, &self.pool)?,
        };
        let mut scratch = [0; PAGE_BYTES];
        let written = store::write_back(&self.segment, &tree, page, place, &mut scratch);
        self.tree = Some(tree);
        written
    }
}

/// Refuses to make a pool anew that holds what the store does not have.
pub(super) fn check_nothing_left(pool: &Pool, options: &Options, before: &Nodes) -> Result<()> {
    if options.placement == Placement::Node || before.pages == 0 || !pool.has_frames(before.pages) {
        return Ok(());
    }
    let frames = pool.join_frames(before.pages)?;
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
