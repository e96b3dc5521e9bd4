//! Writes to a file that another node makes shorter, and long again, before they end.

use super::*;

/// One whole page, and a part of the next.
const LEN: usize = PAGE_BYTES + 100;

/// Two nodes with one file, of other content.
fn open(bed: &Bed) -> [File; 2] {
    let files = [1, 2].map(|number| bed.node(number).create("data").expect("it opens"));
    files[0].write_at(0, &[1; LEN]).expect("written");
    files
}

/// Writes both pages through one node, and calls `meanwhile` after each with the number of pages
/// that are stored. Checks that both nodes and the source have the whole write.
fn check_write(name: &str, mut meanwhile: impl FnMut(usize, &[File; 2])) {
    let bed = Bed::new(name);
    let files = open(&bed);
    let mut pages = 0;
    let written = files[0].write_then(0, &[7; LEN], || {
        pages += 1;
        meanwhile(pages, &files);
    });
    written.expect("written");
    for file in &files {
        let mut bytes = [0; LEN + 1];
        assert_eq!(file.read_at(0, &mut bytes).expect("read"), LEN);
        let written = bytes.iter().filter(|byte| **byte == 7).count();
        assert_eq!(written, LEN, "the write is whole");
    }
    files[0].fsync().expect("durable");
    let stored = std::fs::read(bed.source.join("data")).expect("there");
    assert!(stored == [7; LEN], "the source has it");
}

#[test]
fn a_write_is_whole_although_the_file_was_shorter_meanwhile() {
    check_write("shorter", |pages, [_, other]| {
        if pages == 1 {
            other.truncate(0).expect("empty");
            other.truncate(LEN as u64).expect("longer");
        }
    });
}

#[test]
fn a_write_back_while_the_file_is_shorter_loses_no_write() {
    check_write("shorter-write-back", |pages, [mine, other]| {
        if pages == 1 {
            other.truncate(0).expect("empty");
        } else {
            // Nothing of the second page is in the file.
            mine.fsync().expect("durable");
            other.truncate(LEN as u64).expect("longer");
        }
    });
}
