//! Messages of DH-HMAC-CHAP (Base 8.13.4, 8.13.5), of hosts and of controllers.

use super::{Group, Hash, Reason};

/// Code of the only reason, authentication failure.
const REASON: u8 = 1;
/// Message identifiers of all protocols, and of DH-HMAC-CHAP (Base 8.13.4, 8.13.5).
mod id {
    pub(super) const NEGOTIATE: [u8; 2] = [0x00, 0x00];
    pub(super) const FAILURE_2: [u8; 2] = [0x00, 0xf0];
    pub(super) const FAILURE_1: [u8; 2] = [0x00, 0xf1];
    pub(super) const CHALLENGE: [u8; 2] = [0x01, 0x01];
    pub(super) const REPLY: [u8; 2] = [0x01, 0x02];
    pub(super) const SUCCESS_1: [u8; 2] = [0x01, 0x03];
    pub(super) const SUCCESS_2: [u8; 2] = [0x01, 0x04];
}
/// Length of a Negotiate before its protocols, and of each protocol, bytes.
const NEGOTIATE_BYTES: usize = 8;
const DESCRIPTOR_BYTES: usize = 64;
/// Maximum number of hash functions, and of groups, in a protocol's descriptor.
const LIST_BYTES: usize = 30;
/// Identifier of DH-HMAC-CHAP among protocols ("AuthID").
const DH_HMAC_CHAP: u8 = 1;
/// Fixed part of messages with fields of variable length, and length of those without, bytes.
const FIXED_BYTES: usize = 16;
const FAILURE_BYTES: usize = 8;

/// A message of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostMessage<'a> {
    /// Offers protocols, DH-HMAC-CHAP among them.
    Negotiate {
        /// Identifiers of hash functions.
        hashes: &'a [u8],
        /// Identifiers of groups.
        groups: &'a [u8],
    },
    /// Answers a challenge.
    Reply {
        /// Response, with the length of the hash.
        response: &'a [u8],
        /// The host's own challenge and its sequence number, if the controller must authenticate
        /// itself.
        challenge: Option<(&'a [u8], u32)>,
        /// Public value; empty for the null group.
        public: &'a [u8],
    },
    /// Accepts the controller.
    Success2,
    /// Rejects the controller, with the explanation's code.
    Failure2(u8),
}

/// An invalid message: its transaction, as far as it is known, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Transaction identifier.
    pub transaction: u16,
    /// Reason to report.
    pub reason: Reason,
}

fn header(id: [u8; 2], transaction: u16) -> Vec<u8> {
    let [low, high] = transaction.to_le_bytes();
    vec![id[0], id[1], 0, 0, low, high]
}

/// Returns the transaction of a message, and a function that builds its error.
fn about(bytes: &[u8]) -> (u16, impl Fn(Reason) -> Malformed + use<>) {
    let transaction = match bytes.get(4..6) {
        Some(two) => u16::from_le_bytes([two[0], two[1]]),
        None => 0,
    };
    let wrong = move |reason| Malformed {
        transaction,
        reason,
    };
    (transaction, wrong)
}

fn byte(length: usize) -> u8 {
    u8::try_from(length).expect("at most 64")
}

impl<'a> HostMessage<'a> {
    /// Decodes a host's message and its transaction identifier.
    ///
    /// # Errors
    /// The reason that a controller must report.
    pub fn decode(bytes: &'a [u8]) -> Result<(u16, Self), Malformed> {
        let (transaction, wrong) = about(bytes);
        let message = match bytes {
            [kind, number, _, _, _, _, rest @ ..] => match [*kind, *number] {
                id::NEGOTIATE => Self::negotiate(rest, bytes),
                id::REPLY => Self::reply(bytes).ok_or(Reason::IncorrectPayload),
                id::SUCCESS_2 if bytes.len() == FIXED_BYTES => Ok(Self::Success2),
                id::FAILURE_2 if bytes.len() == FAILURE_BYTES => Ok(Self::Failure2(bytes[7])),
                id::SUCCESS_2 | id::FAILURE_2 => Err(Reason::IncorrectPayload),
                _ => Err(Reason::IncorrectMessage),
            },
            _ => Err(Reason::IncorrectPayload),
        };
        Ok((transaction, message.map_err(wrong)?))
    }

