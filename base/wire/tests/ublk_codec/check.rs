//! Properties of the ublk codec for any bytes that the driver may leave in shared memory: a decoded
//! value is equal after encoding and decoding. The fuzzer and the tests share it.

use forebay_wire::ublk::{Control, Descriptor, Info, Io, Params};

/// Returns the first bytes of an input, padded with zeroes.
fn first<const N: usize>(input: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    let len = input.len().min(N);
    bytes[..len].copy_from_slice(&input[..len]);
    bytes
}

/// Decodes `input` as every structure.
///
/// # Panics
/// If a value differs after encoding and decoding.
pub(crate) fn any_input(input: &[u8]) {
    let descriptor = Descriptor::decode(first(input));
    assert_eq!(Descriptor::decode(descriptor.encode()), descriptor);
    assert_eq!(descriptor.flags & 0xff, 0, "an operation among the flags");
    let io = Io::decode(first(input));
    assert_eq!(Io::decode(io.encode()), io);
    let control = Control::decode(first(input));
    assert_eq!(Control::decode(control.encode()), control);
    let info = Info::decode(first(input));
    assert_eq!(Info::decode(info.encode()), info);
    if let Some(params) = Params::decode(first(input)) {
        assert_eq!(Params::decode(params.encode()), Some(params));
    }
}
