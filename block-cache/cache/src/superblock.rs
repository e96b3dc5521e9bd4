//! The superblock of an open cache, on the metadata device and on a separate data device.
//!
//! It counts the openings of the cache (its *generation*) and names its devices: see
//! [`media`](crate::media).

use std::cell::{Ref, RefCell};
use std::collections::HashSet;
use std::rc::Rc;

use forebay_block::{Buf, Result};
use forebay_io::sync::Semaphore;
use forebay_metadata::Media;
use forebay_metadata::journal::{Journal, Tie};
use forebay_metadata::superblock::{Role, Superblock, VolumeEntry};

use crate::commit::Committer;
use crate::devices::CacheDevices;
use crate::failpoints::{Fault, planted};
use crate::foundation::Foundation;
use crate::options::Settings;
use crate::recovery_report::RecoveryReport;

/// The superblock of an open cache.
#[derive(Debug)]
pub(crate) struct SuperblockStore {
    devices: Rc<CacheDevices>,
    settings: Rc<Settings>,
    committer: Rc<Committer>,
    current: RefCell<Superblock>,
    /// The superblock on a data device whose metadata lies elsewhere.
    data: RefCell<Option<Superblock>>,
    /// Turn to change the superblock.
    lock: Semaphore,
    /// Numbers of the volumes whose loss this start reports.
    lossy: RefCell<HashSet<u16>>,
}

impl SuperblockStore {
    /// Returns the store of a superblock that was read, with that of a separate data device.
    pub(crate) fn new(
        base: &Foundation,
        committer: Rc<Committer>,
        current: Superblock,
        data: Option<Superblock>,
    ) -> Self {
        let owing = (current.volumes.iter()).filter(|entry| entry.has_unreported_loss);
        let lossy = owing.map(|entry| entry.id).collect();
        Self {
            devices: Rc::clone(&base.devices),
            settings: Rc::clone(&base.settings),
            committer,
            current: RefCell::new(current),
            data: RefCell::new(data),
            lock: Semaphore::new(1),
            lossy: RefCell::new(lossy),
        }
    }

    /// Returns the superblock as it is on media.
    pub(crate) fn current(&self) -> Ref<'_, Superblock> {
        self.current.borrow()
    }
}

impl SuperblockStore {
    /// Returns the tie of a journal that begins on these devices.
    pub(crate) fn tie(&self, media: Media) -> Tie {
        Tie {
            media,
            generation: self.current.borrow().service.generation,
            ..Tie::default()
        }
    }

    /// Returns the path of the metadata device. If the options have none, returns the path in the
    /// superblock. Otherwise a copy could not be distinguished from its original.
    pub(crate) fn place(&self) -> String {
        match &*self.settings.place {
            "" => self.current.borrow().place.clone(),
            place => place.to_owned(),
        }
    }

    /// Returns whether the superblock has the generation that a journal announced.
    pub(crate) fn has_announced(&self, tie: Tie) -> bool {
        let known = self.current.borrow().service.generation;
        known != 0 && tie.next == known && tie.generation != known
    }

    /// Returns by how much more the generation rises on another medium: the original's openings and
    /// those of its copies must not meet in one number.
    fn generation_step(&self, media: Media) -> u64 {
        let medium = media.metadata.medium;
        match self.current.borrow().service.media.differs_from(media) {
            true => (medium ^ medium >> 32) & u64::from(u32::MAX),
            false => 0,
        }
    }

    /// Returns the generation that a separate data device has, or announces; zero if none is known.
    pub(crate) fn data_generation(&self) -> u64 {
        let data = self.data.borrow();
        data.as_ref().map_or(0, |data| match data.service.next {
            0 => data.service.generation,
            next => next,
        })
    }

    /// Returns the generation behind all that are known.
    fn next_generation(&self) -> u64 {
        let known = self.current.borrow().service.generation;
        let data = self.data_generation();
        known.max(self.settings.generation).max(data) + 1
    }

    /// Makes both copies of a separate data device's superblock show its generation, durably,
    /// before the metadata requires it. A process that died may have left the generation only in
    /// the device's cache, where a power loss removes it. Or it may be in only one of the two
    /// copies, where corruption removes it.
    ///
    /// # Errors
    /// The data device's.
    pub(crate) async fn secure_data_generation(&self) -> Result<()> {
        if self.data.borrow().is_none() {
            return Ok(());
        }
        self.committer.flush_data().await?;
        if planted(Fault::LeaveSpareCopy) {
            return Ok(());
        }
        self.write_data(1, |_| ()).await
    }

    /// Raises the generation, durably. The valid journal `old` announces the generation first, so
    /// that journal and superblock agree if the process dies between the two. A separate data
    /// device gets the generation last, before anything is written to its slots.
    pub(crate) async fn raise_generation(
        &self,
        media: Media,
        is_sparse: bool,
        old: Option<&Buf>,
    ) -> Result<()> {
        let generation = match planted(Fault::KeepAnnounced) {
            true => self.current.borrow().service.generation,
            false => self.next_generation() + self.generation_step(media),
        };
        if let Some(buf) = old
            && !planted(Fault::RaiseUnannounced)
        {
            Journal::announce(buf, &self.current.borrow().uuid, generation);
        }
        let place = self.place();
        self.change(|superblock| {
            superblock.service.generation = generation;
            superblock.service.media = media;
            if planted(Fault::ExpectUnwritten) {
                superblock.service.data_generation = generation;
            }
            superblock.service.is_sparse = is_sparse;
            superblock.service.is_closed = false;
            superblock.place = place;
        })
        .await?;
        self.write_data(2, |superblock| {
            superblock.service.generation = generation;
            superblock.service.next = 0;
            superblock.service.media = media;
            superblock.place.clone_from(&self.settings.data_place);
        })
        .await
    }

