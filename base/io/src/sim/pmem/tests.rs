use super::*;

const SIZE: u64 = 4 * PAGE_BYTES;

/// The values that a word has after crashes with 64 seeds.
fn after_crashes(memory: &SimPmem, offset: u64) -> BTreeSet<u64> {
    (0..64)
        .map(|seed| memory.crash(Survival::Random(seed)).load_u64(offset))
        .collect()
}

fn set<const N: usize>(values: [u64; N]) -> BTreeSet<u64> {
    values.into()
}

#[test]
fn only_flushed_and_then_fenced_stores_are_durable() {
    let memory = SimPmem::new(SIZE);
    memory.store_u64(128, 1);
    assert_eq!(memory.load_u64(128), 1, "seen at once");
    assert_eq!(after_crashes(&memory, 128), set([0, 1]));
    memory.fence();
    assert_eq!(after_crashes(&memory, 128), set([0, 1]), "not flushed");
    memory.flush(128, 8);
    assert_eq!(after_crashes(&memory, 128), set([0, 1]), "not fenced");
    memory.store_u64(128, 2);
    memory.fence();
    assert_eq!(after_crashes(&memory, 128), set([1, 2]), "flushed before");
    memory.flush(185, 1);
    memory.fence();
    assert_eq!(after_crashes(&memory, 128), set([2]), "one line");
    assert_eq!(memory.undurable_words(), 0);
    let counts = memory.counts();
    assert_eq!(
        (counts.stores, counts.flushed_lines, counts.fences),
        (2, 2, 3)
    );
}

#[test]
fn pieces_of_eight_bytes_survive_on_their_own_and_keep_their_order() {
    let memory = SimPmem::new(SIZE);
    memory.store_u32(0, 1);
    memory.store_u32(4, 2);
    memory.store_u64(8, 3);
    let both = 2 << 32 | 1;
    assert_eq!(
        after_crashes(&memory, 0),
        set([0, 1, both]),
        "never the second alone"
    );
    let seen: BTreeSet<_> = (0..64)
        .map(|seed| {
            let after = memory.crash(Survival::Random(seed));
            (after.load_u64(0) == both, after.load_u64(8) == 3)
        })
        .collect();
    assert_eq!(seen.len(), 4, "words of one line are independent");
    let crash = |survival| {
        let after = memory.crash(survival);
        (after.load_u64(0), after.load_u64(8))
    };
    assert_eq!(crash(Survival::None), (0, 0));
    assert_eq!(crash(Survival::All), (both, 3));
    assert_eq!(crash(Survival::Only(1)), (0, 3));
    assert_eq!(crash(Survival::AllBut(1)), (both, 0));
}

#[test]
fn a_stream_needs_a_fence_and_no_flush() {
    let memory = SimPmem::new(SIZE);
    let block: Vec<u8> = (0..128).collect();
    memory.stream(64, &Buf::copied(&block));
    let first = u64::from_le_bytes(block[..8].try_into().expect("8 bytes"));
    assert_eq!(after_crashes(&memory, 64), set([0, first]));
    memory.fence();
    assert_eq!(after_crashes(&memory, 64), set([first]));
    let back = Buf::zeroed(13);
    memory.read(70, &back).expect("sound");
    assert_eq!(back.to_vec(), block[6..19]);
}

#[test]
fn a_fence_covers_flushes_of_its_own_strand_only() {
    let memory = SimPmem::new(SIZE);
    memory.store_u64(0, 1);
    memory.flush(0, 8);
    memory.set_strand(1);
    memory.fence();
    assert_eq!(after_crashes(&memory, 0), set([0, 1]), "another's flush");
    memory.store_u64(0, 2);
    memory.flush(0, 8);
    memory.fence();
    assert_eq!(after_crashes(&memory, 0), set([2]));
    memory.store_u64(0, 3);
    memory.set_strand(0);
    memory.fence();
    assert_eq!(
        after_crashes(&memory, 0),
        set([2, 3]),
        "flushed before 3 was"
    );
}

#[test]
fn the_observer_sees_steps_before_they_happen() {
    let memory = SimPmem::new(SIZE);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    memory.observe(Some(Arc::new(move |memory: &SimPmem, step| {
        let durable = memory.crash(Survival::None).load_u64(0);
        log.lock().expect("one thread").push((step, durable));
    })));
    memory.store_u64(0, 7);
    memory.flush(0, 8);
    memory.fence();
    memory.observe(None);
    memory.fence();
    let seen = seen.lock().expect("one thread").clone();
    let steps = [PmemStep::Store, PmemStep::Flush, PmemStep::Fence];
    assert_eq!(seen, steps.map(|step| (step, 0)));
    assert_eq!(memory.crash(Survival::None).load_u64(0), 7);
}

#[test]
fn a_place_can_be_left_out() {
    let run = |left_out: Option<PmemSite>| {
        let memory = SimPmem::new(SIZE);
        if let Some(site) = left_out {
            memory.leave_out(site);
        }
        memory.store_u64(0, 7);
        memory.flush(0, 8);
        memory.fence();
        memory
    };
    let sites = run(None).sites();
    assert_eq!(sites.len(), 2);
    for site in sites {
        assert_eq!(after_crashes(&run(Some(site)), 0), set([0, 7]), "{site:?}");
    }
}

#[test]
fn spoiled_lines_fail_until_they_are_streamed_over_and_rot_is_silent() {
    let memory = SimPmem::new(SIZE);
    memory.spoil(130, 2);
    let read = |offset| memory.read(offset, &Buf::zeroed(64)).is_ok();
    assert!(read(64) && !read(128) && !read(100) && read(192));
    assert!(
        memory
            .crash(Survival::None)
            .read(128, &Buf::zeroed(1))
            .is_err()
    );
    memory.stream(128, &Buf::zeroed(64));
    assert!(read(128));
    memory.rot(133, 1);
    assert_eq!(memory.load_u64(128), 2 << 40);
    assert_eq!(memory.crash(Survival::None).load_u64(128), 2 << 40);
}
