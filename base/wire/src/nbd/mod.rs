//! The NBD protocol, fixed newstyle, with structured replies.
//!
//! Numbers and layouts follow the protocol document
//! (<https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>); each item names its
//! section there. All integers are in network byte order.
//!
//! Not supported: oldstyle negotiation. TLS starts with [`handshake::option::STARTTLS`]; the
//! protocol inside it is the same.

pub mod context;
pub mod errno;
pub mod extended;
pub mod handshake;
pub mod transmission;

pub use errno::{errno, error_kind};

use forebay_block::{Error, ErrorKind};

/// Maximum length of a string on the wire, bytes ("Conventions").
pub const MAX_STRING_BYTES: usize = 4096;

/// Largest payload of a read or write that every client may rely on, bytes. Without negotiation
/// clients assume a maximum payload of 32 MiB ("Block size constraints").
pub const MAX_PAYLOAD_BYTES: u32 = 32 << 20;

fn malformed(context: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidInput, context)
}

/// Returns the fixed-size header at the start of `bytes`.
fn prefix<T: zerocopy::FromBytes + zerocopy::KnownLayout + zerocopy::Immutable>(
    bytes: &[u8],
    what: &str,
) -> Result<T, Error> {
    T::read_from_prefix(bytes)
        .map(|(value, _rest)| value)
        .map_err(|_| {
            malformed(format!(
                "{what} of {} bytes where {} were expected",
                bytes.len(),
                size_of::<T>()
            ))
        })
}
