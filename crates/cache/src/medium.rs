//! Which devices a cache and its process journal belong to.
//!
//! A copy of a cache device has the UUID of the original, and a device onto which an older copy was
//! restored has its identity as well. The superblock and the process journal name the devices and
//! count the openings, so that neither is taken for what it is not ([`Relation`]).

use forebay_block::{Buf, Error, ErrorKind, Result};
use forebay_metadata::Media;
use forebay_metadata::journal::{Journal, Recovered, Relation, Tie};
use forebay_metadata::superblock::Superblock;

use crate::engine::Engine;
use crate::options::{CacheOptions, Devices};
use crate::plant::{Fault, planted};

/// Returns the identities of the devices.
pub(crate) fn media_of(devices: &Devices) -> Media {
    Superblock::media_of(devices.data.as_ref(), devices.metadata.as_deref())
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
    /// Returns the tie of the journal of this opening.
    pub(crate) fn tie(&self) -> Tie {
        let service = self.superblock.borrow().service;
        Tie {
            media: service.media,
            generation: service.generation,
            ..Tie::default()
        }
    }

    /// Returns the path of the metadata device, or the one noted before where nobody says it: a copy whose
    /// original is forgotten would pass for it.
    pub(crate) fn place(&self) -> String {
        match &*self.options.place {
            "" => self.superblock.borrow().place.clone(),
            place => place.to_owned(),
        }
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

    /// Raises the generation, durably. The journal `old`, which counts still, announces it first: a
    /// process that dies in between leaves two that agree. Where one has died so, the announced
    /// generation is taken, since another announcement would end the agreement.
    pub(crate) async fn raise_generation(
        &self,
        media: Media,
        is_sparse: bool,
        old: Option<(&Buf, Tie)>,
    ) -> Result<()> {
        let known = self.superblock.borrow().service.generation;
        let generation = match old {
            Some((_, tie)) if known != 0 && tie.next == known && tie.generation != known => known,
            _ => known.max(self.options.generation) + 1 + self.leap(media),
        };
        if let Some((buf, _)) = old
            && generation != known
            && !planted(Fault::RaiseUnannounced)
        {
            Journal::announce(buf, &self.superblock.borrow().uuid, generation);
        }
        let place = self.place();
        self.change_superblock(|superblock| {
            superblock.service.generation = generation;
            superblock.service.media = media;
            superblock.service.is_sparse = is_sparse;
            superblock.service.is_closed = false;
            superblock.place = place;
        })
        .await
    }
}
