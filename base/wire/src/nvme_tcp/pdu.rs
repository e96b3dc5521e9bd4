//! PDU headers.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{DIGEST_BYTES, Digests, Fatal, Fault, MAX_ALIGNMENT};

/// Bytes of the common header of all PDUs ("PDU Common Header").
pub const COMMON_BYTES: usize = 8;
/// Bytes of the headers of data PDUs and R2T, including the common header.
pub const DATA_BYTES: usize = 24;

/// Kinds of PDUs ("PDU Types").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Initialization by the host.
    IcReq = 0x00,
    /// Initialization by the controller.
    IcResp = 0x01,
    /// The host ends the connection because of an error.
    H2cTermReq = 0x02,
    /// The controller ends the connection because of an error.
    C2hTermReq = 0x03,
    /// A command, possibly with data.
    CapsuleCmd = 0x04,
    /// A completion.
    CapsuleResp = 0x05,
    /// Data of a command, from the host.
    H2cData = 0x06,
    /// Data of a command, to the host.
    C2hData = 0x07,
    /// The controller requests data.
    R2t = 0x09,
}

/// Flags ("PDU Common Header", "FLAGS").
pub mod flag {
    /// A header digest follows the header.
    pub const HEADER_DIGEST: u8 = 1 << 0;
    /// A data digest follows the data.
    pub const DATA_DIGEST: u8 = 1 << 1;
    /// The last data PDU of a transfer.
    pub const LAST: u8 = 1 << 2;
    /// The command succeeded, and no response follows ("C2HData").
    pub const SUCCESS: u8 = 1 << 3;
}

/// Offsets of fields of the common header in faults.
mod at {
    pub(super) const KIND: u32 = 0;
    pub(super) const FLAGS: u32 = 1;
    pub(super) const HEADER_LENGTH: u32 = 2;
    pub(super) const DATA_OFFSET: u32 = 3;
    pub(super) const LENGTH: u32 = 4;
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::IcReq,
        Self::IcResp,
        Self::H2cTermReq,
        Self::C2hTermReq,
        Self::CapsuleCmd,
        Self::CapsuleResp,
        Self::H2cData,
        Self::C2hData,
        Self::R2t,
    ];

    /// Returns the kind with this number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|&kind| kind as u8 == number)
    }

    /// Returns the length of the header, including the common header, without its digest.
    #[must_use]
    pub const fn header_bytes(self) -> usize {
        match self {
            Self::IcReq | Self::IcResp => 128,
            Self::CapsuleCmd => 72,
            _ => DATA_BYTES,
        }
    }

    /// Returns whether digests may follow: PDUs that start or end a connection have none.
    const fn digested(self) -> bool {
        !matches!(
            self,
            Self::IcReq | Self::IcResp | Self::H2cTermReq | Self::C2hTermReq
        )
    }

    /// Returns whether data may or must follow the header.
    const fn carries(self) -> DataRule {
        match self {
            Self::CapsuleCmd | Self::H2cTermReq | Self::C2hTermReq => DataRule::Maybe,
            Self::H2cData | Self::C2hData => DataRule::Data,
            _ => DataRule::Nothing,
        }
    }

    const fn flags(self) -> u8 {
        let digests = flag::HEADER_DIGEST | flag::DATA_DIGEST;
        match self {
            Self::CapsuleCmd => digests,
            Self::H2cData => digests | flag::LAST,
            Self::C2hData => digests | flag::LAST | flag::SUCCESS,
            Self::CapsuleResp | Self::R2t => flag::HEADER_DIGEST,
            _ => 0,
        }
    }
}

/// Whether data follows a header.
#[derive(PartialEq, Eq)]
enum DataRule {
    Nothing,
    Maybe,
    Data,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct CommonLayout {
    kind: u8,
    flags: u8,
    header_length: u8,
    data_offset: u8,
    length: U32,
}

/// Common header of all PDUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Common {
    /// See [`Kind`]; other values are possible.
    pub kind: u8,
    /// See [`flag`].
    pub flags: u8,
    /// Bytes of the header ("HLEN").
    pub header_length: u8,
    /// First byte of the data ("PDO").
    pub data_offset: u8,
    /// Bytes of the PDU ("PLEN").
    pub length: u32,
}

/// Layout of the rest of a PDU, after a valid header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Kind of the PDU.
    pub kind: Kind,
    /// Whether a digest follows the header.
    pub header_digest: bool,
    /// Bytes between the header, with its digest, and the data.
    pub padding_bytes: u32,
    /// Bytes of data.
    pub data_bytes: u32,
    /// Whether a digest follows the data.
    pub data_digest: bool,
}

/// Returns the offset of the data for a header that ends at `end`, with the receiver's alignment
/// (in units of 4 bytes, counted from zero).
const fn data_offset(end: u32, alignment: u8) -> u32 {
    let unit = (alignment as u32 + 1) * 4;
    end.div_ceil(unit) * unit
}

