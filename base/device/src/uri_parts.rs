//! Parts of URIs that all initiators share.

use std::net::ToSocketAddrs as _;

/// Resolves `HOST` or `HOST:PORT`, with `port` as default. Returns `None` if there is no such host.
/// May block.
pub(crate) fn resolve(host: &str, port: u16) -> Option<std::net::SocketAddr> {
    // The colons of an IPv6 address are within brackets.
    let after_brackets = host.rsplit_once(']').map_or(host, |(_, after)| after);
    let addresses = match after_brackets.contains(':') {
        true => host.to_socket_addrs(),
        false => format!("{host}:{port}").to_socket_addrs(),
    };
    addresses.ok()?.next()
}

/// Encodes all bytes but the unreserved ones of RFC 3986 and `/` with percent signs.
#[must_use]
pub fn percent_encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => text.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// Decodes percent signs as in RFC 3986. Returns `None` if the result is not UTF-8.
#[must_use]
pub fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                let (high, low) = (digit()?, digit()?);
                u8::try_from(high << 4 | low).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// FNV-1a (<http://www.isthe.com/chongo/tech/comp/fnv/>), 64 bits.
pub(crate) fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_path_is_decoded_to_itself() {
        let path = "/run/my cache?&%é.sock";
        let encoded = percent_encode(path.as_bytes());
        assert_eq!(encoded, "/run/my%20cache%3F%26%25%C3%A9.sock");
        assert_eq!(percent_decode(&encoded).as_deref(), Some(path));
    }
}
