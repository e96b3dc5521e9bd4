//! Guests that violate the rules of rings: they harm only themselves.

use forebay_io::Engine;
use forebay_wire::virtio_blk::{SEGMENT_BYTES, Segment, request, status};

use vhost::VhostBackend as _;

use crate::guest::{Descriptor, ENTRIES, GUEST, Guest, INDIRECT, MEMORY_BYTES, NEXT, WRITE, room};
use crate::rings::any_rings;
use crate::target::{SIZE_BYTES, Target};
use crate::{Draw, header};

/// Checks that the other queue is still served.
fn still_up(guest: &mut Guest) {
    let (done, data) = guest.call(1, header(request::IN, 0), &[], 512, 512);
    assert_eq!((done, data), (status::OK, vec![0; 512]));
}

#[test]
fn chains_that_are_none_are_given_back() {
    let target = Target::start(Engine::Auto);
    let mut guest = Guest::connect(target.path(), 2, 0);
    let base = room(5);
    let (head, data, done) = (base, base + 4096, base + 16);
    let beyond = GUEST + MEMORY_BYTES as u64;
    let indirect = base + 2048;
    guest.put(head, header(request::IN, 0).encode());
    // Returned chains, with the number of written bytes, and the status if there is one.
    let cases: [(&str, &[Descriptor], u32, Option<u8>); 16] = [
        (
            "a loop",
            &[(head, 16, NEXT, 1), (data, 512, NEXT | WRITE, 0)],
            0,
            None,
        ),
        ("itself", &[(head, 16, NEXT, 0)], 0, None),
        ("no such descriptor", &[(head, 16, NEXT, 999)], 0, None),
        ("a header alone", &[(head, 16, 0, 0)], 0, None),
        ("nothing to read", &[(data, 513, WRITE, 0)], 0, None),
        (
            "a short header",
            &[(head, 15, NEXT, 1), (done, 1, WRITE, 0)],
            0,
            None,
        ),
        (
            "written before it is read",
            &[(done, 1, WRITE | NEXT, 1), (head, 16, 0, 0)],
            0,
            None,
        ),
        (
            "no bytes",
            &[(head, 0, NEXT, 1), (done, 0, WRITE, 0)],
            0,
            None,
        ),
        (
            "a header out of memory",
            &[(beyond, 16, NEXT, 1), (done, 1, WRITE, 0)],
            1,
            Some(status::IOERR),
        ),
        (
            "a status out of memory",
            &[
                (head, 16, NEXT, 1),
                (data, 512, NEXT | WRITE, 2),
                (beyond, 1, WRITE, 0),
            ],
            0,
            None,
        ),
        (
            "data that runs out of memory",
            &[
                (head, 16, NEXT, 1),
                (beyond - 256, 512, NEXT | WRITE, 2),
                (done, 1, WRITE, 0),
            ],
            1,
            Some(status::IOERR),
        ),
        (
            "data at the end of addresses",
            &[
                (head, 16, NEXT, 1),
                (u64::MAX - 100, 512, NEXT | WRITE, 2),
                (done, 1, WRITE, 0),
            ],
            1,
            Some(status::IOERR),
        ),
        (
            "half a sector",
            &[
                (head, 16, NEXT, 1),
                (data, 256, NEXT | WRITE, 2),
                (done, 1, WRITE, 0),
            ],
            1,
            Some(status::IOERR),
        ),
        (
            "more than there is",
            &[
                (head, 16, NEXT, 1),
                (data, 0xffff_fe00, NEXT | WRITE, 2),
                (done, 1, WRITE, 0),
            ],
            1,
            Some(status::IOERR),
        ),
        (
            "a table out of memory",
            &[(beyond, 32, INDIRECT, 0)],
            0,
            None,
        ),
        (
            "a table of half descriptors",
            &[(indirect, 24, INDIRECT, 0)],
            0,
            None,
        ),
    ];
    for (what, list, written, status) in cases {
        guest.put(done, [0xff]);
        guest.describe(Guest::table(0), 0, list);
        guest.offer(0, 0);
        assert_eq!(guest.wait(0), (0, written), "{what}");
        assert_eq!(guest.outcome(5, 0).0, status.unwrap_or(0xff), "{what}");
        still_up(&mut guest);
    }
    // A table within a table.
    guest.describe(indirect, 0, &[(indirect, 16, INDIRECT, 0)]);
    guest.describe(Guest::table(0), 0, &[(indirect, 16, INDIRECT, 0)]);
    guest.offer(0, 0);
    assert_eq!(guest.wait(0), (0, 0));
    still_up(&mut guest);
    assert_eq!(target.take_log(), [], "nothing was written");
}

