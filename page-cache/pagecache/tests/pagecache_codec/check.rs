//! What holds for every input of the page cache's codec. Run by the seeded test beside this file and by the fuzz
//! target `pagecache_codec`.

use forebay_pagecache::message::{ToDirectory, ToNode};
use forebay_pagecache::protocol::{DecodeError, Message, Packet, encode};

/// Decodes `data` in both directions; what decodes whole is encoded to the very bytes it came from. Returns how many
/// packets were taken.
pub(crate) fn any_input(data: &[u8]) -> usize {
    stream::<ToDirectory>(data) + stream::<ToNode>(data)
}

/// Takes packets from the front until none is left.
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