    /// Records durably which volumes have lost data, which a start has to report. The opening may
    /// forget the lost ranges after that.
    pub(crate) async fn note_losses(&self, report: &RecoveryReport) -> Result<()> {
        let certain: HashSet<&str> = report.losers().collect();
        let possible = report.possible_losses.iter().map(|range| &*range.volume);
        let all: HashSet<&str> = certain.iter().copied().chain(possible).collect();
        if all.is_empty() || planted(Fault::ForgetLoss) {
            return Ok(());
        }
        let known = self.current.borrow().volumes.clone();
        let lossy = known.iter().filter(|entry| certain.contains(&*entry.name));
        self.lossy.borrow_mut().extend(lossy.map(|entry| entry.id));
        self.change(|superblock| {
            for entry in &mut superblock.volumes {
                entry.has_unreported_loss |= all.contains(&*entry.name);
            }
        })
        .await
    }

    /// Returns whether this opening or an earlier one found data of a volume lost. Damage of the
    /// log in this opening does not count, since it is reported by itself.
    pub(crate) fn is_lossy(&self, volume: u16) -> bool {
        self.lossy.borrow().contains(&volume)
    }

    /// Forgets the losses of the volumes that `is_reported` selects, durably.
    ///
    /// # Errors
    /// The failure of the cache, whose superblock must not change any more, or the error of its
    /// device. The losses stay recorded then.
    pub(crate) async fn forget_losses(
        &self,
        is_reported: impl Fn(&VolumeEntry) -> bool,
    ) -> Result<()> {
        let is_over = |entry: &VolumeEntry| entry.has_unreported_loss && is_reported(entry);
        if !self.current.borrow().volumes.iter().any(is_over) {
            return Ok(());
        }
        self.committer.check_alive()?;
        self.change(|superblock| {
            for entry in superblock.volumes.iter_mut().filter(|entry| is_over(entry)) {
                entry.has_unreported_loss = false;
            }
        })
        .await
    }

    /// Announces the generation of a clean end, in the process journal and on a separate data
    /// device. Returns the generation.
    pub(crate) async fn announce_end(&self) -> Result<u64> {
        let generation = self.next_generation();
        if self.committer.has_journal()
            && let Some(buf) = &self.settings.journal
        {
            Journal::announce(buf, &self.current.borrow().uuid, generation);
        }
        self.write_data(2, |superblock| superblock.service.next = generation)
            .await?;
        Ok(generation)
    }

    /// Takes the announced generation, with the mark of a clean end: a copy that was made in
    /// service is an earlier state from then on.
    pub(crate) async fn end_generation(&self, generation: u64) -> Result<()> {
        self.change(|superblock| {
            superblock.service.is_closed = true;
            if !planted(Fault::EndUnraised) {
                superblock.service.generation = generation;
            }
        })
        .await
    }

    /// Writes a changed superblock to a separate data device, durably, one copy after the other.
    /// The older of the two copies is the first one.
    async fn write_data(&self, copies: u32, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        let Some(mut next) = self.data.borrow().clone() else {
            return Ok(());
        };
        if planted(Fault::LeaveDataDevice) {
            return Ok(());
        }
        change(&mut next);
        let mut result = Ok(());
        let turn = self.committer.data_turn();
        turn.acquire(1).await;
        for _ in 0..copies {
            next.sequence += 1;
            if result.is_ok() {
                result = next.write(self.devices.data().as_ref(), Role::Data).await;
            }
        }
        match &result {
            Ok(()) => *self.data.borrow_mut() = Some(next),
            // The device may have reported lost data to this flush alone.
            Err(error) => {
                self.committer.data_flush_failed();
                self.committer.fail(error.clone());
            }
        }
        turn.release(1);
        result
    }

    /// Writes a changed superblock, as the newer copy.
    pub(crate) async fn change(&self, change: impl FnOnce(&mut Superblock)) -> Result<()> {
        self.lock.acquire(1).await;
        let mut next = self.current.borrow().clone();
        next.reached = self.committer.log_batch();
        next.service.data_generation = self.data_generation();
        change(&mut next);
        let device = self.devices.metadata();
        let mut result = Ok(());
        let turn = self.committer.metadata_turn();
        turn.acquire(1).await;
        // One copy after the other, so that losing either loses nothing.
        for _ in 0..2 {
            next.sequence += 1;
            if result.is_ok() {
                result = next.write(device.as_ref(), next.role).await;
            }
        }
        match &result {
            Ok(()) => *self.current.borrow_mut() = next,
            // Another flush may have got the error for this data, and it is unknown which copy is
            // on media.
            Err(error) => {
                self.committer.metadata_flush_failed();
                self.committer.fail(error.clone());
            }
        }
        turn.release(1);
        self.lock.release(1);
        result
    }
}
