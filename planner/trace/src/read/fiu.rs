//! FIU (SNIA IOTTA): `time pid process LBA size R|W major minor md5`, separated by blanks: ns,
//! sectors, sectors. A process name may have blanks, and a file may lack the last column.

use super::field::{self, Fields as _, Words};
use super::{Bad, LineFormat, letter};
use crate::{Request, Volumes};

/// Columns after the process: LBA, size, operation, major, minor, and the checksum.
const TAIL: usize = 6;

pub(super) struct Fiu;

/// Returns whether a word is the checksum of a block's content.
fn is_checksum(word: &[u8]) -> bool {
    word.len() == 32 && word.iter().all(u8::is_ascii_hexdigit)
}

impl LineFormat for Fiu {
    fn line(&mut self, line: &[u8], volumes: &mut Volumes) -> Result<Option<Request>, Bad> {
        let mut words = Words(line);
        let time_ns = words.number("time")?;
        words.number("process number")?;
        let process = words.field("process")?;
        // From the end: the last words, in order.
        let mut tail = [&b""[..]; TAIL];
        let mut found = 0;
        let mut rest = words.0;
        while found < TAIL {
            rest = rest.trim_ascii_end();
            let Some(last) = rest
                .rsplit(u8::is_ascii_whitespace)
                .next()
                .filter(|it| !it.is_empty())
            else {
                break;
            };
            rest = &rest[..rest.len() - last.len()];
            if found == 0 && !is_checksum(last) {
                found = 1;
            }
            tail[TAIL - 1 - found] = last;
            found += 1;
        }
        let [lba, size, operation, major, minor, _] = tail;
        if process.is_empty() || lba.is_empty() {
            return Err(Bad::new(
                "line",
                "has less than the eight columns that it should",
            ));
        }
        let offset_bytes = Words(lba).sectors("LBA")?;
        let len_bytes = Words(size).sectors("size")?;
        let op = letter(operation)?;
        let major = field::number(major, "major number")?;
        let minor = field::number(minor, "minor number")?;
        let mut key = [0; 16];
        key[..8].copy_from_slice(&major.to_le_bytes());
        key[8..].copy_from_slice(&minor.to_le_bytes());
        let volume = volumes.number_of(&key, || format!("{major},{minor}"));
        let volume = volume.ok_or(Bad::VOLUMES)?;
        field::data(time_ns, op, offset_bytes, len_bytes, volume).map(Some)
    }
}
