//! Properties that hold whatever a guest's rings contain: its other queue is served, and so is the
//! next guest. The seeded test in `hostile.rs` runs it, with reactors on threads;
//! [more](../vhost_user_machine/check.rs) on one thread.

#[allow(
    dead_code,
    reason = "shared with the tests of well-behaved guests, which use more of it"
)]
#[path = "guest.rs"]
pub(crate) mod guest;
#[allow(dead_code, reason = "as above")]
#[path = "target.rs"]
pub(crate) mod target;

use forebay_wire::virtio_blk::{Header, request, status};

use guest::{ENTRIES, Guest, room};
use target::Target;

/// Memory of the chains, and of a descriptor table beside those of the queues.
const PLACE: u16 = 5;

/// Bytes of an input; zeroes after the last.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    fn below(&mut self, below: u16) -> u16 {
        self.word() % below
    }
}

/// Runs a guest that uses its first queue as `input` says. Returns the number of chains returned
/// there.
///
/// # Panics
/// If its second queue is not served, or no guest after it.
pub(crate) fn any_rings(target: &Target, input: &[u8]) -> usize {
    let mut guest = Guest::connect(target.path(), 2, 0);
    let mut script = Script(input);
    let mut back = 0;
    while !script.0.is_empty() {
        step(&mut guest, &mut script);
        while guest.used(0).is_some() {
            back += 1;
        }
    }
    still_served(&mut guest);
    while guest.used(0).is_some() {
        back += 1;
    }
    drop(guest);
    // The disk has one guest at a time: this one waits until all requests of the other have ended.
    still_served(&mut Guest::connect(target.path(), 2, 0));
    back
}

fn still_served(guest: &mut Guest) {
    let read = Header {
        kind: request::IN,
        sector: 0,
    };
    assert_eq!(guest.call(1, read, &[], 512, 512).0, status::OK);
}

fn address(script: &mut Script<'_>) -> u64 {
    match script.byte() % 16 {
        0 => u64::MAX - u64::from(script.below(5000)),
        1 => u64::from(script.word()) << 24 | u64::from(script.word()),
        // Near the end of the memory.
        2 => guest::GUEST + guest::MEMORY_BYTES as u64 - u64::from(script.below(5000)),
        _ => room(PLACE) + u64::from(script.below(3000)),
    }
}

fn step(guest: &mut Guest, script: &mut Script<'_>) {
    const LENS: [u32; 11] = [0, 1, 15, 16, 17, 512, 513, 4096, 1 << 20, 1 << 31, u32::MAX];
    match script.byte() % 16 {
        0..8 => {
            let table = match script.byte() % 3 {
                0 => room(PLACE) + 2048,
                _ => Guest::table(0),
            };
            let first = script.below(ENTRIES);
            let descriptor = (
                address(script),
                LENS[usize::from(script.byte()) % LENS.len()],
                // Usually one of the defined flags.
                u16::from(script.byte() & 7) | u16::from(script.byte() / 255) << 8,
                script.below(ENTRIES + 8),
            );
            guest.describe(table, first, &[descriptor]);
        }
        8..11 => {
            let header = Header {
                kind: u32::from(script.byte() % 16),
                sector: u64::from(script.word()) << (script.byte() % 64),
            };
            guest.put(room(PLACE) + u64::from(script.below(100)), header.encode());
        }
        11 => {
            let number = script.below(64);
            guest.start_request(
                0,
                1,
                Header {
                    kind: u32::from(script.byte() % 16),
                    sector: number.into(),
                },
                (&[], 512, 512),
            );
        }
        12 => guest.set_available(0, script.word()),
        _ => {
            let head = script.below(ENTRIES + 2);
            guest.offer(0, head);
        }
    }
}
