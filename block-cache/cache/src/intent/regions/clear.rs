//! Marks go when their regions have been quiet for a while, or when there is no room for more.
//!
//! An *intent* mark waits for a flush of its volume's backing device. Each volume's are cleared by
//! themselves, so that a device which does not answer keeps no other volume's regions busy.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::Result;
use forebay_io::rt;
use forebay_io::sync::Promise;
use forebay_metadata::record::MarkState;

use super::Regions;
use crate::commit::queue::Entry;
use crate::map::marks::{Cleared, Region};
use crate::volume::AttachedVolume;

/// A mark is cleared after this much quiet.
const QUIET: Duration = Duration::from_secs(3);

/// Which marks to clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Clear {
    /// Those of regions that have been quiet for a while and whose records are exact.
    Quiet,
    /// The half that has been quiet longest.
    OlderHalf,
    /// Every one that is not in use.
    All,
}

/// Regions that cannot be entered until they are released.
#[derive(Debug)]
struct Taken {
    /// The volume whose backing device is to be flushed first; none if none needs to be.
    flushed: Option<Rc<AttachedVolume>>,
    regions: Vec<Cleared>,
}

impl Regions {
    /// Takes the regions whose marks are to be cleared.
    fn take_idle(&self, which: Clear) -> Vec<Taken> {
        let now = rt::now();
        let is_wanted = |region: &Region| {
            let wanted =
                which != Clear::Quiet || (region.is_exact() && region.last_used() + QUIET <= now);
            // A mark whose backing device cannot be flushed must stay, and must not be picked
            // repeatedly.
            let stuck = which != Clear::All
                && region.state() == MarkState::Intent
                && (self.volumes.get(region.volume())).is_some_and(|volume| match which {
                    Clear::Quiet => self.in_line.borrow().contains(&volume.id),
                    _ => volume.backing.check().is_err(),
                });
            let room = which != Clear::OlderHalf || region.is_marked();
            wanted && room && !stuck
        };
        let mut taken: Vec<Taken> = Vec::new();
        for region in self.marks.take_idle(which == Clear::OlderHalf, is_wanted) {
            let flushed = match region.state {
                MarkState::Intent => self.volumes.get(region.volume),
                _ => None,
            };
            let of = |taken: &Taken| taken.flushed.as_ref().map(|volume| volume.id);
            let own = flushed.as_ref().map(|volume| volume.id);
            match taken.iter_mut().find(|taken| of(taken) == own) {
                Some(taken) => taken.regions.push(region),
                None => taken.push(Taken {
                    flushed,
                    regions: vec![region],
                }),
            }
        }
        taken
    }

    /// Clears marks, of each volume by itself. Returns what there is to wait for.
    fn start_clearing(self: &Rc<Self>, which: Clear) -> Vec<Promise<Result<()>>> {
        let start = |taken| {
            let (regions, promise) = (Rc::clone(self), Promise::new());
            let set = promise.clone();
            rt::spawn(async move { set.set(regions.clear_taken(which, taken).await) });
            promise
        };
        self.take_idle(which).into_iter().map(start).collect()
    }

    /// Clears the marks that are not in use.
    ///
    /// # Errors
    /// A backing device that cannot be flushed keeps the marks of its own volume, no others. A
    /// failed commit keeps them all.
    pub(crate) async fn clear_all_marks(self: &Rc<Self>) -> Result<()> {
        let mut result = Ok(());
        for cleared in self.start_clearing(Clear::All) {
            result = result.and(cleared.get().await);
        }
        result
    }

    /// Clears half of the marks, or as many as make room while others wait for their backing
    /// devices.
    ///
    /// # Errors
    /// As [`Regions::clear_all_marks`].
    pub(super) async fn clear_older_half(self: &Rc<Self>) -> Result<()> {
        let before = self.marks.len();
        let clearing = self.start_clearing(Clear::OlderHalf);
        let is_over = || clearing.iter().all(Promise::is_set);
        self.changed
            .until(|| is_over() || self.marks.len() < before)
            .await;
        let mut result = Ok(());
        for cleared in clearing.into_iter().filter(Promise::is_set) {
            result = result.and(cleared.get().await);
        }
        result
    }

    async fn clear_taken(&self, which: Clear, taken: Taken) -> Result<()> {
        let Taken { flushed, regions } = taken;
        let mut result = match &flushed {
            Some(volume) => {
                self.in_line.borrow_mut().push(volume.id);
                let result = self.failures.flush_backing(volume).await;
                let mut in_line = self.in_line.borrow_mut();
                let at = in_line.iter().position(|id| *id == volume.id);
                in_line.swap_remove(at.expect("it was put there"));
                result
            }
            None => Ok(()),
        };
        if result.is_ok() {
            // With checksums, copies may have been refreshed under intent, and their records are
            // older.
            if which != Clear::Quiet || self.has_checksums {
                for cleared in &regions {
                    self.queue_unrecorded(cleared.volume, cleared.region);
                }
            }
            result = self.committer.commit().await;
        }
        for cleared in regions {
            let Cleared { volume, region, .. } = cleared;
            // From here on the region counts as unmarked: a new mark is logged after this.
            if self.marks.end_clearing(cleared, result.is_ok()) {
                self.committer.queue_entry(Entry::Unmark { volume, region });
                self.unmarked.set(self.committer.next_round());
            }
        }
        self.changed.wake_all();
        result
    }

    /// The task that clears marks and flushes backing devices for the records that wait for it. A
    /// client that never flushes should also find its data cached after a crash. The task does not
    /// wait for the flushes.
    pub(crate) async fn mark_timer(self: Rc<Self>) {
        while !self.service.is_stopping() {
            rt::sleep(QUIET).await;
            // A start that may yet be refused changes no backing device.
            if self.committer.failure().is_some() || self.service.holds_write_back() {
                continue;
            }
            // The volume's clients get the error of a failed flush. Marks and records keep waiting.
            if self.committer.deferred_blocks() > 0 {
                let volumes: Vec<_> = self.volumes.all();
                for volume in volumes {
                    if volume.backing.unflushed() {
                        self.flush_behind(volume);
                    } else {
                        self.committer.release_deferred(volume.id);
                    }
                }
            }
            if !self.marks.is_empty() {
                let _ = self.start_clearing(Clear::Quiet);
            }
        }
    }

    /// Starts a flush of a volume's backing device in the background, unless one is in flight.
    fn flush_behind(self: &Rc<Self>, volume: Rc<AttachedVolume>) {
        if !volume.backing.begin_behind() {
            return;
        }
        let failures = Rc::clone(&self.failures);
        rt::spawn(async move {
            let _ = failures.flush_backing(&volume).await;
            volume.backing.end_behind();
        });
    }
}
