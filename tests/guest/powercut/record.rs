//! The record of dm-log-writes: durable writes, in order.
//!
//! The kernel's documentation (admin-guide/device-mapper/log-writes) explains the order. A plain
//! write stands before the first FLUSH that was sent after the write had completed. An FUA write
//! stands at its completion, a mark at its insertion. So a power cut at a FLUSH, FUA write or mark
//! certainly leaves the record up to there. Any part of the plain writes that follow may be there
//! as well.
//!
//! On media, with little-endian numbers:
//!
//! - one sector: magic, version, number of entries (8 bytes each), sector size (4 bytes);
//! - for each entry one sector: first sector, sectors, flags, length of a mark's text (8 bytes
//!   each);
//! - the text after that, in the same sector, and then the data.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const FLUSH: u64 = 1;
const FUA: u64 = 2;
const DISCARD: u64 = 4;
const MARK: u64 = 8;
/// The mark that the kernel writes when the device is removed cleanly.
const END: &str = "dm-log-writes-end";

/// Kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A write that only the following FLUSH makes durable.
    Write,
    /// The same for a discard.
    Discard,
    /// A write that was durable when it completed.
    Fua,
    /// Everything before is durable.
    Flush,
    /// A mark of ours.
    Mark(u64),
    /// The kernel's last mark.
    End,
}

/// One entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) kind: Kind,
    /// First byte of its range.
    pub(crate) offset: usize,
    /// Length, bytes.
    pub(crate) len: usize,
    /// Offset of its data in the file.
    data_at: u64,
}

impl Entry {
    /// Whether only a FLUSH makes it durable.
    pub(crate) fn is_volatile(&self) -> bool {
        matches!(self.kind, Kind::Write | Kind::Discard)
    }
}

/// A whole record.
#[derive(Debug)]
pub(crate) struct Record {
    file: File,
    pub(crate) entries: Vec<Entry>,
}

fn word(bytes: &[u8], index: usize) -> u64 {
    let bytes = bytes[index * 8..].first_chunk();
    u64::from_le_bytes(*bytes.expect("within a sector"))
}

impl Record {
    /// Reads the record that begins at byte `offset` of the file.
    pub(crate) fn open(path: &Path, offset: u64) -> Result<Self, String> {
        let place = path.display();
        let file = File::open(path).map_err(|error| format!("{place}: {error}"))?;
        let read = |at: u64| -> Result<[u8; 512], String> {
            let mut sector = [0; 512];
            file.read_exact_at(&mut sector, offset + at)
                .map_err(|error| format!("{place} at {at}: {error}"))?;
            Ok(sector)
        };
        let head = read(0)?;
        if word(&head, 0) != MAGIC || word(&head, 1) != 1 {
            return Err(format!("{place} has no dm-log-writes record at {offset}"));
        }
        let count = word(&head, 2);
        let sector_bytes = word(&head, 3) & u64::from(u32::MAX);
        let mut entries = Vec::new();
        let mut at = sector_bytes;
        for _ in 0..count {
            let sector = read(at)?;
            let [first, sectors, flags, text_bytes] = [0, 1, 2, 3].map(|i| word(&sector, i));
            at += sector_bytes;
            let text = sector[32..]
                .get(..text_bytes as usize)
                .ok_or("a mark that is too long")?;
            let kind = match flags {
                f if f & MARK != 0 => mark(text)?,
                f if f & DISCARD != 0 => Kind::Discard,
                f if f & FUA != 0 => Kind::Fua,
                f if f & FLUSH != 0 && sectors == 0 => Kind::Flush,
                f if f & FLUSH != 0 => return Err("a FLUSH with data, which nothing sends".into()),
                _ => Kind::Write,
            };
            entries.push(Entry {
                kind,
                offset: (first * sector_bytes) as usize,
                len: (sectors * sector_bytes) as usize,
                data_at: offset + at,
            });
            if matches!(kind, Kind::Write | Kind::Fua) {
                at += sectors * sector_bytes;
            }
        }
        if entries.last().map(|entry| entry.kind) != Some(Kind::End) {
            return Err(format!(
                "{place}: the record at {offset} is cut off after {count} entries: is its device \
                 too small?"
            ));
        }
        Ok(Self { file, entries })
    }

    /// Returns the data that an entry writes.
    pub(crate) fn data(&self, entry: &Entry) -> Vec<u8> {
        let mut data = vec![0; entry.len];
        if matches!(entry.kind, Kind::Write | Kind::Fua) {
            self.file
                .read_exact_at(&mut data, entry.data_at)
                .expect("the file is as long as when its entries were read");
        }
        data
    }
}

fn mark(text: &[u8]) -> Result<Kind, String> {
    let text = String::from_utf8_lossy(text);
    let text = text.trim_end_matches('\0');
    if text == END {
        return Ok(Kind::End);
    }
    let number = text.parse();
    number
        .map(Kind::Mark)
        .map_err(|_| format!("a foreign mark: {text:?}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::io::Write as _;

    /// Writes a record as the kernel would: (kind, sector, data).
    pub(crate) fn write(path: &Path, entries: &[(Kind, u64, &[u8])]) {
        let mut file = File::create(path).expect("a file");
        let mut put = |words: [u64; 4], text: &str| {
            let mut sector = [0; 512];
            for (word, bytes) in words.iter().zip(sector.as_chunks_mut::<8>().0) {
                *bytes = word.to_le_bytes();
            }
            sector[32..32 + text.len()].copy_from_slice(text.as_bytes());
            file.write_all(&sector).expect("written");
            file.try_clone().expect("the same file")
        };
        put([MAGIC, 1, entries.len() as u64 + 1, 512], "");
        for (kind, sector, data) in entries {
            let (flags, text) = match kind {
                Kind::Write => (0, String::new()),
                Kind::Discard => (DISCARD, String::new()),
                Kind::Fua => (FUA, String::new()),
                Kind::Flush => (FLUSH, String::new()),
                Kind::Mark(number) => (MARK, format!("{number}\0")),
                Kind::End => unreachable!("put by itself"),
            };
            let sectors = data.len() as u64 / 512;
            let mut file = put([*sector, sectors, flags, text.len() as u64], &text);
            if *kind != Kind::Discard {
                file.write_all(data).expect("written");
            }
        }
        put([0, 0, MARK, END.len() as u64], END);
    }

    #[test]
    fn a_record_is_read_as_the_kernel_writes_it() {
        let path = std::env::temp_dir().join(format!("forebay-record-{}", std::process::id()));
        let data = [7; 1024];
        write(
            &path,
            &[
                (Kind::Write, 5, &data),
                (Kind::Discard, 9, &data),
                (Kind::Flush, 0, &[]),
                (Kind::Mark(3), 0, &[]),
                (Kind::Fua, 1, &data[..512]),
            ],
        );
        let record = Record::open(&path, 0).expect("a record");
        let kinds: Vec<_> = record.entries.iter().map(|entry| entry.kind).collect();
        let expected = [
            Kind::Write,
            Kind::Discard,
            Kind::Flush,
            Kind::Mark(3),
            Kind::Fua,
            Kind::End,
        ];
        assert_eq!(kinds, expected);
        let entry = record.entries[0];
        assert_eq!((entry.offset, entry.len), (5 * 512, 1024));
        assert_eq!(record.data(&entry), data);
        assert_eq!(record.data(&record.entries[1]), [0; 1024]);
        assert_eq!(record.data(&record.entries[4]), [7; 512]);
        assert!(Record::open(&path, 512).is_err(), "not where it begins");
        std::fs::remove_file(&path).expect("removed");
    }
}
