//! Content of the memory after its process is gone.

use std::rc::Rc;

use forebay_block::{Basis, BlockDeviceExt, Buf, ErrorKind, Identity, Result};
use forebay_io::rt::{Executor, block_on_simulated};

use super::block;
use super::gate::Gate;
use crate::comparators;
use crate::memory::{Expected, Found, Left, Memory};
use crate::owner::Owner;
use crate::{
    AT_CUT, SlotsLeft, Transit, TransitOptions, cut_at, generations_left, memory_bytes, slots_left,
};

const OWNER: Owner = Owner {
    device: Identity {
        birth: 3,
        ..Identity::of(7)
    },
    device_bytes: 100 * 512,
    boot_id: [1; 16],
    block_bytes: 512,
};

const fn found(slot: u32, block: u64, version: u64) -> Found {
    Found {
        slot,
        block,
        version,
        held: false,
    }
}

/// Opens memory over a device of 100 blocks.
fn open(buf: Buf, owner: Owner, in_use: bool) -> Result<(Memory, Left)> {
    let expected = Expected {
        owner,
        blocks: 100,
        in_use,
        accept_damage: false,
        generation: 0,
        next: 0,
    };
    Memory::open(buf, &expected)
}

#[test]
fn only_whole_blocks_count_and_the_newer_of_two_versions() {
    let bytes = Buf::zeroed(memory_bytes(6, 512));
    let (memory, left) = open(bytes.clone(), OWNER, false).expect("large enough");
    assert_eq!((memory.slots(), left.slots.len()), (6, 0));
    memory.publish(3, 40, 5);
    memory.publish(1, 41, 6);
    memory.publish(0, 40, 7);
    memory.publish(5, 42, 8);
    memory.retire(5);
    // The process ends before slot 3 is retired, and with the data of slot 2 half in.
    memory.data(2).slice(0..100).fill(9);
    let (memory, left) = open(bytes.clone(), OWNER, false).expect("the same");
    assert_eq!(left.slots, [found(1, 41, 6), found(0, 40, 7)]);
    assert!(!left.poisoned);
    memory.retire(0);
    memory.set_poisoned(true);
    let (_, left) = open(bytes.clone(), OWNER, false).expect("the same");
    assert_eq!(
        left.slots,
        [found(1, 41, 6)],
        "the older version did not come back"
    );
    assert!(left.poisoned);
}

#[test]
fn memory_of_another_boot_is_forgotten_and_of_another_device_is_not() {
    let bytes = Buf::zeroed(memory_bytes(6, 512));
    let (memory, _) = open(bytes.clone(), OWNER, false).expect("large enough");
    memory.publish(1, 41, 6);
    let with = |medium, birth| Owner {
        device: Identity {
            birth,
            ..Identity::of(medium)
        },
        ..OWNER
    };
    let other = with(8, 3);
    let larger = Owner {
        block_bytes: 1024,
        ..OWNER
    };
    let left = SlotsLeft {
        device: OWNER.device,
        device_bytes: OWNER.device_bytes,
        blocks: 1,
    };
    assert_eq!(slots_left(&bytes, &[1; 16]), Some(left));
    assert_eq!(slots_left(&bytes, &[2; 16]), None);
    // The file was recreated, and got the old one's number.
    for owner in [other, larger, with(7, 4)] {
        let error = open(bytes.clone(), owner, false).expect_err("not theirs");
        assert_eq!(error.kind(), ErrorKind::Busy, "{error:?}");
    }
    let (_, left) = open(bytes.clone(), with(7, 0), false).expect("as far as is known");
    assert_eq!(left.slots, [found(1, 41, 6)]);
    let later = Owner {
        boot_id: [2; 16],
        ..OWNER
    };
    open(bytes.clone(), later, true).expect_err("in use, and of another boot");
    let (memory, left) = open(bytes.clone(), later, false).expect("another boot");
    assert!(left.slots.is_empty());
    memory.publish(1, 41, 6);
    memory.retire(1);
    open(bytes, other, false).expect("nothing in it counts");
    let error = open(Buf::zeroed(4096 + 600), OWNER, false).expect_err("too small");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn memory_that_was_cut_is_missed_and_given_up_only_in_so_many_words() {
    // With the headers there, and with some of them gone.
    for (slots, intact) in [(64, 4096 + 16 * 64 + 4096), (1024, 4096 + 8 * 1024)] {
        let bytes = Buf::zeroed(memory_bytes(slots, 512));
        let (memory, _) = open(bytes.clone(), OWNER, false).expect("large enough");
        let cut = || Buf::copied(&bytes.slice(0..intact).to_vec());
        if slots == 64 {
            open(cut(), OWNER, false).expect("there was nothing in it");
        }
        memory.publish(1, 41, 6);
        let short = cut();
        for in_use in [false, true] {
            let error = open(short.clone(), OWNER, in_use).expect_err("cut");
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error:?}");
            assert!(error.report().contains("was truncated"), "{error:?}");
        }
        assert_eq!(short.to_vec(), cut().to_vec(), "it is as it was");
        let accepted = Expected {
            owner: OWNER,
            blocks: 100,
            in_use: false,
            accept_damage: true,
            generation: 0,
            next: 0,
        };
        let (_, left) = Memory::open(short.clone(), &accepted).expect("given up");
        assert_eq!((left.slots.len(), left.damaged.len()), (0, 1));
        open(short, OWNER, false).expect("started over");
    }
}

