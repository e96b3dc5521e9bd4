//! Properties of the page cache's codec for every input. The seeded test in this folder and the
//! fuzz target `pagecache_codec` run it.

use forebay_pagecache::message::{ToDirectory, ToNode};
use forebay_pagecache::protocol::{DecodeError, Message, Packet, encode};

/// Decodes `data` in both directions. A fully decoded packet must be encoded to the same bytes.
/// Returns the number of decoded packets.
pub(crate) fn any_input(data: &[u8]) -> usize {
    stream::<ToDirectory>(data) + stream::<ToNode>(data)
}

/// Decodes packets from the front until none is left.
fn stream<M: Message>(mut data: &[u8]) -> usize {
    let mut taken = 0;
    while let Ok(Some(packet)) = Packet::<M>::decode(data) {
        let (bytes, rest) = data.split_at(packet.size_bytes);
        let messages: Result<Vec<M>, DecodeError> = packet.messages().collect();
        if let Ok(messages) = messages
            && !messages.is_empty()
        {
            let mut encoded = Vec::new();
            encode(packet.node, &messages, &mut encoded);
            assert_eq!(encoded, bytes, "encode(decode(x)) == x");
            taken += 1;
        }
        data = rest;
    }
    taken
}
