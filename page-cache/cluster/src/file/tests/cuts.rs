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

fn check(bed: &Bed, [mine, other]: &[File; 2]) {
    for file in [mine, other] {
        let mut bytes = [0; LEN + 1];
        assert_eq!(file.read_at(0, &mut bytes).expect("read"), LEN);
        let written = bytes.iter().filter(|byte| **byte == 7).count();
        assert_eq!(written, LEN, "the write is whole");
    }
    mine.fsync().expect("durable");
    let stored = std::fs::read(bed.source.join("data")).expect("there");
    assert!(stored == [7; LEN], "the source has it");
}

#[test]
fn a_write_is_whole_although_the_file_was_shorter_meanwhile() {
    let bed = Bed::new("shorter");
    let files = open(&bed);
    let [mine, other] = &files;
    let mut pages = 0;
    let written = mine.write_then(0, &[7; LEN], || {
        pages += 1;
        if pages == 1 {
            other.truncate(0).expect("empty");
            other.truncate(LEN as u64).expect("longer");
        }
    });
    written.expect("written");
    check(&bed, &files);
}

#[test]
fn a_write_back_while_the_file_is_shorter_loses_no_write() {
    let bed = Bed::new("shorter-write-back");
    let files = open(&bed);
    let [mine, other] = &files;
    let mut pages = 0;
    let written = mine.write_then(0, &[7; LEN], || {
        pages += 1;
        if pages == 1 {
            other.truncate(0).expect("empty");
        } else {
            // Nothing of the second page is in the file.
            mine.fsync().expect("durable");
            other.truncate(LEN as u64).expect("longer");
        }
    });
    written.expect("written");
    check(&bed, &files);
}
