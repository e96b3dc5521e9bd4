use std::os::unix::fs::FileExt as _;

use super::*;

const ENTRIES_OF_A_QUEUE: u16 = 4;
/// A header and four descriptors of 16 bytes, rounded up to cache lines.
const STRIDE: u64 = 128;

fn volume(origin: &[u8]) -> Succession {
    Succession::of("disk", origin, None)
}

/// A list for two queues, which the monitor keeps from one process to the next.
struct StoredList {
    description: VhostUserInflight,
    file: File,
}

impl StoredList {
    fn new() -> Self {
        let asked = VhostUserInflight::new(0, 0, 2, ENTRIES_OF_A_QUEUE);
        let (description, file) = Inflight::make(&asked, &volume(b"first")).expect("made");
        Self { description, file }
    }

    fn adopted_as(&self, succession: &Succession) -> Result<Inflight, String> {
        let copy = self.file.try_clone().expect("a copy");
        Inflight::adopt(&self.description, copy, succession)
    }

    /// Returns the list of the first queue in another process, with used index `used`.
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

/// Returns the offset of a head of the first queue.
fn entry(head: u64) -> u64 {
    16 + 16 * head
}

#[test]
fn each_field_is_where_other_programs_have_it() {
    let list = StoredList::new();
    assert_eq!(list.description.mmap_size, 2 * STRIDE + 8);
    assert_eq!(
        (list.description.num_queues, list.description.queue_size),
        (2, 4)
    );
    assert_eq!(list.bytes::<{ 2 * 128 }>(0), [0; 256], "nothing is noted");
    let note = u64::from_ne_bytes(list.bytes(2 * STRIDE));
    assert_eq!(note, volume(b"first").note);

    let inflight = Arc::new(list.adopted_as(&volume(b"first")).expect("its own"));
    let (mut tracker, heads) = Tracker::of(&inflight, 1, (4, 7)).expect("memory");
    assert_eq!(heads, None, "of a queue that nobody has begun");
    tracker.take(3);
    tracker.take(0);
    tracker.answering(3);
    let at = STRIDE;
    // Features, version, entries, the last head, the used index.
    assert_eq!(list.bytes(at), [0_u8; 8]);
    let header = [1, 4, 3, 7].map(u16::to_ne_bytes).concat();
    assert_eq!(list.bytes::<8>(at + 8)[..], header);
    // In flight, padding, next, order.
    let taken = |nth: u8| [1, 0, 0, 0, 0, 0, 0, 0, nth, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(list.bytes(at + entry(3)), taken(1));
    assert_eq!(list.bytes(at + entry(0)), taken(2));
    assert_eq!(list.bytes(at + entry(1)), [0_u8; 16]);
    tracker.answered(3, 8);
    assert_eq!(list.bytes(at + entry(3)), [0_u8]);
    assert_eq!(list.bytes(at + 14), 8_u16.to_ne_bytes());
    assert_eq!(list.bytes(0), [0_u8; 128], "the other queue's");
}

#[test]
fn unanswered_requests_are_repeated_oldest_first() {
    let list = StoredList::new();
    let (mut tracker, _) = list.recovered(0);
    for head in [2, 0, 3, 1] {
        tracker.take(head);
    }
    tracker.answering(0);
    tracker.answered(0, 1);
    let (mut tracker, heads) = list.recovered(1);
    assert_eq!(heads, Some(vec![2, 3, 1]));
    // A later request is younger than those of the earlier process, also in the process after that.
    tracker.answering(3);
    tracker.answered(3, 2);
    tracker.take(0);
    tracker.take(3);
    assert_eq!(list.recovered(2).1, Some(vec![2, 1, 0, 3]));
}

#[test]
fn an_idle_queue_is_distinguished_from_an_unused_one() {
    let list = StoredList::new();
    let (mut tracker, heads) = list.recovered(0);
    assert_eq!(heads, None);
    tracker.take(1);
    tracker.answering(1);
    tracker.answered(1, 1);
    assert_eq!(list.recovered(1).1, Some(vec![]));
}

#[test]
fn an_answer_that_was_not_noted_any_more_is_not_given_twice() {
    let list = StoredList::new();
    let (mut tracker, _) = list.recovered(10);
    for head in [0, 1, 2] {
        tracker.take(head);
    }
    // Death before the used ring has the answer: it is executed again.
    tracker.answering(1);
    assert_eq!(list.recovered(10).1, Some(vec![0, 1, 2]));
    // Death after that, before it is recorded, and between the two parts of the record.
    assert_eq!(list.recovered(11).1, Some(vec![0, 2]));
    list.put(14, &10_u16.to_ne_bytes());
    assert_eq!(list.recovered(11).1, Some(vec![0, 2]));
    assert_eq!(list.bytes(14), 11_u16.to_ne_bytes());
    // The index wraps.
    list.put(14, &u16::MAX.to_ne_bytes());
    list.put(12, &2_u16.to_ne_bytes());
    assert_eq!(list.recovered(0).1, Some(vec![0]));
}

#[test]
fn a_request_whose_note_was_torn_is_still_in_the_ring() {
    let list = StoredList::new();
    let (mut tracker, _) = list.recovered(0);
    tracker.take(0);
    // Death while the next request is recorded: its order is there, its flag is not.
    list.put(entry(2) + 8, &2_u64.to_ne_bytes());
    let (mut tracker, heads) = list.recovered(0);
    assert_eq!(
        heads,
        Some(vec![0]),
        "the ring goes on behind one, with that"
    );
    tracker.take(2);
    assert_eq!(list.recovered(0).1, Some(vec![0, 2]));
}

#[test]
fn invalid_content_of_the_list_stays_in_bounds() {
    let list = StoredList::new();
    let (mut tracker, _) = list.recovered(0);
    let before: [u8; 264] = list.bytes(0);
    for head in [4, 1000, u16::MAX] {
        tracker.take(head);
    }
    assert_eq!(list.bytes(0), before);
    tracker.answering(u16::MAX);
    tracker.answered(u16::MAX, 0);
    list.put(0, &[0xff; 128]);
    // An invalid last head, invalid flags, and equal orders.
    let (mut tracker, heads) = list.recovered(0);
    assert_eq!(heads, Some(vec![]));
    tracker.take(1);
    assert_eq!(list.recovered(0).1, Some(vec![1]));
    let inflight = Arc::new(list.adopted_as(&volume(b"first")).expect("its own"));
    for (queue, size) in [(2, 4), (0, 5), (u16::MAX, 1)] {
        assert!(Tracker::of(&inflight, queue, (size, 0)).is_err());
    }
}

#[test]
fn the_list_of_another_volume_or_generation_or_of_contents_that_are_gone_is_refused() {
    let list = StoredList::new();
    list.adopted_as(&volume(b"first")).expect("its own");
    for (name, origin, process) in [
        ("disk", &b"second"[..], None),
        ("disl", b"first", None),
        ("disk", b"first", Some(1)),
    ] {
        let other = Succession::of(name, origin, process);
        let refused = list.adopted_as(&other).err().expect("another's");
        assert!(refused.contains("restart the machine"), "{refused}");
    }
    // Contents that ended with one process are not for the next.
    let of_process = |process| Succession::of("disk", b"first", Some(process));
    list.put(2 * STRIDE, &of_process(3).note.to_ne_bytes());
    list.adopted_as(&of_process(3)).expect("the same process");
    list.adopted_as(&of_process(5)).err().expect("the next one");
}

#[test]
fn memory_that_this_version_does_not_make_is_refused() {
    let list = StoredList::new();
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
        assert!(refused.contains("the limits are"), "{refused}");
    }
    make(QUEUES, MAX_QUEUE_SIZE).expect("the most");
    let size = list.description.mmap_size;
    for (size, offset, queues, entries) in [
        (size - 8, 0, 2, 4),
        (size, 8, 2, 4),
        (size, 0, 1, 4),
        (size, 0, 2, 8),
    ] {
        let description = VhostUserInflight::new(size, offset, queues, entries);
        let copy = list.file.try_clone().expect("a copy");
        let refused = Inflight::adopt(&description, copy, &volume(b"first"));
        let refused = refused.err().expect("another layout");
        assert!(refused.contains("not what this daemon makes"), "{refused}");
    }
    // A file that is shorter than its description would end this process on access. So the file is
    // sealed, and a file of another kind is not mapped.
    assert!(list.file.set_len(8).is_err());
    let description = VhostUserInflight::new(size, 0, 2, 4);
    let shorter = make(1, 4).expect("made").1;
    assert!(Inflight::adopt(&description, shorter, &volume(b"first")).is_err());
    let zero = File::open("/dev/zero").expect("Linux");
    assert!(Inflight::adopt(&description, zero, &volume(b"first")).is_err());
}
