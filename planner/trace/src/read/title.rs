//! The part of a text before the first record: a byte order mark, and the names of the columns.

use crate::Format;

/// Byte order mark of UTF-8, which spreadsheet programs write.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Least number of columns in a title.
const COLUMNS: usize = 3;

/// Returns whether a line names columns: words that begin with a letter, separated by commas. Every
/// record with commas has numbers.
pub(super) fn is_title(line: &[u8]) -> bool {
    let mut columns = 0;
    line.split(|byte| *byte == b',').all(|column| {
        columns += 1;
        let column = column.trim_ascii();
        let column = column.strip_prefix(b"\"").unwrap_or(column);
        column.first().is_some_and(u8::is_ascii_alphabetic)
    }) && columns >= COLUMNS
}

/// Returns whether a file with this first line can be of a format, by the names of its columns if
/// they are known.
pub(super) fn agrees(format: Format, first: &[u8]) -> bool {
    let first: Vec<u8> = (first.iter())
        .filter(|byte| !matches!(byte, b'"' | b' '))
        .map(u8::to_ascii_lowercase)
        .collect();
    let known: [(&[u8], &[Format]); 5] = [
        (b"version,", &[Format::VscsiCsv, Format::VscsiCsvUs]),
        (b"timestamp,hostname,", &[Format::Msr]),
        (b"timestamp,response,", &[Format::Systor]),
        (b"timestamp,offset,", &[Format::Tencent]),
        (b"device_id,opcode,", &[Format::Alibaba]),
    ];
    let found = known.iter().find(|(title, _)| first.starts_with(title));
    found.is_none_or(|(_, formats)| formats.contains(&format))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn titles_are_distinguished_from_records() {
        for title in [
            "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime",
            "\"Timestamp\", \"Offset\", \"Size\"",
            "device_id,opcode,offset,length,timestamp",
        ] {
            assert!(is_title(title.as_bytes()), "{title}");
        }
        for record in [
            "128166372003061629,hm,0,Read,383496192,32768,413",
            "419,W,8792731648,16384,1577808144360767",
            "0,20941264,8192,W,0.551706",
            "a,b",
            "",
            "a,,b",
        ] {
            assert!(!is_title(record.as_bytes()), "{record}");
        }
    }

    #[test]
    fn a_known_title_leaves_one_format() {
        let of = |title: &str| -> Vec<_> {
            let agrees = |format: &Format| agrees(*format, title.as_bytes());
            Format::ALL.into_iter().filter(agrees).collect()
        };
        assert_eq!(of("Timestamp,Hostname,DiskNumber"), [Format::Msr]);
        assert_eq!(of("\"TIMESTAMP\", \"Offset\",Size"), [Format::Tencent]);
        assert_eq!(of("time,what,ever").len(), Format::ALL.len());
    }
}
