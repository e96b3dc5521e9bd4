use super::*;
use std::cell::Cell;

const PAGE: usize = 4096;

fn node(number: u8) -> NodeId {
    NodeId::new(number).expect("below the most")
}

fn place(frame: u32, generation: u64) -> Place {
    Place { frame, generation }
}

const P: PageId = PageId { inode: 7, index: 3 };

fn segment(frames: u32) -> Segment {
    let memory = Buf::zeroed(Segment::size_bytes(frames, PAGE));
    Segment::new(memory, frames, PAGE).expect("it fits")
}

#[test]
fn a_frame_in_another_use_is_stale() {
    let segment = segment(2);
    let mut out = [0; PAGE];
    assert_eq!(segment.read(place(1, 1), &mut out), Err(Frame::Stale));
    segment.fill(P, place(1, 1), node(0), &[7; PAGE], true);
    segment.read(place(1, 1), &mut out).expect("it is there");
    assert_eq!(out, [7; PAGE]);
    let Frame::Steady(sequence) = segment.look(place(1, 1)) else {
        panic!("nobody stores");
    };
    segment.fill(P, place(1, 2), node(0), &[8; PAGE], true);
    assert!(!segment.unchanged(place(1, 1), sequence));
    assert_eq!(
        segment.write(place(1, 1), node(0), 0, &[9; 8]),
        Err(Frame::Stale)
    );
    assert_eq!(segment.read(place(0, 1), &mut out), Err(Frame::Stale));
}

#[test]
fn a_store_during_a_write_back_leaves_the_page_dirty() {
    let segment = segment(1);
    let here = place(0, 1);
    segment.fill(P, here, node(0), &[1; PAGE], true);
    assert!(!segment.is_dirty(here));
    segment
        .write(here, node(1), 64, &[2; 8])
        .expect("it is there");
    let mut out = [0; PAGE];
    let sequence = segment.read(here, &mut out).expect("it is there");
    segment
        .write(here, node(1), 64, &[3; 8])
        .expect("it is there");
    segment.set_clean(here, sequence);
    assert!(
        segment.is_dirty(here),
        "the second store is not in the store"
    );
    let sequence = segment.read(here, &mut out).expect("it is there");
    segment.set_clean(here, sequence);
    assert!(!segment.is_dirty(here));
    segment.fill(P, place(0, 2), node(0), &[4; PAGE], false);
    assert!(segment.is_dirty(place(0, 2)), "nobody has it but us");
}

#[test]
fn a_dead_nodes_store_is_ended() {
    let segment = segment(1);
    let here = place(0, 1);
    segment.fill(P, here, node(0), &[1; PAGE], true);
    segment.lock(here, node(3)).expect("it is steady");
    let mut out = [0; PAGE];
    assert_eq!(segment.read(here, &mut out), Err(Frame::Storing(node(3))));
    segment.end_stores(node(2));
    assert_eq!(
        segment.look(here),
        Frame::Storing(node(3)),
        "node 2 had no lock"
    );
    segment.end_stores(node(3));
    segment.read(here, &mut out).expect("it is steady");
    assert!(segment.is_dirty(here), "what it stored is not in the store");
    assert_eq!(segment.unsaved(0), Some((P, here)));
}

#[test]
fn bytes_beside_a_store_stay() {
    let segment = segment(1);
    let here = place(0, 1);
    for (offset, len) in [
        (0, 1),
        (3, 2),
        (5, 11),
        (8, 8),
        (13, 30),
        (4090, 6),
        (0, PAGE),
    ] {
        segment.fill(P, here, node(0), &[1; PAGE], true);
        let wrote = segment.write(here, node(0), offset, &vec![2; len]);
        wrote.expect("it is there");
        let mut out = [0; PAGE];
        segment.read(here, &mut out).expect("it is there");
        let mut expected = [1; PAGE];
        expected[offset..offset + len].fill(2);
        assert_eq!(out, expected, "{len} bytes at {offset}");
    }
}

