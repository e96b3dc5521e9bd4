//! A secret and its text form (Base 8.13.5.8).
//!
//! The text form has three parts, separated by colons: `DHHC-1` (format and version), the
//! transforming hash function as two digits, and the base64 of the secret's bytes and their CRC-32.

use std::fmt;

use crc_fast::CrcAlgorithm;
use forebay_block::{Error, ErrorKind, Result};
use forebay_wire::nvme::auth::Hash;
use zeroize::Zeroizing;

use super::respond::hmac;

const PREFIX: &str = "DHHC-1:";
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
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

fn wrong(what: &str) -> Error {
    let help = "write it as `forebay secret generate` or `nvme gen-dhchap-key` prints it: \
                \"DHHC-1:\", two digits, \":\", base64, \":\"";
    let what = format!("invalid secret: {what}\nhelp: {help}");
    Error::new(ErrorKind::InvalidInput, what)
}

/// Returns the CRC-32 of a key.
fn checksum(key: &[u8]) -> [u8; 4] {
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
        let rest = rest.ok_or_else(|| wrong("it does not begin with \"DHHC-1:\""))?;
        let (digits, rest) = rest
            .split_once(':')
            .ok_or_else(|| wrong("a colon is missing"))?;
        let transform = match digits {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(wrong("its hash function is not 00, 01, 02 or 03")),
        };
        let coded = rest
            .strip_suffix(':')
            .ok_or_else(|| wrong("it does not end with a colon"))?;
        let mut key =
            decode(coded).ok_or_else(|| wrong("the text between the last colons is not base64"))?;
        let length = key.len().checked_sub(4);
        let length = length.filter(|length| match transform {
            None => [32, 48, 64].contains(length),
            Some(hash) => *length == hash.bytes(),
        });
        let length = length.ok_or_else(|| wrong("its length does not match its hash function"))?;
        if key[length..] != checksum(&key[..length]) {
            return Err(wrong("its checksum does not match"));
        }
        key.truncate(length);
        Ok(Self { transform, key })
    }

    /// Returns the text form.
    #[must_use]
    pub fn text(&self) -> Zeroizing<String> {
        let id = self.transform.map_or(0, Hash::id);
        // Allocated once: growth would leave copies in memory.
        let mut text = Zeroizing::new(String::with_capacity(128));
        text.push_str(PREFIX);
        text.push_str(match id {
            0 => "00:",
            1 => "01:",
            2 => "02:",
            _ => "03:",
        });
        let key = self.key.iter().copied().chain(checksum(&self.key));
        encode(&Zeroizing::new(key.collect::<Vec<_>>()), &mut text);
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

/// Base64 (RFC 4648, 4), padded.
fn encode(bytes: &[u8], text: &mut String) {
    for three in bytes.chunks(3) {
        let at = |index: usize| u32::from(three.get(index).copied().unwrap_or(0));
        let word = at(0) << 16 | at(1) << 8 | at(2);
        for index in 0..4 {
            let digit = usize::try_from(word >> (18 - 6 * index) & 63).expect("6 bits");
            match index as usize <= three.len() {
                true => text.push(char::from(ALPHABET[digit])),
                false => text.push('='),
            }
        }
    }
}

/// Decodes base64. Returns `None` if `text` is not the output of [`encode`].
fn decode(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len()));
    for four in text.as_bytes().chunks(4) {
        let mut word = 0;
        for digit in four {
            let value = match digit {
                b'=' => 0,
                _ => ALPHABET.iter().position(|known| known == digit)?,
            };
            word = word << 6 | u32::try_from(value).ok()?;
        }
        let padding = four
            .iter()
            .rev()
            .take_while(|digit| **digit == b'=')
            .count();
        if four.len() < 4 || padding > 2 {
            return None;
        }
        bytes.extend(&word.to_be_bytes()[1..4 - padding]);
    }
    // Detects padding in the middle, and bits beyond the last byte.
    let mut encoded = Zeroizing::new(String::with_capacity(text.len()));
    encode(&bytes, &mut encoded);
    (*encoded == text).then_some(bytes)
}
