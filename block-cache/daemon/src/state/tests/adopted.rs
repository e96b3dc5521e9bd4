//! Decisions on a cache that the user adopts. Its dirty data stays only if the state directory
//! knows of no service that was not through this cache.

use super::super::decide::{served_as, written_without_cache};
use super::*;

fn adopted(record: Option<Record>, known: u64) -> AttachRequest<'static> {
    AttachRequest {
        adopt: true,
        ..request(record, Some(known))
    }
}

/// Checks that a start after a crash between the records decides as `first` did. The start need not
/// be given the option once more.
fn decides_alike_after_a_crash(first: &Attach, known: u64) {
    let ranges = match first.log {
        LogChange::Unchanged => first.stale.clone(),
        LogChange::Emptied => Some(Vec::new()),
        LogChange::Removed => None,
    };
    let repeated = good(&AttachRequest {
        ranges: ranges.clone(),
        ..request(Some(first.before), Some(known))
    });
    assert!(repeated.epoch > known, "clean copies are dropped");
    assert_eq!(repeated.stale, first.stale);
    // An older copy of the cache, put back meanwhile, is another matter.
    let older = request(Some(first.before), Some(known - 1));
    assert!(refused(&older).contains("older than the state directory"));
    // The cache has the epoch, and the state directory lacks the second record.
    let informed = good(&AttachRequest {
        ranges,
        ..request(Some(first.before), Some(first.before.epoch))
    });
    assert_eq!(informed.stale, Some(vec![]));
    assert_eq!(informed.epoch, first.before.epoch);
}

#[test]
fn dirty_data_stays_if_nothing_else_served_the_volume() {
    // The state directory is lost, or older than the cache.
    for record in [None, Some(record(4, HERE))] {
        let attach = good(&adopted(record, 5));
        assert_eq!(attach.stale, Some(vec![]));
        assert_eq!(attach.log, LogChange::Emptied);
        assert!(attach.epoch > 5, "clean copies are dropped");
        decides_alike_after_a_crash(&attach, 5);
    }
}

#[test]
fn all_dirty_data_is_suspect_after_service_that_is_not_logged() {
    let alone = without_cache("db", None, (UNKNOWN, 0), false).record;
    let below = record(9, HERE);
    for (record, known) in [
        (alone, 5),
        (record(4, CacheId::None), 5),
        (record(4, CacheId::Memory), 5),
        (record(4, THERE), 5),
        (record(9, THERE), 5),
        // An older copy of the cache.
        (below, 5),
        (
            Record {
                logged_since: Some(9),
                ..below
            },
            5,
        ),
    ] {
        // A log of another cache says nothing.
        let attach = good(&AttachRequest {
            ranges: Some(vec![]),
            ..adopted(Some(record), known)
        });
        assert_eq!(
            (&attach.stale, attach.log),
            (&None, LogChange::Removed),
            "{record:?}"
        );
        decides_alike_after_a_crash(&attach, known);
    }
}

#[test]
fn logged_writes_alone_are_suspect_if_the_log_has_all_of_them() {
    let device = (Identity::of(77), 64 << 20);
    let first = without_cache("db", None, device, true);
    assert!(first.fresh_log && first.note.is_some());
    let second = without_cache("db", Some(first.record), device, false);
    assert!(!second.fresh_log, "the first time counts, too");
    let ranges: Vec<_> = std::iter::once(0..RANGE_BYTES).collect();
    for known in [1, 5] {
        let back = AttachRequest {
            ranges: Some(ranges.clone()),
            ..adopted(Some(second.record), known)
        };
        let refused = refused(&AttachRequest {
            adopt: false,
            ..back.clone()
        });
        assert!(refused.contains("without a cache"), "{refused}");
        let attach = good(&back);
        assert_eq!(
            (&attach.stale, attach.log),
            (&Some(ranges.clone()), LogChange::Unchanged)
        );
        assert!(attach.epoch > known);
        decides_alike_after_a_crash(&attach, known);
        // The log is gone.
        let lost = good(&AttachRequest {
            ranges: None,
            ..back
        });
        assert_eq!((&lost.stale, lost.log), (&None, LogChange::Removed));
    }
    // A new cache has nothing that could be older.
    let new = good(&request(Some(second.record), None));
    assert_eq!((&new.stale, new.after.logged_since), (&Some(vec![]), None));
}

#[test]
fn service_under_another_name_makes_all_dirty_data_suspect() {
    for cache in [CacheId::None, CacheId::Memory, THERE] {
        let others = [("other".to_owned(), record(1, cache))];
        let served_as = served_as(&others, HERE);
        assert_eq!(served_as.as_deref(), Some("other"));
        let back = AttachRequest {
            served_as,
            ..adopted(None, 5)
        };
        let said = refused(&AttachRequest {
            adopt: false,
            ..back.clone()
        });
        assert!(said.contains("\"other\""), "{said}");
        let attach = good(&back);
        assert_eq!((&attach.stale, attach.log), (&None, LogChange::Removed));
        decides_alike_after_a_crash(&attach, 5);
    }
    let mut through_this = record(1, HERE);
    assert_eq!(served_as(&[("other".to_owned(), through_this)], HERE), None);
    through_this.logged_since = Some(1);
    let others = [("other".to_owned(), through_this)];
    assert!(
        served_as(&others, HERE).is_some(),
        "without this cache since"
    );
}

