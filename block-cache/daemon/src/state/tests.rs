//! Epochs and ranges survive a power loss, and the decisions are right.

use super::decide::{Attach, Meeting, attach, renamed, without_cache};
use super::*;

mod failed;

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
    }
}

fn meeting(record: Option<Record>, cache_epoch: Option<u64>) -> Meeting<'static> {
    Meeting {
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
        // The second makes the file invalid UTF-8.
        for bit in [0x04, 0x80] {
            let mut damaged = whole.clone();
            damaged[at] ^= bit;
            std::fs::write(&path, &damaged).expect("written");
            let error = state.load("db").expect_err("damage is noticed").report();
            let told = error.contains("db.epoch") && error.contains("--adopt db");
            assert!(told, "byte {at}: {error}");
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
fn a_directory_that_is_removed_or_replaced_in_use_is_told_of() {
    let scratch = Scratch::new("removed");
    let path = scratch.0.join("state");
    let told =
        |state: &StateDirectory| state.trouble().is_some_and(|it| it.contains("WAS REMOVED"));
    let state = StateDirectory::open(&path).expect("free");
    assert_eq!(state.trouble(), None);
    let aside = scratch.0.join("aside");
    std::fs::rename(&path, &aside).expect("moved away");
    assert!(told(&state), "moved away");
    std::fs::create_dir(&path).expect("made anew");
    std::fs::write(path.join("lock"), "").expect("made anew");
    assert!(told(&state), "replaced");
    std::fs::remove_dir_all(&path).expect("there");
    std::fs::rename(&aside, &path).expect("put back");
    assert_eq!(state.trouble(), None, "put back");
    std::fs::remove_dir_all(&path).expect("there");
    assert!(told(&state), "removed");
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

/// Returns the epoch of a cache after an attach with `epoch`.
fn raised(known: Option<u64>, epoch: u64) -> u64 {
    known.unwrap_or(0).max(epoch) + 1
}

#[test]
fn a_new_volume_and_the_same_cache_again() {
    let first = good(&meeting(None, None));
    assert!(!first.before.may_be_dirty, "nothing was written yet");
    let cache = raised(None, first.epoch);
    assert_eq!(first.after, record(cache, HERE));
    // Killed before the cache has the epoch, before the second record is stored, and after both.
    assert_eq!(good(&meeting(Some(first.before), None)).stale, Some(vec![]));
    for known in [first.before, first.after] {
        let again = good(&meeting(Some(known), Some(cache)));
        assert_eq!(
            (again.epoch, again.stale.clone()),
            (cache, Some(vec![])),
            "nothing is stale"
        );
        assert_eq!(again.before.epoch, raised(Some(cache), again.epoch));
        assert_eq!(again.before.attached, known.attached);
    }
    // Attached, and then the cache lost the volume.
    assert!(refused(&meeting(Some(first.after), None)).contains("does not know"));
    // An old copy of the cache, or an old state directory, was restored.
    let later = record(7, HERE);
    assert!(refused(&meeting(Some(later), Some(6))).contains("epoch 6"));
    assert!(refused(&meeting(Some(later), Some(8))).contains("epoch 8"));
}

#[test]
fn another_cache_begins_an_epoch_and_the_former_is_refused() {
    let clean = Record {
        may_be_dirty: false,
        ..record(4, THERE)
    };
    let attached = good(&meeting(Some(clean), None));
    assert_eq!(attached.after, record(5, HERE));
    // The former cache returns.
    let back = Meeting {
        cache: THERE,
        ..meeting(Some(attached.after), Some(4))
    };
    assert!(refused(&back).contains("epoch 4"));
    // A former cache that may hold the only copy of data is refused.
    assert!(refused(&meeting(Some(record(4, THERE)), None)).contains("detach db"));
    let adopted = Meeting {
        adopt: true,
        ..meeting(Some(record(4, THERE)), None)
    };
    assert_eq!(good(&adopted).after.epoch, 5);
    // A cache in memory is gone in any case, also if there is a new one.
    for cache in [HERE, CacheId::Memory] {
        let after_memory = Meeting {
            cache,
            ..meeting(Some(record(4, CacheId::Memory)), None)
        };
        let note = good(&after_memory).note;
        assert!(note.is_some_and(|note| note.contains("lost")));
    }
}

#[test]
fn a_state_directory_that_was_put_back_from_a_backup_is_named_so() {
    let older = meeting(Some(record(4, HERE)), Some(5));
    let why = refused(&older);
    assert!(why.contains("older than this cache"), "{why}");
    assert!(!why.contains("format"), "it has dirty data: {why}");
    let adopted = Meeting {
        adopt: true,
        ..older
    };
    let adopted = good(&adopted);
    assert_eq!(
        (adopted.epoch, adopted.after.epoch),
        (6, 7),
        "clean copies go"
    );
    // It is from before the volume was on this cache: on none, or on another one.
    let alone = record(4, CacheId::None);
    let why = refused(&meeting(Some(alone), Some(5)));
    assert!(why.contains("older than this cache"), "{why}");
    assert!(!why.contains("format"), "{why}");
    let why = refused(&meeting(Some(record(4, THERE)), Some(5)));
    assert!(why.contains("may be an older backup"), "{why}");
    assert!(
        why.contains("detach db") && !why.contains("format"),
        "{why}"
    );
    // The other cache served the volume last.
    let why = refused(&meeting(Some(record(6, THERE)), Some(5)));
    assert!(why.contains("this cache's own state directory"), "{why}");
    // Conversely, the cache is the older one.
    assert!(refused(&meeting(Some(record(5, HERE)), Some(4))).contains("does not know"));
}

#[test]
fn a_lost_state_directory_is_not_guessed_over() {
    assert!(refused(&meeting(None, Some(3))).contains("state directory"));
    let adopted = Meeting {
        adopt: true,
        ..meeting(None, Some(3))
    };
    let attached = good(&adopted);
    // Writes since then are unknown: the cache receives an epoch above its own and drops its clean
    // copies.
    assert_eq!((attached.epoch, attached.after.epoch), (4, 5));
    assert_eq!(attached.stale, Some(Vec::new()), "dirty data stays");
}

#[test]
fn serving_without_the_cache_tells_it_what_is_stale() {
    let first = without_cache("db", Some(record(3, HERE)), (UNKNOWN, 0));
    assert_eq!(
        (first.record.epoch, first.record.logged_since),
        (4, Some(3))
    );
    assert!(
        first.fresh_log,
        "an old log that lies about is of another time"
    );
    assert!(first.note.is_some_and(|note| note.contains("newer data")));
    let second = without_cache("db", Some(first.record), (UNKNOWN, 0));
    assert!(
        !second.fresh_log,
        "the cache has not been told of the first time yet"
    );
    let ranges: Vec<_> = std::iter::once(0..RANGE_BYTES).collect();
    let back = Meeting {
        ranges: Some(ranges.clone()),
        ..meeting(Some(second.record), Some(3))
    };
    let attached = good(&back);
    assert_eq!(attached.stale, Some(ranges.clone()));
    assert!(
        attached.epoch > 3,
        "the cache sees that it missed something"
    );
    assert!(
        attached.before.logged_since.is_some(),
        "until the cache has dropped them"
    );
    assert_eq!(attached.after.logged_since, None);
    // Killed before the cache had the epoch: a second attach.
    let again = Meeting {
        record: Some(attached.before),
        ..back.clone()
    };
    assert_eq!(good(&again).stale, Some(ranges.clone()));
    // Killed after the cache had the epoch, before the state directory recorded that.
    let cache = raised(Some(3), attached.epoch);
    assert_eq!(cache, attached.before.epoch);
    let told = Meeting {
        cache_epoch: Some(cache),
        ..again.clone()
    };
    assert_eq!(good(&told).stale, Some(vec![]));
    // Another start without the cache: the cache knows nothing of this time.
    let third = without_cache("db", Some(attached.before), (UNKNOWN, 0));
    let missed = Meeting {
        record: Some(third.record),
        ..told
    };
    assert_eq!(good(&missed).stale, Some(ranges));
    assert!(good(&missed).epoch > cache);
    // The log is gone: everything may be stale.
    let lost = Meeting {
        ranges: None,
        ..back
    };
    assert_eq!(good(&lost).stale, None);
    // A volume in no cache needs no log.
    assert_eq!(
        without_cache("db", None, (UNKNOWN, 0)).record.logged_since,
        None
    );
    let detached = Record {
        may_be_dirty: false,
        ..record(3, CacheId::None)
    };
    assert_eq!(
        without_cache("db", Some(detached), (UNKNOWN, 0))
            .record
            .logged_since,
        None
    );
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
        let again = renamed("dbx", cache, true, "db", changed);
        let again = again.expect("allowed").expect("changed");
        assert_eq!((again.epoch, again.logged_since), (6, Some(5)));
        let back = good(&meeting(Some(again), Some(4)));
        assert_eq!(
            (back.epoch, back.stale),
            (6, None),
            "written, nobody knows where"
        );
    }
}

#[test]
fn what_a_cache_was_told_of_before_is_not_taken_for_what_came_after() {
    // Killed after the cache received the ranges written without it, before the state directory
    // recorded that.
    let told = Record {
        epoch: 5,
        attached: 3,
        logged_since: Some(3),
        ..record(5, HERE)
    };
    let changed = renamed("dbx", THERE, true, "db", told).expect("adopted");
    let back = good(&meeting(changed, Some(5)));
    assert_eq!((back.epoch, back.stale), (6, None), "written once more");
}

#[test]
fn a_device_is_served_without_its_cache_only_when_that_is_asked_for() {
    let dirty = Record {
        backing: Identity::of(77),
        ..record(4, HERE)
    };
    for (volume, remedy) in [("db", "--without-cache db"), ("dbx", "--without-cache dbx")] {
        let error = decide::check_without(volume, "db", dirty).expect_err("may be dirty");
        let said = error.report();
        let names = said.contains(remedy) && said.contains("forebay detach db");
        assert!(error.kind() == ErrorKind::Busy && names, "{said}");
    }
    let clean = Record {
        may_be_dirty: false,
        ..dirty
    };
    for record in [clean, record(4, CacheId::None), record(4, CacheId::Memory)] {
        decide::check_without("db", "db", record).expect("nothing can be missing");
    }
    // Data in the cache still belongs to the device that the volume had then.
    assert_eq!(
        without_cache("db", Some(dirty), (Identity::of(78), 0))
            .record
            .backing,
        Identity::of(77)
    );
    assert_eq!(
        without_cache("db", Some(record(4, CacheId::None)), (Identity::of(78), 0))
            .record
            .backing,
        Identity::of(78)
    );
}
