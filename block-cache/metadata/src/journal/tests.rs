//! Journals of dead processes, damaged headers, and journals of earlier versions.

use super::*;

/// The end of the words of the header.
const AT_PLACE_END: usize = 512;

fn record(slot: u32) -> BlockRecord {
    BlockRecord {
        volume: 1,
        class: 0,
        block: u64::from(slot) * 3,
        slot,
        valid: 1,
        dirty: 1,
        bad: 0,
        sums: 0,
    }
}

#[test]
fn untrimmed_entries_are_recovered_only_in_the_same_boot_and_cache() {
    let (uuid, boot) = ([1; 16], [2; 16]);
    let memory = Buf::zeroed(JOURNAL_MIN_BYTES);
    assert!(Journal::recover(&memory, &uuid, &boot).is_none());
    let mut journal = Journal::create(memory.clone(), &uuid, &boot).expect("large enough");
    for round in 0..5_000_u32 {
        journal.append(u64::from(round), record(round));
        if journal.room() < 10 {
            journal.trim(journal.head() - 5);
        }
    }
    journal.trim(journal.head() - 3);
    journal.reached(4_990);
    drop(journal);
    let found = Journal::recover(&memory, &uuid, &boot).expect("ours");
    let expected: Vec<_> = (4_997..5_000).map(|at| (at.into(), record(at))).collect();
    assert_eq!(found.entries, expected);
    assert!(!found.poisoned);
    assert_eq!(found.reached, 4_990);
    assert!(
        Journal::recover(&memory, &uuid, &[3; 16]).is_none(),
        "another boot"
    );
    assert!(
        Journal::recover(&memory, &[3; 16], &boot).is_none(),
        "another cache"
    );
}

/// A journal of three entries, of which the first is trimmed.
fn used(memory: &Buf) {
    let (uuid, boot) = ([1; 16], [2; 16]);
    let mut journal = Journal::create(memory.clone(), &uuid, &boot).expect("large enough");
    (1..4).for_each(|at| journal.append(at, record(at as u32)));
    journal.trim(1);
    journal.reached(7);
}

/// A header that is damaged hides no entry, whatever word of it has whatever value.
#[test]
fn damage_of_the_header_hides_no_entry() {
    let (uuid, boot) = ([1; 16], [2; 16]);
    let memory = Buf::zeroed(JOURNAL_MIN_BYTES);
    let words =
        |journal: &Buf| [AT_HEAD, AT_TAIL].map(|at| atomic(journal, at).load(Ordering::SeqCst));
    for at in (AT_HEAD..AT_PLACE_END).step_by(8) {
        used(&memory);
        let [head, tail] = words(&memory);
        let mut values = vec![0, u64::MAX, 1, 2, 3, 4, head, tail, !head, !tail];
        let there = atomic(&memory, at).load(Ordering::SeqCst);
        values.extend((0..64).map(|bit| there ^ 1 << bit));
        for value in values {
            used(&memory);
            atomic(&memory, at).store(value, Ordering::SeqCst);
            let Some(found) = Journal::recover(&memory, &uuid, &boot) else {
                continue;
            };
            let all = [(2, record(2)), (3, record(3))];
            let has_all = all.iter().all(|entry| found.entries.contains(entry));
            assert!(has_all || found.damaged > 0, "{value:x} at {at}");
        }
    }
    for (from, to) in [(64, 512), (64, 128), (128, 192), (64, 4096), (192, 320)] {
        used(&memory);
        memory.slice(from..to).fill(0);
        let found = Journal::recover(&memory, &uuid, &boot).expect("ours");
        assert!(found.damaged > 0, "{from} to {to}");
    }
}

/// A process that dies between the two stores of a word leaves a journal that counts.
#[test]
fn a_word_counts_with_the_complement_of_the_next_one() {
    let (uuid, boot) = ([1; 16], [2; 16]);
    let memory = Buf::zeroed(JOURNAL_MIN_BYTES);
    for (at, word, entries) in [(AT_HEAD, 4, 3), (AT_TAIL, 2, 2), (AT_POISON, IN_FLIGHT, 2)] {
        used(&memory);
        let mut next = [0; RECORD_BYTES];
        memory.copy_to(entry_offset(capacity_of(&memory), 2), &mut next);
        memory.copy_from(entry_offset(capacity_of(&memory), 3), &next);
        atomic(&memory, at + COMPLEMENT).store(!word, Ordering::SeqCst);
        let found = Journal::recover(&memory, &uuid, &boot).expect("ours");
        assert_eq!((found.damaged, found.entries.len()), (0, entries), "{at}");
        assert_eq!(found.in_flight, at == AT_POISON);
    }
}

