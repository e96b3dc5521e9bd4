//! Epochs and ranges survive what a power loss does to files, and decide rightly.

use super::decide::{Attach, Meeting, attach, without_cache};
use super::*;

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

const HERE: CacheId = CacheId::Uuid([7; 16]);
const THERE: CacheId = CacheId::Uuid([8; 16]);

fn record(epoch: u64, cache: CacheId) -> Record {
    Record {
        epoch,
        cache,
        may_be_dirty: true,
        logged_since: None,
    }
}

fn meeting(record: Option<Record>, cache_epoch: Option<u64>) -> Meeting<'static> {
    Meeting {
        volume: "db",
        record,
        ranges: None,
        cache: HERE,
        cache_epoch,
        adopt: false,
        dirty_mode: true,
    }
}

fn good(meeting: &Meeting<'_>) -> Attach {
    attach(meeting).expect("this may be attached")
}

fn refused(meeting: &Meeting<'_>) -> String {
    let error = attach(meeting).expect_err("this may not be attached");
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
        let mut damaged = whole.clone();
        damaged[at] ^= 0x04;
        std::fs::write(&path, &damaged).expect("written");
        let error = state.load("db").expect_err("damage is noticed");
        assert!(error.report().contains("db.epoch"), "byte {at}: {error:?}");
        std::fs::write(&path, &whole[..at]).expect("written");
        assert!(state.load("db").is_err(), "cut at {at}");
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
fn ranges_come_back_merged_whatever_the_end_looks_like() {
    let scratch = Scratch::new("ranges");
    let path = scratch.0.join("db.ranges");
    assert_eq!(read_ranges(&path).expect("no log"), None);
    let mut log = RangeLog::open(&path).expect("begun");
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
        let mut log = RangeLog::open(&path).expect("goes on");
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
    RangeLog::open(&path)
        .expect("goes on")
        .add(&[40])
        .expect("added");
    assert_eq!(read_ranges(&path).expect("still damaged"), None);
}

#[test]
fn a_new_volume_and_the_same_cache_again() {
    let first = good(&meeting(None, None));
    assert_eq!(first.after, record(1, HERE));
    assert!(!first.before.may_be_dirty, "nothing was written yet");
    // Killed between the state and the cache, and after both.
    assert_eq!(good(&meeting(Some(first.before), None)).after.epoch, 1);
    assert_eq!(good(&meeting(Some(first.after), Some(1))).after.epoch, 1);
    // Attached, and then the cache has lost the volume.
    assert!(refused(&meeting(Some(first.after), None)).contains("does not know"));
}

#[test]
fn another_cache_begins_an_epoch_and_the_former_is_refused() {
    let clean = Record {
        may_be_dirty: false,
        ..record(4, THERE)
    };
    let attached = good(&meeting(Some(clean), None));
    assert_eq!(attached.after, record(5, HERE));
    // The former cache comes back: it knows epoch 4, and the volume is at 5.
    let back = Meeting {
        cache: THERE,
        ..meeting(Some(attached.after), Some(4))
    };
    assert!(refused(&back).contains("stale"));
    // A former cache that may hold the only copy is not passed over in silence.
    assert!(refused(&meeting(Some(record(4, THERE)), None)).contains("detach db"));
    let adopted = Meeting {
        adopt: true,
        ..meeting(Some(record(4, THERE)), None)
    };
    assert_eq!(good(&adopted).after.epoch, 5);
    // A cache in memory is gone anyway.
    let after_memory = good(&meeting(Some(record(4, CacheId::Memory)), None));
    assert!(after_memory.note.is_some_and(|note| note.contains("lost")));
}

#[test]
fn a_lost_state_directory_is_not_guessed_over() {
    assert!(refused(&meeting(None, Some(3))).contains("state directory"));
    let adopted = Meeting {
        adopt: true,
        ..meeting(None, Some(3))
    };
    assert_eq!(good(&adopted).after.epoch, 4);
    assert!(refused(&meeting(Some(record(5, HERE)), Some(4))).contains("stale"));
}

#[test]
fn serving_without_the_cache_tells_it_what_is_stale() {
    let (first, note) = without_cache("db", Some(record(3, HERE)));
    assert_eq!((first.epoch, first.logged_since), (4, Some(3)));
    assert!(note.is_some_and(|note| note.contains("newer data")));
    let (second, _) = without_cache("db", Some(first));
    assert_eq!((second.epoch, second.logged_since), (5, Some(3)));
    let ranges = vec![0..RANGE_BYTES];
    let back = Meeting {
        ranges: Some(ranges.clone()),
        ..meeting(Some(second), Some(3))
    };
    let attached = good(&back);
    assert_eq!(attached.stale, Some(ranges));
    assert_eq!(
        attached.before.logged_since,
        Some(3),
        "until the cache has dropped them"
    );
    assert_eq!(
        (attached.after.epoch, attached.after.logged_since),
        (5, None)
    );
    // Killed after the cache took the new epoch, before the state directory knew.
    let again = Meeting {
        cache_epoch: Some(5),
        ..back.clone()
    };
    assert_eq!(good(&again).stale, Some(Vec::new()));
    // The log is gone: everything may be stale.
    let lost = Meeting {
        ranges: None,
        ..back
    };
    assert_eq!(good(&lost).stale, None);
    // A volume that no cache holds needs no log.
    assert_eq!(without_cache("db", None).0.logged_since, None);
    let detached = Record {
        may_be_dirty: false,
        ..record(3, CacheId::None)
    };
    assert_eq!(without_cache("db", Some(detached)).0.logged_since, None);
}
