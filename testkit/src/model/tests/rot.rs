//! Rot of the media: reads report it until all of it is rewritten.

use super::*;

#[test]
fn rot_is_an_error_that_names_it_until_all_of_it_is_rewritten() {
    let mut bench = Bench::new(Promise::Flush);
    let first = bench.run(FUA);
    bench.model.rot(RANGE);
    assert_eq!(bench.model.unfound_rot(), [RANGE]);
    let error = |kind, place: u64| {
        let what = format!("volume v: 512 bytes at {place} are lost");
        Error::new(kind, what)
    };
    let intent = |offset| Intent {
        op: Op::Read,
        offset,
        len: 512,
    };
    let (there, _) = bench.model.submit(0, intent(0));
    let (beside, _) = bench.model.submit(0, intent(512));
    for (reported, allowed) in [
        (error(ErrorKind::Io, 0), false),
        (error(ErrorKind::Corrupt, 512), false),
        (error(ErrorKind::Corrupt, 0), true),
    ] {
        assert_eq!(
            bench.model.names_rot(&there, &reported),
            allowed,
            "{reported}"
        );
    }
    let elsewhere = error(ErrorKind::Corrupt, 0);
    assert!(!bench.model.names_rot(&beside, &elsewhere));
    assert_eq!(bench.model.unfound_rot(), []);
    assert!(!bench.reads(first), "it was reported lost");
    let second = bench.run(WRITE);
    assert!(!bench.model.has_rot());
    assert!(bench.reads(second));
    bench.model.crash(Loss::Power);
    assert!(bench.model.has_rot(), "the write was not promised");
    let second = bench.run(WRITE);
    bench.run(Op::Flush);
    bench.model.crash(Loss::Power);
    assert!(!bench.model.has_rot());
    assert!(bench.reads(second));
}

#[test]
fn rot_reported_by_a_read_from_before_a_discard_may_be_gone_after_it() {
    let mut bench = Bench::new(Promise::Flush);
    bench.run(FUA);
    bench.model.rot(RANGE);
    let read = Intent {
        op: Op::Read,
        offset: 0,
        len: 512,
    };
    let (slow, _) = bench.model.submit(0, read);
    bench.run(Op::Discard);
    let error = Error::new(ErrorKind::Corrupt, "volume v: 512 bytes at 0 are lost");
    assert!(bench.model.names_rot(&slow, &error));
    assert!(bench.reads(0), "the discard may have ended that");
    let (later, _) = bench.model.submit(0, read);
    assert!(bench.model.names_rot(&later, &error));
    assert!(!bench.reads(0), "it was reported lost");
}
