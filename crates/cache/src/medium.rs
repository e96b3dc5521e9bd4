//! Which devices a cache and its process journal belong to.
//!
//! A copy of a cache device has the UUID of the original, and a device onto which an older copy was
//! restored has its identity as well. The superblock and the process journal name the devices and
//! count the openings, so that neither is taken for what it is not ([`Relation`]).

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_metadata::Media;
use forebay_metadata::journal::{Journal, Recovered, Relation, Tie};
use forebay_metadata::superblock::{Role, Superblock};

use crate::engine::Engine;
use crate::options::{CacheOptions, Devices};
use crate::plant::{Fault, planted};

/// Returns the identities of the devices.
pub(crate) fn media_of(devices: &Devices) -> Media {
    Superblock::media_of(devices.data.as_ref(), devices.metadata.as_deref())
}

/// Refuses a data device that holds another state of the cache than the metadata device does. `data` is
/// its superblock.
///
/// # Errors
/// `Lost`, naming the device that is older.
pub(crate) fn check_same_state(
    devices: &Devices,
    superblock: &Superblock,
    data: &Superblock,
) -> Result<()> {
    let Some(metadata) = &devices.metadata else {
        return Ok(());
    };
    if superblock.agrees_with(data) || planted(Fault::MixStates) {
        return Ok(());
    }
    let (names, states) = (
        (devices.data.info().name, metadata.info().name),
        (data.service.generation, superblock.service.data_generation),
    );
    let (older, newer) = match states.0 < states.1 {
        true => ((names.0, "data", states.0), names.1),
        false => ((names.1, "metadata", states.1), names.0),
    };
    let (older, part, state) = older;
    Err(Error::new(
        ErrorKind::Lost,
        format!(
            "{older}: the {part} device holds an earlier state of the cache than {newer}: opening {state}, not {}\n    \
             help: put the newest state of {older} back. If that is gone, make a new cache with `forebay format \
             --force --discard-dirty`, and start once with --adopt VOLUME: what was not written back IS LOST THEN",
            states.0.max(states.1)
        ),
    ))
}

/// Reads the process journal in `buf`, if it is that of the cache's last opening on these devices.
///
/// # Errors
/// `Busy` for one that belongs to other devices, `Lost` for one of another opening. It is left alone.
pub(crate) fn own_journal(
    buf: &Buf,
    superblock: &Superblock,
    devices: &Devices,
    options: &CacheOptions,
) -> Result<Option<Recovered>> {
    let Some(found) = Journal::recover(buf, &superblock.uuid, &options.boot_id) else {
        return Ok(None);
    };
    check_relation(
        found.tie,
        media_of(devices),
        superblock.service.generation,
        options.moved,
    )?;
    Ok(Some(found))
}

/// Refuses a process journal that is not that of the last opening of the cache on `media` with this
/// generation. With `moved`, one of the same opening on other devices counts.
///
/// # Errors
/// `Busy` for one that belongs to other devices, `Lost` for one of another opening.
pub fn check_relation(tie: Tie, media: Media, generation: u64, moved: bool) -> Result<()> {
    let (kind, what) = match tie.relation(media, generation) {
        // The header is damaged where it says whose it is; that is refused as damage.
        _ if tie.is_damaged => return Ok(()),
        Relation::Own => return Ok(()),
        _ if planted(Fault::TrustJournal) => return Ok(()),
        Relation::Copied if moved => return Ok(()),
        Relation::Copied | Relation::Foreign => (
            ErrorKind::Busy,
            "this device is a copy, and the process journal belongs to the original".to_owned(),
        ),
        Relation::Newer => (
            ErrorKind::Lost,
            format!(
                "the cache device holds an earlier state: it is at opening {generation}, the process journal at {}",
                tie.generation
            ),
        ),
        Relation::Older => (
            ErrorKind::Lost,
            format!(
                "the process journal is an earlier one: it is of opening {}, the cache device at {generation}",
                tie.generation
            ),
        ),
    };
    Err(Error::new(kind, what))
}

impl Engine {
    /// Returns the tie of a journal that begins on these devices.
    pub(crate) fn tie(&self, media: Media) -> Tie {
        Tie {
            media,
            generation: self.superblock.borrow().service.generation,
            ..Tie::default()
        }
    }

    /// Returns the path of the metadata device. Without one in the options, the path in the superblock stays:
    /// a copy could not be told from its original otherwise.
    pub(crate) fn place(&self) -> String {
        match &*self.options.place {
            "" => self.superblock.borrow().place.clone(),
            place => place.to_owned(),
        }
    }

