//! Authentication of hosts: its commands (Base 6.1, 6.2), and the messages of DH-HMAC-CHAP (Base
//! 8.13.4, 8.13.5). The cryptography is elsewhere.

mod message;

use super::{Command, fabrics};

pub use message::{ControllerMessage, HostMessage, Malformed};

/// Security protocol of all authentication (Base 6.1, "SECP").
const PROTOCOL: u8 = 0xe9;
/// Values of the protocol-specific fields (Base 6.1, "SPSP0" and "SPSP1").
const SPECIFIC: [u8; 2] = [1, 1];
/// Maximum length of a message, bytes.
pub const MAX_MESSAGE_BYTES: u32 = 4096;

/// Fields of Authentication Send and Authentication Receive (Base 6.1, 6.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// Whether the host sends a message; otherwise it requests one.
    pub from_host: bool,
    /// Whether the security protocol is the supported one.
    pub known: bool,
    /// Length of the message, or room for one, bytes.
    pub length: u32,
}

impl Exchange {
    /// Decodes the fields of a command. Returns `None` for other commands.
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

    /// Returns the command, without its data's descriptor.
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
    /// All functions, the strongest first.
    pub const ALL: [Self; 3] = [Self::Sha512, Self::Sha384, Self::Sha256];

    /// Returns the function of an identifier.
    #[must_use]
    pub fn of(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| hash.id() == id)
    }

    /// Returns the identifier.
    #[must_use]
    pub const fn id(self) -> u8 {
        match self {
            Self::Sha256 => 1,
            Self::Sha384 => 2,
            Self::Sha512 => 3,
        }
    }

    /// Returns the length of the hash, bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }
}

/// A Diffie-Hellman group of DH-HMAC-CHAP (Base 8.13.5.2, "DHgIDList"; RFC 7919). The groups of
/// 6144 and 8192 bits are not supported. They cost several times as much, and a host that offers
/// them also offers smaller ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// No group: the secrets only.
    Null,
    /// 2048 bits.
    Ffdhe2048,
    /// 3072 bits.
    Ffdhe3072,
    /// 4096 bits.
    Ffdhe4096,
}

impl Group {
    /// All groups, the strongest first.
    pub const ALL: [Self; 4] = [
        Self::Ffdhe4096,
        Self::Ffdhe3072,
        Self::Ffdhe2048,
        Self::Null,
    ];

    /// Returns the group of an identifier.
    #[must_use]
    pub fn of(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|group| group.id() == id)
    }

    /// Returns the identifier.
    #[must_use]
    pub const fn id(self) -> u8 {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 1,
            Self::Ffdhe3072 => 2,
            Self::Ffdhe4096 => 3,
        }
    }

    /// Returns the length of a public value, bytes.
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

/// Reason for a failed authentication (Base 8.13.4.2, "Reason Code Explanation"; the reason code is
/// always 01h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The response does not match the secret.
    Failed,
    /// The host offers no supported protocol.
    ProtocolUnusable,
    /// The host requests a secure channel, or none although one is required.
    ChannelMismatch,
    /// No offered hash function is supported.
    HashUnusable,
    /// No offered group is supported.
    GroupUnusable,
    /// A field or the length of a message is invalid.
    IncorrectPayload,
    /// The message is not expected now.
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

    /// Returns the code of the explanation.
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

    /// Returns the reason of an explanation's code.
    #[must_use]
    pub fn of(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.code() == code)
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Failed => "the response does not match the secret",
            Self::ProtocolUnusable => "DH-HMAC-CHAP is not among the offered protocols",
            Self::ChannelMismatch => "a secure channel is requested and not supported",
            Self::HashUnusable => "none of the offered hash functions is known",
            Self::GroupUnusable => "none of the offered groups is known",
            Self::IncorrectPayload => "a message has an invalid field or length",
            Self::IncorrectMessage => "a message is out of sequence",
        })
    }
}
