//! `placement = "pool"`: write-back of pages that outlived the node in whose memory they are.

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, channel};
use std::time::{Duration, Instant};

use forebay_block::{Error, ErrorKind, Result};
use forebay_pagecache::directory::{Outbox, Placement};
use forebay_pagecache::message::{PageId, Place};
use forebay_pagecache::segment::Segment;
use forebay_pagecache::store::{self, Store};

use super::connection::Input;
use super::flush::Synced;
use super::{Options, Server, losses};
use crate::pool::{Nodes, Pool};
use crate::second_names;
use crate::tree::Tree;

/// Pause after the store has refused all pages.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Maximum delay of a report, so that it can cover many pages.
const REPORT_DELAY_MAX: Duration = Duration::from_secs(1);

/// Queue of write-backs with a thread of its own. A slow or refusing store delays only the lookups
/// of these pages.
#[derive(Debug)]
pub(super) struct Rescue {
    inputs: SyncSender<Input>,
    /// Channel to the thread, once it has work.
    work: Option<Sender<Work>>,
    /// Number of dirty pages that were written back.
    pub(super) rescued: u64,
    /// Files with such pages that may not be durable.
    unsynced: BTreeSet<u64>,
    /// Files whose failed sync no flush has reported.
    pub(super) unreported: BTreeSet<u64>,
}

/// Work of the thread.
#[derive(Debug)]
enum Work {
    /// Write a page back.
    Page(PageId, Place),
    /// Make files durable, for the flush of this ticket.
    Sync(u64, BTreeSet<u64>),
}

impl Rescue {
    pub(super) const fn new(inputs: SyncSender<Input>) -> Self {
        Self {
            inputs,
            work: None,
            rescued: 0,
            unsynced: BTreeSet::new(),
            unreported: BTreeSet::new(),
        }
    }

    /// Starts the sync of the files with pages that were written back, for the flush of this
    /// ticket. Returns the files.
    pub(super) fn sync(&self, ticket: u64) -> BTreeSet<u64> {
        let files = self.unsynced.clone();
        if let Some(rescuer) = self.work.as_ref().filter(|_| !files.is_empty()) {
            // If the thread has failed, the directory ends at its next page.
            let _ = rescuer.send(Work::Sync(ticket, files.clone()));
        }
        files
    }

    /// Notes the end of a sync.
    pub(super) fn synced(&mut self, synced: &Synced) {
        self.unsynced.retain(|inode| !synced.files.contains(inode));
    }
}

impl Server {
    /// Queues pages for write-back.
    ///
    /// # Errors
    /// `ShuttingDown` if the thread has failed, or errors of the system when it is started.
    pub(super) fn rescue(&mut self, pages: Vec<(PageId, Place)>) -> Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        let rescuer = match &self.rescue.work {
            Some(rescuer) => rescuer,
            None => {
                let rescuer = self.spawn_rescuer()?;
                self.rescue.work.insert(rescuer)
            }
        };
        for (page, place) in pages {
            if rescuer.send(Work::Page(page, place)).is_err() {
                // The thread ends only with this process, unless it failed. Then a restarted
                // directory rescues the rest.
                return Err(Error::new(
                    ErrorKind::ShuttingDown,
                    "the write-back of dead nodes' pages has failed\n\
                     help: start the directory a second time, which continues it",
                ));
            }
        }
        Ok(())
    }

    /// Starts the thread. Returns the channel of its work.
    fn spawn_rescuer(&self) -> Result<Sender<Work>> {
        let (sender, work) = channel();
        let rescuer = Rescuer {
            source: PathBuf::from(&self.nodes.source),
            pool: self.pool.clone(),
            segment: Arc::clone(&self.segment),
            patience: self.options.rescue,
            inputs: self.rescue.inputs.clone(),
            tree: None,
            refused: VecDeque::new(),
            unreported: Unreported::default(),
        };
        std::thread::Builder::new()
            .name("pagecache-rescue".into())
            .spawn(move || rescuer.run(&work))?;
        Ok(sender)
    }

    /// Notes that a page is in the store.
    pub(super) fn rescued(&mut self, page: PageId, place: Place, dirty: bool) -> Result<()> {
        let mut out = Outbox::default();
        if dirty {
            self.rescue.rescued += 1;
            self.rescue.unsynced.insert(page.inode);
        }
        self.flushes.rescued(place, dirty);
        self.directory.rescued(place, &mut out);
        self.deliver(out)
    }

    /// Notes that pages are given up.
    pub(super) fn given_up(&mut self, places: &[Place]) -> Result<()> {
        // A directory that is started before all nodes were notified notifies them.
        for place in places {
            self.segment.give_up(place.frame);
            self.flushes.given_up(*place);
        }
        let mut out = Outbox::default();
        self.directory.unrescued(places, &mut out);
        for pages in self.by_file(&out.lost) {
            tracing::error!(
                "page cache: DATA IS LOST: the store has refused for {:?} pages of a dead node, \
                 and the next fsync of their writers fails: {pages}",
                self.options.rescue
            );
        }
        self.lost_pages += std::mem::take(&mut out.lost).len() as u64;
        self.deliver(out)
    }
}

