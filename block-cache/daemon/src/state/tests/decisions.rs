//! Decisions at an attach.

use super::*;

/// Returns the epoch of a cache after an attach with `epoch`.
fn raised(known: Option<u64>, epoch: u64) -> u64 {
    known.unwrap_or(0).max(epoch) + 1
}

#[test]
fn a_new_volume_and_the_same_cache_once_more() {
    let first = good(&request(None, None));
    assert!(!first.before.may_be_dirty, "nothing was written yet");
    let cache = raised(None, first.epoch);
    assert_eq!(first.after, record(cache, HERE));
    // Killed before the cache has the epoch, before the second record is stored, and after both.
    assert_eq!(good(&request(Some(first.before), None)).stale, Some(vec![]));
    for known in [first.before, first.after] {
        let repeated = good(&request(Some(known), Some(cache)));
        assert_eq!(
            (repeated.epoch, repeated.stale.clone()),
            (cache, Some(vec![])),
            "nothing is stale"
        );
        assert_eq!(repeated.before.epoch, raised(Some(cache), repeated.epoch));
        assert_eq!(repeated.before.attached, known.attached);
    }
    // Attached, and then the cache lost the volume.
    assert!(refused(&request(Some(first.after), None)).contains("does not know"));
    // An old copy of the cache, or an old state directory, was restored.
    let later = record(7, HERE);
    assert!(refused(&request(Some(later), Some(6))).contains("epoch 6"));
    assert!(refused(&request(Some(later), Some(8))).contains("epoch 8"));
}

#[test]
fn another_cache_begins_an_epoch_and_the_former_is_refused() {
    let clean = Record {
        may_be_dirty: false,
        ..record(4, THERE)
    };
    let attached = good(&request(Some(clean), None));
    assert_eq!(attached.after, record(5, HERE));
    // The former cache returns.
    let back = AttachRequest {
        cache: THERE,
        ..request(Some(attached.after), Some(4))
    };
    assert!(refused(&back).contains("epoch 4"));
    // A former cache that may hold the only copy of data is refused.
    assert!(refused(&request(Some(record(4, THERE)), None)).contains("detach db"));
    let adopted = AttachRequest {
        adopt: true,
        ..request(Some(record(4, THERE)), None)
    };
    assert_eq!(good(&adopted).after.epoch, 5);
    // A cache in memory is gone in any case, also if there is a new one.
    for cache in [HERE, CacheId::Memory] {
        let after_memory = AttachRequest {
            cache,
            ..request(Some(record(4, CacheId::Memory)), None)
        };
        let note = good(&after_memory).note;
        assert!(note.is_some_and(|note| note.contains("LOST")));
    }
}

#[test]
fn a_state_directory_that_was_put_back_from_a_backup_is_named_so() {
    let older = request(Some(record(4, HERE)), Some(5));
    let why = refused(&older);
    assert!(why.contains("older than this cache"), "{why}");
    assert!(!why.contains("format"), "it has dirty data: {why}");
    let adopted = AttachRequest {
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
    let why = refused(&request(Some(alone), Some(5)));
    assert!(why.contains("of different times"), "{why}");
    assert!(why.contains("remove db.epoch"), "{why}");
    assert!(!why.contains("format"), "{why}");
    let why = refused(&request(Some(record(4, THERE)), Some(5)));
    assert!(why.contains("may be an older backup"), "{why}");
    assert!(
        why.contains("detach db") && !why.contains("format"),
        "{why}"
    );
    // The other cache served the volume last.
    let why = refused(&request(Some(record(6, THERE)), Some(5)));
    assert!(why.contains("this cache's own state directory"), "{why}");
    // Conversely, the cache is the older one.
    assert!(
        refused(&request(Some(record(5, HERE)), Some(4)))
            .contains("older than the state directory")
    );
}

#[test]
fn a_lost_state_directory_is_not_guessed_over() {
    assert!(refused(&request(None, Some(3))).contains("state directory"));
    let adopted = AttachRequest {
        adopt: true,
        ..request(None, Some(3))
    };
    let attached = good(&adopted);
    // Writes since then are unknown: the cache receives an epoch above its own and drops its clean
    // copies.
    assert_eq!((attached.epoch, attached.after.epoch), (4, 5));
    assert_eq!(attached.stale, Some(Vec::new()), "dirty data stays");
}

#[test]
fn the_cache_learns_stale_ranges_after_service_without_it() {
    let first = without_cache("db", Some(record(3, HERE)), (UNKNOWN, 0), false);
    assert_eq!(
        (first.record.epoch, first.record.logged_since),
        (4, Some(3))
    );
    assert!(
        first.fresh_log,
        "an old log that lies about is of another time"
    );
    assert!(first.note.is_some_and(|note| note.contains("newer data")));
    let second = without_cache("db", Some(first.record), (UNKNOWN, 0), false);
    assert!(
        !second.fresh_log,
        "the cache has not been told of the first time yet"
    );
    let ranges: Vec<_> = std::iter::once(0..RANGE_BYTES).collect();
    let back = AttachRequest {
        ranges: Some(ranges.clone()),
        ..request(Some(second.record), Some(3))
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
    let repeated = AttachRequest {
        record: Some(attached.before),
        ..back.clone()
    };
    assert_eq!(good(&repeated).stale, Some(ranges.clone()));
    // Killed after the cache had the epoch, before the state directory recorded that.
    let cache = raised(Some(3), attached.epoch);
    assert_eq!(cache, attached.before.epoch);
    let informed = AttachRequest {
        cache_epoch: Some(cache),
        ..repeated.clone()
    };
    assert_eq!(good(&informed).stale, Some(vec![]));
    // Another start without the cache: the cache knows nothing of this time.
    let third = without_cache("db", Some(attached.before), (UNKNOWN, 0), false);
    let missed = AttachRequest {
        record: Some(third.record),
        ..informed
    };
    assert_eq!(good(&missed).stale, Some(ranges));
    assert!(good(&missed).epoch > cache);
    // The log is gone: everything may be stale.
    let lost = AttachRequest {
        ranges: None,
        ..back
    };
    assert_eq!(good(&lost).stale, None);
    // A volume of which no cache has data needs no log.
    assert_eq!(
        without_cache("db", None, (UNKNOWN, 0), false)
            .record
            .logged_since,
        None
    );
    let detached = Record {
        may_be_dirty: false,
        ..record(3, CacheId::None)
    };
    assert_eq!(
        without_cache("db", Some(detached), (UNKNOWN, 0), false)
            .record
            .logged_since,
        None
    );
}

#[test]
fn earlier_decisions_of_a_cache_are_not_confused_with_later_ones() {
    // Killed after the cache received the ranges written without it, before the state directory
    // recorded that.
    let informed = Record {
        epoch: 5,
        attached: 3,
        logged_since: Some(3),
        ..record(5, HERE)
    };
    let changed = renamed("dbx", THERE, true, "db", informed).expect("adopted");
    let back = good(&request(changed, Some(5)));
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
        without_cache("db", Some(dirty), (Identity::of(78), 0), false)
            .record
            .backing,
        Identity::of(77)
    );
    assert_eq!(
        without_cache(
            "db",
            Some(record(4, CacheId::None)),
            (Identity::of(78), 0),
            false
        )
        .record
        .backing,
        Identity::of(78)
    );
}
