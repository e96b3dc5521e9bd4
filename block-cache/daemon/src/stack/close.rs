//! The end of an open stack: drain, flush, close.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDeviceExt as _, Context as _, Error, ErrorKind, Result};
use forebay_io::rt;
use forebay_io::sync::Promise;
use futures_util::future::join_all;

use super::stop::{STOPPED, UNFINISHED};
use super::transit::OpenTransit;
use super::watched::{Watched, transit_caches};
use super::{Served, Stack};
use crate::state::{Record, unnoted};
use forebay_terminal::size::human_duration;

/// Time limit for requests in flight at the end.
const DRAIN: Duration = Duration::from_secs(10);
/// Time limit for the last flushes of all devices together.
pub(crate) const CLOSE: Duration = Duration::from_secs(120);
/// Least time that a transit cache may take to close.
const CLOSE_ONE: Duration = Duration::from_secs(2);

/// Time for a device that has ended in time to say so.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// Dirty data of each volume, bytes.
type DirtyBytes = Vec<(String, u64)>;

/// A closed cache.
#[derive(Clone)]
struct Closed {
    /// Dirty data that stays in the cache.
    dirty: DirtyBytes,
    /// Whether the state directory has the record of the close.
    noted: Result<()>,
}

impl Stack {
    /// Refuses new requests on all volumes and waits for those in flight.
    pub async fn drain(&self) {
        let volumes = self.volumes.borrow().clone();
        for served in volumes {
            served.volume.drain().await;
        }
    }

    /// As [`Stack::drain`], with a time limit.
    ///
    /// # Errors
    /// `TimedOut`, with the requests that the devices have not completed.
    pub(crate) async fn drain_within(&self, limit: Duration) -> Result<()> {
        let drained = rt::at_most(limit, self.drain()).await;
        drained.ok_or_else(|| self.unreaped(limit))
    }

    /// Returns the error that lists requests that devices have not completed.
    fn unreaped(&self, limit: Duration) -> Error {
        let volumes = self.volumes.borrow();
        let requests = volumes.iter().flat_map(|served| {
            let on = &served.backing;
            let unreaped = served.volume.unreaped().into_iter();
            unreaped.map(move |request| format!("{request} (over device {on:?})"))
        });
        let requests: Vec<_> = requests.take(16).collect();
        Error::new(
            ErrorKind::TimedOut,
            format!(
                "not ended within {}: {}\n    help: see that the devices answer, and start again: \
                 nothing that was acknowledged is lost",
                human_duration(limit),
                requests.join(", ")
            ),
        )
    }

    /// Returns the error for a device of a volume that has not completed its last flush.
    fn unflushed(&self, served: &Served, limit: Duration) -> Error {
        let devices = self.devices.borrow();
        let watched = devices
            .iter()
            .find(|watched| watched.name == served.backing);
        let what = watched.map_or("", |watched| watched.what.as_str());
        let owing: Vec<String> = watched
            .iter()
            .flat_map(|watched| &watched.transits)
            .filter_map(OpenTransit::owing)
            .collect();
        let is_safe =
            !(watched.iter().flat_map(|watched| &watched.transits)).any(OpenTransit::owes_memory);
        let lost = match is_safe {
            true => ": nothing that was acknowledged is lost by this end",
            false => "",
        };
        let left = match owing.is_empty() {
            true => {
                "it has what was acknowledged since its last flush, but a power loss may take that"
                    .into()
            }
            false => owing.join("; "),
        };
        Error::new(
            ErrorKind::TimedOut,
            format!(
                "volume {:?}: device {:?} ({what}) has not ended its flush within {}: {left}\n    \
                 help: see that it answers, then start again and stop{lost}",
                served.config.name,
                served.backing,
                human_duration(limit),
            ),
        )
    }

