//! What a server offers: volumes by name.

use std::sync::{PoisonError, RwLock};

use forebay_block::{DeviceInfo, Error, ErrorKind, Result};
use forebay_volume::VolumeHandle;
use forebay_wire::nbd::handshake::{self, Info, export, info};
use forebay_wire::nbd::{MAX_PAYLOAD_BYTES, MAX_STRING_BYTES};

use super::tls::Tls;

/// Block size that clients are told to prefer at least, bytes.
const PREFERRED_BYTES: u32 = 4096;

/// One volume on offer.
#[derive(Clone, Debug)]
pub(super) struct Export {
    pub(super) volume: VolumeHandle,
    pub(super) description: String,
}

/// The volumes that a server offers, by name; the first is also the default one, whose name is
/// empty. It may change while servers use it, from any thread: connections that are open keep their
/// volume.
#[derive(Debug, Default)]
pub struct Exports {
    list: RwLock<Vec<Export>>,
    tls: Option<Tls>,
}

impl Exports {
    /// No exports, for clients that speak no TLS.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            list: RwLock::new(Vec::new()),
            tls: None,
        }
    }

    /// No exports, with TLS for their clients.
    #[must_use]
    pub const fn with_tls(tls: Tls) -> Self {
        Self {
            list: RwLock::new(Vec::new()),
            tls: Some(tls),
        }
    }

    pub(super) const fn tls(&self) -> Option<&Tls> {
        self.tls.as_ref()
    }

    /// Offers a volume under its name, with words for people.
    ///
    /// # Errors
    /// `Busy` if the name is taken; `InvalidInput` if NBD cannot carry it.
    pub fn add(&self, volume: VolumeHandle, description: impl Into<String>) -> Result<()> {
        let description = description.into();
        for text in [volume.name(), &description] {
            // A name and a description travel in one message.
            if text.len() > MAX_STRING_BYTES || text.contains('\0') {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    format!(
                        "NBD takes no name or description of more than {MAX_STRING_BYTES} bytes or with a NUL: {text:?}"
                    ),
                ));
            }
        }
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        if list
            .iter()
            .any(|export| export.volume.name() == volume.name())
        {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("an NBD export is already called {}", volume.name()),
            ));
        }
        list.push(Export {
            volume,
            description,
        });
        Ok(())
    }

    /// Offers the volume called `name` no more. Whether there was one.
    pub fn remove(&self, name: &str) -> bool {
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        let before = list.len();
        list.retain(|export| export.volume.name() != name);
        list.len() < before
    }

    pub(super) fn find(&self, name: &str) -> Option<Export> {
        let list = self.list.read().unwrap_or_else(PoisonError::into_inner);
        if name.is_empty() {
            return list.first().cloned();
        }
        list.iter()
            .find(|export| export.volume.name() == name)
            .cloned()
    }

    pub(super) fn all(&self) -> Vec<Export> {
        self.list
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Export {
    /// What the export offers, as transmission flags.
    pub(super) fn flags(&self, device: &DeviceInfo, structured: bool) -> u16 {
        // A flush covers every connection (see the volume's text), hence CAN_MULTI_CONN.
        let mut flags = export::HAS_FLAGS
            | export::SEND_FLUSH
            | export::SEND_FUA
            | export::SEND_WRITE_ZEROES
            | export::SEND_CACHE
            | export::CAN_MULTI_CONN;
        if device.discard {
            flags |= export::SEND_TRIM;
        }
        if structured {
            flags |= export::SEND_DF;
        }
        if self.volume.read_only() {
            flags |= export::READ_ONLY;
        }
        flags
    }

    /// The properties that answer INFO and GO: the size and the block sizes always, the others where
    /// the client asks for them.
    pub(super) fn properties(&self, wanted: &[u16], structured: bool) -> Vec<Info> {
        let device = self.volume.info();
        let mut properties = vec![
            Info::Export {
                size_bytes: device.size_bytes,
                flags: self.flags(&device, structured),
            },
            Info::BlockSize {
                minimum: device.logical_block_bytes,
                preferred: device.physical_block_bytes.max(PREFERRED_BYTES),
                maximum: MAX_PAYLOAD_BYTES,
            },
        ];
        if wanted.contains(&info::NAME) {
            properties.push(Info::Name(self.volume.name().to_owned()));
        }
        if wanted.contains(&info::DESCRIPTION) {
            properties.push(Info::Description(self.description.clone()));
        }
        properties
    }

    /// The answer to EXPORT_NAME.
    pub(super) fn answer(&self, no_zeroes: bool, structured: bool) -> Vec<u8> {
        let device = self.volume.info();
        let flags = self.flags(&device, structured);
        handshake::encode_export_name_reply(device.size_bytes, flags, no_zeroes)
    }
}