#[test]
fn a_slot_costs_at_most_64_bytes_besides_its_data() {
    for policy in comparators::ALL {
        block_on_simulated(1, async move {
            let gate = Gate::new(8).device();
            let options = TransitOptions {
                policy,
                ..TransitOptions::new("t", [1; 16])
            };
            let memory = Buf::zeroed(memory_bytes(1 << 12, 512));
            let opened = Transit::open(Rc::clone(&gate), gate, memory, options);
            let bytes = opened.expect("large enough").0.stats().slot_bytes;
            eprintln!("{policy}: {bytes} bytes a slot");
            assert!(bytes <= 64, "{policy}: {bytes}");
        });
    }
}

/// The process ends at every byte of every store that a write makes: the next one has the older
/// version or the newer one.
#[test]
fn a_process_that_ends_in_the_middle_of_a_write_leaves_a_whole_block() {
    let bytes = memory_bytes(4, 512);
    let memory = Buf::zeroed(bytes);
    let executor = Executor::simulated(1);
    let entered = executor.enter();
    let gate = Gate::new(8);
    let options = || TransitOptions {
        policy: comparators::LRU,
        ..TransitOptions::new("t", [1; 16])
    };
    let (cache, _) =
        Transit::open(gate.device(), gate.device(), memory.clone(), options()).expect("opens");
    drop(cache.write(0, block(1)));
    let before = memory.to_vec();
    drop(cache.write(0, block(2)));
    let after = memory.to_vec();
    // The visible stores: first the data, then the header that makes it count, then the older
    // slot's header. That is the order of `Core::place`.
    let changed: Vec<usize> = (0..bytes).filter(|&at| before[at] != after[at]).collect();
    let (headers, data): (Vec<usize>, Vec<usize>) = changed.iter().partition(|&&at| at < 4096 * 2);
    assert!(data.len() == 512 && headers.len() >= 2, "{headers:?}");
    let (new, old): (Vec<usize>, Vec<usize>) = headers.iter().partition(|&&at| before[at] == 0);
    let order: Vec<usize> = [data, new, old].concat();
    let mut versions = [0, 0];
    for stop in 0..=order.len() {
        let mut torn = before.clone();
        for &at in &order[..stop] {
            torn[at] = after[at];
        }
        let (cache, found) =
            Transit::open(gate.device(), gate.device(), Buf::copied(&torn), options())
                .expect("opens");
        assert_eq!(found.blocks, 1);
        let buf = block(0);
        let read = cache.read(0, buf.clone());
        drop(read);
        let seen = buf.to_vec();
        assert!(seen.iter().all(|byte| *byte == seen[0]), "torn at {stop}");
        versions[usize::from(seen[0]) - 1] += 1;
    }
    assert!(versions[0] > 500 && versions[1] > 0, "{versions:?}");
    executor.clear();
    drop(entered);
}

