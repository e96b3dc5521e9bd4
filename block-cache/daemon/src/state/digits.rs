//! Identities as hexadecimal digits.

/// Returns an identity as 32 hexadecimal digits.
#[must_use]
pub(crate) fn hex(uuid: &[u8; 16]) -> String {
    use std::fmt::Write as _;
    uuid.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the identity that [`hex`] wrote.
pub(super) fn unhex(text: &str) -> Option<[u8; 16]> {
    if text.len() != 32 || !text.is_ascii() {
        return None;
    }
    let mut uuid = [0; 16];
    for (index, byte) in uuid.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(uuid)
}
