//! Epochs and ranges survive a power loss, and the decisions are right.

use super::decide::{Attach, AttachRequest, attach, renamed, without_cache};
use super::*;

mod adopted;
mod claims;
mod decisions;
mod failed;
mod irregular;

struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("fb-state-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a temporary directory");
        Self(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const UNKNOWN: Identity = Identity::of(0);
const HERE: CacheId = CacheId::Uuid([7; 16]);
const THERE: CacheId = CacheId::Uuid([8; 16]);

/// Returns the record of a volume after a successful attach.
fn record(epoch: u64, cache: CacheId) -> Record {
    Record {
        epoch,
        attached: epoch,
        cache,
        may_be_dirty: true,
        logged_since: None,
        dirty_listed: false,
        backing: UNKNOWN,
        backing_bytes: 0,
        writers: Writers::default(),
    }
}

fn request(record: Option<Record>, cache_epoch: Option<u64>) -> AttachRequest<'static> {
    AttachRequest {
        volume: "db",
        record,
        ranges: None,
        dirty: None,
        cache: HERE,
        cache_epoch,
        adopt: false,
        dirty_mode: true,
        backing: UNKNOWN,
        backing_bytes: 0,
        served_as: None,
        claim: None,
    }
}

fn good(request: &AttachRequest<'_>) -> Attach {
    attach(request).expect("this may be attached")
}

fn refused(request: &AttachRequest<'_>) -> String {
    let error = attach(request).expect_err("this may not be attached");
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.report().contains("--adopt db"), "{error:?}");
    error.report()
}

#[test]
fn a_record_comes_back_and_damage_is_noticed() {
    let scratch = Scratch::new("epoch");
    let state = StateDirectory::open(&scratch.0).expect("free");
    assert_eq!(state.load("db").expect("nothing there"), None);
    for cache in [CacheId::None, CacheId::Memory, HERE] {
        for logged_since in [None, Some(3)] {
            let stored = Record {
                logged_since,
                ..record(7, cache)
            };
            state.store("db", &stored).expect("stored");
            assert_eq!(state.load("db").expect("whole"), Some(stored));
        }
    }
    let path = scratch.0.join("db.epoch");
    let whole = std::fs::read(&path).expect("there");
    for at in 0..whole.len() {
        // The second makes the file invalid UTF-8.
        for bit in [0x04, 0x80] {
            let mut damaged = whole.clone();
            damaged[at] ^= bit;
            std::fs::write(&path, &damaged).expect("written");
            let error = state.load("db").expect_err("damage is noticed").report();
            let is_reported = error.contains("db.epoch") && error.contains("--adopt db");
            assert!(is_reported, "byte {at}: {error}");
        }
        std::fs::write(&path, &whole[..at]).expect("written");
        assert!(state.load("db").is_err(), "cut at {at}");
    }
}

#[test]
fn a_record_of_an_earlier_version_agrees_with_any_time_of_birth() {
    let scratch = Scratch::new("unborn");
    let state = StateDirectory::open(&scratch.0).expect("free");
    // The text as the previous version wrote it, with its check value.
    let text = "forebay volume state 1\nvolume db\nepoch 4\nattached 4\ncache \
        07070707070707070707070707070707\nmay-be-dirty true\nlogged-since no\nbacking \
        000000000000004d\ncheck 5bd992bdfade21ad\n";
    std::fs::write(scratch.0.join("db.epoch"), text).expect("written");
    let earlier = state.load("db").expect("sound").expect("there");
    let expected = Record {
        backing: Identity::of(77),
        ..record(4, HERE)
    };
    assert_eq!(earlier, expected);
    let born = Identity {
        birth: 5,
        ..Identity::of(77)
    };
    assert_eq!(state.others("dbx", born, 0).expect("read").len(), 1);
}

#[test]
fn parts_of_one_medium_are_others_where_they_overlap() {
    let scratch = Scratch::new("parts");
    let state = StateDirectory::open(&scratch.0).expect("free");
    let part = |start| Identity {
        start: Some(start),
        instance: 3,
        ..Identity::of(77)
    };
    let served = Record {
        backing: part(1 << 20),
        backing_bytes: 1 << 20,
        ..record(4, HERE)
    };
    state.store("db", &served).expect("stored");
    assert_eq!(state.load("db").expect("read"), Some(served));
    for (start, bytes, overlaps) in [
        (1 << 20, 1 << 20, true),
        (0, 4 << 20, true),
        (0, 1 << 20, false),
        (2 << 20, 1 << 20, false),
        ((2 << 20) - 512, 512, true),
    ] {
        let found = state.others("dbx", part(start), bytes).expect("read");
        assert_eq!(
            found.len(),
            usize::from(overlaps),
            "{bytes} bytes at {start}"
        );
    }
}

#[test]
fn the_directory_has_one_holder() {
    let scratch = Scratch::new("lock");
    let first = StateDirectory::open(&scratch.0).expect("free");
    let second = StateDirectory::open(&scratch.0).expect_err("held");
    assert_eq!(second.kind(), ErrorKind::Busy);
    drop(first);
    StateDirectory::open(&scratch.0).expect("free again");
}

