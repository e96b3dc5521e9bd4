//! Fields of a line, parsed from bytes by hand: text readers spend most of their time here.

use super::Bad;
use crate::{Op, Request};

pub(super) const SECTOR_BYTES: u64 = 512;
pub(super) const US: u64 = 1_000;
pub(super) const MS: u64 = 1_000_000;
pub(super) const S: u64 = 1_000_000_000;

/// Rest of a line with columns separated by commas.
pub(super) struct Commas<'a>(pub(super) &'a [u8]);

/// Rest of a line with words separated by blanks.
pub(super) struct Words<'a>(pub(super) &'a [u8]);

/// Fields of a line.
pub(super) trait Fields<'a> {
    /// Returns the next field; `None` at the end.
    fn next(&mut self) -> Option<&'a [u8]>;

    /// Returns the next field.
    #[inline]
    fn field(&mut self, name: &'static str) -> Result<&'a [u8], Bad> {
        self.next().ok_or(Bad::new(name, "is missing"))
    }

    /// Returns the next field as a whole number.
    #[inline]
    fn number(&mut self, name: &'static str) -> Result<u64, Bad> {
        number(self.field(name)?, name)
    }

    /// Returns the next field as a time, nanoseconds.
    #[inline]
    fn time(&mut self, unit_ns: u64) -> Result<u64, Bad> {
        time_ns(self.field("time")?, unit_ns)
    }

    /// Returns the next field, a number of sectors, in bytes.
    #[inline]
    fn sectors(&mut self, name: &'static str) -> Result<u64, Bad> {
        let sectors = self.number(name)?;
        sectors
            .checked_mul(SECTOR_BYTES)
            .ok_or(Bad::new(name, "is more sectors than any device has"))
    }

    /// Checks that no field is left.
    #[inline]
    fn end(&mut self) -> Result<(), Bad> {
        match self.next() {
            None => Ok(()),
            Some(_) => Err(Bad::new(
                "end of the line",
                "has more columns than it should",
            )),
        }
    }
}

impl<'a> Fields<'a> for Commas<'a> {
    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.0.is_empty() {
            return None;
        }
        let end = self.0.iter().position(|byte| *byte == b',');
        let field = match end {
            Some(end) => {
                let field = &self.0[..end];
                self.0 = &self.0[end + 1..];
                field
            }
            None => std::mem::take(&mut self.0),
        };
        Some(field.trim_ascii())
    }
}

impl<'a> Fields<'a> for Words<'a> {
    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.0.trim_ascii_start();
        if rest.is_empty() {
            self.0 = rest;
            return None;
        }
        let end = rest.iter().position(u8::is_ascii_whitespace);
        let (word, rest) = rest.split_at(end.unwrap_or(rest.len()));
        self.0 = rest;
        Some(word)
    }
}

/// Parses a whole number of digits.
#[inline]
pub(super) fn number(digits: &[u8], name: &'static str) -> Result<u64, Bad> {
    if digits.is_empty() {
        return Err(Bad::new(name, "is empty"));
    }
    let mut value = 0_u64;
    // Nineteen digits always fit.
    let sure = digits.len().min(19);
    for byte in &digits[..sure] {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return Err(Bad::new(name, "is no whole number"));
        }
        value = value * 10 + u64::from(digit);
    }
    for byte in &digits[sure..] {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return Err(Bad::new(name, "is no whole number"));
        }
        value = value
            .checked_mul(10)
            .and_then(|value| value.checked_add(u64::from(digit)))
            .ok_or(Bad::new(name, "does not fit into 64 bits"))?;
    }
    Ok(value)
}

/// Parses a time in this unit, with or without a fraction. Returns nanoseconds. Digits below a
/// billionth of the unit are dropped.
#[inline]
pub(super) fn time_ns(text: &[u8], unit_ns: u64) -> Result<u64, Bad> {
    let point = text.iter().position(|byte| *byte == b'.');
    let (whole, fraction) = match point {
        Some(point) => (&text[..point], &text[point + 1..]),
        None => (text, &[][..]),
    };
    let whole = number(whole, "time")?
        .checked_mul(unit_ns)
        .ok_or(Bad::TIME)?;
    let mut part = 0_u64;
    let mut scale = 1_u64;
    for (place, byte) in fraction.iter().enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return Err(Bad::new("time", "is no number"));
        }
        if place < 9 {
            part = part * 10 + u64::from(digit);
            scale *= 10;
        }
    }
    whole.checked_add(part * unit_ns / scale).ok_or(Bad::TIME)
}

