//! A journal whose creation was interrupted.

use forebay_metadata::Media;

use super::*;

#[test]
fn one_that_was_only_placed_is_this_caches() {
    let path = std::env::temp_dir().join(format!("forebay-placed-{}", std::process::id()));
    create_owned(&path, 2 << 20, &[7; 16]).expect("placed");
    let found = std::fs::metadata(&path).expect("there");
    assert_eq!((found.len(), found.mode() & 0o777), (2 << 20, 0o600));
    assert_eq!(
        owner(&path, Some(&[7; 16]), "").expect("it may be taken"),
        None
    );
    owner(&path, Some(&[8; 16]), "").expect_err("another cache's");
    let whose = JournalOwner {
        uuid: [7; 16],
        media: Media::default(),
        generation: 0,
        place: String::new(),
        data_place: String::new(),
        stake: String::new(),
        twin: None,
        moved: false,
    };
    let opened = open(Some(&path), 2 << 20, &whose, &Stop::default()).expect("opened");
    assert!(opened.created, "it holds nothing");
    drop(opened);
    // A start was killed while it allocated; the configuration may now request less.
    create_owned(&path, 8 << 20, &[7; 16]).expect("placed");
    let opened = open(Some(&path), 2 << 20, &whose, &Stop::default()).expect("opened");
    assert_eq!(opened.memory.len(), 2 << 20);
    std::fs::remove_file(&path).expect("ours");
}
