//! Authentication of hosts: the commands that carry it (Base 6.1, 6.2), and the messages of DH-HMAC-CHAP
//! (Base 8.13.4, 8.13.5). What secrets make of them is not known here.

use super::{Command, fabrics};

/// The security protocol of all authentication (Base 6.1, "SECP").
const PROTOCOL: u8 = 0xe9;
/// What both fields that are specific to it hold (Base 6.1, "SPSP0" and "SPSP1").
const SPECIFIC: [u8; 2] = [1, 1];
/// Most bytes of a message that is read or sent.
pub const MAX_MESSAGE_BYTES: u32 = 4096;

/// The fields of Authentication Send and Authentication Receive (Base 6.1, 6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Whether the host sends the message; else it asks for one.
    pub from_host: bool,
    /// Whether the security protocol is the one that there is.
    pub known: bool,
    /// Length of the message, or room for one, bytes.
    pub length: u32,
}

impl Exchange {
    /// Reads the fields of a command. None if it is another one.
    #[must_use]
    pub fn of(command: &Command) -> Option<Self> {
        let from_host = match (command.opcode, command.nsid.to_le_bytes()[0]) {
            (fabrics::OPCODE, fabrics::fctype::AUTHENTICATION_SEND) => true,
            (fabrics::OPCODE, fabrics::fctype::AUTHENTICATION_RECEIVE) => false,
            _ => return None,
        };
        let [_, first, second, protocol] = command.words[0].to_le_bytes();
        Some(Self {
            from_host,
            known: protocol == PROTOCOL && [first, second] == SPECIFIC,
            length: command.words[1],
        })
    }

    /// The command, without its data's descriptor.
    #[must_use]
    pub fn command(from_host: bool, length: u32) -> Command {
        let kind = match from_host {
            true => fabrics::fctype::AUTHENTICATION_SEND,
            false => fabrics::fctype::AUTHENTICATION_RECEIVE,
        };
        let first = u32::from_le_bytes([0, SPECIFIC[0], SPECIFIC[1], PROTOCOL]);
        let words = [first, length, 0, 0, 0, 0];
        Command::new(fabrics::OPCODE, u32::from(kind), words)
    }
}

/// A hash function of DH-HMAC-CHAP (Base 8.13.5.2, "HashIDList").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hash {
    /// SHA-256.
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Hash {
    /// All of them, the strongest first.
    pub const ALL: [Self; 3] = [Self::Sha512, Self::Sha384, Self::Sha256];

    /// The function of an identifier.
    #[must_use]
    pub fn of(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.id() == id)
    }

    /// Its identifier.
    #[must_use]
    pub const fn id(self) -> u8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha384 => 2,
            Self::Sha512 => 3,
        }
    }

    /// Length of what it makes, bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }
}

/// A Diffie-Hellman group of DH-HMAC-CHAP (Base 8.13.5.2, "DHgIDList"; RFC 7919). Those of 6144 and 8192 bits are
/// left out: they cost several times as much, and a host that offers them offers smaller ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// None: the secrets alone.
    Null,
    /// 2048 bits.
    Ffdhe2048,
    /// 3072 bits.
    Ffdhe3072,
    /// 4096 bits.
    Ffdhe4096,
}

impl Group {
    /// All of them, the strongest first.
    pub const ALL: [Self; 4] = [
        Self::Ffdhe4096,
        Self::Ffdhe3072,
        Self::Ffdhe2048,
        Self::Null,
    ];

    /// The group of an identifier.
    #[must_use]
    pub fn of(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.id() == id)
    }

    /// Its identifier.
    #[must_use]
    pub const fn id(self) -> u8 {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 1,
            Self::Ffdhe3072 => 2,
            Self::Ffdhe4096 => 3,
        }
    }

    /// Length of a public value, bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 256,
            Self::Ffdhe3072 => 384,
            Self::Ffdhe4096 => 512,
        }
    }
}

/// Why an authentication has failed (Base 8.13.4.2, "Reason Code Explanation"; the reason code is 01h always).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// What was said does not come of the secret.
    Failed,
    /// The host offers no protocol of ours.
    ProtocolUnusable,
    /// The host asks for a secure channel, or for none where one is needed.
    ChannelMismatch,
    /// None of the hash functions offered.
    HashUnusable,
    /// None of the groups offered.
    GroupUnusable,
    /// A field or the length of a message.
    IncorrectPayload,
    /// A message that is not expected now.
    IncorrectMessage,
}

impl Reason {
    const ALL: [Self; 7] = [
        Self::Failed,
        Self::ProtocolUnusable,
        Self::ChannelMismatch,
        Self::HashUnusable,
        Self::GroupUnusable,
        Self::IncorrectPayload,
        Self::IncorrectMessage,
    ];

