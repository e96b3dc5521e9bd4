//! Kind of a private key, for errors about unusable keys. Reads nothing secret.

use std::fmt;

use rustls::pki_types::PrivateKeyDer;

const INTEGER: u8 = 0x02;
const OCTETS: u8 = 0x04;
const OBJECT: u8 = 0x06;
const SEQUENCE: u8 = 0x30;
/// The parameters of a SEC1 key.
const PARAMETERS: u8 = 0xa0;

/// RSA key sizes that ring can sign with, bits.
const RSA_BITS: [usize; 3] = [2048, 3072, 4096];

/// Usable keys, for messages.
pub(super) const USABLE: &str =
    "RSA of 2048, 3072 or 4096 bits, ECDSA on P-256 or P-384, or Ed25519";

/// A kind of key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Rsa {
        bits: usize,
    },
    /// ECDSA on a curve, by name.
    Ecdsa(&'static str),
    Ed25519,
    Other(&'static str),
}

impl Kind {
    /// Returns the kind of a key, or `None` if its encoding is unknown.
    pub(super) fn of(key: &PrivateKeyDer<'_>) -> Option<Self> {
        match key {
            PrivateKeyDer::Pkcs1(key) => rsa(key.secret_pkcs1_der()),
            PrivateKeyDer::Sec1(key) => {
                let mut fields = Der(Der(key.secret_sec1_der()).expect(SEQUENCE)?);
                fields.expect(INTEGER)?;
                fields.expect(OCTETS)?;
                Some(Self::Ecdsa(curve(
                    Der(fields.expect(PARAMETERS)?).expect(OBJECT)?,
                )))
            }
            PrivateKeyDer::Pkcs8(key) => {
                let mut fields = Der(Der(key.secret_pkcs8_der()).expect(SEQUENCE)?);
                fields.expect(INTEGER)?;
                let mut algorithm = Der(fields.expect(SEQUENCE)?);
                match algorithm.expect(OBJECT)? {
                    [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01] => {
                        rsa(fields.expect(OCTETS)?)
                    }
                    [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01] => {
                        Some(Self::Ecdsa(curve(algorithm.expect(OBJECT)?)))
                    }
                    [0x2b, 0x65, 0x70] => Some(Self::Ed25519),
                    [0x2b, 0x65, 0x71] => Some(Self::Other("Ed448")),
                    [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0a] => {
                        Some(Self::Other("RSA for PSS alone"))
                    }
                    _ => Some(Self::Other(
                        "of an algorithm that TLS servers here do not have",
                    )),
                }
            }
            _ => None,
        }
    }

    /// Returns whether a server can use such a key.
    pub(super) fn is_usable(self) -> bool {
        match self {
            Self::Rsa { bits } => RSA_BITS.contains(&bits),
            Self::Ecdsa(curve) => matches!(curve, "P-256" | "P-384"),
            Self::Ed25519 => true,
            Self::Other(_) => false,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rsa { bits } => write!(f, "RSA of {bits} bits"),
            Self::Ecdsa(curve) => write!(f, "ECDSA on {curve}"),
            Self::Ed25519 => f.write_str("Ed25519"),
            Self::Other(what) => f.write_str(what),
        }
    }
}

/// Parses an RSA key (PKCS #1) up to its modulus.
fn rsa(der: &[u8]) -> Option<Kind> {
    let mut fields = Der(Der(der).expect(SEQUENCE)?);
    fields.expect(INTEGER)?;
    let modulus = fields.expect(INTEGER)?;
    let first = modulus.iter().position(|byte| *byte != 0)?;
    let bits = (modulus.len() - first) * 8 - modulus[first].leading_zeros() as usize;
    Some(Kind::Rsa { bits })
}

fn curve(object: &[u8]) -> &'static str {
    match object {
        [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07] => "P-256",
        [0x2b, 0x81, 0x04, 0x00, 0x22] => "P-384",
        [0x2b, 0x81, 0x04, 0x00, 0x23] => "P-521",
        [0x2b, 0x81, 0x04, 0x00, 0x0a] => "secp256k1",
        _ => "a curve other than P-256 and P-384",
    }
}

/// Rest of a DER encoding.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// Returns the content of the next element, or `None` if it has another tag or is truncated.
    fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_first_chunk::<2>()?;
        if head[0] != tag {
            return None;
        }
        let (len, rest) = match head[1] {
            short @ ..0x80 => (usize::from(short), rest),
            long => {
                let bytes = usize::from(long & 0x7f);
                let (len, rest) = rest.split_at_checked(bytes).filter(|_| bytes <= 4)?;
                let len = len
                    .iter()
                    .fold(0, |len, byte| len << 8 | usize::from(*byte));
                (len, rest)
            }
        };
        let (contents, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some(contents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_encodings_have_no_kind() {
        for bytes in [
            &[][..],
            &[0x30],
            &[0x30, 0x05, 0x02],
            &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff],
            &[0x30, 0x85, 0, 0, 0, 0, 1, 0],
            &[0x30, 0x06, 0x02, 0x01, 0x00, 0x02, 0x01, 0x00],
        ] {
            assert_eq!(rsa(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn the_modulus_says_how_long_a_key_is() {
        let mut der = vec![
            0x30, 0x82, 0x01, 0x08, 0x02, 0x01, 0x00, 0x02, 0x82, 0x01, 0x01, 0x00, 0x80,
        ];
        der.extend([0xff; 255]);
        assert_eq!(rsa(&der), Some(Kind::Rsa { bits: 2048 }));
    }
}
