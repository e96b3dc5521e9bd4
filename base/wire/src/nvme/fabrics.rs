//! Fabrics commands: Connect, properties (Base 6), and the discovery log (Base 5.16.1, LID 70h).

use std::net::IpAddr;

use forebay_block::{Error, ErrorKind, Result};
use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Command, put};

/// Opcode of all Fabrics commands (Base 6).
pub const OPCODE: u8 = 0x7f;

/// Types of fabrics commands (Base 6, "FCTYPE").
pub mod fctype {
    /// Sets a property (Base 6.6).
    pub const PROPERTY_SET: u8 = 0x00;
    /// Creates a queue (Base 6.3).
    pub const CONNECT: u8 = 0x01;
    /// Reads a property (Base 6.5).
    pub const PROPERTY_GET: u8 = 0x04;
    /// Sends an authentication message (Base 6.2).
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    /// Receives an authentication message (Base 6.1).
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
}

/// Properties by their offset (Base 3.1.3).
pub mod property {
    /// Controller capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// Version, 4 bytes.
    pub const VS: u32 = 0x08;
    /// Controller configuration, 4 bytes.
    pub const CC: u32 = 0x14;
    /// Controller status, 4 bytes.
    pub const CSTS: u32 = 0x1c;
}

/// Controller configuration (Base 3.1.3.5).
pub mod cc {
    /// Enable.
    pub const EN: u32 = 1 << 0;
    /// Command set, page size and arbitration: all zero for the supported ones.
    pub const CHOICES: u32 = 0x3ff0;
    /// Shutdown notification.
    pub const SHN: u32 = 0b11 << 14;
    /// Sizes of queue entries as powers of two: 64 and 16 bytes.
    pub const ENTRY_SIZES: u32 = 4 << 20 | 6 << 16;
    /// The bits of the sizes of queue entries.
    pub const ENTRY_SIZES_MASK: u32 = 0xff << 16;
}

/// Controller status (Base 3.1.3.6).
pub mod csts {
    /// Ready.
    pub const RDY: u32 = 1 << 0;
    /// Controller fatal status.
    pub const CFS: u32 = 1 << 1;
    /// Shutdown is complete.
    pub const SHST_COMPLETE: u32 = 0b10 << 2;
}

/// The name of every discovery subsystem (Base 4.5, "NVMe Qualified Names").
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Bytes of a field for a qualified name, including the final NUL.
pub const NQN_FIELD_BYTES: usize = 256;
/// Maximum length of a qualified name, bytes (Base 4.5).
pub const MAX_NQN_BYTES: usize = 223;
/// Bytes of [`ConnectData`].
pub const CONNECT_DATA_BYTES: usize = 1024;
/// The controller identifier that lets the subsystem choose (Base 6.3).
pub const ANY_CONTROLLER: u16 = 0xffff;

/// Returns whether `name` can be a qualified name: its prefix, its length, no control characters.
#[must_use]
pub fn is_nqn(name: &str) -> bool {
    name.starts_with("nqn.")
        && name.len() > "nqn.".len()
        && name.len() <= MAX_NQN_BYTES
        && !name.chars().any(|c| c.is_control() || c.is_whitespace())
}

/// Checks that `name` can be that of a subsystem or host.
///
/// # Errors
/// `InvalidInput` if it is not a qualified name, or is the discovery name.
pub fn check_nqn(name: &str) -> Result<()> {
    if !is_nqn(name) || name == DISCOVERY_NQN {
        let what = format!(
            "{name:?} is not an NVMe qualified name of a subsystem or host\n\
             help: write \"nqn.\", a year and month, a domain reversed, a colon and a name, such \
             as \"nqn.2026-11.io.forebay:db\", in at most {MAX_NQN_BYTES} bytes"
        );
        return Err(Error::new(ErrorKind::InvalidInput, what));
    }
    Ok(())
}

/// Fields of Connect (Base 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Format of the record; only 0 is known.
    pub format: u16,
    /// Queue number; 0 for the admin queue.
    pub queue: u16,
    /// Entries of the queue, counted from zero.
    pub queue_size: u16,
    /// Whether the host disables flow control of the submission queue.
    pub no_flow_control: bool,
    /// Keep alive timeout, ms; 0 for none.
    pub keep_alive_ms: u32,
}