impl Common {
    /// Encodes the header.
    #[must_use]
    pub fn encode(self) -> [u8; COMMON_BYTES] {
        zerocopy::transmute!(CommonLayout {
            kind: self.kind,
            flags: self.flags,
            header_length: self.header_length,
            data_offset: self.data_offset,
            length: self.length.into(),
        })
    }

    /// Decodes a common header. Any 8 bytes are valid here; [`Common::check`] checks them.
    #[must_use]
    pub fn decode(bytes: [u8; COMMON_BYTES]) -> Self {
        let layout: CommonLayout = zerocopy::transmute!(bytes);
        Self {
            kind: layout.kind,
            flags: layout.flags,
            header_length: layout.header_length,
            data_offset: layout.data_offset,
            length: layout.length.get(),
        }
    }

    /// Creates the common header of a PDU with `data_bytes` of data, with these digests and the
    /// receiver's alignment.
    ///
    /// # Panics
    /// If the PDU would be longer than 4 GiB.
    #[must_use]
    pub fn new(kind: Kind, flags: u8, data_bytes: u32, digests: Digests, alignment: u8) -> Self {
        debug_assert!(alignment <= MAX_ALIGNMENT);
        let header = kind.digested() && digests.header;
        let data = kind.digested() && digests.data && data_bytes > 0;
        let header_length = u8::try_from(kind.header_bytes()).expect("at most 128");
        let digest = DIGEST_BYTES as u32;
        let mut end = u32::from(header_length) + if header { digest } else { 0 };
        let mut offset = 0;
        if data_bytes > 0 {
            offset = data_offset(end, if kind.digested() { alignment } else { 0 });
            end = offset;
        }
        let length = end
            .checked_add(data_bytes)
            .and_then(|end| end.checked_add(if data { digest } else { 0 }));
        Self {
            kind: kind as u8,
            flags: flags
                | if header { flag::HEADER_DIGEST } else { 0 }
                | if data { flag::DATA_DIGEST } else { 0 },
            header_length,
            data_offset: u8::try_from(offset).expect("at most 256 less 4"),
            length: length.expect("a PDU below 4 GiB"),
        }
    }

    /// Checks the header, with these digests and this alignment. Returns the layout of the rest of
    /// the PDU.
    ///
    /// # Errors
    /// The invalid field.
    pub fn check(&self, digests: Digests, alignment: u8) -> Result<Layout, Fault> {
        let kind = Kind::of(self.kind).ok_or(Fault::field(at::KIND))?;
        if usize::from(self.header_length) != kind.header_bytes() {
            return Err(Fault::field(at::HEADER_LENGTH));
        }
        let header_digest = kind.digested() && digests.header;
        if self.flags & !kind.flags() != 0
            || header_digest != (self.flags & flag::HEADER_DIGEST != 0)
        {
            return Err(Fault::field(at::FLAGS));
        }
        let digest = DIGEST_BYTES as u32;
        let end = u32::from(self.header_length) + if header_digest { digest } else { 0 };
        let carries = kind.carries();
        if self.length == end && carries != DataRule::Data {
            // Without data there is no data digest.
            return match self.flags & flag::DATA_DIGEST {
                0 => Ok(Layout {
                    kind,
                    header_digest,
                    padding_bytes: 0,
                    data_bytes: 0,
                    data_digest: false,
                }),
                _ => Err(Fault::field(at::FLAGS)),
            };
        }
        if self.length <= end || carries == DataRule::Nothing {
            return Err(Fault::field(at::LENGTH));
        }
        if !kind.digested() {
            // The start of the faulty PDU follows directly.
            return Ok(Layout {
                kind,
                header_digest,
                padding_bytes: 0,
                data_bytes: self.length - end,
                data_digest: false,
            });
        }
        let data_digest = digests.data;
        if data_digest != (self.flags & flag::DATA_DIGEST != 0) {
            return Err(Fault::field(at::FLAGS));
        }
        let offset = data_offset(end, alignment);
        if u32::from(self.data_offset) != offset {
            return Err(Fault::field(at::DATA_OFFSET));
        }
        let rest = self.length.checked_sub(offset);
        let data = rest.and_then(|rest| rest.checked_sub(if data_digest { digest } else { 0 }));
        match data {
            None | Some(0) => Err(Fault::field(at::LENGTH)),
            Some(data_bytes) => Ok(Layout {
                kind,
                header_digest,
                padding_bytes: offset - end,
                data_bytes,
                data_digest,
            }),
        }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct InitializeLayout {
    version: U16,
    alignment: u8,
    digests: u8,
    limit: U32,
    reserved: [u8; 112],
}

/// Initialization of both sides, after the common header ("ICReq", "ICResp").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Initialize {
    /// Version of the format ("PFV"); only 0 is known.
    pub version: u16,
    /// Alignment of data to the sender of this PDU, in units of 4 bytes, counted from zero ("HPDA",
    /// "CPDA").
    pub alignment: u8,
    /// Requested or selected digests.
    pub digests: Digests,
    /// Of a host: maximum number of outstanding R2Ts of a command, counted from zero ("MAXR2T"). Of
    /// a controller: maximum data of one H2CData PDU, bytes ("MAXH2CDATA").
    pub limit: u32,
}

impl Initialize {
    /// Bytes after the common header.
    pub const BYTES: usize = 120;