    /// Returns the number of requests in flight on all volumes.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        let volumes = self.volumes.borrow();
        let in_flight = volumes
            .iter()
            .map(|served| served.volume.handle().stats().in_flight);
        in_flight.sum()
    }

    /// Drains the volumes, makes acknowledged writes durable, and marks the cache as cleanly shut
    /// down. Dirty data stays in the cache.
    ///
    /// # Errors
    /// The first failure. The rest is closed regardless, and the next opening recovers as after a
    /// crash. `TimedOut`, with the names of the devices, if the last flushes take more than two
    /// minutes. `ShuttingDown` if the cache was still being opened: it is left as after a kill.
    pub async fn close(&self) -> Result<()> {
        self.close_within(CLOSE).await
    }

    pub(super) async fn close_within(&self, limit: Duration) -> Result<()> {
        let until = rt::now() + limit;
        let is_opening = self.is_opening();
        // An opening may take long, and the next start repeats it.
        let opening_by = rt::now()
            + match is_opening {
                true => STOPPED.min(limit),
                false => limit,
            };
        // Transit caches close after the flushes. A device that hangs leaves them the remaining
        // time.
        let flush_limit = limit - limit / 4;
        let flushed_by = rt::now() + flush_limit;
        let left = || flushed_by.saturating_sub(rt::now());
        let mut result = Ok(());
        // Requests that wait for the opening of the cache complete when the opening ends.
        let pending = self.pending.take();
        for (_, attach) in pending {
            let left = left().min(opening_by.saturating_sub(rt::now()));
            match rt::at_most(left, attach.get()).await {
                Some(Err(error)) if error.kind() == ErrorKind::ShuttingDown => {
                    self.is_cut.set(true);
                }
                Some(attached) => result = result.and(attached),
                None if is_opening => self.is_cut.set(true),
                None => result = result.and(Err(unclosed(flush_limit))),
            }
        }
        if result.is_ok() && !matches!(self.attached.now(), Some(Err(_))) {
            let caches = transit_caches(&self.devices.borrow());
            caches.iter().for_each(|cache| cache.allow_evictions());
        }
        // A refused start sends nothing to the devices that it refused.
        let withheld = self.withheld();
        match self.is_cut.get() {
            // No request that waits for the cache was acknowledged.
            true => {
                let _ = self.drain_within(STOPPED.min(limit)).await;
            }
            false => result = result.and(self.drain_within(DRAIN.min(limit)).await),
        }
        let volumes = self.volumes.borrow().clone();
        self.look_at_paths().await;
        // Closing the cache must not turn a copy of its removed file into an earlier state.
        let is_removed = self.devices.borrow().iter().any(Watched::is_removed_cache);
        if is_removed {
            tracing::error!(
                "the cache is not closed cleanly: its file was removed, and a copy of the file \
                 must stay the newest state"
            );
        }
        // Flushes and the close of the cache start together, so that a slow one delays no other.
        let closing = match is_removed || self.is_cut.get() {
            true => None,
            false => self.begin_to_close_cache(!withheld.is_empty()),
        };
        let flushing: Vec<_> = volumes
            .iter()
            .filter(|served| !served.cached && !withheld.contains(&served.backing))
            .map(|served| (served, served.device.flush()))
            .collect();
        for (served, flushing) in flushing {
            let flushed = rt::at_most(left(), flushing).await;
            result = result.and(match flushed {
                Some(flushed) => flushed.context(|| format!("volume {:?}", served.config.name)),
                None => Err(self.unflushed(served, flush_limit)),
            });
        }
        if let Some(closing) = closing {
            let closed = rt::at_most(left(), closing.get()).await;
            result = both(
                result,
                match closed {
                    Some(Ok(Closed { dirty, noted })) => {
                        both(noted, self.note_closed(&volumes, &dirty).await)
                    }
                    Some(Err(error)) => Err(error),
                    None => Err(unclosed(flush_limit)),
                },
            );
        }
        result = result.and(self.check_not_removed(None));
        self.volumes.take();
        let devices = self.devices.take();
        let closing = (devices.into_iter()).map(|watched| self.close_device(watched, until));
        for closed in join_all(closing).await {
            result = both(result, closed);
        }
        match self.is_cut.get() {
            true => result.and(Err(Error::new(ErrorKind::ShuttingDown, UNFINISHED))),
            false => result,
        }
    }

    /// Returns the names of devices whose slots must not be evicted to them yet.
    fn withheld(&self) -> Vec<String> {
        let devices = self.devices.borrow();
        let withheld = devices.iter().filter(|watched| watched.is_withheld());
        withheld.map(|watched| watched.name.clone()).collect()
    }

    /// Allows eviction of slots to the devices of served volumes before all volumes are attached:
    /// clients change these devices anyway.
    pub(super) fn allow_evictions_of_served(&self) {
        let volumes = self.volumes.borrow();
        let devices = self.devices.borrow();
        for served in volumes.iter().filter(|served| !served.cached) {
            let own = devices.iter();
            for watched in own.filter(|watched| watched.name == served.backing) {
                watched
                    .transits
                    .iter()
                    .for_each(OpenTransit::allow_evictions);
            }
        }
    }

    /// Starts to close the cache. The dirty data is empty with `unflushed`, since the amount is
    /// then incomplete. Returns `None` without a cache.
    fn begin_to_close_cache(&self, unflushed: bool) -> Option<Promise<Result<Closed>>> {
        let cache = Rc::clone(self.cache.as_ref()?);
        let promise = Promise::new();
        let set = promise.clone();
        rt::spawn(async move {
            let Ok(opened) = cache.opened().await else {
                return set.set(Ok(Closed {
                    dirty: Vec::new(),
                    noted: Ok(()),
                }));
            };
            let volumes = opened.cache.stats().volumes.into_iter();
            let dirty = volumes
                .filter(|_| !unflushed)
                .map(|stats| (stats.name, stats.dirty_bytes))
                .collect();
            let closed = cache.close(unflushed).await;
            set.set(closed.map(|noted| Closed { dirty, noted }));
        });
        Some(promise)
    }

    /// Records which volumes have dirty data in the closed cache.
    async fn note_closed(&self, volumes: &[Rc<Served>], dirty: &DirtyBytes) -> Result<()> {
        let mut result = Ok(());
        let opened = self.cache.as_ref().and_then(|cache| cache.if_open());
        for served in volumes.iter().filter(|served| served.cached) {
            let name = &served.config.name;
            let forgotten = served.leaving.get()
                && (opened.as_ref()).is_some_and(|opened| !opened.cache.knows(name));
            let bytes = dirty.iter().find(|(volume, _)| volume == name);
            let noted = match bytes {
                // The cache completed a forget that a detach had not waited for.
                _ if forgotten => self.remember(served, Record::forgotten).await,
                Some((_, bytes)) => {
                    let changed = |record| Record {
                        may_be_dirty: *bytes != 0,
                        ..record
                    };
                    self.remember(served, changed).await
                }
                // The volume was never attached.
                None => Ok(()),
            };
            let noted = noted.map_err(|error| {
                let what = format!("the stop of volume {name:?}");
                let next = "until the next start, it counts as one with dirty data in the cache";
                unnoted(&error, &what, next)
            });
            result = both(result, noted);
        }
        result
    }

    /// Drops all that serves a volume, and its backing device.
    ///
    /// # Errors
    /// The error of a transit cache over the backing device; `TimedOut` if that does not end by
    /// `until`.
    pub(super) async fn forget(&self, served: &Rc<Served>, until: Duration) -> Result<()> {
        self.volumes
            .borrow_mut()
            .retain(|other| !Rc::ptr_eq(other, served));
        let backing = {
            let mut devices = self.devices.borrow_mut();
            let at = devices
                .iter()
                .position(|watched| watched.name == served.backing);
            at.map(|at| devices.remove(at))
        };
        match backing {
            Some(watched) => self.close_device(watched, until).await,
            None => Ok(()),
        }
    }

    /// Closes the transit caches of an unused device, from the top down, and a volume in object
    /// storage under them.
    async fn close_device(&self, mut watched: Watched, until: Duration) -> Result<()> {
        let mut result = Ok(());
        for transit in std::mem::take(&mut watched.transits).into_iter().rev() {
            // Other devices may have used all the time. A device without unflushed writes closes
            // quickly.
            let left = until.saturating_sub(rt::now()).max(CLOSE_ONE);
            result = result.and(transit.close(&self.state, left, &watched.what).await);
        }
        let left = until.saturating_sub(rt::now()).max(CLOSE_ONE);
        // A volume in object storage ends in time, and names what is lost.
        let closed = rt::at_most(left + CLOSE_GRACE, watched.close_objects(left)).await;
        both(
            result,
            closed.unwrap_or_else(|| Err(unclosed_device(&watched, left))),
        )
    }
}

/// Returns the first error. Logs the second one, which nothing else reports.
pub(super) fn both(first: Result<()>, second: Result<()>) -> Result<()> {
    if let (Err(_), Err(second)) = (&first, &second) {
        tracing::error!("{}", second.report());
    }
    first.and(second)
}

/// Returns the error for a device that has not ended within the limit.
fn unclosed_device(watched: &Watched, limit: Duration) -> Error {
    Error::new(
        ErrorKind::TimedOut,
        format!(
            "device {:?} ({}) has not ended within {}\n    help: see that it answers, and start \
             again: nothing that was flushed is lost",
            watched.name,
            watched.what,
            human_duration(limit)
        ),
    )
}

/// Returns the error for a cache that has not completed its last flushes.
fn unclosed(limit: Duration) -> Error {
    Error::new(
        ErrorKind::TimedOut,
        format!(
            "the cache has not ended its last flushes within {}\n    help: see that its devices \
             answer, and start again: nothing that was acknowledged is lost",
            human_duration(limit)
        ),
    )
}
