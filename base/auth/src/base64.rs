//! Base64 (RFC 4648, 4) of secrets: no copy of them stays in memory.

use zeroize::Zeroizing;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends the encoded form of `bytes`, padded. Allocates nothing if `text` has room for it.
pub(super) fn encode(bytes: &[u8], text: &mut String) {
    for group in bytes.chunks(3) {
        let at = |index: usize| u32::from(group.get(index).copied().unwrap_or(0));
        let word = at(0) << 16 | at(1) << 8 | at(2);
        for index in 0..4 {
            let digit = usize::try_from(word >> (18 - 6 * index) & 63).expect("6 bits");
            if index as usize <= group.len() {
                text.push(char::from(ALPHABET[digit]));
            } else {
                text.push('=');
            }
        }
    }
}

/// Decodes a text. Returns `None` if `text` is not the output of [`encode`].
pub(super) fn decode(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len()));
    for group in text.as_bytes().chunks(4) {
        let mut word = 0;
        for digit in group {
            let value = match digit {
                b'=' => 0,
                _ => ALPHABET.iter().position(|known| known == digit)?,
            };
            word = word << 6 | u32::try_from(value).ok()?;
        }
        let padding = group
            .iter()
            .rev()
            .take_while(|digit| **digit == b'=')
            .count();
        if group.len() < 4 || padding > 2 {
            return None;
        }
        bytes.extend(&word.to_be_bytes()[1..4 - padding]);
    }
    // Detects padding in the middle, and bits beyond the last byte.
    let mut encoded = Zeroizing::new(String::with_capacity(text.len()));
    encode(&bytes, &mut encoded);
    (*encoded == text).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vectors of RFC 4648, 10.
    const VECTORS: [(&str, &str); 7] = [
        ("", ""),
        ("f", "Zg=="),
        ("fo", "Zm8="),
        ("foo", "Zm9v"),
        ("foob", "Zm9vYg=="),
        ("fooba", "Zm9vYmE="),
        ("foobar", "Zm9vYmFy"),
    ];

    #[test]
    fn the_vectors_of_the_standard_are_encoded_and_decoded() {
        for (plain, coded) in VECTORS {
            let mut text = String::new();
            encode(plain.as_bytes(), &mut text);
            assert_eq!(text, coded);
            let decoded = decode(coded).expect("base64");
            assert_eq!(&decoded[..], plain.as_bytes());
        }
    }

    #[test]
    fn text_that_no_encoder_writes_is_refused() {
        for text in [
            "Zg", "Zg=", "Zh==", "Z===", "====", "Zg==Zg==", "Zm9v\n", "Zm 9",
        ] {
            assert!(decode(text).is_none(), "{text:?}");
        }
    }
}
