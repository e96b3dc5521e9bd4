//! Which part of a request lies where.

use super::*;

const K: u32 = 1 << 10;

fn geometry(sizes_bytes: &[u32]) -> Geometry {
    let sizes: Vec<u64> = sizes_bytes.iter().map(|size| u64::from(*size)).collect();
    Geometry::new(BlockSizes::new(&sizes).expect("right"), 0)
}

fn piece(start: u32, end: u32) -> Piece {
    let block = Block { unit: 0, class: 0 };
    Piece { block, start, end }
}

#[test]
fn granules_of_regions_and_blocks() {
    let even = geometry(&[32 * K, 256 * K]);
    let (second, whole) = (Span { first: 1, class: 0 }, Span { first: 0, class: 3 });
    assert_eq!(even.spread(0b101, second, Spread::All), 0b101 << 8);
    assert_eq!(even.spread(u64::MAX, whole, Spread::Any), u64::MAX);
    assert_eq!(even.gather(0xff00, second), 0xff);
    assert_eq!(even.covers(second), 0xff << 8);
    assert_eq!(even.granules_of_units(0b1000_0010), 0xff << 8 | 0xff << 56);
    // 1 MiB in 64 granules of 16 KiB, of which a block of 32 KiB has two, with four of its own
    // each.
    let coarse = geometry(&[32 * K, 1 << 20]);
    assert_eq!(coarse.region_granule_bytes(), 16 << 10);
    assert_eq!(coarse.spread(0b1111_0001, second, Spread::All), 0b10 << 2);
    assert_eq!(coarse.spread(0b1111_0001, second, Spread::Any), 0b11 << 2);
    assert_eq!(coarse.gather(0b1000, second), 0xf0);
    assert_eq!(coarse.covers(second), 0b11 << 2);
    let part = Extent {
        region: 0,
        start: 17 * K,
        end: 33 * K,
    };
    assert_eq!(coarse.region_granules(&part), 0b110);
}

#[test]
fn requests_are_cut_at_regions_and_blocks() {
    let fixed = geometry(&[32 * K]);
    let parts: Vec<_> = fixed.parts(40 << 10, 60 << 10).collect();
    let expected = [(1, 8 * K, 32 * K), (2, 0, 32 * K), (3, 0, 4 * K)]
        .map(|(region, start, end)| Extent { region, start, end });
    assert_eq!(parts, expected);
    let several = geometry(&[32 * K, 64 * K, 128 * K, 256 * K]);
    let part = several
        .single_part(256 << 10, 100 << 10)
        .expect("one region");
    assert_eq!((part.region, several.units(&part)), (1, 0b1111));
    let piece = several.piece(&part, Span { first: 2, class: 1 });
    let block = Block { unit: 10, class: 1 };
    let expected = Piece {
        block,
        start: 0,
        end: 36 * K,
    };
    assert_eq!(piece, expected);
    assert_eq!(several.backing_offset(block, 1), (320 << 10) + 1);
    assert_eq!(several.span(block), Span { first: 2, class: 1 });
    assert_eq!(several.single_part(255 << 10, 2 << 10), None);
}

#[test]
fn granules_are_touched_and_covered() {
    let fixed = geometry(&[32 * K]);
    assert_eq!(fixed.touched(&piece(512, 8192)), 0b11);
    assert_eq!(fixed.covered(&piece(512, 8192), 32768), 0b10);
    assert_eq!(fixed.covered(&piece(0, 5120), 5120), 0b11);
    assert_eq!(fixed.covered(&piece(512, 1024), 32768), 0);
    let large = geometry(&[1 << 20]);
    assert_eq!(large.granule_bytes(0), 16 << 10);
    assert_eq!(large.touched(&piece(0, 1 << 20)), u64::MAX);
    assert_eq!(large.covered(&piece(0, 1 << 20), 1 << 20), u64::MAX);
    assert_eq!(geometry(&[4 * K]).touched(&piece(0, 4096)), 1);
    let several = geometry(&[32 * K, 1 << 20]);
    assert_eq!((several.granules(0), several.granules(5)), (8, 64));
}

#[test]
fn runs_are_byte_ranges() {
    let fixed = geometry(&[32 * K]);
    let runs: Vec<_> = fixed.runs(0, 0b1101_1000, 13_000..31_000).collect();
    assert_eq!(runs, [13_000..20_480, 24_576..31_000]);
    let all: Vec<_> = geometry(&[1 << 20]).runs(0, u64::MAX, 0..1 << 20).collect();
    assert_eq!((all.len(), all[0].clone()), (1, 0..1 << 20));
}