#[test]
fn a_directory_that_is_removed_or_replaced_in_use_is_reported() {
    let scratch = Scratch::new("removed");
    let path = scratch.0.join("state");
    let trouble = |state: &StateDirectory| {
        state.compare_with_path();
        state.trouble()
    };
    let is_reported =
        |state: &StateDirectory| trouble(state).is_some_and(|it| it.contains("WAS REMOVED"));
    let state = StateDirectory::open(&path).expect("free");
    assert_eq!(trouble(&state), None);
    let aside = scratch.0.join("aside");
    std::fs::rename(&path, &aside).expect("moved away");
    assert!(is_reported(&state), "moved away");
    std::fs::create_dir(&path).expect("recreated");
    std::fs::write(path.join("lock"), "").expect("recreated");
    assert!(is_reported(&state), "replaced");
    std::fs::remove_dir_all(&path).expect("there");
    std::fs::rename(&aside, &path).expect("put back");
    assert_eq!(trouble(&state), None, "put back");
    std::fs::remove_dir_all(&path).expect("there");
    assert!(is_reported(&state), "removed");
}

#[test]
fn a_request_over_many_ranges_is_logged_at_once() {
    let scratch = Scratch::new("many-ranges");
    let mut log = RangeLog::open(&scratch.0.join("db.ranges"), true).expect("begun");
    let numbers: Vec<u64> = (0..300_000).collect();
    let begun = std::time::Instant::now();
    log.add(&numbers).expect("added");
    assert!(begun.elapsed() < std::time::Duration::from_secs(20));
    assert_eq!(log.known().len(), numbers.len());
}

#[test]
fn ranges_come_back_merged_whatever_the_end_looks_like() {
    let scratch = Scratch::new("ranges");
    let path = scratch.0.join("db.ranges");
    assert_eq!(read_ranges(&path).expect("no log"), None);
    let mut log = RangeLog::open(&path, true).expect("begun");
    log.add(&[5, 1, 2]).expect("added");
    log.add(&[2, 9]).expect("added");
    let mib = RANGE_BYTES;
    let expected = vec![mib..3 * mib, 5 * mib..6 * mib, 9 * mib..10 * mib];
    assert_eq!(read_ranges(&path).expect("whole"), Some(expected.clone()));
    let whole = std::fs::read(&path).expect("there");
    for torn in ["0000000000", "000000000000000f fffffffffffff"] {
        let mut bytes = whole.clone();
        bytes.extend_from_slice(torn.as_bytes());
        std::fs::write(&path, &bytes).expect("written");
        assert_eq!(
            read_ranges(&path).expect("torn end"),
            Some(expected.clone())
        );
        let mut log = RangeLog::open(&path, false).expect("goes on");
        log.add(&[9]).expect("known already");
        assert_eq!(
            std::fs::read(&path).expect("there"),
            whole,
            "the torn end is gone"
        );
    }
    let mut damaged = whole;
    damaged[3] = b'1';
    std::fs::write(&path, &damaged).expect("written");
    assert_eq!(read_ranges(&path).expect("damaged"), None);
    RangeLog::open(&path, false)
        .expect("goes on")
        .add(&[40])
        .expect("added");
    assert_eq!(read_ranges(&path).expect("still damaged"), None);
    // A log that should exist and does not.
    std::fs::remove_file(&path).expect("it was there");
    let mut log = RangeLog::open(&path, false).expect("begun");
    assert_eq!(read_ranges(&path).expect("not known"), None);
    log.add(&[7]).expect("added");
    assert_eq!(read_ranges(&path).expect("not known still"), None);
}

#[test]
fn a_backing_device_under_another_name_is_the_same_device() {
    let scratch = Scratch::new("renamed");
    let state = StateDirectory::open(&scratch.0).expect("free");
    let born = |birth| Identity {
        birth,
        ..Identity::of(77)
    };
    let served = Record {
        backing: born(5),
        ..record(4, HERE)
    };
    state.store("db", &served).expect("stored");
    state.store("other", &record(9, HERE)).expect("stored");
    assert_eq!(state.others("db", Identity::of(77), 0).expect("read"), []);
    assert_eq!(state.others("dbx", UNKNOWN, 0).expect("read"), []);
    let others = state.others("dbx", Identity::of(77), 0).expect("read");
    assert_eq!(others, [("db".to_owned(), served)]);
    assert_eq!(state.others("dbx", born(5), 0).expect("read"), others);
    let made_anew = state.others("dbx", born(6), 0).expect("read");
    assert_eq!(made_anew, [], "a file that got the old one's number");

    // Its cache may hold data that the device lacks.
    let refused = renamed("dbx", THERE, false, "db", served).expect_err("refused");
    let report = refused.report();
    assert!(report.contains("last served as volume \"db\""), "{report}");
    assert!(report.contains("--adopt dbx"), "{report}");
    // The same cache knows its own volumes; a detached one holds nothing.
    assert_eq!(
        renamed("dbx", HERE, false, "db", served).expect("allowed"),
        None
    );
    let detached = record(4, CacheId::None);
    assert_eq!(
        renamed("dbx", THERE, false, "db", detached).expect("allowed"),
        None
    );
    // Otherwise that cache learns of the writes when it returns.
    let clean = Record {
        may_be_dirty: false,
        ..served
    };
    for (cache, adopt, record) in [(THERE, true, served), (THERE, false, clean)] {
        let changed = renamed("dbx", cache, adopt, "db", record);
        let changed = changed.expect("allowed").expect("changed");
        assert_eq!((changed.epoch, changed.logged_since), (5, Some(4)));
        let repeated = renamed("dbx", cache, true, "db", changed);
        let repeated = repeated.expect("allowed").expect("changed");
        assert_eq!((repeated.epoch, repeated.logged_since), (6, Some(5)));
        let back = good(&request(Some(repeated), Some(4)));
        assert_eq!(
            (back.epoch, back.stale),
            (6, None),
            "written, nobody knows where"
        );
    }
}