/// Detectable damage of a header is refused, and nothing is changed then. If the damage is given
/// up, only the blocks that it may concern are lost.
#[test]
fn slots_that_no_process_leaves_are_refused() {
    type Headers = &'static [(u32, u64, u64)];
    // By header: a block, and a version.
    let damaged: [(&str, Headers); 7] = [
        ("block 100 of a device of 100", &[(2, 100, 3)]),
        (
            "block 4207332156227190784",
            &[(2, 4_207_332_156_227_190_784, 3)],
        ),
        ("in version 0x8000000000000000", &[(2, 42, 1 << 63)]),
        ("in version 0x100000000000003", &[(2, 42, (1 << 56) + 3)]),
        ("(in one version)", &[(2, 42, 3), (4, 43, 3)]),
        ("(of one block)", &[(2, 42, 3), (4, 42, 4)]),
        ("(of one block)", &[(2, 42, 3), (4, 42, 4), (5, 42, 5)]),
    ];
    for (words, slots) in damaged {
        let bytes = Buf::zeroed(memory_bytes(8, 512));
        let (memory, _) = open(bytes.clone(), OWNER, false).expect("large enough");
        memory.publish(0, 40, 1);
        // The last of all, but where three hold one block.
        let last = if slots.len() == 3 { 2 } else { 9 };
        memory.publish(1, 41, last);
        for (slot, block, version) in slots {
            memory.publish(*slot, *block, *version);
        }
        let before = bytes.to_vec();
        let error = open(bytes.clone(), OWNER, true).expect_err(words);
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.report().contains(words), "{words}: {error:?}");
        assert!(bytes.to_vec() == before, "{words}: it was changed");
        let left = slots_left(&bytes, &[1; 16]);
        assert!(left.is_some_and(|left| left.blocks > 2), "{words}");
        let expected = Expected {
            owner: OWNER,
            blocks: 100,
            in_use: true,
            accept_damage: true,
            generation: 0,
            next: 0,
        };
        let (_, left) = Memory::open(bytes.clone(), &expected).expect("accepted");
        assert_eq!(left.slots, [found(0, 40, 1), found(1, 41, last)], "{words}");
        assert_eq!(left.damaged.len(), 1);
        let (_, left) = open(bytes, OWNER, true).expect("it is gone");
        assert!(left.damaged.is_empty());
    }
}

/// Slots are those of the last opening, wherever its process died, or of an earlier one.
#[test]
fn slots_of_an_earlier_opening_are_refused_and_never_sent_on() {
    let open = |buf: &Buf, generation, next, accept_damage| {
        let expected = Expected {
            owner: OWNER,
            blocks: 100,
            in_use: false,
            accept_damage,
            generation,
            next,
        };
        Memory::open(buf.clone(), &expected)
    };
    let bytes = Buf::zeroed(memory_bytes(6, 512));
    let (memory, _) = open(&bytes, 4, 5, false).expect("large enough");
    memory.publish(1, 41, 6);
    let unnoted = Buf::copied(&bytes.to_vec());
    memory.take_generation();
    let (before, counts) = (bytes.to_vec(), |buf: &Buf, generation| {
        let buf = Buf::copied(&buf.to_vec());
        let opened = open(&buf, generation, generation + 1, false);
        opened
            .map(|(_, left)| left.slots.len())
            .map_err(|error| error.kind())
    });
    // The process died before, or after, the next generation was noted.
    for generation in [0, 4, 5] {
        assert_eq!(counts(&unnoted, generation), Ok(1), "{generation}");
    }
    // The state directory may be an older one, or another.
    for generation in [0, 3, 5] {
        assert_eq!(counts(&bytes, generation), Ok(1), "{generation}");
    }
    for (buf, generation) in [(&unnoted, 6), (&bytes, 6), (&bytes, 7)] {
        assert_eq!(counts(buf, generation), Err(ErrorKind::InvalidInput));
        let error = open(buf, generation, generation + 1, true).expect_err("whatever is accepted");
        assert!(
            error
                .report()
                .contains("older than data that the device was sent"),
            "{error:?}"
        );
    }
    assert!(bytes.to_vec() == before, "they are as they were");
    assert_eq!(generations_left(&bytes, &[1; 16]), Some([5, 0]));
    // Empty slots belong to no device.
    memory.retire(1);
    assert_eq!(counts(&bytes, 7), Ok(0));
}