    fn negotiate(rest: &[u8], bytes: &'a [u8]) -> Result<Self, Reason> {
        let [channel, count, ..] = rest else {
            return Err(Reason::IncorrectPayload);
        };
        let list = &bytes[NEGOTIATE_BYTES..];
        if *count == 0 || list.len() != usize::from(*count) * DESCRIPTOR_BYTES {
            return Err(Reason::IncorrectPayload);
        }
        if *channel != 0 {
            return Err(Reason::ChannelMismatch);
        }
        let ours = list
            .chunks_exact(DESCRIPTOR_BYTES)
            .find(|descriptor| descriptor[0] == DH_HMAC_CHAP);
        let ours = ours.ok_or(Reason::ProtocolUnusable)?;
        let (hashes, groups) = (usize::from(ours[2]), usize::from(ours[3]));
        let lists = &ours[4..];
        if !(1..=LIST_BYTES).contains(&hashes) || !(1..=LIST_BYTES).contains(&groups) {
            return Err(Reason::IncorrectPayload);
        }
        Ok(Self::Negotiate {
            hashes: &lists[..hashes],
            groups: &lists[LIST_BYTES..][..groups],
        })
    }

    fn reply(bytes: &'a [u8]) -> Option<Self> {
        let (fixed, rest) = bytes.split_first_chunk::<FIXED_BYTES>()?;
        let hash = usize::from(fixed[6]);
        let group = usize::from(u16::from_le_bytes([fixed[10], fixed[11]]));
        let sequence = u32::from_le_bytes([fixed[12], fixed[13], fixed[14], fixed[15]]);
        if rest.len() != 2 * hash + group || fixed[8] > 1 {
            return None;
        }
        let (response, rest) = rest.split_at(hash);
        let (challenge, public) = rest.split_at(hash);
        Some(Self::Reply {
            response,
            challenge: (fixed[8] == 1).then_some((challenge, sequence)),
            public,
        })
    }

    /// Encodes the message.
    ///
    /// # Panics
    /// If a list, a hash or a group is too long.
    #[must_use]
    pub fn encode(&self, transaction: u16) -> Vec<u8> {
        match *self {
            Self::Negotiate { hashes, groups } => {
                let mut bytes = header(id::NEGOTIATE, transaction);
                bytes.extend([
                    0,
                    1,
                    DH_HMAC_CHAP,
                    0,
                    byte(hashes.len()),
                    byte(groups.len()),
                ]);
                for list in [hashes, groups] {
                    let end = bytes.len() + LIST_BYTES;
                    bytes.extend(list);
                    assert!(bytes.len() <= end, "a list of at most {LIST_BYTES}");
                    bytes.resize(end, 0);
                }
                bytes
            }
            Self::Reply {
                response,
                challenge,
                public,
            } => {
                let mut bytes = header(id::REPLY, transaction);
                let group = u16::try_from(public.len()).expect("a group's length");
                let valid = u8::from(challenge.is_some());
                let none = vec![0; response.len()];
                let (value, sequence) = challenge.unwrap_or((&none, 0));
                assert_eq!(value.len(), response.len(), "both as long as the hash");
                bytes.extend([byte(response.len()), 0, valid, 0]);
                bytes.extend(group.to_le_bytes());
                bytes.extend(sequence.to_le_bytes());
                [&bytes, response, value, public].concat()
            }
            Self::Success2 => {
                let mut bytes = header(id::SUCCESS_2, transaction);
                bytes.resize(FIXED_BYTES, 0);
                bytes
            }
            Self::Failure2(code) => {
                let mut bytes = header(id::FAILURE_2, transaction);
                bytes.extend([REASON, code]);
                bytes
            }
        }
    }
}

/// A message of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerMessage<'a> {
    /// Challenges the host.
    Challenge {
        /// Selected hash function.
        hash: Hash,
        /// Selected group.
        group: Group,
        /// Sequence number of the challenge.
        sequence: u32,
        /// Challenge, with the length of the hash.
        value: &'a [u8],
        /// Public value, with the length of the group's.
        public: &'a [u8],
    },
    /// Accepts the host.
    Success1 {
        /// The hash function.
        hash: Hash,
        /// Response to the host's challenge, if there was one.
        response: Option<&'a [u8]>,
    },
    /// Rejects the host.
    Failure1(Reason),
}

