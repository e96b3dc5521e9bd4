use super::*;

const BLOCK: u64 = 512;

fn write(unflushed: &mut Unflushed, blocks: Range<u64>, byte: u8) {
    let before = unflushed.number();
    record(unflushed, blocks, byte, before);
}

fn record(unflushed: &mut Unflushed, blocks: Range<u64>, byte: u8, before: u64) {
    let len = usize::try_from((blocks.end - blocks.start) * BLOCK).expect("small");
    let data = Buf::copied(&vec![byte; len]);
    let request = Request::write(blocks.start * BLOCK, data, false);
    unflushed.record(&request, before, Ended::Volatile, 0);
}

/// Records a durable write of these blocks; `concurrent` as in [`Ended::Durable`].
fn write_durably(unflushed: &mut Unflushed, blocks: Range<u64>, before: u64, concurrent: bool) {
    let len = usize::try_from((blocks.end - blocks.start) * BLOCK).expect("small");
    let request = Request::write(blocks.start * BLOCK, Buf::zeroed(len), true);
    unflushed.record(&request, before, Ended::Durable { concurrent }, 0);
}

/// Content of the blocks after the plan was carried out; 0 for blocks that it does not write.
fn outcome(plan: &Plan) -> Vec<u8> {
    let mut blocks = vec![0; 16];
    for one in &plan.resend {
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
fn the_newest_data_of_each_byte_is_resent() {
    let mut unflushed = Unflushed::new(true);
    write(&mut unflushed, 0..8, 1);
    write(&mut unflushed, 6..12, 2);
    write(&mut unflushed, 2..3, 3);
    let covered = unflushed.number();
    let plan = unflushed.plan(1);
    assert!(plan.lost.is_empty());
    assert_eq!(
        outcome(&plan),
        [1, 1, 3, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0]
    );
    // A durable change and a flushed one are not sent again.
    let before = unflushed.number();
    let data = Buf::copied(&[9; 512]);
    let durable = Request::write(4 * BLOCK, data, true);
    unflushed.record(&durable, before, Ended::Durable { concurrent: false }, 1);
    assert_eq!(outcome(&unflushed.plan(2))[3..6], [1, 0, 1]);
    write(&mut unflushed, 15..16, 4);
    unflushed.flushed(covered);
    let plan = unflushed.plan(2);
    assert_eq!(plan.resend.len(), 1);
    assert_eq!(outcome(&plan)[15], 4);
    unflushed.flushed(unflushed.number());
    assert!(unflushed.is_empty());
}

#[test]
fn two_overlapping_changes_in_flight_at_once_are_not_resent() {
    let mut unflushed = Unflushed::new(true);
    record(&mut unflushed, 0..4, 1, 0);
    record(&mut unflushed, 2..6, 2, 0);
    // Submitted when both had ended.
    write(&mut unflushed, 3..4, 3);
    let plan = unflushed.plan(1);
    let both = std::iter::once(2 * BLOCK..3 * BLOCK);
    assert!(plan.lost.iter().cloned().eq(both), "{:?}", plan.lost);
    assert_eq!(outcome(&plan)[..6], [1, 1, 2, 3, 2, 2]);
}

#[test]
fn a_failed_change_or_one_without_room_is_lost_and_reported_once() {
    let mut unflushed = Unflushed::with_room(4 * BLOCK, 4);
    write(&mut unflushed, 0..2, 1);
    write(&mut unflushed, 4..8, 2);
    let failed = Request::discard(8 * BLOCK, BLOCK);
    unflushed.record(&failed, unflushed.number(), Ended::Failed, 0);
    // This one failed in the loss itself.
    let failed = Request::discard(9 * BLOCK, BLOCK);
    unflushed.record(&failed, unflushed.number(), Ended::Failed, 1);
    for block in [12, 14] {
        write(&mut unflushed, block..block + 1, 3);
    }
    let plan = unflushed.plan(1);
    assert_eq!(plan.lost, [4 * BLOCK..9 * BLOCK, 12 * BLOCK..15 * BLOCK]);
    assert_eq!(outcome(&plan)[..3], [1, 1, 0]);
    let expected = [9 * BLOCK..10 * BLOCK, 12 * BLOCK..15 * BLOCK];
    assert_eq!(unflushed.plan(2).lost, expected);
    unflushed.flushed(unflushed.number());
    // There is room again, across the end of the ring.
    for block in 0..3 {
        let byte = u8::try_from(block).expect("small") + 1;
        write(&mut unflushed, block..block + 1, byte);
    }
    unflushed.flushed(unflushed.number() - 1);
    write(&mut unflushed, 8..10, 7);
    let plan = unflushed.plan(3);
    assert!(plan.lost.is_empty(), "{:?}", plan.lost);
    assert_eq!(outcome(&plan)[..3], [0, 0, 3]);
    assert_eq!(outcome(&plan)[8..10], [7, 7]);
    assert_eq!(
        unflushed.give_up(3),
        [2 * BLOCK..3 * BLOCK, 8 * BLOCK..10 * BLOCK]
    );
    assert!(unflushed.is_empty());
}

/// Far more durable changes than entries, and one unflushed change: none of the durable ones is
/// lost.
#[test]
fn durable_changes_take_no_entries_from_unflushed_ones() {
    let spread = |at: u64| (100 + 2 * at)..(101 + 2 * at);
    let same = |_: u64| 100..101;
    let onto = |at: u64| at..at + 1;
    let ranges: [&dyn Fn(u64) -> Range<u64>; 3] = [&spread, &same, &onto];
    for range in ranges {
        let mut unflushed = Unflushed::with_room(16 * BLOCK, 4);
        write(&mut unflushed, 0..16, 1);
        for at in 0..15 {
            let before = unflushed.number();
            write_durably(&mut unflushed, range(at), before, false);
        }
        let plan = unflushed.plan(1);
        assert!(plan.lost.is_empty(), "{:?}", plan.lost);
        let overwritten = u64::from(range(0) == (0..1)) * 15;
        let expected = (0..16).map(|block| u8::from(block >= overwritten));
        assert!(outcome(&plan).into_iter().eq(expected));
    }
}

#[test]
fn a_resend_never_overwrites_a_durable_change_within_it() {
    let mut unflushed = Unflushed::with_room(16 * BLOCK, 3);
    let blocks: Vec<u8> = (1..=8).flat_map(|byte| [byte; 512]).collect();
    let request = Request::write(0, Buf::copied(&blocks), false);
    unflushed.record(&request, 0, Ended::Volatile, 0);
    let before = unflushed.number();
    for block in [3, 5] {
        write_durably(&mut unflushed, block..block + 1, before, false);
    }
    // Both durable again, merged from the left and from the right.
    let before = unflushed.number();
    write_durably(&mut unflushed, 2..6, before, false);
    write_durably(&mut unflushed, 0..1, before, false);
    write_durably(&mut unflushed, 7..9, before, false);
    let plan = unflushed.plan(1);
    assert!(plan.lost.is_empty(), "{:?}", plan.lost);
    assert_eq!(outcome(&plan)[..9], [0, 2, 0, 0, 0, 0, 7, 0, 0]);
    // Without a free entry, the unflushed change is lost, and never lands on the durable one.
    write(&mut unflushed, 12..16, 2);
    let before = unflushed.number();
    write_durably(&mut unflushed, 13..14, before, false);
    let plan = unflushed.plan(2);
    let lost: Vec<_> = std::iter::once(12 * BLOCK..16 * BLOCK).collect();
    assert_eq!(plan.lost, lost);
    assert_eq!(outcome(&plan)[12..], [0; 4]);
}

#[test]
fn a_durable_change_with_an_overlapping_one_in_flight_is_not_the_last() {
    let mut unflushed = Unflushed::with_room(16 * BLOCK, 8);
    let asked = unflushed.number();
    write_durably(&mut unflushed, 2..4, asked, true);
    record(&mut unflushed, 0..3, 1, asked);
    let plan = unflushed.plan(1);
    let lost: Vec<_> = std::iter::once(2 * BLOCK..3 * BLOCK).collect();
    assert_eq!(plan.lost, lost);
    // Of two durable changes neither is lost.
    let mut unflushed = Unflushed::with_room(16 * BLOCK, 8);
    write_durably(&mut unflushed, 2..4, 0, true);
    write_durably(&mut unflushed, 3..5, 0, true);
    assert!(unflushed.plan(1).lost.is_empty());
}

#[test]
fn many_ranges_are_named_by_the_first() {
    let many: Vec<_> = (0..10).map(|at| at * 10..at * 10 + 5).collect();
    assert_eq!(in_words(&many[..1]), "bytes 0..5");
    let words = in_words(&many);
    assert!(words.ends_with("70..75, 2 more ranges up to 95"), "{words}");
}

#[test]
fn changes_of_a_peer_without_a_volatile_cache_are_not_recorded() {
    let mut unflushed = Unflushed::new(false);
    write_durably(&mut unflushed, 0..8, 0, false);
    assert!(unflushed.is_empty());
    let plan = unflushed.plan(1);
    assert!(plan.resend.is_empty() && plan.lost.is_empty());
}