/// State of the thread.
struct Rescuer {
    source: PathBuf,
    pool: Pool,
    segment: Arc<Segment>,
    /// Time after a page's first refusal in which its write-back is retried.
    patience: Duration,
    inputs: SyncSender<Input>,
    /// Store, opened at the first page.
    tree: Option<Tree>,
    /// Pages that the store has refused.
    refused: VecDeque<Refused>,
    unreported: Unreported,
}

/// A page that the store has refused.
struct Refused {
    page: PageId,
    place: Place,
    /// Time of the first refusal.
    since: Instant,
}

/// Events that are collected for one report.
#[derive(Default)]
struct Unreported {
    /// Time of the first event.
    since: Option<Instant>,
    /// Pages that the store has refused for the first time.
    refused: Vec<PageId>,
    /// Error of the first refusal.
    error: Option<Error>,
    /// Places of the pages that the store has refused for too long.
    given_up: Vec<Place>,
}

/// Page to try, and the time of its first refusal, if there was one.
type Next = (PageId, Place, Option<Instant>);

/// The directory has ended, so the thread ends.
struct Ended;

impl Rescuer {
    /// Writes pages back. Each is tried until the store accepts it or has refused it for too long.
    fn run(mut self, work: &Receiver<Work>) {
        // Number of refused pages to retry before a pause.
        let mut retries = 0;
        while let Ok(next) = self.next(work, &mut retries) {
            let tried = next.map_or(Ok(()), |(page, place, since)| {
                self.write_back(page, place, since)
            });
            let since = self.unreported.since;
            let is_due = since.is_some_and(|since| since.elapsed() >= REPORT_DELAY_MAX);
            if tried.is_err() || (is_due && self.report().is_err()) {
                return;
            }
        }
    }

