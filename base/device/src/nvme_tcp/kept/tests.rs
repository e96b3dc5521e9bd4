use super::*;

const BLOCK: u64 = 512;

fn write(kept: &mut Kept, blocks: Range<u64>, byte: u8) {
    let before = kept.number();
    note(kept, blocks, byte, before);
}

fn note(kept: &mut Kept, blocks: Range<u64>, byte: u8, before: u64) {
    let len = usize::try_from((blocks.end - blocks.start) * BLOCK).expect("small");
    let data = Buf::copied(&vec![byte; len]);
    let request = Request::write(blocks.start * BLOCK, data, false);
    kept.note(&request, before, Ended::Volatile, 0);
}

/// A durable write of these blocks; `beside` as in [`Ended::Durable`].
fn write_durably(kept: &mut Kept, blocks: Range<u64>, before: u64, beside: bool) {
    let len = usize::try_from((blocks.end - blocks.start) * BLOCK).expect("small");
    let request = Request::write(blocks.start * BLOCK, Buf::zeroed(len), true);
    kept.note(&request, before, Ended::Durable { beside }, 0);
}

/// What blocks hold after the plan was carried out; 0 for those that it leaves alone.
fn outcome(plan: &Plan) -> Vec<u8> {
    let mut blocks = vec![0; 16];
    for one in &plan.again {
        let first = usize::try_from(one.offset / BLOCK).expect("small");
        let len = usize::try_from(one.len / BLOCK).expect("small");
        for block in &mut blocks[first..first + len] {
            assert_eq!(*block, 0, "no two touch");
            *block = one.buf.as_ref().map_or(99, |buf| buf.to_vec()[0]);
        }
    }
    blocks
}

#[test]
fn the_newest_of_each_place_is_sent_again() {
    let mut kept = Kept::new(true);
    write(&mut kept, 0..8, 1);
    write(&mut kept, 6..12, 2);
    write(&mut kept, 2..3, 3);
    let covered = kept.number();
    let plan = kept.plan(1);
    assert!(plan.gone.is_empty());
    assert_eq!(
        outcome(&plan),
        [1, 1, 3, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0]
    );
    // What is durable by itself stays, and what was flushed.
    let before = kept.number();
    let data = Buf::copied(&[9; 512]);
    let durable = Request::write(4 * BLOCK, data, true);
    kept.note(&durable, before, Ended::Durable { beside: false }, 1);
    assert_eq!(outcome(&kept.plan(2))[3..6], [1, 0, 1]);
    write(&mut kept, 15..16, 4);
    kept.flushed(covered);
    let plan = kept.plan(2);
    assert_eq!(plan.again.len(), 1);
    assert_eq!(outcome(&plan)[15], 4);
    kept.flushed(kept.number());
    assert!(kept.is_empty());
}

#[test]
fn of_two_in_flight_at_once_nobody_knows_the_last() {
    let mut kept = Kept::new(true);
    note(&mut kept, 0..4, 1, 0);
    note(&mut kept, 2..6, 2, 0);
    // Asked when both had ended.
    write(&mut kept, 3..4, 3);
    let plan = kept.plan(1);
    let both = std::iter::once(2 * BLOCK..3 * BLOCK);
    assert!(plan.gone.iter().cloned().eq(both), "{:?}", plan.gone);
    assert_eq!(outcome(&plan)[..6], [1, 1, 2, 3, 2, 2]);
}

#[test]
fn what_failed_or_had_no_room_is_gone_and_told_once() {
    let mut kept = Kept::with_room(4 * BLOCK, 4);
    write(&mut kept, 0..2, 1);
    write(&mut kept, 4..8, 2);
    let failed = Request::discard(8 * BLOCK, BLOCK);
    kept.note(&failed, kept.number(), Ended::Failed, 0);
    // Of this one the loss is the reason.
    let failed = Request::discard(9 * BLOCK, BLOCK);
    kept.note(&failed, kept.number(), Ended::Failed, 1);
    for block in [12, 14] {
        write(&mut kept, block..block + 1, 3);
    }
    let plan = kept.plan(1);
    assert_eq!(plan.gone, [4 * BLOCK..9 * BLOCK, 12 * BLOCK..15 * BLOCK]);
    assert_eq!(outcome(&plan)[..3], [1, 1, 0]);
    let told = [9 * BLOCK..10 * BLOCK, 12 * BLOCK..15 * BLOCK];
    assert_eq!(kept.plan(2).gone, told);
    kept.flushed(kept.number());
    // The room is there again, across the ring's end.
    for block in 0..3 {
        let byte = u8::try_from(block).expect("small") + 1;
        write(&mut kept, block..block + 1, byte);
    }
    kept.flushed(kept.number() - 1);
    write(&mut kept, 8..10, 7);
    let plan = kept.plan(3);
    assert!(plan.gone.is_empty(), "{:?}", plan.gone);
    assert_eq!(outcome(&plan)[..3], [0, 0, 3]);
    assert_eq!(outcome(&plan)[8..10], [7, 7]);
    assert_eq!(
        kept.give_up(3),
        [2 * BLOCK..3 * BLOCK, 8 * BLOCK..10 * BLOCK]
    );
    assert!(kept.is_empty());
}

