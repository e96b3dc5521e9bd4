//! Parts that the URIs of all initiators share.

use std::net::ToSocketAddrs as _;

/// Returns the address of `HOST` or `HOST:PORT`, with `port` as default. A name is resolved, which
/// may block.
pub(crate) fn looked_up(host: &str, port: u16) -> Option<std::net::SocketAddr> {
    let after = host.rsplit_once(']').map_or(host, |(_, after)| after);
    let addresses = match after.contains(':') {
        true => host.to_socket_addrs(),
        false => format!("{host}:{port}").to_socket_addrs(),
    };
    addresses.ok()?.next()
}

/// Decodes percent signs as in RFC 3986.
pub(crate) fn decoded(text: &str) -> Option<String> {
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
