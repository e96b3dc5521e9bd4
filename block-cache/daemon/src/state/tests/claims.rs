//! Decisions about a volume in object storage that another daemon may have served.

use std::ops::Range;

use super::super::decide::{self, Claim};
use super::*;

const VOLUME: Identity = Identity::of(77);
const OURS: [u8; 16] = [1; 16];
const NEXT: [u8; 16] = [2; 16];
const OTHERS: [u8; 16] = [9; 16];

/// Returns the record of an attach to the volume, whose writer was the last one.
fn served(epoch: u64, cache: CacheId) -> Record {
    Record {
        backing: VOLUME,
        writers: Writers::of(OURS),
        ..record(epoch, cache)
    }
}

fn claimed_by(
    last: Option<[u8; 16]>,
    record: Option<Record>,
    cache_epoch: Option<u64>,
) -> AttachRequest<'static> {
    AttachRequest {
        backing: VOLUME,
        claim: Some(Claim::new(last, NEXT, &[])),
        ..request(record, cache_epoch)
    }
}

#[test]
fn the_writers_of_a_volume_come_back_and_earlier_records_have_none() {
    let scratch = Scratch::new("writers");
    let state = StateDirectory::open(&scratch.0).expect("free");
    let mut stored = record(4, HERE);
    for number in 0..6 {
        state.store("db", &stored).expect("stored");
        assert_eq!(state.load("db").expect("whole"), Some(stored));
        let text = std::fs::read_to_string(scratch.0.join("db.epoch")).expect("text");
        assert_eq!(text.contains("\nwriters "), number > 0, "{text}");
        stored.writers = stored.writers.with([number; 16]);
        assert!(stored.writers.is_known() && stored.writers.has([number; 16]));
    }
    let recorded = [2, 3, 4, 5].map(|number| stored.writers.has([number; 16]));
    assert_eq!(recorded, [true; 4]);
    assert!(!stored.writers.has([1; 16]), "the oldest goes");
    // One that is known comes first.
    let moved = stored.writers.with([2; 16]).with([6; 16]);
    assert!(moved.has([2; 16]) && !moved.has([3; 16]));
}

#[test]
fn a_claim_of_another_daemon_makes_all_data_suspect() {
    let own = good(&claimed_by(Some(OURS), Some(served(4, HERE)), Some(4)));
    assert_eq!((own.epoch, own.stale), (4, Some(vec![])));
    assert!(!own.is_after_other);
    assert_eq!(own.after.writers, Writers::of(NEXT));

    let other = good(&claimed_by(Some(OTHERS), Some(served(4, HERE)), Some(4)));
    assert!(other.is_after_other);
    assert_eq!(other.stale, None, "at unknown places");
    assert!(other.epoch > 4, "the cache sees that it missed something");
    assert!(other.before.epoch > other.epoch);
    // Killed after the claim, or before it: either writer is known, and what it missed is too.
    let announced = other.announced.expect("there is a record");
    for last in [OTHERS, NEXT] {
        let repeated = good(&claimed_by(Some(last), Some(announced), Some(4)));
        assert!(!repeated.is_after_other);
        assert_eq!((repeated.epoch > 4, repeated.stale), (true, None));
    }
    // Killed after the cache has the new epoch.
    let informed = Some(other.before.epoch);
    let informed = good(&claimed_by(Some(NEXT), Some(other.before), informed));
    assert_eq!(informed.stale, Some(vec![]));
    assert_eq!(informed.after.logged_since, None);
}

#[test]
fn writers_that_were_killed_during_their_start_are_known() {
    let mut record = served(4, HERE);
    let starts = [[3; 16], [4; 16], [5; 16]];
    for next in starts {
        let claim = Some(Claim::new(Some(OURS), next, &[]));
        let start = AttachRequest {
            claim,
            ..claimed_by(None, Some(record), Some(4))
        };
        let plan = good(&start);
        assert_eq!(plan.stale, Some(vec![]));
        record = plan.announced.expect("there is a record");
    }
    // The claim of any of them may arrive late.
    for last in [OURS, starts[0], starts[1], starts[2]] {
        assert!(!good(&claimed_by(Some(last), Some(record), Some(4))).is_after_other);
    }
    assert!(good(&claimed_by(Some(OTHERS), Some(record), Some(4))).is_after_other);
}