#[test]
fn entries_before_the_end_of_a_cut_journal_count() {
    let (uuid, boot) = ([1; 16], [2; 16]);
    let memory = Buf::zeroed(2 * JOURNAL_MIN_BYTES);
    let mut journal = Journal::create(memory.clone(), &uuid, &boot).expect("large enough");
    let capacity = journal.room();
    // The entries pass the end of the ring once.
    for at in 0..capacity + capacity / 4 {
        if journal.room() == 0 {
            journal.trim(journal.head() - capacity / 2);
        }
        journal.append(at, record(at as u32));
    }
    let whole = Journal::recover(&memory, &uuid, &boot).expect("ours");
    assert_eq!((whole.damaged, whole.cut_from_bytes), (0, None));
    for len in [
        JOURNAL_MIN_BYTES,
        JOURNAL_MIN_BYTES + 8192,
        2 * JOURNAL_MIN_BYTES - 64,
    ] {
        let cut = Journal::recover(&memory.slice(0..len), &uuid, &boot).expect("ours");
        let present = capacity_of(&memory.slice(0..len));
        let left: Vec<_> = (whole.entries.iter())
            .filter(|(at, _)| at % capacity < present)
            .copied()
            .collect();
        assert!(
            !left.is_empty() && left.len() < whole.entries.len(),
            "{len}"
        );
        assert_eq!(cut.entries, left, "{len}");
        assert_eq!(
            cut.damaged,
            (whole.entries.len() - left.len()) as u64,
            "{len}"
        );
        assert_eq!(
            cut.cut_from_bytes,
            Some(2 * JOURNAL_MIN_BYTES as u64),
            "{len}"
        );
    }
    // A file that was made longer since has its entries where they were.
    let longer = Buf::zeroed(4 * JOURNAL_MIN_BYTES);
    longer.copy_from(0, &memory.to_vec());
    let found = Journal::recover(&longer, &uuid, &boot).expect("ours");
    assert_eq!((found.entries, found.damaged), (whole.entries, 0));
    assert_eq!(found.cut_from_bytes, None);
}

#[test]
fn a_journal_of_an_earlier_version_counts() {
    let (uuid, boot) = ([1; 16], [2; 16]);
    let memory = Buf::zeroed(JOURNAL_MIN_BYTES);
    used(&memory);
    atomic(&memory, AT_MAGIC).store(MAGIC_BARE, Ordering::SeqCst);
    for at in [AT_HEAD, AT_TAIL, AT_POISON] {
        atomic(&memory, at + COMPLEMENT).store(0, Ordering::SeqCst);
    }
    for at in [AT_REACHED, AT_NEXT, AT_CAPACITY] {
        atomic(&memory, at).store(0, Ordering::SeqCst);
    }
    memory.slice(AT_TIE..AT_NEXT).fill(0);
    let found = Journal::recover(&memory, &uuid, &boot).expect("ours");
    assert_eq!((found.entries.len(), found.damaged), (2, 0));
}

#[test]
fn damage_and_failed_flushes_are_reported() {
    let (uuid, boot) = ([1; 16], [2; 16]);
    let memory = Buf::zeroed(JOURNAL_MIN_BYTES);
    let mut journal = Journal::create(memory.clone(), &uuid, &boot).expect("large enough");
    journal.append(1, record(1));
    journal.append(2, record(2));
    memory.copy_from(ENTRIES + 20, &[0xff]);
    let found = Journal::recover(&memory, &uuid, &boot).expect("ours");
    assert_eq!(found.entries.len(), 1);
    assert_eq!((found.damaged, found.poisoned), (1, false));
    for byte in 0..44 {
        let tie = Tie {
            generation: 3,
            ..Tie::default()
        };
        let tied = Journal::create_tied(memory.clone(), &uuid, &boot, &tie, "/dev/x");
        tied.expect("large enough").append(77, record(1));
        let found = Journal::recover(&memory, &uuid, &boot).expect("ours");
        assert_eq!((found.damaged, found.tie), (0, tie));
        let mut there = [0];
        memory.copy_to(AT_TIE + byte, &mut there);
        memory.copy_from(AT_TIE + byte, &[there[0] ^ 1]);
        let found = Journal::recover(&memory, &uuid, &boot).expect("ours");
        assert!(found.tie.is_damaged && found.damaged == 1, "byte {byte}");
    }
    for bit in 0..64 {
        let mut journal = Journal::create(memory.clone(), &uuid, &boot).expect("large enough");
        journal.reached(77);
        journal.append(77, record(1));
        let word = atomic(&memory, AT_REACHED);
        word.store(word.load(Ordering::SeqCst) ^ 1 << bit, Ordering::SeqCst);
        let found = Journal::recover(&memory, &uuid, &boot).expect("ours");
        assert_eq!((found.damaged, found.reached), (1, 0), "bit {bit}");
        assert_eq!(found.entries.len(), 1);
    }
    let mut journal = Journal::create(memory.clone(), &uuid, &boot).expect("large enough");
    for in_flight in [true, false] {
        journal.poison(in_flight);
        let found = Journal::recover(&memory, &uuid, &boot).expect("ours");
        assert_eq!((found.poisoned, found.in_flight), (true, in_flight));
    }
    // A second call does not make the recorded result worse.
    journal.poison(true);
    Journal::poison_remains(&memory, &uuid, &boot);
    let found = Journal::recover(&memory, &uuid, &boot).expect("ours");
    assert!(found.in_flight && !found.is_partial);
    let mut journal = Journal::create(memory.clone(), &uuid, &boot).expect("large enough");
    journal.append(77, record(1));
    Journal::poison_remains(&memory, &uuid, &boot);
    let found = Journal::recover(&memory, &uuid, &boot).expect("ours");
    assert!(found.poisoned && !found.in_flight && found.is_partial);
    assert_eq!((found.entries.len(), found.damaged), (1, 0));
    let mut journal = Journal::create(memory.clone(), &uuid, &boot).expect("large enough");
    while journal.room() > 0 {
        journal.append(77, record(1));
    }
    let is_partial = || Journal::recover(&memory, &uuid, &boot).is_some_and(|it| it.is_partial);
    assert!(!is_partial());
    journal.poison(false);
    assert!(is_partial());
}
