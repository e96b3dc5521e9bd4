//! What secrets make of challenges (Base 8.13.5.4, 8.13.5.5).

use forebay_wire::nvme::auth::Hash;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256, Sha384, Sha512};
use zeroize::Zeroizing;

fn run<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> M {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("keys of every length are taken");
    for part in parts {
        mac.update(part);
    }
    mac
}

/// HMAC (RFC 2104) of `parts`, one after the other.
pub(super) fn hmac(hash: Hash, key: &[u8], parts: &[&[u8]]) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(match hash {
        Hash::Sha256 => run::<Hmac<Sha256>>(key, parts)
            .finalize()
            .into_bytes()
            .to_vec(),
        Hash::Sha384 => run::<Hmac<Sha384>>(key, parts)
            .finalize()
            .into_bytes()
            .to_vec(),
        Hash::Sha512 => run::<Hmac<Sha512>>(key, parts)
            .finalize()
            .into_bytes()
            .to_vec(),
    })
}

/// Whether `told` is the HMAC of `parts`; takes as long whatever it is.
fn verify(hash: Hash, key: &[u8], parts: &[&[u8]], told: &[u8]) -> bool {
    match hash {
        Hash::Sha256 => run::<Hmac<Sha256>>(key, parts).verify_slice(told).is_ok(),
        Hash::Sha384 => run::<Hmac<Sha384>>(key, parts).verify_slice(told).is_ok(),
        Hash::Sha512 => run::<Hmac<Sha512>>(key, parts).verify_slice(told).is_ok(),
    }
}

/// A challenge that binds what both sides made of each other's public values (`shared`), if there is a group.
#[must_use]
pub fn augment(hash: Hash, challenge: &[u8], shared: Option<&[u8]>) -> Zeroizing<Vec<u8>> {
    let Some(shared) = shared else {
        return Zeroizing::new(challenge.to_vec());
    };
    let key = Zeroizing::new(match hash {
        Hash::Sha256 => Sha256::digest(shared).to_vec(),
        Hash::Sha384 => Sha384::digest(shared).to_vec(),
        Hash::Sha512 => Sha512::digest(shared).to_vec(),
    });
    hmac(hash, &key, &[challenge])
}

/// Who proves itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The host.
    Host,
    /// The controller.
    Controller,
}

/// What a response is made of, beside a key.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Who proves itself.
    pub side: Side,
    /// The hash function.
    pub hash: Hash,
    /// The challenge, [`augment`]ed.
    pub challenge: &'a [u8],
    /// Its sequence number.
    pub sequence: u32,
    /// The transaction's identifier.
    pub transaction: u16,
    /// The host's name.
    pub host: &'a str,
    /// The subsystem's name.
    pub subsystem: &'a str,
}

impl Question<'_> {
    fn with<T>(&self, then: impl FnOnce(&[&[u8]]) -> T) -> T {
        let (label, first, second): (&[u8], _, _) = match self.side {
            Side::Host => (b"HostHost", self.host, self.subsystem),
            Side::Controller => (b"Controller", self.subsystem, self.host),
        };
        then(&[
            self.challenge,
            &self.sequence.to_le_bytes(),
            &self.transaction.to_le_bytes(),
            // No secure channel.
            &[0],
            label,
            first.as_bytes(),
            &[0],
            second.as_bytes(),
        ])
    }

    /// The right answer of whoever has `key`.
    #[must_use]
    pub fn answer(&self, key: &[u8]) -> Zeroizing<Vec<u8>> {
        self.with(|parts| hmac(self.hash, key, parts))
    }

    /// Whether `told` is it; takes as long whatever it is.
    #[must_use]
    pub fn is_answer(&self, key: &[u8], told: &[u8]) -> bool {
        self.with(|parts| verify(self.hash, key, parts, told))
    }
}
