use forebay_io::sim::Rng;

use super::*;

const SECTORS: u64 = 3 * REGION_SECTORS;

/// The same as a map, one entry a sector.
fn lookup(model: &[Option<Place>], sectors: Range<u64>) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for at in sectors {
        let place = model[at as usize];
        pieces.push(Piece {
            sectors: at..at + 1,
            place,
        });
    }
    pieces
}

fn in_sectors(pieces: Vec<Piece>) -> Vec<Piece> {
    let sector = |piece: &Piece, at: u64| Piece {
        sectors: at..at + 1,
        place: piece.place.map(|it| it.at(at - piece.sectors.start)),
    };
    let split = |piece: Piece| {
        let sectors = piece.sectors.clone();
        sectors
            .map(move |at| sector(&piece, at))
            .collect::<Vec<_>>()
    };
    pieces.into_iter().flat_map(split).collect()
}

#[test]
fn a_map_agrees_with_a_table_of_sectors() {
    for seed in 0..60 {
        let rng = Rng::new(seed);
        let mut map = Map::default();
        let mut clone = (map.clone(), Vec::new());
        let mut model = vec![None; SECTORS as usize];
        let mut live = [0_i64; 8];
        for step in 0..200 {
            let longest = [8, 64, 6000][rng.index(3)];
            let start = rng.below(SECTORS);
            let end = (start + 1 + rng.below(longest)).min(SECTORS);
            let place = (rng.below(4) > 0).then(|| Place {
                object: u32::try_from(rng.below(8)).unwrap(),
                offset: u32::try_from(rng.below(1 << 15)).unwrap(),
            });
            map.replace(start..end, place, |object, sectors| {
                live[object as usize] -= i64::from(sectors);
            });
            for at in start..end {
                model[at as usize] = place.map(|it| it.at(at - start));
            }
            if let Some(place) = place {
                live[place.object as usize] += (end - start) as i64;
            }
            let found = in_sectors(map.pieces(0..SECTORS));
            assert_eq!(found, lookup(&model, 0..SECTORS), "seed {seed} step {step}");
            let part = rng.below(SECTORS)..SECTORS - rng.below(100);
            if part.start < part.end {
                let found = in_sectors(map.pieces(part.clone()));
                assert_eq!(found, lookup(&model, part), "seed {seed} step {step}");
            }
            if step == 100 {
                clone = (map.clone(), model.clone());
            }
        }
        for object in 0..8 {
            let mapped = |it: &&Option<Place>| it.is_some_and(|it| it.object == object);
            let expected = model.iter().filter(mapped).count();
            assert_eq!(live[object as usize], expected as i64);
        }
        assert_eq!(map.sectors(), model.iter().flatten().count() as u64);
        let extents: usize = map.regions().map(|(_, it)| it.len()).sum();
        assert_eq!(map.extents(), extents as u64);
        let found = in_sectors(clone.0.pieces(0..SECTORS));
        assert_eq!(found, lookup(&clone.1, 0..SECTORS), "a clone is constant");
    }
}

#[test]
fn a_sequential_stream_is_one_extent_of_each_region() {
    let mut map = Map::default();
    for at in (0..2 * REGION_SECTORS).step_by(8) {
        let place = Place {
            object: 1,
            offset: u32::try_from(at).unwrap(),
        };
        map.replace(at..at + 8, Some(place), |_, _| panic!("it was a hole"));
    }
    assert_eq!(map.extents(), 2);
}

#[test]
fn a_discard_of_a_sparse_volume_visits_only_its_data() {
    let mut map = Map::default();
    let huge = 1 << 54;
    let place = Place {
        object: 0,
        offset: 0,
    };
    map.replace(huge - 8..huge, Some(place), |_, _| {});
    let mut freed = 0;
    map.replace(0..huge, None, |_, sectors| freed += sectors);
    assert_eq!((freed, map.extents(), map.regions().len()), (8, 0, 0));
}
