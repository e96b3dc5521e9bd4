//! Exports of a server: volumes by name.

use std::sync::{PoisonError, RwLock};

use forebay_block::{DeviceInfo, Error, ErrorKind, Result};
use forebay_volume::VolumeHandle;
use forebay_wire::nbd::handshake::{self, Info, export, info};
use forebay_wire::nbd::{MAX_PAYLOAD_BYTES, MAX_STRING_BYTES};

use forebay_tls::Tls;

use super::headers::Headers;

/// Minimum preferred block size that clients see, bytes.
const PREFERRED_BYTES: u32 = 4096;

/// An exported volume.
#[derive(Clone, Debug)]
pub(super) struct Export {
    pub(super) volume: VolumeHandle,
    pub(super) description: String,
}

/// Volumes that a server exports, by name. The first is also the default export, whose name is
/// empty. Any thread may change the list while servers use it. Open connections keep their volume.
#[derive(Debug, Default)]
pub struct Exports {
    list: RwLock<Vec<Export>>,
    tls: Option<Tls>,
}

impl Exports {
    /// Creates an empty list, for clients without TLS.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            list: RwLock::new(Vec::new()),
            tls: None,
        }
    }

    /// Creates an empty list, for clients with TLS.
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

    /// Exports a volume under its name, with a description.
    ///
    /// # Errors
    /// `Busy` if the name is taken, `InvalidInput` if NBD cannot represent the name or the
    /// description.
    pub fn add(&self, volume: VolumeHandle, description: impl Into<String>) -> Result<()> {
        let description = description.into();
        for text in [volume.name(), &description] {
            // A name and a description share one message.
            if text.len() > MAX_STRING_BYTES || text.contains('\0') {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    format!(
                        "a name or description for NBD is longer than {MAX_STRING_BYTES} bytes or \
                         has a NUL: {text:?}"
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
                format!("an NBD export with the name {} exists", volume.name()),
            ));
        }
        list.push(Export {
            volume,
            description,
        });
        Ok(())
    }

    /// Removes the export called `name`. Returns whether it existed.
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

/// Returns the error for a name that no export has.
pub(super) fn unknown(name: &str) -> Error {
    // The name is untrusted: it is shortened, and control characters are removed.
    let shown: String = name.chars().take(64).collect();
    Error::new(
        ErrorKind::NotFound,
        format!("no export has the name {shown:?}"),
    )
}

impl Export {
    /// Returns the transmission flags of the export.
    pub(super) fn flags(&self, device: &DeviceInfo, headers: Headers) -> u16 {
        // A flush covers every connection (see the volume's documentation), hence CAN_MULTI_CONN.
        let mut flags = export::HAS_FLAGS
            | export::SEND_FLUSH
            | export::SEND_FUA
            | export::SEND_WRITE_ZEROES
            | export::SEND_CACHE
            | export::CAN_MULTI_CONN;
        if device.discard {
            flags |= export::SEND_TRIM;
        }
        if headers.have_chunks() {
            flags |= export::SEND_DF;
        }
        if self.volume.read_only() {
            flags |= export::READ_ONLY;
        }
        flags
    }

    /// Returns the properties for INFO and GO: size and block sizes always, the others if the
    /// client requests them.
    pub(super) fn properties(&self, wanted: &[u16], headers: Headers) -> Vec<Info> {
        let device = self.volume.info();
        let mut properties = vec![
            Info::Export {
                size_bytes: device.size_bytes,
                flags: self.flags(&device, headers),
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

    /// Returns the reply to EXPORT_NAME.
    pub(super) fn answer(&self, no_zeroes: bool, headers: Headers) -> Vec<u8> {
        let device = self.volume.info();
        let flags = self.flags(&device, headers);
        handshake::encode_export_name_reply(device.size_bytes, flags, no_zeroes)
    }
}