    /// Encodes the bytes after the common header.
    #[must_use]
    pub fn encode(self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(InitializeLayout {
            version: self.version.into(),
            alignment: self.alignment,
            digests: u8::from(self.digests.header) | u8::from(self.digests.data) << 1,
            limit: self.limit.into(),
            reserved: [0; 112],
        })
    }

    /// Decodes the bytes after the common header.
    ///
    /// # Errors
    /// For an unknown version, too large an alignment, or unknown digests.
    pub fn decode(bytes: [u8; Self::BYTES]) -> Result<Self, Fault> {
        let layout: InitializeLayout = zerocopy::transmute!(bytes);
        let unsupported = |offset| Fault {
            fatal: Fatal::Unsupported,
            information: offset,
        };
        if layout.version != 0 {
            return Err(unsupported(8));
        }
        if layout.alignment > MAX_ALIGNMENT {
            return Err(Fault::field(10));
        }
        if layout.digests & !0b11 != 0 {
            return Err(Fault::field(11));
        }
        Ok(Self {
            version: 0,
            alignment: layout.alignment,
            digests: Digests {
                header: layout.digests & 1 != 0,
                data: layout.digests & 2 != 0,
            },
            limit: layout.limit.get(),
        })
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DataLayout {
    cid: U16,
    tag: U16,
    offset: U32,
    length: U32,
    reserved: [u8; 4],
}

/// Header of data PDUs after the common header ("H2CData", "C2HData").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// Command identifier ("CCCID").
    pub cid: u16,
    /// Tag of the R2T that requested the data ("TTAG"); reserved towards the host.
    pub tag: u16,
    /// First byte, within the command's data ("DATAO").
    pub offset: u32,
    /// Bytes of data ("DATAL").
    pub length: u32,
}

/// "Ready to Transfer" has the same fields, for the requested data ("R2T": "R2TO", "R2TL").
pub type R2t = DataHeader;

impl DataHeader {
    /// Bytes after the common header.
    pub const BYTES: usize = 16;
    /// Offset of [`DataHeader::cid`] in the PDU, for faults.
    pub const CID_AT: u32 = 8;
    /// Offset of [`DataHeader::tag`] in the PDU, for faults.
    pub const TAG_AT: u32 = 10;
    /// Offset of [`DataHeader::offset`] in the PDU, for faults.
    pub const OFFSET_AT: u32 = 12;
    /// Offset of [`DataHeader::length`] in the PDU, for faults.
    pub const LENGTH_AT: u32 = 16;

    /// Encodes the bytes after the common header.
    #[must_use]
    pub fn encode(self) -> [u8; Self::BYTES] {
        zerocopy::transmute!(DataLayout {
            cid: self.cid.into(),
            tag: self.tag.into(),
            offset: self.offset.into(),
            length: self.length.into(),
            reserved: [0; 4],
        })
    }

    /// Decodes the bytes after the common header.
    #[must_use]
    pub fn decode(bytes: [u8; Self::BYTES]) -> Self {
        let layout: DataLayout = zerocopy::transmute!(bytes);
        Self {
            cid: layout.cid.get(),
            tag: layout.tag.get(),
            offset: layout.offset.get(),
            length: layout.length.get(),
        }
    }
}

/// Header of a PDU that ends the connection, after the common header ("H2CTermReq", "C2HTermReq").
/// The start of the faulty PDU follows as data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// The error ("FES"); see [`Fatal`], other values are possible.
    pub fatal: u16,
    /// Information on the error ("FEI").
    pub information: u32,
}

impl Terminate {
    /// Bytes after the common header.
    pub const BYTES: usize = 16;
    /// Maximum data after it ("C2HTermReq", "DATA").
    pub const MAX_DATA_BYTES: u32 = 128;

    /// Returns the header for a fault.
    #[must_use]
    pub const fn of(fault: Fault) -> Self {
        Self {
            fatal: fault.fatal as u16,
            information: fault.information,
        }
    }

    /// Encodes the bytes after the common header.
    #[must_use]
    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut out = [0; Self::BYTES];
        out[..2].copy_from_slice(&self.fatal.to_le_bytes());
        out[2..6].copy_from_slice(&self.information.to_le_bytes());
        out
    }

    /// Decodes the bytes after the common header.
    #[must_use]
    pub const fn decode(bytes: [u8; Self::BYTES]) -> Self {
        Self {
            fatal: u16::from_le_bytes([bytes[0], bytes[1]]),
            information: u32::from_le_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]),
        }
    }
}
