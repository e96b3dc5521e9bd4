//! Reports data that a failed flush of a backing device may have lost, in this process and in the
//! next.
//!
//! While the volume stays attached, clients learn of it from their own flushes. The superblock
//! records it for later processes. A flush that succeeds in a later process says nothing about data
//! that an earlier flush failed to make durable.

use std::rc::Rc;

use forebay_block::{Error, Result};
use forebay_metadata::order::{Part, Site};
use forebay_metadata::superblock::VolumeEntry;
use futures_util::FutureExt as _;

use crate::commit::Committer;
use crate::failpoints::{Fault, planted};
use crate::foundation::Foundation;
use crate::presumed_dirty::PresumedDirty;
use crate::superblock::SuperblockStore;
use crate::volume::backing::Backing;
use crate::volume::{AttachedVolume, Volumes};

/// Flushes of backing devices, and the record of those that failed.
#[derive(Debug)]
pub(crate) struct BackingFailures {
    superblock: Rc<SuperblockStore>,
    committer: Rc<Committer>,
    volumes: Rc<Volumes>,
    presumed: Rc<PresumedDirty>,
}

impl BackingFailures {
    /// Returns the part, wired to those that it uses.
    pub(crate) fn new(
        base: &Foundation,
        superblock: Rc<SuperblockStore>,
        committer: Rc<Committer>,
        presumed: Rc<PresumedDirty>,
    ) -> Self {
        Self {
            superblock,
            committer,
            volumes: Rc::clone(&base.volumes),
            presumed,
        }
    }

