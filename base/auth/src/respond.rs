//! Responses to challenges (Base 8.13.5.4, 8.13.5.5).

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

/// Returns the HMAC (RFC 2104) of the concatenated `parts`.
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

/// Returns whether `response` is the HMAC of `parts`, in constant time.
fn verify(hash: Hash, key: &[u8], parts: &[&[u8]], response: &[u8]) -> bool {
    match hash {
        Hash::Sha256 => run::<Hmac<Sha256>>(key, parts)
            .verify_slice(response)
            .is_ok(),
        Hash::Sha384 => run::<Hmac<Sha384>>(key, parts)
            .verify_slice(response)
            .is_ok(),
        Hash::Sha512 => run::<Hmac<Sha512>>(key, parts)
            .verify_slice(response)
            .is_ok(),
    }
}

/// Returns the challenge, combined with the shared secret (`shared`) if there is a group.
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

/// Side that authenticates itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The host.
    Host,
    /// The controller.
    Controller,
}

/// Input of a response, without the key.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Side that authenticates itself.
    pub side: Side,
    /// The hash function.
    pub hash: Hash,
    /// The challenge, after [`augment`].
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

    /// Returns the right response for `key`.
    #[must_use]
    pub fn answer(&self, key: &[u8]) -> Zeroizing<Vec<u8>> {
        self.with(|parts| hmac(self.hash, key, parts))
    }

    /// Returns whether `response` is the right one, in constant time.
    #[must_use]
    pub fn is_answer(&self, key: &[u8], response: &[u8]) -> bool {
        self.with(|parts| verify(self.hash, key, parts, response))
    }
}
