use super::*;
use crate::testing::{Scratch, Thread};

#[test]
fn contents_outlive_the_mapping_but_not_a_change_of_size() {
    let scratch = Scratch::new();
    let path = scratch.path("journal");
    let (memory, existed) = open_shared(&path, 8192).expect("new");
    assert!(!existed && memory.is_zero());
    memory.copy_from(5000, b"kept");
    let refused = open_shared(&path, 8192).expect_err("it is held");
    assert_eq!(refused.kind(), ErrorKind::Busy);
    assert!(refused.report().contains("journal"), "{refused:?}");
    let joined = join_shared(&path, 4096).expect("it is there");
    joined.copy_from(100, b"ours");
    assert_eq!(memory.slice(100..104).to_vec(), b"ours");
    let short = join_shared(&path, 8193).expect_err("it is shorter");
    assert_eq!(short.kind(), ErrorKind::InvalidInput);
    let missing = join_shared(&scratch.path("none"), 8192).expect_err("nobody made it");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    drop(memory);
    let (memory, existed) = open_shared(&path, 8192).expect("again");
    assert!(existed);
    assert_eq!(memory.slice(5000..5004).to_vec(), b"kept");
    drop(memory);
    let (memory, existed) = open_shared(&path, 4096).expect("smaller");
    assert!(!existed && memory.is_zero());
}

#[test]
fn memory_for_which_there_is_no_room_leaves_no_file() {
    let scratch = Scratch::new();
    let path = scratch.path("slots");
    // More than any machine has.
    let size_bytes = 1 << 46;
    open_shared(&path, size_bytes).expect_err("no room");
    assert!(!path.exists(), "a later start would keep its size");
    drop(open_shared(&path, 8192).expect("there is room"));
    open_shared(&path, size_bytes).expect_err("no room");
    assert!(!path.exists(), "its content was dropped with its size");
}

#[test]
fn memory_for_which_there_is_no_room_takes_no_room() {
    let scratch = Scratch::new();
    let file = File::create_new(scratch.path("slots")).expect("new");
    let error = allocate(&file, 1 << 46, &Stop::default()).expect_err("no room");
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    let allocated = file.metadata().expect("there").blocks() * 512;
    assert!(
        allocated <= 2 * STEP_BYTES as u64,
        "it took {allocated} bytes that other programs may need"
    );
}

#[test]
fn padding_behind_the_memory_allocates_no_blocks() {
    use std::os::unix::fs::MetadataExt as _;
    let scratch = Scratch::new();
    let path = scratch.path("padded");
    let (memory, existed) = open_padded(&path, (1 << 20) + 4096).expect("new");
    assert!(!existed && memory.len() == (1 << 20) + 4096);
    let metadata = std::fs::metadata(&path).expect("there");
    assert_eq!(metadata.size(), 2 << 20);
    assert!(
        metadata.blocks() * 512 < 3 << 19,
        "{} blocks",
        metadata.blocks()
    );
    memory.copy_from(0, b"kept");
    drop(memory);
    let (memory, existed) = open_padded(&path, (1 << 20) + 4096).expect("again");
    assert!(existed);
    assert_eq!(memory.slice(0..4).to_vec(), b"kept");
}

#[test]
fn memory_that_is_about_to_be_let_go_is_waited_for() {
    let scratch = Scratch::new();
    let path = scratch.path("held");
    let (memory, _) = open_padded(&path, 8192).expect("new");
    let opener = Thread::current();
    let sleeps = opener.sleeps();
    let holder = std::thread::spawn(move || {
        // An opener sleeps between two attempts. Few sleeps keep the test below `RELEASE_TIME`.
        opener.wait_for_sleeps(sleeps, 5);
        drop(memory);
    });
    let (_, existed) = open_padded(&path, 8192).expect("it was let go");
    assert!(existed);
    holder.join().expect("it ended");
}

#[test]
fn memory_without_a_name_keeps_its_size() {
    let file = nameless(c"forebay-test", 8192).expect("made");
    assert_eq!(nameless_bytes(&file).expect("sealed"), 8192);
    file.set_len(4096).expect_err("it cannot be made smaller");
    let scratch = Scratch::new();
    let other = File::create_new(scratch.path("other")).expect("a file");
    let refused = nameless_bytes(&other).expect_err("it can be made smaller");
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_file_that_others_can_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    let path = scratch.path("open");
    std::fs::write(&path, [0; 4096]).expect("a file");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).expect("chmod");
    let refused = open_shared(&path, 4096).expect_err("anybody can write to it");
    assert_eq!(refused.kind(), ErrorKind::Permission);
}
