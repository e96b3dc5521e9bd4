//! Properties of the NBD codec for every input. The seeded test in this folder and the fuzz target
//! `nbd_codec` run it.

use forebay_wire::nbd::context::{BlockStatus, Context, ContextRequest, ExtendedStatus};
use forebay_wire::nbd::extended::{ExtendedChunk, ExtendedRequest};
use forebay_wire::nbd::handshake::{
    Greeting, Info, InfoRequest, OptionHeader, OptionReply, decode_client_flags, decode_name,
};
use forebay_wire::nbd::transmission::{Chunk, Request, SimpleReply};

/// Decodes `data` as each message. A decoded message must be encoded to the same bytes. Returns how
/// many decoders accepted it.
pub(crate) fn any_input(data: &[u8]) -> usize {
    let mut taken = 0;
    let mut same = |encoded: &[u8]| {
        assert_eq!(encoded, &data[..encoded.len()], "encode(decode(x)) == x");
        taken += 1;
    };
    if let Ok(value) = Greeting::decode(data) {
        same(&value.encode());
    }
    if let Ok(value) = OptionHeader::decode(data) {
        same(&value.encode());
    }
    if let Ok(value) = OptionReply::decode(data) {
        same(&value.encode());
    }
    if let Ok(value) = Request::decode(data) {
        assert!(value.payload_bytes() <= value.length);
        same(&value.encode());
    }
    if let Ok(value) = SimpleReply::decode(data) {
        same(&value.encode());
    }
    if let Ok(value) = Chunk::decode(data) {
        same(&value.encode());
    }
    if let Ok(value) = ExtendedRequest::decode(data) {
        assert!(value.payload_bytes() <= value.length);
        same(&value.encode());
    }
    if let Ok(value) = ExtendedChunk::decode(data) {
        same(&value.encode());
    }
    if let Ok(value) = ExtendedStatus::decode(data) {
        assert_eq!(value.encode(), data, "a status has no spare bytes");
        assert!(value.descriptors.iter().all(|(length, _)| *length > 0));
        same(data);
    }
    if let Ok(value) = InfoRequest::decode(data) {
        assert_eq!(value.encode(), data, "a request has no spare bytes");
        same(data);
    }
    if let Ok(value) = Info::decode(data) {
        same(&value.encode());
    }
    if let Ok(value) = ContextRequest::decode(data) {
        assert_eq!(value.encode(), data, "a request has no spare bytes");
        same(data);
    }
    if let Ok(value) = Context::decode(data) {
        same(&value.encode());
    }
    if let Ok(value) = BlockStatus::decode(data) {
        assert_eq!(value.encode(), data, "a status has no spare bytes");
        assert!(value.descriptors.iter().all(|it| it.length > 0));
        same(data);
    }
    if let Ok(name) = decode_name(data) {
        assert!(!name.contains('\0') && name.len() <= 4096);
        same(name.as_bytes());
    }
    if let Some(first) = data.first_chunk::<4>()
        && let Ok(flags) = decode_client_flags(*first)
    {
        same(&u32::from(flags).to_be_bytes());
    }
    taken
}
