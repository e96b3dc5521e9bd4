use std::os::unix::fs::FileExt as _;

use super::*;

const ENTRIES_OF_A_QUEUE: u16 = 4;
/// A header and four descriptors of 16 bytes, up to whole cache lines.
const STRIDE: u64 = 128;

fn volume(origin: &[u8]) -> Succession {
    Succession::of("disk", origin, None)
}

/// A list for two queues, as the monitor keeps it from one process to the next.
struct Kept {
    told: VhostUserInflight,
    file: File,
}

impl Kept {
    fn new() -> Self {
        let asked = VhostUserInflight::new(0, 0, 2, ENTRIES_OF_A_QUEUE);
        let (told, file) = Inflight::make(&asked, &volume(b"first")).expect("made");
        Self { told, file }
    }

    fn adopted_as(&self, succession: &Succession) -> Result<Inflight, String> {
        let copy = self.file.try_clone().expect("a copy");
        Inflight::adopt(&self.told, copy, succession)
    }

    /// The list of the first queue in the hands of another process, whose used ring has come to `used`.
    fn recovered(&self, used: u16) -> (Tracker, Option<Vec<u16>>) {
        let inflight = Arc::new(self.adopted_as(&volume(b"first")).expect("taken over"));
        Tracker::of(&inflight, 0, (ENTRIES_OF_A_QUEUE, used)).expect("there is memory for it")
    }

    fn bytes<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.file.read_exact_at(&mut bytes, at).expect("in it");
        bytes
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, at).expect("in it");
    }
}

/// Where a head is, of the first queue.
fn entry(head: u64) -> u64 {
    16 + 16 * head
}

