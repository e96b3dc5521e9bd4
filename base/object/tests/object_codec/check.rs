//! Properties of the decoders of a volume's objects for every input. The test in this folder and
//! the fuzz target `object_codec` run it.

use forebay_object::testing::{decode_all, repair};

/// Decodes `data` as each object, as it is and with good checksums. Returns the number of objects
/// that it is then.
pub(crate) fn any_input(data: &[u8]) -> usize {
    let as_it_is = decode_all(data);
    let mut repaired = data.to_vec();
    repair(&mut repaired);
    let objects = decode_all(&repaired);
    assert!(objects >= as_it_is, "good checksums stay good");
    assert!(objects <= 1, "the magic numbers differ");
    objects
}