    /// Returns whether the superblock has the generation that a journal announced.
    pub(crate) fn has_announced(&self, tie: Tie) -> bool {
        let known = self.superblock.borrow().service.generation;
        known != 0 && tie.next == known && tie.generation != known
    }

    /// Returns by how much more the generation rises on another medium: the original's openings and those
    /// of its copies must not meet in one number.
    fn leap(&self, media: Media) -> u64 {
        let medium = media.metadata.medium;
        match self.superblock.borrow().service.media.differs_from(media) {
            true => (medium ^ medium >> 32) & u64::from(u32::MAX),
            false => 0,
        }
    }

    /// Returns the generation that a separate data device has, or announces; zero if none is known.
    pub(crate) fn data_generation(&self) -> u64 {
        let data = self.data_superblock.borrow();
        data.as_ref().map_or(0, |data| match data.service.next {
            0 => data.service.generation,
            next => next,
        })
    }

    /// Returns the generation behind all that are known.
    fn next_generation(&self) -> u64 {
        let known = self.superblock.borrow().service.generation;
        let data = self.data_generation();
        known.max(self.options.generation).max(data) + 1
    }

    /// Raises the generation, durably. The journal `old`, which counts still, announces it first: a process
    /// that dies in between leaves two that agree. A separate data device gets it last, before anything is
    /// written to its slots.
    pub(crate) async fn raise_generation(
        &self,
        media: Media,
        is_sparse: bool,
        old: Option<&Buf>,
    ) -> Result<()> {
        if self.data_superblock.borrow().is_some() {
            // The metadata is about to ask for the generation that the data device shows. A process that died
            // may have left that in the device's cache, where a power loss takes it, or in one of the two
            // copies alone, where rot takes it.
            self.flush_data().await?;
            if !planted(Fault::LeaveSpareCopy) {
                self.write_data_superblock(1, |_| ()).await?;
            }
        }
        let generation = match planted(Fault::KeepAnnounced) {
            true => self.superblock.borrow().service.generation,
            false => self.next_generation() + self.leap(media),
        };
        if let Some(buf) = old
            && !planted(Fault::RaiseUnannounced)
        {
            Journal::announce(buf, &self.superblock.borrow().uuid, generation);
        }
        let place = self.place();
        self.change_superblock(|superblock| {
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
        self.write_data_superblock(2, |superblock| {
            superblock.service.generation = generation;
            superblock.service.next = 0;
            superblock.service.media = media;
            superblock.place.clone_from(&self.options.data_place);
        })
        .await
    }

    /// Announces the generation that a clean end takes, in the process journal and on a separate data
    /// device. Returns it.
    pub(crate) async fn announce_end(&self) -> Result<u64> {
        let generation = self.next_generation();
        if self.commit.journal.borrow().is_some()
            && let Some(buf) = &self.options.journal
        {
            Journal::announce(buf, &self.superblock.borrow().uuid, generation);
        }
        self.write_data_superblock(2, |superblock| superblock.service.next = generation)
            .await?;
        Ok(generation)
    }

    /// Takes the announced generation, with the mark of a clean end: a copy that was made in service is
    /// an earlier state from then on.
    pub(crate) async fn end_generation(&self, generation: u64) -> Result<()> {
        self.change_superblock(|superblock| {
            superblock.service.is_closed = true;
            if !planted(Fault::EndUnraised) {
                superblock.service.generation = generation;
            }
        })
        .await
    }

    /// Writes a changed superblock to a separate data device, durably, one copy after the other. The older
    /// of the two copies is the first one.
    async fn write_data_superblock(
        &self,
        copies: u32,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<()> {
        let Some(mut next) = self.data_superblock.borrow().clone() else {
            return Ok(());
        };
        if planted(Fault::LeaveDataDevice) {
            return Ok(());
        }
        change(&mut next);
        let mut result = Ok(());
        let turn = self.commit.data_turn();
        turn.acquire(1).await;
        for _ in 0..copies {
            next.sequence += 1;
            if result.is_ok() {
                result = next.write(self.data.as_ref(), Role::Data).await;
            }
        }
        match &result {
            Ok(()) => *self.data_superblock.borrow_mut() = Some(next),
            // The device may have reported lost data to this flush alone.
            Err(error) => {
                self.commit.data_flush_failed();
                self.fail(error.clone());
            }
        }
        turn.release(1);
        result
    }
}