    /// Flushes a volume's backing device and lets the records go that waited for it.
    #[track_caller]
    pub(crate) fn flush_backing<'a>(
        &'a self,
        volume: &'a AttachedVolume,
    ) -> impl Future<Output = Result<()>> + 'a {
        let site = Site::here();
        async move {
            if site.lacks(Part::Step) {
                return Ok(());
            }
            if let Err(error) = volume.backing.flush().await {
                self.note_failure(volume).await;
                return Err(error);
            }
            // The peer was away, or this process held changes. If the note cannot be taken back,
            // the next start reports a loss that is none.
            self.renew_note(volume).await;
            if !volume.backing.unflushed() {
                self.committer.release_deferred(volume.id);
            }
            Ok(())
        }
    }

    /// Records durably that a write or a flush failed, and whether clients' writes depended on it.
    /// Clients get the error only after that.
    pub(crate) async fn note_failure(&self, volume: &AttachedVolume) {
        // A cache that has failed cannot note anything, and its device may not even answer.
        let shows = !volume.backing.has_never_failed()
            && !volume.may_show_lost()
            && self.committer.is_alive();
        if volume.backing.owes_note() || shows {
            let noted = self.note(volume, shows).await;
            if shows && noted.is_ok() {
                volume.set_may_show_lost(true);
            }
        }
    }

    /// Has the superblock note the unflushed changes of clients, if the volume's device has them in
    /// the memory of this process alone.
    pub(crate) fn note_changes(self: &Rc<Self>, volume: &Rc<AttachedVolume>) {
        if !volume.backing.buffers_in_process() {
            return;
        }
        let (failures, of) = (Rc::downgrade(self), Rc::downgrade(volume));
        let note = move || {
            let (failures, of) = (failures.upgrade(), of.upgrade());
            async move {
                if let (Some(failures), Some(volume), false) =
                    (failures, of, planted(Fault::ForgetBuffered))
                {
                    failures.renew_note(&volume).await;
                }
            }
            .boxed_local()
        };
        volume.backing.note_unflushed_by(Box::new(note));
    }

    /// Writes the superblock's note of a volume, unless it is up to date durably. A cache that has
    /// failed cannot.
    async fn renew_note(&self, volume: &AttachedVolume) {
        volume.noting.acquire(1).await;
        if volume.backing.owes_note() && self.committer.is_alive() {
            let _ = self.write_note(volume, false).await;
        }
        volume.noting.release(1);
    }

    /// Writes to the superblock whether clients' writes may be lost. With `shows`, the device may
    /// show data that it has lost.
    async fn note(&self, volume: &AttachedVolume, shows: bool) -> Result<()> {
        volume.noting.acquire(1).await;
        let written = self.write_note(volume, shows).await;
        volume.noting.release(1);
        written
    }

    async fn write_note(&self, volume: &AttachedVolume, shows: bool) -> Result<()> {
        self.change_entry(volume.id, |entry| {
            let (former, doubt) = volume.backing.note();
            // Only an own note is taken back.
            entry.flush_failed = doubt || (entry.flush_failed && !former);
            entry.may_show_lost |= shows && !planted(Fault::ForgetFailure);
        })
        .await
    }

    /// Changes the superblock's entry of a volume, if there is one.
    async fn change_entry(&self, id: u16, change: impl FnOnce(&mut VolumeEntry)) -> Result<()> {
        self.superblock
            .change(|superblock| {
                let mut volumes = superblock.volumes.iter_mut();
                if let Some(entry) = volumes.find(|entry| entry.id == id) {
                    change(entry);
                }
            })
            .await
    }

    /// As [`BackingFailures::note_failure`], before a volume is there, or of one that is being
    /// fitted to a new size.
    pub(crate) async fn set_flush_failed(&self, id: u16, clients_hung_on_it: bool) -> Result<()> {
        self.change_entry(id, |entry| {
            entry.flush_failed |= clients_hung_on_it;
            entry.may_show_lost |= !planted(Fault::ForgetFailure);
        })
        .await
    }

    /// Returns, before a volume is attached, whether the next power loss of its backing device may
    /// take data that the device shows. A later flush does not change that. This is the case after
    /// a failed write or flush. A write or flush may also have failed unseen, as its process died
    /// or the volume was served without this cache. It ends when all that recovery presumed to be
    /// dirty has been rewritten.
    pub(crate) fn may_show_lost(&self, earlier: &[&VolumeEntry], epoch: u64) -> bool {
        let failed_before =
            |known: &&VolumeEntry| known.may_show_lost || known.flush_failed || epoch > known.epoch;
        !self.presumed.is_over()
            && (!self.presumed.power_was_lost() || earlier.iter().any(failed_before))
    }

    /// Forgets earlier failures. Called when all data that recovery presumed to be dirty has been
    /// written back or dropped.
    pub(crate) async fn forget_failures(&self) {
        if !self.presumed.is_over() {
            return;
        }
        let mut over = self.volumes.all();
        over.retain(|volume| volume.may_show_lost() && volume.backing.has_never_failed());
        for volume in over {
            // It may have failed while another's note was written.
            if !volume.backing.has_never_failed() {
                continue;
            }
            volume.set_may_show_lost(false);
            // If this fails, the record stays, and costs only comparisons.
            let forget = |entry: &mut VolumeEntry| entry.may_show_lost = false;
            let _ = self.change_entry(volume.id, forget).await;
        }
    }

    /// Flushes, before a volume is attached, data that an earlier process left in the backing
    /// device's cache. It does so if `needed`, or if a flush failed then. Logs each failure of that
    /// time, and returns the names of the volumes that clients used. `earlier` has the records of
    /// the volumes that were served from the device.
    ///
    /// # Errors
    /// The device's. The superblock records that error, too.
    pub(crate) async fn flush_inherited(
        &self,
        name: &str,
        earlier: &[&VolumeEntry],
        backing: &Backing,
        needed: bool,
    ) -> Result<Vec<String>> {
        let failed = earlier.iter().filter(|known| known.flush_failed);
        let lost: Vec<String> = failed.map(|known| known.name.clone()).collect();
        let failed = !lost.is_empty();
        // A device that buffers in its process has nothing of earlier ones. A transit cache over it
        // has, and must not send that before the last check of the device.
        if needed || (failed && !backing.buffers_in_process()) {
            let flushed = backing.flush().await;
            if let Err(error) = flushed {
                if !failed {
                    for known in earlier {
                        self.set_flush_failed(known.id, true).await?;
                    }
                }
                let what = "UNFLUSHED WRITES OF EARLIER PROCESSES MAY BE LOST";
                return Err(Error::context(error, format!("volume {name:?}: {what}")));
            }
        }
        let cause = match backing.buffers_in_process() {
            true => "AN EARLIER PROCESS ENDED BEFORE A FLUSH of its backing device, or it failed",
            false => "A FLUSH OF ITS BACKING DEVICE FAILED before this start",
        };
        for former in &lost {
            tracing::error!(
                volume = name,
                former,
                "{cause}: UNFLUSHED WRITES that are not dirty in the cache MAY BE LOST"
            );
        }
        if failed {
            backing.set_lost();
        }
        Ok(lost)
    }
}