#[test]
fn each_field_is_where_other_programs_have_it() {
    let kept = Kept::new();
    assert_eq!(kept.told.mmap_size, 2 * STRIDE + 8);
    assert_eq!((kept.told.num_queues, kept.told.queue_size), (2, 4));
    assert_eq!(kept.bytes::<{ 2 * 128 }>(0), [0; 256], "nothing is noted");
    let note = u64::from_ne_bytes(kept.bytes(2 * STRIDE));
    assert_eq!(note, volume(b"first").note);

    let inflight = Arc::new(kept.adopted_as(&volume(b"first")).expect("its own"));
    let (mut tracker, heads) = Tracker::of(&inflight, 1, (4, 7)).expect("memory");
    assert_eq!(heads, None, "of a queue that nobody has begun");
    tracker.take(3);
    tracker.take(0);
    tracker.answering(3);
    let at = STRIDE;
    // Features, version, entries, the last head, the used index.
    assert_eq!(kept.bytes(at), [0_u8; 8]);
    let header = [1, 4, 3, 7].map(u16::to_ne_bytes).concat();
    assert_eq!(kept.bytes::<8>(at + 8)[..], header);
    // In flight, padding, next, when.
    let taken = |nth: u8| [1, 0, 0, 0, 0, 0, 0, 0, nth, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(kept.bytes(at + entry(3)), taken(1));
    assert_eq!(kept.bytes(at + entry(0)), taken(2));
    assert_eq!(kept.bytes(at + entry(1)), [0_u8; 16]);
    tracker.answered(3, 8);
    assert_eq!(kept.bytes(at + entry(3)), [0_u8]);
    assert_eq!(kept.bytes(at + 14), 8_u16.to_ne_bytes());
    assert_eq!(kept.bytes(0), [0_u8; 128], "the other queue's");
}

#[test]
fn what_was_not_answered_is_done_again_the_oldest_first() {
    let kept = Kept::new();
    let (mut tracker, _) = kept.recovered(0);
    for head in [2, 0, 3, 1] {
        tracker.take(head);
    }
    tracker.answering(0);
    tracker.answered(0, 1);
    let (mut tracker, heads) = kept.recovered(1);
    assert_eq!(heads, Some(vec![2, 3, 1]));
    // What is taken next is younger than what was left, in the process after that too.
    tracker.answering(3);
    tracker.answered(3, 2);
    tracker.take(0);
    tracker.take(3);
    assert_eq!(kept.recovered(2).1, Some(vec![2, 1, 0, 3]));
}

#[test]
fn a_queue_in_use_with_nothing_in_flight_is_told_from_one_that_never_began() {
    let kept = Kept::new();
    let (mut tracker, heads) = kept.recovered(0);
    assert_eq!(heads, None);
    tracker.take(1);
    tracker.answering(1);
    tracker.answered(1, 1);
    assert_eq!(kept.recovered(1).1, Some(vec![]));
}

#[test]
fn an_answer_that_was_not_noted_any_more_is_not_given_twice() {
    let kept = Kept::new();
    let (mut tracker, _) = kept.recovered(10);
    for head in [0, 1, 2] {
        tracker.take(head);
    }
    // Death before the used ring has it: it is done again.
    tracker.answering(1);
    assert_eq!(kept.recovered(10).1, Some(vec![0, 1, 2]));
    // Death behind that, before the note of it, and between the two parts of the note.
    assert_eq!(kept.recovered(11).1, Some(vec![0, 2]));
    kept.put(14, &10_u16.to_ne_bytes());
    assert_eq!(kept.recovered(11).1, Some(vec![0, 2]));
    assert_eq!(kept.bytes(14), 11_u16.to_ne_bytes());
    // The index runs over.
    kept.put(14, &u16::MAX.to_ne_bytes());
    kept.put(12, &2_u16.to_ne_bytes());
    assert_eq!(kept.recovered(0).1, Some(vec![0]));
}

#[test]
fn a_request_whose_note_was_torn_is_still_in_the_ring() {
    let kept = Kept::new();
    let (mut tracker, _) = kept.recovered(0);
    tracker.take(0);
    // Death in the middle of the note of the next: when it was taken is there, that it was is not.
    kept.put(entry(2) + 8, &2_u64.to_ne_bytes());
    let (mut tracker, heads) = kept.recovered(0);
    assert_eq!(
        heads,
        Some(vec![0]),
        "the ring goes on behind one, with that"
    );
    tracker.take(2);
    assert_eq!(kept.recovered(0).1, Some(vec![0, 2]));
}

#[test]
fn what_a_guest_or_monitor_writes_there_stays_in_bounds() {
    let kept = Kept::new();
    let (mut tracker, _) = kept.recovered(0);
    let before: [u8; 264] = kept.bytes(0);
    for head in [4, 1000, u16::MAX] {
        tracker.take(head);
    }
    assert_eq!(kept.bytes(0), before);
    tracker.answering(u16::MAX);
    tracker.answered(u16::MAX, 0);
    kept.put(0, &[0xff; 128]);
    // A last head that is none, flags that are neither, and times that are all the same.
    let (mut tracker, heads) = kept.recovered(0);
    assert_eq!(heads, Some(vec![]));
    tracker.take(1);
    assert_eq!(kept.recovered(0).1, Some(vec![1]));
    let inflight = Arc::new(kept.adopted_as(&volume(b"first")).expect("its own"));
    for (queue, size) in [(2, 4), (0, 5), (u16::MAX, 1)] {
        assert!(Tracker::of(&inflight, queue, (size, 0)).is_err());
    }
}

#[test]
fn the_list_of_another_volume_or_generation_or_of_contents_that_are_gone_is_refused() {
    let kept = Kept::new();
    kept.adopted_as(&volume(b"first")).expect("its own");
    for (name, origin, process) in [
        ("disk", &b"second"[..], None),
        ("disl", b"first", None),
        ("disk", b"first", Some(1)),
    ] {
        let other = Succession::of(name, origin, process);
        let refused = kept.adopted_as(&other).err().expect("another's");
        assert!(refused.contains("restart it"), "{refused}");
    }
    // Of contents that ended with one process: not for the next.
    let of_process = |process| Succession::of("disk", b"first", Some(process));
    kept.put(2 * STRIDE, &of_process(3).note.to_ne_bytes());
    kept.adopted_as(&of_process(3)).expect("the same process");
    kept.adopted_as(&of_process(5)).err().expect("the next one");
}

#[test]
fn memory_that_this_version_does_not_make_is_refused() {
    let kept = Kept::new();
    let make = |queues, entries| {
        let asked = VhostUserInflight::new(0, 0, queues, entries);
        Inflight::make(&asked, &volume(b"first"))
    };
    for (queues, entries) in [
        (0, 4),
        (2, 0),
        (QUEUES + 1, 4),
        (2, MAX_QUEUE_SIZE + 1),
        (u16::MAX, u16::MAX),
    ] {
        let refused = make(queues, entries).err().expect("too few or too many");
        assert!(refused.contains("are the most"), "{refused}");
    }
    make(QUEUES, MAX_QUEUE_SIZE).expect("the most");
    let size = kept.told.mmap_size;
    for (size, offset, queues, entries) in [
        (size - 8, 0, 2, 4),
        (size, 8, 2, 4),
        (size, 0, 1, 4),
        (size, 0, 2, 8),
    ] {
        let told = VhostUserInflight::new(size, offset, queues, entries);
        let copy = kept.file.try_clone().expect("a copy");
        let refused = Inflight::adopt(&told, copy, &volume(b"first"));
        let refused = refused.err().expect("another layout");
        assert!(refused.contains("not what this daemon makes"), "{refused}");
    }
    // One that ends before what is told of it would end this process when it is touched: it is sealed, and a file that is
    // not memory of that kind is not mapped.
    assert!(kept.file.set_len(8).is_err());
    let told = VhostUserInflight::new(size, 0, 2, 4);
    let shorter = make(1, 4).expect("made").1;
    assert!(Inflight::adopt(&told, shorter, &volume(b"first")).is_err());
    let zero = File::open("/dev/zero").expect("Linux");
    assert!(Inflight::adopt(&told, zero, &volume(b"first")).is_err());
}