#[test]
fn requests_beyond_the_rules_are_errors() {
    let target = Target::start(Engine::Auto);
    let mut guest = Guest::connect(target.path(), 2, 0);
    let end = SIZE_BYTES / 512;
    for sector in [end, end - 1, u64::MAX, u64::MAX >> 9] {
        let (done, _) = guest.call(0, header(request::IN, sector), &[], 1024, 512);
        assert_eq!(done, status::IOERR, "{sector}");
        let (done, _) = guest.call(0, header(request::OUT, sector), &[1; 1024], 0, 512);
        assert_eq!(done, status::IOERR, "{sector}");
    }
    let segment = |sector, sectors, flags| Segment {
        sector,
        sectors,
        flags,
    };
    for (kind, segment, outcome) in [
        (request::DISCARD, segment(0, 8, 1), status::UNSUPP),
        (request::WRITE_ZEROES, segment(0, 8, 2), status::UNSUPP),
        (request::DISCARD, segment(end, 8, 0), status::IOERR),
        (request::DISCARD, segment(u64::MAX, 8, 0), status::IOERR),
        (
            request::WRITE_ZEROES,
            segment(0, u32::MAX, 0),
            status::IOERR,
        ),
        (request::DISCARD, segment(0, 0, 0), status::OK),
    ] {
        let (done, _) = guest.call(0, header(kind, 0), &segment.encode(), 0, 16);
        assert_eq!(done, outcome, "{segment:?}");
    }
    for len in [1, SEGMENT_BYTES - 1, SEGMENT_BYTES * 33] {
        let (done, _) = guest.call(0, header(request::DISCARD, 0), &vec![0; len], 0, 512);
        assert_eq!(done, status::IOERR, "{len}");
    }
    let (done, _) = guest.call(0, header(request::GET_ID, 0), &[], 19, 512);
    assert_eq!(done, status::IOERR);
    let changed = target.take_log();
    assert!(
        changed.iter().all(|(_, at, len)| at + len > SIZE_BYTES),
        "{changed:?}"
    );
    still_up(&mut guest);
}

#[test]
fn a_ring_that_makes_no_sense_stands_still_alone() {
    let target = Target::start(Engine::Auto);
    let mut guest = Guest::connect(target.path(), 2, 0);
    // More available entries than the ring has.
    guest.set_available(0, ENTRIES * 3);
    for _ in 0..50 {
        still_up(&mut guest);
    }
    // A ring that is too long is refused, and its monitor disconnected.
    let other = Target::start(Engine::Auto);
    let mut guest = Guest::connect(other.path(), 1, 0);
    // This message has no answer; the next one finds the connection closed.
    let _ = guest.monitor.set_vring_num(0, 3000);
    assert!(guest.monitor.get_features().is_err());
    drop(guest);
    guest = Guest::connect(other.path(), 1, 0);
    assert_eq!(
        guest.call(0, header(request::FLUSH, 0), &[], 0, 1).0,
        status::OK
    );
}

#[test]
fn whatever_lies_in_the_rings_others_are_served() {
    let target = Target::start(Engine::Auto);
    let mut draw = Draw(0x1234_5678_9abc);
    let mut back = 0;
    for _ in 0..100 {
        let input: Vec<u8> = (0..400)
            .map(|_| u8::try_from(draw.below(256)).expect("a byte"))
            .collect();
        back += any_rings(&target, &input);
    }
    // The inputs had an effect.
    assert!(back > 500, "{back} chains came back");
}