    /// Returns the next page, and the time of its first refusal. Returns `None` after a pause, and
    /// after other work.
    fn next(
        &mut self,
        work: &Receiver<Work>,
        retries: &mut usize,
    ) -> std::result::Result<Option<Next>, Ended> {
        match work.try_recv() {
            Ok(work) => return self.take(work),
            Err(TryRecvError::Disconnected) => return Err(Ended),
            Err(TryRecvError::Empty) => {}
        }
        if *retries > 0
            && let Some(refused) = self.refused.pop_front()
        {
            *retries -= 1;
            return Ok(Some((refused.page, refused.place, Some(refused.since))));
        }
        self.report()?;
        *retries = self.refused.len();
        let next = if self.refused.is_empty() {
            work.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            work.recv_timeout(RETRY_PAUSE)
        };
        match next {
            Ok(work) => self.take(work),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Ended),
        }
    }

    /// Returns the page of new work, or executes the work.
    fn take(&mut self, work: Work) -> std::result::Result<Option<Next>, Ended> {
        match work {
            Work::Page(page, place) => Ok(Some((page, place, None))),
            Work::Sync(ticket, files) => self.sync(ticket, files).map(|()| None),
        }
    }

    /// Makes files durable, and reports the end to the directory.
    fn sync(&mut self, ticket: u64, files: BTreeSet<u64>) -> std::result::Result<(), Ended> {
        let mut failed = BTreeSet::new();
        for inode in &files {
            match self.tree().and_then(|tree| tree.sync(*inode)) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    tracing::error!("page cache: {}", error.report());
                    failed.insert(*inode);
                    // A later sync of the file is about later writes.
                    self.tree = None;
                }
                // A removed file needs no sync.
                Ok(()) | Err(_) => {}
            }
        }
        let synced = Synced {
            ticket,
            files,
            failed,
        };
        self.inputs.send(Input::Synced(synced)).map_err(|_| Ended)
    }

    /// Logs the collected refusals, and reports the pages that are given up to the directory.
    fn report(&mut self) -> std::result::Result<(), Ended> {
        let Unreported {
            refused,
            error,
            given_up,
            ..
        } = std::mem::take(&mut self.unreported);
        if let Some(error) = error {
            for pages in losses::by_file(&refused, &self.source, &self.pool) {
                tracing::error!(
                    "page cache: the store refuses pages that outlived their node; retrying for \
                     {:?}: {pages}: {}",
                    self.patience,
                    error.report()
                );
            }
        }
        if given_up.is_empty() {
            return Ok(());
        }
        let sent = self.inputs.send(Input::GivenUp(given_up));
        sent.map_err(|_| Ended)
    }

    /// Tries a page once. Reports success to the directory, and collects a refusal.
    fn write_back(
        &mut self,
        page: PageId,
        place: Place,
        since: Option<Instant>,
    ) -> std::result::Result<(), Ended> {
        let dirty = self.segment.is_dirty(place);
        let Err(error) = self.write(page, place) else {
            let rescued = Input::Rescued { page, place, dirty };
            return self.inputs.send(rescued).map_err(|_| Ended);
        };
        let now = Instant::now();
        if since.is_none() {
            self.unreported.refused.push(page);
            self.unreported.error.get_or_insert(error);
            self.unreported.since.get_or_insert(now);
        }
        let since = since.unwrap_or(now);
        if since.elapsed() < self.patience {
            self.refused.push_back(Refused { page, place, since });
        } else {
            self.unreported.given_up.push(place);
            self.unreported.since.get_or_insert(now);
        }
        Ok(())
    }

    /// Writes a page to the store.
    fn write(&mut self, page: PageId, place: Place) -> Result<()> {
        let segment = Arc::clone(&self.segment);
        let run = [(page, place)];
        store::write_back(&segment, self.tree()?, &run, &mut Vec::new())
    }

    /// Returns the store, which stays open.
    fn tree(&mut self) -> Result<&Tree> {
        match &mut self.tree {
            Some(tree) => Ok(tree),
            closed => Ok(closed.insert(Tree::new(&self.source, &self.pool)?.quiet())),
        }
    }
}

/// Fails if creating the pool would destroy unwritten data.
pub(super) fn check_nothing_left(pool: &Pool, options: &Options, before: &Nodes) -> Result<()> {
    if options.placement == Some(Placement::Node) {
        return Ok(());
    }
    match pool.unsaved(before.pages)? {
        None => Ok(()),
        Some(PageId { inode, index }) => Err(Error::new(
            ErrorKind::Busy,
            format!(
                "pool {}: it holds page {index} of {}, which was not written back when its nodes \
                 ended\n\
                 help: start a directory with the former capacity ({} pages) and source, and run \
                 `forebay pagecache flush`, or remove the pool",
                pool.path().display(),
                second_names::unnamed(inode, Path::new(&before.source)),
                before.pages
            ),
        )),
    }
}