/// Blocks in the truncated part of the slots' file are lost by name, and the rest is not.
#[test]
fn of_slots_whose_file_was_cut_the_rest_is_sent_on() {
    let bytes = memory_bytes(16, 512);
    // The data of slots 4 to 15, of the last, and all of it; and headers.
    let data = |slot: u64| 4096 + 4096 + slot * 512;
    for (hole, missing) in [
        (data(4)..bytes as u64, &[40, 41][..]),
        (data(15)..bytes as u64, &[41]),
        (data(0)..bytes as u64, &[39, 40, 41]),
        // And headers, with all that is behind them.
        (4096 + 16 * 9..bytes as u64, &[39, 40, 41]),
    ] {
        let buf = Buf::zeroed(bytes);
        let (memory, _) = open(buf.clone(), OWNER, false).expect("large enough");
        for (slot, block) in [(0, 39), (4, 40), (15, 41)] {
            memory.publish(slot, block, block);
        }
        let expected = |accept_damage| Expected {
            owner: OWNER,
            blocks: 100,
            in_use: true,
            accept_damage,
            generation: 0,
            next: 1,
        };
        let (page, headers) = (buf.slice(0..4096).to_vec(), buf.slice(4096..4352).to_vec());
        let cut = cut_at(&page, &headers, std::slice::from_ref(&hole));
        buf.copy_from(AT_CUT, &cut.expect("some is gone").to_le_bytes());
        let before = buf.to_vec();
        let error = Memory::open(buf.clone(), &expected(false)).expect_err("cut");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(buf.to_vec() == before, "it is as it was");
        let (_, left) = Memory::open(buf, &expected(true)).expect("given up");
        let headers = usize::from(hole.start < 8192);
        assert_eq!(
            left.damaged.len(),
            missing.len() + headers,
            "{:?}",
            left.damaged
        );
        for block in missing {
            let named = format!("block {block}, which was truncated");
            assert!(
                left.damaged.iter().any(|words| words.contains(&named)),
                "{named}"
            );
        }
        assert_eq!(left.slots.len(), 3 - missing.len());
    }
}

/// A device in the place of another, without a name of its own, is another one. Where less is
/// known, that speaks against nothing.
#[test]
fn slots_of_a_device_that_was_exchanged_are_not_the_new_ones() {
    let owner = |instance, device_bytes, basis| Owner {
        device: Identity {
            instance,
            basis,
            ..Identity::of(7)
        },
        device_bytes,
        ..OWNER
    };
    let boot = |count: u64| 9 << 32 | count;
    let place = |instance, blocks: u64| owner(instance, blocks * 512, Basis::Place);
    for (former, now, is_same) in [
        (place(boot(1), 100), place(boot(1), 100), true),
        (place(boot(1), 100), place(boot(2), 100), false),
        // It has grown in its place.
        (place(boot(1), 100), place(boot(1), 200), true),
        (place(0, 100), place(0, 100), true),
        (place(0, 100), place(0, 200), false),
        (place(0, 100), place(boot(1), 200), false),
        // An earlier version recorded neither.
        (place(0, 0), place(boot(1), 200), true),
        // One with a name is the same, however large.
        (
            owner(0, 51200, Basis::Name),
            owner(0, 102_400, Basis::Name),
            true,
        ),
    ] {
        let what = format!("{former:?} {now:?}");
        let bytes = Buf::zeroed(memory_bytes(6, 512));
        let (memory, _) = open(bytes.clone(), former, false).expect("large enough");
        memory.publish(1, 41, 6);
        let left = slots_left(&bytes, &[1; 16]).expect("left");
        let replaced = left.is_replaced_by(now.device, now.device_bytes);
        assert_eq!(replaced, !is_same, "{what}");
        let opened = open(bytes.clone(), now, false).map(|(_, left)| left.slots.len());
        match is_same {
            true => {
                assert_eq!(opened.expect("its own"), 1, "{what}");
                let left = slots_left(&bytes, &[1; 16]).expect("left");
                let noted = (left.device.instance, left.device_bytes);
                assert_eq!(noted, (now.device.instance, now.device_bytes), "{what}");
            }
            false => {
                let error = opened.expect_err("another's");
                assert_eq!(error.kind(), ErrorKind::Busy, "{what}");
                memory.retire(1);
                open(bytes, now, false).expect("nothing in it counts");
            }
        }
    }
}
