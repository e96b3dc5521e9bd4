//! What must hold of the ublk codec for any bytes that the driver may leave in shared memory: what is read and written is read
//! the same again. The fuzzer and the tests share it.

use forebay_wire::ublk::{Control, Descriptor, Info, Io, Params};

/// The first bytes of an input; zeroes where it has none.
fn first<const N: usize>(input: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    let len = input.len().min(N);
    bytes[..len].copy_from_slice(&input[..len]);
    bytes
}

/// Reads `input` as everything that there is.
///
/// # Panics
/// If something is read as another thing than was written.
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
