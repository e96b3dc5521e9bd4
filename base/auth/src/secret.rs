//! A secret and its text form (Base 8.13.5.8).
//!
//! The text form has three parts, separated by colons:
//!
//! - `DHHC-1` (format and version)
//! - the transforming hash function as two digits
//! - the base64 of the secret's bytes and their CRC-32

use std::fmt;

use crc_fast::CrcAlgorithm;
use forebay_block::{Error, ErrorKind, Result};
use forebay_wire::nvme::auth::Hash;
use zeroize::Zeroizing;

use super::base64;
use super::respond::hmac;

const PREFIX: &str = "DHHC-1:";
/// Length of the checksum behind the key, bytes.
const CHECKSUM_BYTES: usize = 4;
/// Constant part of a transformed secret (Base 8.13.5.7).
const PURPOSE: &[u8] = b"NVMe-over-Fabrics";

/// A secret of a host or of a controller. Its bytes are wiped on drop. Only [`Secret::text`]
/// reveals them.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    transform: Option<Hash>,
    key: Zeroizing<Vec<u8>>,
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// Returns the error for a text that is not a secret, without the text.
fn invalid(what: &str) -> Error {
    let help = "write it as `forebay secret generate` or `nvme gen-dhchap-key` prints it: \
                \"DHHC-1:\", two digits, \":\", base64, \":\"";
    let what = format!("invalid secret: {what}\nhelp: {help}");
    Error::new(ErrorKind::InvalidInput, what)
}

/// Returns the CRC-32 of a key.
fn checksum(key: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let sum = crc_fast::checksum(CrcAlgorithm::Crc32IsoHdlc, key);
    u32::try_from(sum).expect("32 bits").to_le_bytes()
}

impl Secret {
    /// Generates a secret, which is transformed by `transform` before use. So a controller needs
    /// only the transformed secret of one name. Its length is that of the hash, or 32 bytes without
    /// one.
    #[must_use]
    pub fn generate(transform: Option<Hash>) -> Self {
        let mut key = Zeroizing::new(vec![0; transform.map_or(32, Hash::bytes)]);
        forebay_io::system::random(&mut key);
        Self { transform, key }
    }

    /// Parses the text form.
    ///
    /// # Errors
    /// `InvalidInput` if `text` is not a secret, or its checksum is wrong. The error does not
    /// contain the text.
    pub fn parse(text: &str) -> Result<Self> {
        let rest = text.strip_prefix(PREFIX);
        let rest = rest.ok_or_else(|| invalid("it does not begin with \"DHHC-1:\""))?;
        let (digits, rest) = rest
            .split_once(':')
            .ok_or_else(|| invalid("a colon is missing"))?;
        let transform = match digits {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(invalid("its hash function is not 00, 01, 02 or 03")),
        };
        let coded = rest
            .strip_suffix(':')
            .ok_or_else(|| invalid("it does not end with a colon"))?;
        let mut key = base64::decode(coded)
            .ok_or_else(|| invalid("the text between the last colons is not base64"))?;
        let length = key.len().checked_sub(CHECKSUM_BYTES);
        let length = length.filter(|length| match transform {
            None => [32, 48, 64].contains(length),
            Some(hash) => *length == hash.bytes(),
        });
        let length =
            length.ok_or_else(|| invalid("its length does not match its hash function"))?;
        if key[length..] != checksum(&key[..length]) {
            return Err(invalid("its checksum does not match"));
        }
        key.truncate(length);
        Ok(Self { transform, key })
    }

    /// Returns the text form.
    #[must_use]
    pub fn text(&self) -> Zeroizing<String> {
        // Allocated once: growth would leave copies in memory.
        let mut text = Zeroizing::new(String::with_capacity(128));
        text.push_str(PREFIX);
        text.push_str(match self.transform {
            None => "00:",
            Some(Hash::Sha256) => "01:",
            Some(Hash::Sha384) => "02:",
            Some(Hash::Sha512) => "03:",
        });
        let key = self.key.iter().copied().chain(checksum(&self.key));
        base64::encode(&Zeroizing::new(key.collect::<Vec<_>>()), &mut text);
        text.push(':');
        text
    }

    /// Returns the key of the host or controller `nqn`: the secret, transformed if it says so.
    #[must_use]
    pub fn key(&self, nqn: &str) -> Zeroizing<Vec<u8>> {
        match self.transform {
            None => self.key.clone(),
            Some(hash) => hmac(hash, &self.key, &[nqn.as_bytes(), PURPOSE]),
        }
    }
}