impl Connect {
    /// Decodes the fields of a command.
    #[must_use]
    pub const fn of(command: &Command) -> Self {
        let words = &command.words;
        Self {
            format: (words[0] & 0xffff) as u16,
            queue: (words[0] >> 16) as u16,
            queue_size: (words[1] & 0xffff) as u16,
            no_flow_control: words[1] & 1 << 18 != 0,
            keep_alive_ms: words[2],
        }
    }

    /// Returns the command, without its data.
    #[must_use]
    pub fn command(self) -> Command {
        let words = [
            u32::from(self.format) | u32::from(self.queue) << 16,
            u32::from(self.queue_size) | u32::from(self.no_flow_control) << 18,
            self.keep_alive_ms,
            0,
            0,
            0,
        ];
        Command::new(OPCODE, u32::from(fctype::CONNECT), words)
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ConnectLayout {
    host_id: [u8; 16],
    controller: U16,
    reserved: [u8; 238],
    subsystem: [u8; NQN_FIELD_BYTES],
    host: [u8; NQN_FIELD_BYTES],
    reserved_too: [u8; 256],
}

/// Data of Connect (Base 6.3, "Connect Command Data").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// The host's identifier.
    pub host_id: [u8; 16],
    /// The controller, or [`ANY_CONTROLLER`].
    pub controller: u16,
    /// The subsystem's name.
    pub subsystem: String,
    /// The host's name.
    pub host: String,
}

/// Offset of an invalid field in the data of Connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadField(pub u16);

/// First byte of the host's identifier in the data of Connect.
pub const HOST_ID_FIELD: u16 = 0;
/// First byte of the controller's identifier in the data of Connect.
pub const CONTROLLER_FIELD: u16 = 16;
/// First byte of the subsystem's name in the data of Connect.
pub const SUBSYSTEM_FIELD: u16 = 256;
/// First byte of the host's name in the data of Connect.
pub const HOST_FIELD: u16 = 512;

fn name(field: &[u8; NQN_FIELD_BYTES]) -> Option<String> {
    let end = field.iter().position(|&byte| byte == 0)?;
    let name = std::str::from_utf8(&field[..end]).ok()?;
    is_nqn(name).then(|| name.to_owned())
}

impl ConnectData {
    /// Encodes the data.
    ///
    /// # Panics
    /// If a name is longer than 255 bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; CONNECT_DATA_BYTES] {
        let mut page = [0; CONNECT_DATA_BYTES];
        put(&mut page, HOST_ID_FIELD.into(), &self.host_id);
        put(
            &mut page,
            CONTROLLER_FIELD.into(),
            &self.controller.to_le_bytes(),
        );
        for (at, name) in [(SUBSYSTEM_FIELD, &self.subsystem), (HOST_FIELD, &self.host)] {
            assert!(name.len() < NQN_FIELD_BYTES, "a name that fits its field");
            put(&mut page, at.into(), name.as_bytes());
        }
        page
    }

    /// Decodes the data.
    ///
    /// # Errors
    /// The field with an invalid name.
    pub fn decode(bytes: &[u8; CONNECT_DATA_BYTES]) -> Result<Self, BadField> {
        let layout: &ConnectLayout = zerocopy::transmute_ref!(bytes);
        Ok(Self {
            host_id: layout.host_id,
            controller: layout.controller.get(),
            subsystem: name(&layout.subsystem).ok_or(BadField(SUBSYSTEM_FIELD))?,
            host: name(&layout.host).ok_or(BadField(HOST_FIELD))?,
        })
    }
}

/// Returns the result of a Connect (Base 6.3, "CNTLID" and "AUTHREQ"): the controller, and whether
/// its host must authenticate itself on this queue first.
#[must_use]
pub const fn connected(controller: u16, authenticate: bool) -> u64 {
    controller as u64 | (authenticate as u64) << 17
}

