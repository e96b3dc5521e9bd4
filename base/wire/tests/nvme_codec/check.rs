//! Properties of the codecs of NVMe and NVMe/TCP for every input. The seeded test in this folder
//! and the fuzz target `nvme_codec` run it.

use forebay_wire::nvme::admin::LogRequest;
use forebay_wire::nvme::auth::{ControllerMessage, Exchange, HostMessage, Reason};
use forebay_wire::nvme::fabrics::{
    CONNECT_DATA_BYTES, Connect, ConnectData, MAX_NQN_BYTES, Property, is_nqn,
};
use forebay_wire::nvme::identified::{ControllerFacts, NamespaceFacts, first_namespace, uuid};
use forebay_wire::nvme::io::{MAX_RANGES, Range};
use forebay_wire::nvme::{Command, Completion, Status};
use forebay_wire::nvme_tcp::{Common, DataHeader, Digests, Initialize, Kind, Terminate};

/// Decodes `data` as each message. A decoded message must be encoded to the same bytes, except
/// reserved ones. Returns how many decoders accepted it.
pub(crate) fn any_input(data: &[u8]) -> usize {
    let mut taken = 0;
    if let Some(&bytes) = data.first_chunk() {
        taken += header(Common::decode(bytes), bytes);
    }
    if let Some(&bytes) = data.first_chunk()
        && let Ok(value) = Initialize::decode(bytes)
    {
        assert_eq!(value.encode()[..8], bytes[..8]);
        taken += 1;
    }
    if let Some(&bytes) = data.first_chunk() {
        let value = DataHeader::decode(bytes);
        assert_eq!(value.encode()[..12], bytes[..12]);
        let value = Terminate::decode(bytes);
        assert_eq!(value.encode()[..6], bytes[..6]);
        let value = Range::decode(bytes);
        assert_eq!(value.encode(), bytes);
        let value = Completion::decode(bytes);
        assert_eq!(value.encode()[..14], bytes[..14]);
        assert_eq!(value.status, Completion::decode(value.encode()).status);
        taken += 1;
    }
    if let Some(&bytes) = data.first_chunk() {
        let value = Command::decode(bytes);
        assert_eq!(value.encode(), bytes);
        taken += command(&value);
    }
    if let Some(bytes) = data.first_chunk::<CONNECT_DATA_BYTES>()
        && let Ok(value) = ConnectData::decode(bytes)
    {
        for name in [&value.subsystem, &value.host] {
            assert!(is_nqn(name) && name.len() <= MAX_NQN_BYTES);
        }
        assert_eq!(ConnectData::decode(&value.encode()), Ok(value));
        taken += 1;
    }
    if let Some(page) = data.first_chunk() {
        let controller = ControllerFacts::decode(page);
        assert!(controller.in_capsule_bytes <= u32::MAX - 64);
        assert!(NamespaceFacts::decode(page).preferred_blocks > 0);
        assert_ne!(first_namespace(page), Some(0));
        let _ = uuid(page);
        taken += 1;
    }
    taken + authentication(data) + challenge(data)
}

/// The same for a controller's message, with any room after it.
fn challenge(data: &[u8]) -> usize {
    match ControllerMessage::decode(data) {
        Ok((transaction, message)) => {
            let mut bytes = message.encode(transaction);
            assert!(bytes.len() <= data.len(), "of what is there");
            bytes.resize(4096, 0xaa);
            assert_eq!(
                ControllerMessage::decode(&bytes),
                Ok((transaction, message))
            );
            1
        }
        Err(malformed) => {
            assert_eq!(Reason::of(malformed.reason.code()), Some(malformed.reason));
            0
        }
    }
}

/// A host's authentication message is refused with a reason, or is equal after encoding and
/// decoding.
fn authentication(data: &[u8]) -> usize {
    match HostMessage::decode(data) {
        Ok((transaction, message)) => {
            let bytes = message.encode(transaction);
            assert_eq!(HostMessage::decode(&bytes), Ok((transaction, message)));
            1
        }
        Err(malformed) => {
            assert_eq!(Reason::of(malformed.reason.code()), Some(malformed.reason));
            0
        }
    }
}

/// A header is refused, or the lengths of its parts add up to that of the PDU.
fn header(value: Common, bytes: [u8; 8]) -> usize {
    assert_eq!(value.encode(), bytes);
    let mut taken = 0;
    for (header, data) in [(false, false), (false, true), (true, false), (true, true)] {
        let digests = Digests { header, data };
        for alignment in [0, 3, 31] {
            match value.check(digests, alignment) {
                Ok(layout) => {
                    let digest = |there: bool| if there { 4 } else { 0 };
                    let length = u64::from(value.header_length)
                        + digest(layout.header_digest)
                        + u64::from(layout.padding_bytes)
                        + u64::from(layout.data_bytes)
                        + digest(layout.data_digest);
                    assert_eq!(length, u64::from(value.length), "{value:?} {layout:?}");
                    assert_eq!(Kind::of(value.kind), Some(layout.kind));
                    taken = 1;
                }
                Err(fault) => assert!(fault.information < 8 && !fault.to_string().is_empty()),
            }
        }
    }
    taken
}

fn command(value: &Command) -> usize {
    assert!((1..=1 << 16).contains(&value.blocks()));
    assert!((1..=MAX_RANGES).contains(&value.ranges()));
    assert!(LogRequest::of(value).length.is_multiple_of(4));
    let connect = Connect::of(value);
    assert_eq!(Connect::of(&connect.command()), connect);
    let _ = Property::of(value);
    if let Some(exchange) = Exchange::of(value).filter(|exchange| exchange.known) {
        let command = Exchange::command(exchange.from_host, exchange.length);
        assert_eq!(Exchange::of(&command), Some(exchange));
    }
    match value.data() {
        Ok(data) => {
            assert_eq!(value.with_data(data).data(), Ok(data));
            1
        }
        Err(status) => {
            assert!(status == Status::INVALID_FIELD || status == Status::SGL_TYPE_INVALID);
            0
        }
    }
}