    /// The explanation's code.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::ProtocolUnusable => 2,
            Self::ChannelMismatch => 3,
            Self::HashUnusable => 4,
            Self::GroupUnusable => 5,
            Self::IncorrectPayload => 6,
            Self::IncorrectMessage => 7,
        }
    }

    /// The reason of an explanation's code.
    #[must_use]
    pub fn of(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.code() == code)
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Failed => "what was said does not come of the secret",
            Self::ProtocolUnusable => "DH-HMAC-CHAP is not among the protocols offered",
            Self::ChannelMismatch => "a secure channel is asked for, and there is none",
            Self::HashUnusable => "none of the hash functions offered is known",
            Self::GroupUnusable => "none of the groups offered is known",
            Self::IncorrectPayload => "a message is wrong in a field or its length",
            Self::IncorrectMessage => "a message came that was not expected",
        })
    }
}

/// The code of the only reason, authentication failure.
const REASON: u8 = 1;
/// Identifiers of messages: those of all protocols, and those of DH-HMAC-CHAP (Base 8.13.4, 8.13.5).
mod id {
    pub(super) const NEGOTIATE: [u8; 2] = [0x00, 0x00];
    pub(super) const FAILURE_2: [u8; 2] = [0x00, 0xf0];
    pub(super) const FAILURE_1: [u8; 2] = [0x00, 0xf1];
    pub(super) const CHALLENGE: [u8; 2] = [0x01, 0x01];
    pub(super) const REPLY: [u8; 2] = [0x01, 0x02];
    pub(super) const SUCCESS_1: [u8; 2] = [0x01, 0x03];
    pub(super) const SUCCESS_2: [u8; 2] = [0x01, 0x04];
}
/// Bytes before the protocols in a Negotiate, and of each protocol.
const NEGOTIATE_BYTES: usize = 8;
const DESCRIPTOR_BYTES: usize = 64;
/// Room for hash functions, and for groups, in a protocol's descriptor.
const LIST_BYTES: usize = 30;
/// DH-HMAC-CHAP's identifier among protocols ("AuthID").
const DH_HMAC_CHAP: u8 = 1;
/// Bytes of messages before what is as long as a hash or a group, and of those that have nothing else.
const FIXED_BYTES: usize = 16;
const FAILURE_BYTES: usize = 8;

/// What a host says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostMessage<'a> {
    /// It offers protocols; ours is among them.
    Negotiate {
        /// Identifiers of hash functions.
        hashes: &'a [u8],
        /// Identifiers of groups.
        groups: &'a [u8],
    },
    /// It answers a challenge.
    Reply {
        /// The answer, as long as the hash.
        response: &'a [u8],
        /// Its own challenge, with a sequence number, if the controller is to prove itself.
        challenge: Option<(&'a [u8], u32)>,
        /// Its public value; empty without a group.
        public: &'a [u8],
    },
    /// It is content with the controller.
    Success2,
    /// It is not; the explanation's code.
    Failure2(u8),
}

/// A message that makes no sense: the transaction that it is of, as far as it says, and what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Transaction identifier.
    pub transaction: u16,
    /// What is wrong.
    pub reason: Reason,
}

fn header(id: [u8; 2], transaction: u16) -> Vec<u8> {
    let [low, high] = transaction.to_le_bytes();
    vec![id[0], id[1], 0, 0, low, high]
}

/// The transaction that a message is of, and what is made of a reason why it makes no sense.
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
    /// Reads a host's message, with its transaction identifier.
    ///
    /// # Errors
    /// What is wrong with it, as a controller has to say it.
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

    /// The bytes.
    ///
    /// # Panics
    /// If a list, a hash or a group is longer than there is room for.
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

/// What a controller says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerMessage<'a> {
    /// It challenges the host.
    Challenge {
        /// The hash function that it has chosen.
        hash: Hash,
        /// The group that it has chosen.
        group: Group,
        /// The challenge's sequence number.
        sequence: u32,
        /// The challenge, as long as the hash.
        value: &'a [u8],
        /// Its public value, as long as the group's.
        public: &'a [u8],
    },
    /// The host has proved itself.
    Success1 {
        /// The hash function.
        hash: Hash,
        /// The answer to the host's challenge, if there was one.
        response: Option<&'a [u8]>,
    },
    /// It has not.
    Failure1(Reason),
}

impl<'a> ControllerMessage<'a> {
    /// Reads a controller's message, with its transaction identifier. What is behind it is room that it did not need.
    ///
    /// # Errors
    /// What is wrong with it, as a host has to say it.
    pub fn decode(bytes: &'a [u8]) -> Result<(u16, Self), Malformed> {
        let (transaction, wrong) = about(bytes);
        let message = match bytes.first_chunk::<6>() {
            Some(&[kind, number, ..]) => match [kind, number] {
                id::CHALLENGE => Self::challenge(bytes),
                id::SUCCESS_1 => Self::success(bytes).ok_or(Reason::IncorrectPayload),
                id::FAILURE_1 => match bytes.get(FAILURE_BYTES - 1) {
                    // Of a reason that came later it is known that it is one.
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

    /// The bytes.
    ///
    /// # Panics
    /// If a value is not as long as its hash or group says.
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