/// Decodes the result of a Connect: the controller, and whether authentication is required (Base
/// 6.3, "AUTHREQ", also with a secure channel).
#[must_use]
pub const fn connection(result: u64) -> (u16, bool) {
    ((result & 0xffff) as u16, result >> 17 & 0b11 != 0)
}

/// Returns the result of a Connect that is refused because of a field (Base 6.3, "Invalid
/// Parameter"). It has the offset of the field, in the command or in its data.
#[must_use]
pub const fn bad_parameter(offset: u16, in_data: bool) -> u64 {
    offset as u64 | (in_data as u64) << 16
}

/// Fields of Property Get and Property Set (Base 6.5, 6.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Property {
    /// See [`property`].
    pub offset: u32,
    /// Whether the property has 8 bytes instead of 4; `None` for an invalid size.
    pub wide: Option<bool>,
    /// Value to set.
    pub value: u64,
}

impl Property {
    /// Decodes the fields of a command.
    #[must_use]
    pub const fn of(command: &Command) -> Self {
        let words = &command.words;
        Self {
            offset: words[1],
            wide: match words[0] & 0b111 {
                0 => Some(false),
                1 => Some(true),
                _ => None,
            },
            value: words[2] as u64 | (words[3] as u64) << 32,
        }
    }

    /// Returns the command that reads the property.
    #[must_use]
    pub fn get(offset: u32, wide: bool) -> Command {
        let words = [u32::from(wide), offset, 0, 0, 0, 0];
        Command::new(OPCODE, u32::from(fctype::PROPERTY_GET), words)
    }

    /// Returns the command that sets the property, 4 bytes.
    #[must_use]
    pub fn set(offset: u32, value: u32) -> Command {
        let words = [0, offset, value, 0, 0, 0];
        Command::new(OPCODE, u32::from(fctype::PROPERTY_SET), words)
    }
}

/// Bytes of the discovery log's header, and of each of its entries.
pub const DISCOVERY_ENTRY_BYTES: usize = 1024;

/// Encodes the header of the discovery log (Base 5.16.1, LID 70h).
#[must_use]
pub fn discovery_header(generation: u64, entries: u64) -> [u8; DISCOVERY_ENTRY_BYTES] {
    let mut page = [0; DISCOVERY_ENTRY_BYTES];
    put(&mut page, 0, &generation.to_le_bytes());
    put(&mut page, 8, &entries.to_le_bytes());
    page
}

/// An entry of the discovery log: a subsystem with I/O controllers at a TCP address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryEntry {
    /// The subsystem's name.
    pub subsystem: String,
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Number of the transport's port in the subsystem.
    pub port_id: u16,
    /// Entries of an admin queue.
    pub admin_queue_size: u16,
}

impl DiscoveryEntry {
    /// Encodes the entry.
    ///
    /// # Panics
    /// If the name is longer than 255 bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; DISCOVERY_ENTRY_BYTES] {
        /// "TRTYPE": TCP.
        const TCP: u8 = 3;
        /// "SUBTYPE": an NVM subsystem.
        const NVM_SUBSYSTEM: u8 = 2;
        /// "TREQ": no secure channel is needed (10b); flow control may be disabled (bit 2).
        const REQUIREMENTS: u8 = 0b110;
        let mut page = [0; DISCOVERY_ENTRY_BYTES];
        page[0] = TCP;
        // "ADRFAM": IPv4 or IPv6.
        page[1] = if self.address.is_ipv4() { 1 } else { 2 };
        page[2] = NVM_SUBSYSTEM;
        page[3] = REQUIREMENTS;
        put(&mut page, 4, &self.port_id.to_le_bytes());
        put(&mut page, 6, &ANY_CONTROLLER.to_le_bytes());
        put(&mut page, 8, &self.admin_queue_size.to_le_bytes());
        let text = |page: &mut [u8], text: &str| super::put_text(page, text);
        text(&mut page[32..64], &self.port.to_string());
        assert!(
            self.subsystem.len() < NQN_FIELD_BYTES,
            "a name that fits its field"
        );
        put(&mut page, 256, self.subsystem.as_bytes());
        text(&mut page[512..768], &self.address.to_string());
        page
    }
}
