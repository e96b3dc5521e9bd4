//! Common parts of both sides of DH-HMAC-CHAP (Base 8.13.5): secrets as text and as files,
//! responses to challenges, and Diffie-Hellman. The messages are in [`forebay_wire::nvme::auth`].
//! The order of messages is in the target and the initiator.

mod base64;
mod group;
mod respond;
mod secret;
mod secrets;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

pub use forebay_wire::nvme::auth::Hash;
pub use group::Private;
pub use respond::{Question, Side, augment};
pub use secret::Secret;
pub use secrets::{HostSecrets, Secrets};

/// Returns a challenge's sequence number. It is never zero, and repeats only after four billion
/// challenges of this process.
#[must_use]
pub fn next_sequence() -> u32 {
    static NEXT: OnceLock<AtomicU32> = OnceLock::new();
    let next = NEXT.get_or_init(|| {
        let mut first = [0; 4];
        forebay_io::system::random(&mut first);
        AtomicU32::new(u32::from_le_bytes(first))
    });
    match next.fetch_add(1, Ordering::Relaxed) {
        0 => next.fetch_add(1, Ordering::Relaxed),
        number => number,
    }
}

#[cfg(test)]
mod tests;
