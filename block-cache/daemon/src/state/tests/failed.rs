//! A volume that continued without a cache that failed in service.

use std::ops::Range;

use super::super::decide::without_failed_cache;
use super::*;

/// Returns a volume that continued without its failed cache, with these dirty ranges in it.
fn without_failed(scratch: &Scratch, dirty: &[Range<u64>]) -> (StateDirectory, Record) {
    let state = StateDirectory::open(&scratch.0).expect("free");
    let record = without_failed_cache(record(7, HERE), dirty);
    (state.store_with_dirty("db", &record, dirty)).expect("stored");
    assert_eq!(state.load("db").expect("whole"), Some(record));
    (state, record)
}

fn meeting_of(state: &StateDirectory, cache_epoch: Option<u64>) -> AttachRequest<'static> {
    AttachRequest {
        ranges: state.ranges("db").expect("read"),
        dirty: state.dirty("db").expect("read"),
        ..request(state.load("db").expect("whole"), cache_epoch)
    }
}

#[test]
fn of_a_cache_that_failed_only_the_list_counts() {
    for dirty in [vec![], vec![4096..8192, 1 << 20..3 << 20]] {
        let scratch = Scratch::new(&format!("failed-{}", dirty.len()));
        // An obsolete log of ranges exists.
        RangeLog::open(&scratch.0.join("db.ranges"), true).expect("begun");
        let (state, record) = without_failed(&scratch, &dirty);
        assert_eq!(record.may_be_dirty, !dirty.is_empty());
        let met = good(&meeting_of(&state, Some(7)));
        assert_eq!((met.epoch, met.stale), (8, Some(vec![])));
        assert_eq!(met.dirty.as_ref(), Some(&dirty));
        assert!(met.before.dirty_listed && !met.after.dirty_listed);
        // The process died during the attach: before and after the cache had the epoch.
        state.store("db", &met.before).expect("stored");
        let repeated = good(&meeting_of(&state, Some(7)));
        assert_eq!((repeated.epoch, repeated.dirty.as_ref()), (9, Some(&dirty)));
        let repeated = good(&meeting_of(&state, Some(9)));
        assert_eq!(
            (repeated.epoch, repeated.stale, repeated.dirty),
            (9, Some(vec![]), None)
        );
        // The test refuses an older copy of the cache, and a new cache if the old one has dirty
        // data.
        refused(&meeting_of(&state, Some(3)));
        let new = meeting_of(&state, None);
        match dirty.is_empty() {
            true => drop(good(&new)),
            false => drop(refused(&new)),
        }
        state.store("db", &met.after).expect("stored");
        state.remove_history("db").expect("removed");
        assert_eq!(good(&meeting_of(&state, Some(9))).dirty, None);
    }
}

#[test]
fn a_list_that_is_damaged_or_gone_leaves_nothing_to_believe() {
    let scratch = Scratch::new("unlisted");
    let dirty = [4096..8192, 1 << 20..3 << 20];
    let (state, _) = without_failed(&scratch, &dirty);
    let path = scratch.0.join("db.dirty");
    let whole = std::fs::read(&path).expect("there");
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 4;
        for bytes in [&damaged[..], &whole[..at]] {
            std::fs::write(&path, bytes).expect("written");
            assert_eq!(state.dirty("db").expect("read"), None, "byte {at}");
        }
    }
    std::fs::remove_file(&path).expect("there");
    // Everything counts as written, so that dirty data needs a decision of the user.
    let met = good(&meeting_of(&state, Some(7)));
    assert_eq!((met.epoch, met.stale, met.dirty), (8, None, None));
}

#[test]
fn an_older_version_takes_everything_for_written_behind_a_failed_cache() {
    let scratch = Scratch::new("older");
    let (state, _) = without_failed(&scratch, &[]);
    assert_eq!(state.ranges("db").expect("read"), None, "no log is begun");
    // It reads only the part of the record before the new line.
    let text = std::fs::read_to_string(scratch.0.join("db.epoch")).expect("there");
    let lines: Vec<_> = text.lines().collect();
    assert_eq!((lines[2], lines[6]), ("epoch 8", "logged-since 7"));
    assert_eq!(lines[12], "dirty-listed true", "behind all that it knows");
}

#[test]
fn a_list_is_believed_behind_a_start_without_the_cache_only_if_it_is_empty() {
    for dirty in [Vec::new(), std::iter::once(4096..8192).collect()] {
        let scratch = Scratch::new(&format!("behind-{}", dirty.len()));
        let (state, record) = without_failed(&scratch, &dirty);
        let plan = without_cache("db", Some(record), (UNKNOWN, 0), false);
        assert_eq!(plan.record.logged_since, Some(8));
        assert!(!plan.fresh_log, "what was written before is not in it");
        RangeLog::open(&state.ranges_path("db"), false).expect("begun");
        state.store("db", &plan.record).expect("stored");
        let met = good(&meeting_of(&state, Some(7)));
        match dirty.is_empty() {
            true => assert_eq!((met.stale, met.dirty), (Some(vec![]), Some(vec![]))),
            false => assert_eq!(
                (met.stale, met.dirty),
                (None, None),
                "all of it is asked for"
            ),
        }
    }
}

#[test]
fn a_volume_that_never_had_dirty_data_may_lose_its_cache_between_two_starts() {
    let clean = |record, cache_epoch| AttachRequest {
        dirty_mode: false,
        ..request(record, cache_epoch)
    };
    let first = good(&clean(None, None)).after;
    let cache = first.epoch;
    let repeated = good(&clean(Some(first), Some(cache))).after;
    assert!(!repeated.may_be_dirty, "in no start was there any");
    // The cache is gone: there is another one, or none.
    good(&clean(Some(repeated), None));
    good(&AttachRequest {
        cache: THERE,
        ..clean(Some(repeated), None)
    });
    super::super::decide::check_without("db", "db", repeated).expect("nothing is missing");
    // Not so after a start in write-back, nor after an unknown cache was adopted for the volume.
    let dirty = good(&request(Some(repeated), Some(repeated.epoch))).after;
    refused(&clean(Some(dirty), None));
    let after = good(&clean(Some(dirty), Some(dirty.epoch))).after;
    assert!(after.may_be_dirty, "it is not known to be written back");
    let adopted = AttachRequest {
        adopt: true,
        ..clean(Some(repeated), Some(repeated.epoch))
    };
    assert!(good(&adopted).after.may_be_dirty);
}