#[test]
fn a_dead_nodes_fill_is_nothing() {
    let segment = segment(1);
    segment.open(P, place(0, 1), node(3));
    assert_eq!(segment.look(place(0, 1)), Frame::Storing(node(3)));
    assert_eq!(segment.unsaved(0), None, "its bytes are not all there");
    segment.end_stores(node(3));
    assert_eq!(segment.look(place(0, 1)), Frame::Stale);
    assert_eq!(segment.unsaved(0), None);
    segment.fill(P, place(0, 2), node(1), &[1; PAGE], false);
    assert_eq!(segment.unsaved(0), Some((P, place(0, 2))));
    segment.discard(0);
    assert_eq!(segment.unsaved(0), None);
}

#[test]
fn copies_of_racing_threads_are_whole() {
    let segment = segment(1);
    let here = place(0, 1);
    segment.fill(P, here, node(0), &[0; PAGE], true);
    std::thread::scope(|scope| {
        for number in 1..3 {
            let segment = &segment;
            scope.spawn(move || {
                for round in 0..2_000_u32 {
                    let byte = (round % 100) as u8 * 2 + number - 1;
                    while segment.write(here, node(number), 0, &[byte; PAGE]).is_err() {}
                }
            });
        }
        let mut out = [0; PAGE];
        for _ in 0..2_000 {
            if segment.read(here, &mut out).is_ok() {
                assert!(out.iter().all(|byte| *byte == out[0]), "a torn page");
            }
        }
    });
}

#[test]
fn memory_that_does_not_fit_is_refused() {
    for (frames, page_size_bytes) in [(2, PAGE), (1, 100), (1, 0)] {
        let memory = Buf::zeroed(Segment::size_bytes(1, PAGE));
        assert!(Segment::new(memory, frames, page_size_bytes).is_err());
    }
}

thread_local! {
    static DROPPED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// Counts the dropped lines of headers and of pages.
fn count_lines(words: &[AtomicU64]) {
    let lines = words.len() / (HEADER_BYTES / WORD_BYTES);
    DROPPED.with(|dropped| {
        let (headers, pages) = dropped.get();
        dropped.set(match lines {
            1 => (headers + 1, pages),
            _ => (headers, pages + lines),
        });
    });
}

#[test]
fn software_drops_lines_before_loads_and_after_stores() {
    let segment = segment(1).with_coherence(Coherence::Software(count_lines));
    let here = place(0, 1);
    let lines = PAGE / HEADER_BYTES;
    let dropped = |step: &mut dyn FnMut()| {
        DROPPED.set((0, 0));
        step();
        DROPPED.get()
    };
    let filled = dropped(&mut || segment.fill(P, here, node(0), &[1; PAGE], true));
    assert_eq!(
        filled,
        (3, lines),
        "named and opened, stored, unlocked, clean"
    );
    let mut out = [0; PAGE];
    let read = dropped(&mut || assert!(segment.read(here, &mut out).is_ok()));
    assert_eq!(
        read,
        (2, lines),
        "before the look, the bytes, and the second look"
    );
    let wrote = dropped(&mut || assert!(segment.write(here, node(0), 0, &[2; PAGE]).is_ok()));
    assert_eq!(
        wrote,
        (3, lines),
        "before the look, locked, the bytes, unlocked"
    );
    let hardware = self::segment(1);
    hardware.fill(P, here, node(0), &[1; PAGE], true);
    assert_eq!(
        dropped(&mut || assert!(hardware.read(here, &mut out).is_ok())),
        (0, 0)
    );
}

#[test]
fn a_frame_remembers_that_its_page_was_given_up_until_all_have_heard() {
    let segment = segment(2);
    segment.fill(P, place(1, 1), node(0), &[1; PAGE], false);
    segment.give_up(1);
    assert_eq!(
        segment.given_up(1),
        None,
        "it is there still, and may be saved"
    );
    assert!(segment.unsaved(1).is_some());
    segment.discard(1);
    assert_eq!((segment.given_up(1), segment.given_up(0)), (Some(P), None));
    assert!(segment.unsaved(1).is_none());
    segment.forget_given_up(1);
    assert_eq!(segment.given_up(1), None);
}
