use std::time::Duration;

use forebay_block::ErrorKind;
use forebay_io::sim::Rng;

use super::checkpoint::{Encoder, Entry, Tables};
use super::log::{Chunk, Header, Kind, Record};
use super::superblock::Superblock;
use super::*;
use crate::map::{Map, Place};
use crate::testing::{decode_all, repair};

fn superblock() -> Superblock {
    Superblock {
        id: [7; 16],
        size_bytes: 1 << 30,
        time: Duration::from_secs(1_700_000_000),
    }
}

fn header() -> Header {
    let records = [(0, 64, true), (8, 4, false), (1 << 20, 30, true)];
    let record = |(first, sectors, is_data)| Record {
        first,
        sectors,
        is_data,
    };
    Header {
        kind: Kind::Data,
        volume: [7; 16],
        writer: [9; 16],
        epoch: 3,
        seq: 12,
        claim: 5,
        size_bytes: 1 << 30,
        time: Duration::from_millis(1_700_000_000_123),
        snapshot: [1; 16],
        durable_to: Some(9),
        text: "process 4 on host".to_owned(),
        records: records.map(record).to_vec(),
        payload_sectors: 94,
        chunks: vec![Chunk::of(&[1; 32768]), Chunk::of(&[2; 100])],
        crc: 0,
    }
}

fn encoded_header() -> Vec<u8> {
    let mut bytes = Vec::new();
    header().encode_to(&mut bytes);
    bytes
}

fn tables() -> Tables {
    let entry = |seq, payload_sectors, chunks: Vec<Chunk>| Entry {
        seq,
        stored_bytes: 200
            + chunks
                .iter()
                .map(|it| it.stored_bytes() as u32)
                .sum::<u32>(),
        header_bytes: 200,
        payload_sectors,
        chunks,
    };
    Tables {
        volume: [7; 16],
        id: [8; 16],
        epoch: 4,
        seq: 40,
        claim: 30,
        size_bytes: 1 << 30,
        time: Duration::from_millis(1_700_000_000_456),
        name: "before-upgrade".to_owned(),
        claims: vec![1, 30],
        snapshots: vec![[3; 16], [4; 16]],
        entries: vec![
            entry(3, 94, vec![Chunk::of(&[1; 32768]), Chunk::of(&[2; 100])]),
            entry(40, 8, vec![Chunk::of(&[3; 4096])]),
        ],
    }
}

fn map() -> Map {
    let mut map = Map::default();
    let place = |object, offset| Some(Place { object, offset });
    map.replace(4000..4090, place(0, 2), |_, _| {});
    map.replace(4090..4098, place(1, 0), |_, _| {});
    map
}

fn encoded_checkpoint() -> Vec<u8> {
    let mut encoder = Encoder::new(&tables());
    for (index, extents) in map().regions() {
        encoder.push(index, extents.iter().copied());
    }
    encoder.finish().to_vec()
}

#[test]
fn objects_are_decoded_as_they_were_encoded() {
    assert_eq!(
        Superblock::decode(&superblock().encode()).unwrap(),
        superblock()
    );
    let bytes = encoded_header();
    let decoded = Header::decode(&bytes).unwrap();
    assert_ne!(decoded.crc, 0);
    assert_eq!(Header { crc: 0, ..decoded }, header());
    assert_eq!(log::header_bytes(&bytes).unwrap(), bytes.len());
    assert_eq!(header().object_bytes(), bytes.len() as u64 + 32868);
    let bytes = encoded_checkpoint();
    let (decoded, decoded_map) = checkpoint::decode(&bytes).unwrap();
    assert_eq!(decoded, tables());
    assert_eq!(decoded_map.pieces(0..1 << 20), map().pieces(0..1 << 20));
    let end = checkpoint::tables_bytes(&bytes).unwrap() as usize;
    assert_eq!(checkpoint::decode_tables(&bytes[..end]).unwrap(), tables());
}

#[test]
fn every_changed_byte_is_noticed() {
    for good in [
        superblock().encode().to_vec(),
        encoded_header(),
        encoded_checkpoint(),
    ] {
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            assert!(Superblock::decode(&bad).is_err());
            assert!(Header::decode(&bad).is_err());
            assert!(checkpoint::decode(&bad).is_err());
            assert!(decode_all(&good[..at]) <= 1);
        }
    }
}

#[test]
fn changed_fields_with_good_checksums_are_no_panic() {
    let rng = Rng::new(1);
    let mut decoded = [0; 3];
    let goods = [
        superblock().encode().to_vec(),
        encoded_header(),
        encoded_checkpoint(),
    ];
    for _ in 0..60_000 {
        let index = rng.index(3);
        let mut bytes = goods[index].clone();
        for _ in 0..1 + rng.below(3) {
            let at = rng.index(bytes.len());
            match rng.below(4) {
                0 => bytes[at] ^= 1 << rng.below(8),
                1 => bytes[at] = rng.draw() as u8,
                2 => bytes[at] = 0xff,
                _ => bytes.truncate(at.max(8)),
            }
        }
        repair(&mut bytes);
        assert!(decode_all(&bytes) <= 1);
        decoded[0] += u32::from(Superblock::decode(&bytes).is_ok());
        decoded[1] += u32::from(Header::decode(&bytes).is_ok());
        decoded[2] += u32::from(checkpoint::decode(&bytes).is_ok());
    }
    // The checks behind the checksums are reached.
    assert!(decoded.iter().all(|count| *count > 100), "{decoded:?}");
}

#[test]
fn a_newer_version_is_named() {
    let mut bytes = encoded_header();
    bytes[8] = 9;
    repair(&mut bytes);
    let error = Header::decode(&bytes).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.report().contains("version 9"), "{}", error.report());
}

#[test]
fn numbers_that_could_overflow_are_refused() {
    let goods = [
        superblock().encode().to_vec(),
        encoded_header(),
        encoded_checkpoint(),
    ];
    let places = [vec![32], vec![48, 56, 64, 72], vec![48, 56, 64, 72]];
    for (good, places) in goods.into_iter().zip(places) {
        for at in places {
            let mut bytes = good.clone();
            bytes[at..at + 8].fill(0xff);
            repair(&mut bytes);
            assert!(decode_all(&bytes) <= 1);
            assert!(Superblock::decode(&bytes).is_err());
            assert!(Header::decode(&bytes).is_err());
            assert!(checkpoint::decode(&bytes).is_err());
        }
    }
}

#[test]
fn places_in_names_are_exact() {
    assert_eq!(seq_of(&log_name(0x1f)), Some(0x1f));
    assert_eq!(seq_of(&map_name(u64::MAX)), Some(u64::MAX));
    for name in [
        "log/1f",
        "log",
        "log/+00000000000001f",
        "log/00000000000000001f",
    ] {
        assert_eq!(seq_of(name), None, "{name}");
    }
}
