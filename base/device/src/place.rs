//! What the URIs of initiators have in common.

use std::net::ToSocketAddrs as _;

/// The address of `HOST` or `HOST:PORT`, with `port` where none is named. A name is looked up, which may take a while.
pub(crate) fn looked_up(host: &str, port: u16) -> Option<std::net::SocketAddr> {
    let after = host.rsplit_once(']').map_or(host, |(_, after)| after);
    let addresses = match after.contains(':') {
        true => host.to_socket_addrs(),
        false => format!("{host}:{port}").to_socket_addrs(),
    };
    addresses.ok()?.next()
}

/// Without the percent signs of RFC 3986.
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
