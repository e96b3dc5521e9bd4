//! Recognises the content of a device, so that formatting never destroys data by mistake.
//!
//! [`probe`] reads the first and the last MiB and 64 samples in between, through the device itself.
//! The known formats are in `table`, with the published source of each magic number. A device
//! counts as empty if every sampled byte is zero. Other unrecognised bytes are [`Found::Unknown`],
//! which must be treated as a user's data.

mod table;

use std::fmt;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, Context, Result};

/// Bytes that are read at either end.
const END_BYTES: u64 = 1 << 20;
/// Number of samples in between.
const SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 4096;

/// A recognised format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// Name of the format, for example `ext4 file system`.
    pub name: &'static str,
    /// Label that a user gave it, if the format has one and it is set.
    pub label: Option<String>,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        match &self.label {
            Some(label) => write!(f, " (label {label:?})"),
            None => Ok(()),
        }
    }
}

/// Content of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Every sampled byte is zero.
    Empty,
    /// Known formats, outermost first. There are several if a format was created without wiping an
    /// older one.
    Known(Vec<Signature>),
    /// Unrecognised bytes that are not zero.
    Unknown,
}

impl Found {
    /// Returns whether it holds a Forebay cache.
    #[must_use]
    pub fn is_forebay(&self) -> bool {
        matches!(self, Self::Known(found) if found.iter().any(|one| one.name == table::FOREBAY))
    }
}

/// Description that follows "holds": `ext4 file system (label "root")`, `nothing`, `unknown data`.
impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("nothing"),
            Self::Unknown => f.write_str("unknown data"),
            Self::Known(found) => {
                for (index, one) in found.iter().enumerate() {
                    let separator = if index == 0 { "" } else { ", " };
                    write!(f, "{separator}{one}")?;
                }
                Ok(())
            }
        }
    }
}

/// Inspects the content of `device`. Reads 2 MiB and 256 KiB of samples, and writes nothing.
///
/// # Errors
/// Fails if a read fails: unreadable bytes cannot count as empty.
pub async fn probe(device: &dyn BlockDevice) -> Result<Found> {
    let info = device.info();
    if info.size_bytes == 0 {
        return Ok(Found::Empty);
    }
    let read = async |offset: u64, len: u64| -> Result<Vec<u8>> {
        let buf = Buf::scratch(len as usize); // At most a MiB.
        device
            .read(offset, buf.clone())
            .await
            .context(|| format!("{}: inspecting its content, at byte {offset}", info.name))?;
        Ok(buf.to_vec())
    };
    let end = END_BYTES.min(info.size_bytes);
    let media = Media {
        size_bytes: info.size_bytes,
        head: read(0, end).await?,
        tail: read(info.size_bytes - end, end).await?,
    };
    let found = table::recognise(&media);
    if !found.is_empty() {
        return Ok(Found::Known(found));
    }
    let mut zero = is_zero(&media.head) && is_zero(&media.tail);
    let unit = SAMPLE_BYTES.max(u64::from(info.logical_block_bytes));
    let middle = info.size_bytes.saturating_sub(2 * END_BYTES);
    let step = (middle / SAMPLES).next_multiple_of(unit);
    for at in (0..SAMPLES).map(|index| END_BYTES + index * step) {
        if !zero || at + unit > info.size_bytes {
            break;
        }
        zero = is_zero(&read(at, unit).await?);
    }
    Ok(if zero { Found::Empty } else { Found::Unknown })
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// Content of both ends of a device.
struct Media {
    size_bytes: u64,
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Media {
    /// Returns whether `magic` is at `offset`. Returns false if the offset is in neither end.
    fn has(&self, offset: u64, magic: &[u8]) -> bool {
        self.at(offset, magic.len()) == Some(magic)
    }

    /// Returns `len` bytes at `offset`.
    fn at(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let within = |part: &'_ [u8], start: u64| {
            let at = usize::try_from(offset.checked_sub(start)?).ok()?;
            (at.checked_add(len)? <= part.len()).then_some(at)
        };
        if let Some(at) = within(&self.head, 0) {
            return self.head.get(at..at + len);
        }
        let at = within(&self.tail, self.size_bytes - self.tail.len() as u64)?;
        self.tail.get(at..at + len)
    }

    fn le16(&self, offset: u64) -> Option<u16> {
        self.at(offset, 2)?.try_into().ok().map(u16::from_le_bytes)
    }

    fn le32(&self, offset: u64) -> Option<u32> {
        self.at(offset, 4)?.try_into().ok().map(u32::from_le_bytes)
    }

    fn le64(&self, offset: u64) -> Option<u64> {
        self.at(offset, 8)?.try_into().ok().map(u64::from_le_bytes)
    }

    /// Returns a zero-terminated text of at most `len` bytes, or `None` if it is empty.
    fn text(&self, offset: u64, len: usize) -> Option<String> {
        let bytes = self.at(offset, len)?.split(|&byte| byte == 0).next()?;
        let text = String::from_utf8_lossy(bytes).trim().to_owned();
        (!text.is_empty()).then_some(text)
    }
}

#[cfg(test)]
mod tests;