impl<'a> ControllerMessage<'a> {
    /// Decodes a controller's message and its transaction identifier. Bytes after it are unused
    /// room.
    ///
    /// # Errors
    /// The reason that a host must report.
    pub fn decode(bytes: &'a [u8]) -> Result<(u16, Self), Malformed> {
        let (transaction, wrong) = about(bytes);
        let message = match bytes.first_chunk::<6>() {
            Some(&[kind, number, ..]) => match [kind, number] {
                id::CHALLENGE => Self::challenge(bytes),
                id::SUCCESS_1 => Self::success(bytes).ok_or(Reason::IncorrectPayload),
                id::FAILURE_1 => match bytes.get(FAILURE_BYTES - 1) {
                    // An unknown, newer reason is a failure, too.
                    Some(code) => Ok(Self::Failure1(Reason::of(*code).unwrap_or(Reason::Failed))),
                    None => Err(Reason::IncorrectPayload),
                },
                _ => Err(Reason::IncorrectMessage),
            },
            None => Err(Reason::IncorrectPayload),
        };
        Ok((transaction, message.map_err(wrong)?))
    }

    fn challenge(bytes: &'a [u8]) -> Result<Self, Reason> {
        let (fixed, rest) =
            (bytes.split_first_chunk::<FIXED_BYTES>()).ok_or(Reason::IncorrectPayload)?;
        let hash = Hash::of(fixed[8]).ok_or(Reason::HashUnusable)?;
        let group = Group::of(fixed[9]).ok_or(Reason::GroupUnusable)?;
        let public_bytes = usize::from(u16::from_le_bytes([fixed[10], fixed[11]]));
        let lengths = (usize::from(fixed[6]), public_bytes);
        if lengths != (hash.bytes(), group.bytes()) || rest.len() < lengths.0 + lengths.1 {
            return Err(Reason::IncorrectPayload);
        }
        let (value, rest) = rest.split_at(hash.bytes());
        Ok(Self::Challenge {
            hash,
            group,
            sequence: u32::from_le_bytes([fixed[12], fixed[13], fixed[14], fixed[15]]),
            value,
            public: &rest[..group.bytes()],
        })
    }

    fn success(bytes: &'a [u8]) -> Option<Self> {
        let (fixed, rest) = bytes.split_first_chunk::<FIXED_BYTES>()?;
        let length = usize::from(fixed[6]);
        let hash = Hash::ALL.into_iter().find(|hash| hash.bytes() == length)?;
        let response = rest.get(..length)?;
        match fixed[8] {
            0 => Some(Self::Success1 {
                hash,
                response: None,
            }),
            1 => Some(Self::Success1 {
                hash,
                response: Some(response),
            }),
            _ => None,
        }
    }

    /// Encodes the message.
    ///
    /// # Panics
    /// If a value does not have the length of its hash or group.
    #[must_use]
    pub fn encode(&self, transaction: u16) -> Vec<u8> {
        match *self {
            Self::Challenge {
                hash,
                group,
                sequence,
                value,
                public,
            } => {
                let mut bytes = header(id::CHALLENGE, transaction);
                assert_eq!(value.len(), hash.bytes(), "as long as the hash");
                assert_eq!(public.len(), group.bytes(), "as long as the group");
                bytes.extend([byte(hash.bytes()), 0, hash.id(), group.id()]);
                let public_bytes = u16::try_from(public.len()).expect("a group's length");
                bytes.extend(public_bytes.to_le_bytes());
                bytes.extend(sequence.to_le_bytes());
                [&bytes, value, public].concat()
            }
            Self::Success1 { hash, response } => {
                let mut bytes = header(id::SUCCESS_1, transaction);
                bytes.extend([byte(hash.bytes()), 0, u8::from(response.is_some())]);
                bytes.resize(FIXED_BYTES, 0);
                bytes.extend(response.unwrap_or_default());
                bytes.resize(FIXED_BYTES + hash.bytes(), 0);
                bytes
            }
            Self::Failure1(reason) => {
                let mut bytes = header(id::FAILURE_1, transaction);
                bytes.extend([REASON, reason.code()]);
                bytes
            }
        }
    }
}
