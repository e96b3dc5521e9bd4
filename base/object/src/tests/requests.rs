//! Requests of all kinds.

use forebay_block::{Allocation, BlockDevice as _, ErrorKind, completion_pair};

use super::*;
use crate::testing::MemoryStore;

#[test]
fn data_are_read_from_memory_and_from_the_store() {
    run(async {
        let store = Rc::new(MemoryStore::new());
        let volume = open(&store, sized(64 * MIB)).await.unwrap();
        // Longer than all batches that are in flight.
        let data = noise(60 * MIB, 1);
        volume.write(4096, data.clone()).await.unwrap();
        volume.write(512, filled(512, 7)).await.unwrap();
        volume.write(MIB, filled(3 * MIB, 8)).await.unwrap();
        let mut expected = vec![0; 64 << 20];
        data.copy_to(0, &mut expected[4096..4096 + (60 << 20)]);
        expected[512..1024].fill(7);
        expected[1 << 20..4 << 20].fill(8);
        for _ in 0..2 {
            let found = read(&volume, 0, 64 * MIB).await.unwrap();
            assert!(found == expected, "different data");
            volume.flush().await.unwrap();
        }
        volume.close().await.unwrap();
        let volume = open(&store, Options::new(Access::Look)).await.unwrap();
        assert!(
            read(&volume, 0, 64 * MIB).await.unwrap() == expected,
            "different data"
        );
        // A read of parts of chunks.
        let found = read(&volume, MIB - 1536, 40960).await.unwrap();
        let at = (1 << 20) - 1536;
        assert_eq!(found, expected[at..at + 40960]);
    });
}

#[test]
fn data_that_compress_are_short_in_the_store() {
    run(async {
        let store = Rc::new(MemoryStore::new());
        let volume = open(&store, sized(8 * MIB)).await.unwrap();
        volume.write(0, filled(4 * MIB, 1)).await.unwrap();
        volume.flush().await.unwrap();
        assert!(volume.usage().stored_bytes < MIB / 16);
        volume.write(0, noise(4 * MIB, 1)).await.unwrap();
        volume.flush().await.unwrap();
        let stored = volume.usage().stored_bytes;
        assert!((4 * MIB..4 * MIB + MIB / 16).contains(&stored), "{stored}");
    });
}

#[test]
fn a_block_that_is_rewritten_before_a_flush_is_uploaded_once() {
    run(async {
        let store = Rc::new(MemoryStore::new());
        let volume = open(&store, sized(MIB)).await.unwrap();
        let before = volume.usage().uploaded_bytes;
        for seed in 0..1000 {
            volume.write(8192, noise(4096, seed)).await.unwrap();
        }
        volume.write(8704, filled(512, 1)).await.unwrap();
        volume.flush().await.unwrap();
        assert!(volume.usage().uploaded_bytes - before < 5000);
        let mut expected = noise(4096, 999).to_vec();
        expected[512..1024].fill(1);
        assert_eq!(read(&volume, 8192, 4096).await.unwrap(), expected);
    });
}

#[test]
fn discards_and_zeroes_read_as_zeroes_and_are_holes() {
    run(async {
        let store = Rc::new(MemoryStore::new());
        let volume = open(&store, sized(64 * MIB)).await.unwrap();
        volume.write(0, filled(4 * MIB, 1)).await.unwrap();
        volume.discard(512, 1024).await.unwrap();
        volume.write_zeroes(MIB, 2 * MIB).await.unwrap();
        let creations = volume.usage().creations;
        volume.flush().await.unwrap();
        for volume in [
            Rc::clone(&volume),
            open(&store, Options::new(Access::Look)).await.unwrap(),
        ] {
            let extents = volume.extents(0..64 * MIB).await.unwrap();
            let found: Vec<_> = extents
                .iter()
                .map(|it| (it.bytes.end, it.allocation))
                .collect();
            let expected = [
                (512, Allocation::Data),
                (1536, Allocation::Hole),
                (MIB, Allocation::Data),
                (3 * MIB, Allocation::Hole),
                (4 * MIB, Allocation::Data),
                (64 * MIB, Allocation::Hole),
            ];
            assert_eq!(found, expected);
            let data = read(&volume, 0, 4 * MIB).await.unwrap();
            let ones = data.iter().filter(|byte| **byte == 1).count() as u64;
            assert_eq!(ones, 2 * MIB - 1024);
            assert_eq!(volume.usage().mapped_bytes, ones);
        }
        assert_eq!(volume.usage().creations, creations + 1);
        // A hole that is discarded needs no object.
        volume.discard(8 * MIB, MIB).await.unwrap();
        volume.flush().await.unwrap();
        assert_eq!(volume.usage().creations, creations + 1);
        let parts = forebay_block::MAX_EXTENTS as u64 + 10;
        for at in 0..parts {
            volume
                .write(16 * MIB + at * 8192, filled(4096, 1))
                .await
                .unwrap();
        }
        let extents = volume.extents(16 * MIB..64 * MIB).await.unwrap();
        assert_eq!(extents.iter().count(), forebay_block::MAX_EXTENTS);
    });
}

#[test]
fn bad_requests_are_refused_by_name() {
    run(async {
        let store = Rc::new(MemoryStore::new());
        let volume = open(&store, sized(MIB)).await.unwrap();
        let kind = |outcome: Result<()>| outcome.unwrap_err().kind();
        assert_eq!(
            kind(volume.write(1, filled(512, 1)).await),
            ErrorKind::InvalidInput
        );
        assert_eq!(
            kind(volume.write(MIB, filled(512, 1)).await),
            ErrorKind::OutOfRange
        );
        assert_eq!(kind(volume.discard(0, 0).await), ErrorKind::InvalidInput);
        volume.close().await.unwrap();
        volume.close().await.unwrap();
        assert_eq!(kind(volume.flush().await), ErrorKind::ShuttingDown);
        assert_eq!(
            kind(volume.write(0, filled(512, 1)).await),
            ErrorKind::ShuttingDown
        );
        let (done, future) = completion_pair();
        volume.submit(forebay_block::Request::read(0, Buf::zeroed(512)), done);
        assert_eq!(kind(future.await), ErrorKind::ShuttingDown);
    });
}

#[test]
fn usage_counts_requests_and_bytes() {
    run(async {
        let store = Rc::new(MemoryStore::new());
        let volume = open(&store, sized(MIB)).await.unwrap();
        let before = volume.usage();
        volume.write(0, noise(65536, 1)).await.unwrap();
        volume.flush().await.unwrap();
        read(&volume, 0, 4096).await.unwrap();
        let after = volume.usage();
        assert_eq!(after.creations - before.creations, 1);
        assert_eq!(after.reads - before.reads, 1);
        assert_eq!(after.downloaded_bytes - before.downloaded_bytes, 32768);
        assert!((65536..66000).contains(&(after.uploaded_bytes - before.uploaded_bytes)));
        assert_eq!((after.mapped_bytes, after.failures), (65536, 0));
        let listed = store.list("log/").await.unwrap();
        let claim_bytes = listed[0].bytes;
        let stored: u64 = listed.iter().map(|it| it.bytes).sum();
        assert_eq!(after.stored_bytes, stored - claim_bytes);
        assert_eq!(after.objects, listed.len() as u64 - 1);
    });
}