/// Far more durable changes than there are places, and one that is not flushed: nothing of them is named after a loss.
#[test]
fn durable_changes_take_no_places_from_what_is_not_flushed() {
    let spread = |at: u64| (100 + 2 * at)..(101 + 2 * at);
    let same = |_: u64| 100..101;
    let onto = |at: u64| at..at + 1;
    let ranges: [&dyn Fn(u64) -> Range<u64>; 3] = [&spread, &same, &onto];
    for range in ranges {
        let mut kept = Kept::with_room(16 * BLOCK, 4);
        write(&mut kept, 0..16, 1);
        for at in 0..15 {
            let before = kept.number();
            write_durably(&mut kept, range(at), before, false);
        }
        let plan = kept.plan(1);
        assert!(plan.gone.is_empty(), "{:?}", plan.gone);
        let overwritten = u64::from(range(0) == (0..1)) * 15;
        let expected = (0..16).map(|block| u8::from(block >= overwritten));
        assert!(outcome(&plan).into_iter().eq(expected));
    }
}

#[test]
fn a_durable_change_within_an_older_one_keeps_it_from_landing_there() {
    let mut kept = Kept::with_room(16 * BLOCK, 3);
    let blocks: Vec<u8> = (1..=8).flat_map(|byte| [byte; 512]).collect();
    let request = Request::write(0, Buf::copied(&blocks), false);
    kept.note(&request, 0, Ended::Volatile, 0);
    let before = kept.number();
    for block in [3, 5] {
        write_durably(&mut kept, block..block + 1, before, false);
    }
    // Both again, as one, from the left and from the right.
    let before = kept.number();
    write_durably(&mut kept, 2..6, before, false);
    write_durably(&mut kept, 0..1, before, false);
    write_durably(&mut kept, 7..9, before, false);
    let plan = kept.plan(1);
    assert!(plan.gone.is_empty(), "{:?}", plan.gone);
    assert_eq!(outcome(&plan)[..9], [0, 2, 0, 0, 0, 0, 7, 0, 0]);
    // With no place left, the change that is not flushed is named, and never lands on one that is durable.
    write(&mut kept, 12..16, 2);
    let before = kept.number();
    write_durably(&mut kept, 13..14, before, false);
    let plan = kept.plan(2);
    let gone: Vec<_> = std::iter::once(12 * BLOCK..16 * BLOCK).collect();
    assert_eq!(plan.gone, gone);
    assert_eq!(outcome(&plan)[12..], [0; 4]);
}

#[test]
fn a_durable_change_beside_one_in_flight_is_not_taken_for_the_last() {
    let mut kept = Kept::with_room(16 * BLOCK, 8);
    let asked = kept.number();
    write_durably(&mut kept, 2..4, asked, true);
    note(&mut kept, 0..3, 1, asked);
    let plan = kept.plan(1);
    let gone: Vec<_> = std::iter::once(2 * BLOCK..3 * BLOCK).collect();
    assert_eq!(plan.gone, gone);
    // Of two durable ones neither is gone.
    let mut kept = Kept::with_room(16 * BLOCK, 8);
    write_durably(&mut kept, 2..4, 0, true);
    write_durably(&mut kept, 3..5, 0, true);
    assert!(kept.plan(1).gone.is_empty());
}

#[test]
fn many_ranges_are_named_by_the_first() {
    let many: Vec<_> = (0..10).map(|at| at * 10..at * 10 + 5).collect();
    assert_eq!(in_words(&many[..1]), "bytes 0..5");
    let words = in_words(&many);
    assert!(words.ends_with("70..75, 2 more ranges up to 95"), "{words}");
}