#[test]
fn a_log_of_all_writes_ends_with_service_under_another_name() {
    let logged = without_cache("other", None, (UNKNOWN, 0), true).record;
    let changed = renamed("db", HERE, false, "other", logged).expect("nothing is dirty");
    let changed = changed.expect("the log lacks what is written from now on");
    assert_eq!(changed.logged_since, None);
    assert!(!changed.logs_every_write());
}

#[test]
fn an_older_state_directory_that_logged_writes_is_heard() {
    let ranges: Vec<_> = std::iter::once(0..RANGE_BYTES).collect();
    let restored = Record {
        attached: 1,
        ..record(1, HERE)
    };
    let logged = without_cache("db", Some(restored), (UNKNOWN, 0), true).record;
    // The cache was attached once, and several times, in the time that the directory lacks.
    for known in [2, 5] {
        let back = AttachRequest {
            ranges: Some(ranges.clone()),
            ..request(Some(logged), Some(known))
        };
        assert!(refused(&back).contains("knows writes without it"));
        let adopted = AttachRequest {
            adopt: true,
            ..back
        };
        let attach = good(&adopted);
        assert_eq!(
            (&attach.stale, attach.log),
            (&Some(ranges.clone()), LogChange::Unchanged)
        );
        decides_alike_after_a_crash(&attach, known);
        let mut listed = logged;
        listed.dirty_listed = true;
        for unknown in [
            AttachRequest {
                ranges: None,
                ..adopted.clone()
            },
            AttachRequest {
                record: Some(listed),
                ..adopted
            },
        ] {
            let attach = good(&unknown);
            assert_eq!((&attach.stale, attach.log), (&None, LogChange::Removed));
            decides_alike_after_a_crash(&attach, known);
        }
    }
    // The attach after such service, cut off before its second record.
    let attach = good(&request(Some(logged), Some(1)));
    let informed = good(&request(Some(attach.before), Some(attach.before.epoch)));
    assert_eq!(informed.stale, Some(vec![]));
}

#[test]
fn a_record_beside_a_log_that_it_does_not_know_is_older() {
    let ranges: Vec<_> = std::iter::once(0..RANGE_BYTES).collect();
    let back = AttachRequest {
        ranges: Some(ranges.clone()),
        ..request(Some(record(5, HERE)), Some(5))
    };
    assert!(refused(&back).contains("knows writes without it"));
    let attach = good(&AttachRequest {
        adopt: true,
        ..back.clone()
    });
    assert_eq!(attach.stale, Some(ranges));
    decides_alike_after_a_crash(&attach, 5);
    // A log without writes was begun, and no write followed.
    let begun = good(&AttachRequest {
        ranges: Some(vec![]),
        ..back
    });
    assert_eq!(begun.stale, Some(vec![]));
}

#[test]
fn a_log_counts_for_the_device_that_it_is_of() {
    let part = |start| Identity {
        start: Some(start),
        ..Identity::of(77)
    };
    let logged = without_cache("db", None, (part(0), 8 << 20), true).record;
    // The whole device is served under another name.
    let other = written_without_cache("db", logged);
    assert!(!other.fresh_log && other.record.logs_every_write());
    assert_eq!(other.record.backing, logged.backing);
    for (backing, bytes) in [(part(4 << 20), 4 << 20), (Identity::of(78), 8 << 20)] {
        let elsewhere = without_cache("db", Some(logged), (backing, bytes), true);
        assert!(elsewhere.fresh_log);
        assert_eq!(elsewhere.record.logged_since, None, "{backing:?}");
    }
    let at = |backing| {
        good(&AttachRequest {
            ranges: Some(vec![]),
            backing,
            backing_bytes: 4 << 20,
            ..adopted(Some(logged), 5)
        })
    };
    assert_eq!(at(part(0)).stale, Some(vec![]));
    assert_eq!(at(part(4 << 20)).stale, None);
}

#[test]
fn a_log_without_a_record_is_heard() {
    let ranges: Vec<_> = std::iter::once(0..RANGE_BYTES).collect();
    for left in [vec![], ranges] {
        let attach = good(&AttachRequest {
            ranges: Some(left.clone()),
            ..adopted(None, 5)
        });
        decides_alike_after_a_crash(&attach, 5);
        assert_eq!(attach.stale, Some(left));
    }
}

#[test]
fn a_device_that_takes_the_place_of_another_was_not_served_elsewhere() {
    let had = Record {
        backing: Identity::of(77),
        ..record(5, HERE)
    };
    for (served_as, stale) in [(None, Some(vec![])), (Some("other".to_owned()), None)] {
        let attach = good(&AttachRequest {
            backing: Identity::of(78),
            served_as,
            ..adopted(Some(had), 5)
        });
        assert_eq!(attach.stale, stale);
    }
}
