//! Admin commands, features and asynchronous events.

use super::Command;

/// Opcodes (Base 5).
pub mod opcode {
    /// Reads a log page (Base 5.16).
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Describes a controller or namespace (Base 5.17).
    pub const IDENTIFY: u8 = 0x06;
    /// Aborts a command (Base 5.1).
    pub const ABORT: u8 = 0x08;
    /// Sets a feature (Base 5.27).
    pub const SET_FEATURES: u8 = 0x09;
    /// Reads a feature (Base 5.15).
    pub const GET_FEATURES: u8 = 0x0a;
    /// Completes when an event occurs (Base 5.2).
    pub const ASYNC_EVENT_REQUEST: u8 = 0x0c;
    /// Reports that the host is alive (Base 5.18).
    pub const KEEP_ALIVE: u8 = 0x18;
}

/// Feature identifiers (Base 5.27.1).
pub mod feature {
    /// Arbitration.
    pub const ARBITRATION: u8 = 0x01;
    /// Power management.
    pub const POWER_MANAGEMENT: u8 = 0x02;
    /// Temperature threshold.
    pub const TEMPERATURE_THRESHOLD: u8 = 0x04;
    /// Error recovery (NVM 4.1.3).
    pub const ERROR_RECOVERY: u8 = 0x05;
    /// Volatile write cache; bit 0 enables it.
    pub const VOLATILE_WRITE_CACHE: u8 = 0x06;
    /// Number of I/O queues.
    pub const NUMBER_OF_QUEUES: u8 = 0x07;
    /// Write atomicity (NVM 4.1.3).
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    /// Enabled asynchronous events.
    pub const ASYNC_EVENTS: u8 = 0x0b;
    /// Keep alive timer, ms.
    pub const KEEP_ALIVE_TIMER: u8 = 0x0f;
}

/// Asynchronous events (Base 5.2.1): the bit that enables each, and the result of its completion.
pub mod event {
    /// Namespaces were added, removed or have changed: bit of feature 0Bh, and of OAES.
    pub const NAMESPACE_CHANGED_BIT: u32 = 1 << 8;
    /// Type notice (2), information 00h, log page 04h.
    pub const NAMESPACE_CHANGED: u64 = 0x04_00_02;
    /// The discovery log has changed: bit of feature 0Bh, and of OAES.
    pub const DISCOVERY_CHANGED_BIT: u32 = 1 << 31;
    /// Type notice (2), information F0h, log page 70h.
    pub const DISCOVERY_CHANGED: u64 = 0x70_f0_02;
}

/// Data structures of Identify (Base 5.17.1, "CNS").
pub mod cns {
    /// A namespace.
    pub const NAMESPACE: u8 = 0x00;
    /// The controller.
    pub const CONTROLLER: u8 = 0x01;
    /// Identifiers of the active namespaces.
    pub const ACTIVE_NAMESPACES: u8 = 0x02;
    /// Identification descriptors of a namespace.
    pub const NAMESPACE_DESCRIPTORS: u8 = 0x03;
    /// The controller, specific to the I/O command set.
    pub const CONTROLLER_OF_COMMAND_SET: u8 = 0x06;
}

/// Log page identifiers (Base 5.16.1, "LID").
pub mod lid {
    /// The last errors.
    pub const ERROR: u8 = 0x01;
    /// SMART, health.
    pub const SMART: u8 = 0x02;
    /// Firmware slots.
    pub const FIRMWARE: u8 = 0x03;
    /// Namespaces that have changed since the page was last read.
    pub const CHANGED_NAMESPACES: u8 = 0x04;
    /// Asymmetric namespace access.
    pub const ANA: u8 = 0x0c;
    /// Discovery log.
    pub const DISCOVERY: u8 = 0x70;
}

/// Fields of Get Log Page (Base 5.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogRequest {
    /// See [`lid`].
    pub lid: u8,
    /// Specific to the page.
    pub specific: u8,
    /// Whether the page's event is retained ("RAE").
    pub retain: bool,
    /// Requested length, bytes.
    pub length: u64,
    /// First byte.
    pub offset: u64,
}

impl LogRequest {
    /// Decodes the fields of a command.
    #[must_use]
    pub const fn of(command: &Command) -> Self {
        let words = &command.words;
        let dwords = (words[0] >> 16) as u64 | ((words[1] & 0xffff) as u64) << 16;
        Self {
            lid: (words[0] & 0xff) as u8,
            specific: (words[0] >> 8 & 0x7f) as u8,
            retain: words[0] & 1 << 15 != 0,
            // The field counts dwords, from zero.
            length: (dwords + 1) * 4,
            offset: words[2] as u64 | (words[3] as u64) << 32,
        }
    }

    /// Returns the command for this request.
    ///
    /// # Panics
    /// If the length is not a multiple of 4 from 4 to 16 GiB.
    #[must_use]
    pub fn command(self, nsid: u32) -> Command {
        assert!(
            self.length > 0 && self.length.is_multiple_of(4),
            "whole dwords"
        );
        let dwords = u32::try_from(self.length / 4 - 1).expect("at most 16 GiB");
        let first = u32::from(self.lid)
            | u32::from(self.specific & 0x7f) << 8
            | u32::from(self.retain) << 15
            | dwords << 16;
        let [low, high] = [self.offset & 0xffff_ffff, self.offset >> 32];
        let word = |half: u64| u32::try_from(half).expect("32 bits");
        let words = [first, dwords >> 16, word(low), word(high), 0, 0];
        Command::new(opcode::GET_LOG_PAGE, nsid, words)
    }
}