#[test]
fn a_record_without_writers_or_of_another_volume_decides_nothing() {
    let unknown = Record {
        writers: Writers::default(),
        ..served(4, HERE)
    };
    let elsewhere = Record {
        backing: Identity::of(78),
        ..served(4, HERE)
    };
    for record in [unknown, elsewhere] {
        let plan = good(&claimed_by(Some(OTHERS), Some(record), Some(4)));
        assert_eq!((plan.is_after_other, plan.stale), (false, Some(vec![])));
        // From now on they are known.
        let announced = plan.announced.expect("there is a record");
        assert!(announced.writers.has(OTHERS) && announced.writers.has(NEXT));
    }
    let new = good(&claimed_by(None, None, None));
    assert_eq!(
        (new.announced, new.after.writers),
        (None, Writers::of(NEXT))
    );
    // A first claim is not announced: without it, the volume has no data.
    let earlier = good(&claimed_by(None, Some(unknown), Some(4)));
    let announced = earlier.announced.expect("there is a record");
    assert!(!announced.writers.is_known() && earlier.after.writers.has(NEXT));
    // A volume that is in object storage no more.
    let moved = good(&request(Some(served(4, HERE)), Some(4)));
    assert!(!moved.after.writers.is_known());
}

#[test]
fn a_log_of_ranges_lacks_the_writes_of_another_daemon() {
    let without = without_cache("db", Some(served(3, HERE)), (VOLUME, 0), false);
    let ranges: Vec<_> = std::iter::once(0..RANGE_BYTES).collect();
    let back = |last| AttachRequest {
        ranges: Some(ranges.clone()),
        ..claimed_by(Some(last), Some(without.record), Some(3))
    };
    assert_eq!(good(&back(OURS)).stale, Some(ranges.clone()));
    let other = good(&back(OTHERS));
    assert_eq!((other.is_after_other, other.stale), (true, None));
    // A log of all writes ends to count.
    let alone = Record {
        writers: Writers::of(OURS),
        ..without_cache("db", None, (VOLUME, 0), true).record
    };
    let adopted = AttachRequest {
        adopt: true,
        ..claimed_by(Some(OTHERS), Some(alone), Some(3))
    };
    assert_eq!(good(&adopted).stale, None);
    // A list of dirty data at a failure does not count either, unless it is empty.
    let failed = |dirty: &[Range<u64>]| decide::without_failed_cache(served(3, HERE), dirty);
    let listed = AttachRequest {
        dirty: Some(ranges.clone()),
        ..claimed_by(Some(OTHERS), Some(failed(&ranges)), Some(3))
    };
    let listed = good(&listed);
    assert_eq!((listed.dirty, listed.stale), (None, None));
    let empty = AttachRequest {
        dirty: Some(Vec::new()),
        ..claimed_by(Some(OTHERS), Some(failed(&[])), Some(3))
    };
    assert_eq!(good(&empty).dirty, Some(Vec::new()));
}

#[test]
fn a_writer_of_the_same_device_under_another_name_is_known() {
    let (mine, former) = (served(4, HERE), served(4, HERE));
    let last = [7; 16];
    let renamed = Record {
        writers: Writers::of(last),
        ..former
    };
    for (others, is_other) in [
        (vec![], true),
        (vec![("b".to_owned(), former)], true),
        (
            vec![("b".to_owned(), former), ("c".to_owned(), renamed)],
            false,
        ),
    ] {
        let claim = Claim::new(Some(last), NEXT, &others);
        assert_eq!(claim.is_after_other(mine), is_other, "{others:?}");
    }
}
