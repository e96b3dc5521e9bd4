//! Authentication of hosts: the commands that carry it (Base 6.1, 6.2), and the messages of DH-HMAC-CHAP
//! (Base 8.13.4, 8.13.5). What secrets make of them is not known here.

mod message;

use super::{Command, fabrics};

pub use message::{ControllerMessage, HostMessage, Malformed};

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