/// Largest offset. No block device is larger, and a block's address has no more bits.
const MAX_OFFSET_BYTES: u64 = 1 << 56;

/// Returns a checked read or write.
#[inline]
pub(super) fn data(
    time_ns: u64,
    op: Op,
    offset_bytes: u64,
    len_bytes: u64,
    volume: u32,
) -> Result<Request, Bad> {
    if len_bytes == 0 {
        return Err(Bad::new("size", "is zero"));
    }
    let len = u32::try_from(len_bytes).map_err(|_| Bad::new("size", "is 4 GiB or more"))?;
    let end_bytes = offset_bytes.checked_add(len_bytes);
    if end_bytes.is_none_or(|end| end > MAX_OFFSET_BYTES) {
        return Err(Bad::new(
            "end of the request",
            "is beyond what a volume can have (2^56 bytes)",
        ));
    }
    Ok(Request {
        time_ns,
        offset_bytes,
        len_bytes: len,
        volume,
        op,
    })
}

/// Returns a flush of a volume.
#[inline]
pub(super) const fn flush(time_ns: u64, volume: u32) -> Request {
    Request {
        time_ns,
        offset_bytes: 0,
        len_bytes: 0,
        volume,
        op: Op::Flush,
    }
}

/// Returns a read for 1, a write for 0, as in simulators of flash.
#[inline]
pub(super) fn read_is_one(field: &[u8]) -> Result<Op, Bad> {
    match field {
        b"1" => Ok(Op::Read),
        b"0" => Ok(Op::Write),
        _ => Err(Bad::new("operation", "is neither 1 (read) nor 0 (write)")),
    }
}

/// Returns the operation of a SCSI command: data, a flush, or none of a block trace.
#[inline]
pub(super) const fn scsi(command: u64) -> Option<Op> {
    match command {
        0x08 | 0x28 | 0xa8 | 0x88 => Some(Op::Read),
        0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0xae | 0x8e => Some(Op::Write),
        0x35 | 0x91 => Some(Op::Flush),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        for (text, value) in [
            ("0", 0),
            ("00017", 17),
            ("18446744073709551615", u64::MAX),
            ("0000000000000000000000018446744073709551615", u64::MAX),
        ] {
            assert_eq!(number(text.as_bytes(), "x").ok(), Some(value));
        }
        for text in [
            "",
            "-1",
            "1a",
            "1 ",
            "18446744073709551616",
            "99999999999999999999x",
        ] {
            assert!(number(text.as_bytes(), "x").is_err(), "{text}");
        }
    }

    #[test]
    fn times() {
        for (text, unit, ns) in [
            ("1456095145.133076000", S, 1_456_095_145_133_076_000),
            ("0.000", MS, 0),
            ("1.7225", MS, 1_722_500),
            ("7", US, 7_000),
            ("1.", S, S),
            ("0.9999999999999", S, 999_999_999),
        ] {
            assert_eq!(time_ns(text.as_bytes(), unit).ok(), Some(ns), "{text}");
        }
        for text in ["", ".5", "1e3", "1.x", "18446744074", "-1"] {
            assert!(time_ns(text.as_bytes(), S).is_err(), "{text}");
        }
        assert!(time_ns(b"18446744073.709551616", S).is_err());
    }

    #[test]
    fn fields() {
        let mut line = Commas(b"a, b,,c");
        let fields: Vec<_> = std::iter::from_fn(|| line.next()).collect();
        assert_eq!(fields, [&b"a"[..], b"b", b"", b"c"]);
        let mut line = Words(b"  a\t\tb c  ");
        let words: Vec<_> = std::iter::from_fn(|| line.next()).collect();
        assert_eq!(words, [&b"a"[..], b"b", b"c"]);
    }

    #[test]
    fn requests_are_checked() {
        assert!(data(0, Op::Read, MAX_OFFSET_BYTES - 4, 4, 0).is_ok());
        for offset in [MAX_OFFSET_BYTES - 4, MAX_OFFSET_BYTES, u64::MAX - 4] {
            assert!(data(0, Op::Discard, offset, 5, 0).is_err(), "{offset}");
        }
        assert!(data(0, Op::Read, 0, 0, 0).is_err());
        assert!(data(0, Op::Read, 0, 1 << 32, 0).is_err());
    }
}
