//! Uploaded bytes for each written byte.

use super::*;
use crate::testing::MemoryStore;
use forebay_io::sim::Rng;

/// A volume of 1 GiB with everything 32 times smaller.
fn scaled() -> Limits {
    let limits = Limits::default();
    Limits {
        batch_sectors: limits.batch_sectors / 32,
        checkpoint_bytes: limits.checkpoint_bytes / 32,
        slack_bytes: limits.slack_bytes / 32,
        small_bytes: limits.small_bytes / 32,
        ..limits
    }
}

/// Overwrites a full volume four times, 4 KiB at a time. Returns uploaded bytes for each written
/// byte, and the most stored bytes for each byte of the volume.
fn overwrite(next: impl Fn(u64, u64, &Rng) -> u64 + 'static) -> (f64, f64) {
    run(async move {
        let size = 32 * MIB;
        let store = Rc::new(MemoryStore::new());
        let volume = open_limited(&store, sized(size), scaled()).await.unwrap();
        volume.write(0, noise(size, 1)).await.unwrap();
        volume.flush().await.unwrap();
        let before = volume.usage().uploaded_bytes;
        let rng = Rng::new(2);
        let mut most = 0;
        let blocks = size / 4096;
        for count in 0..4 * blocks {
            let block = next(count, blocks, &rng);
            volume
                .write(block * 4096, noise(4096, count))
                .await
                .unwrap();
            if count % 256 == 255 {
                volume.flush().await.unwrap();
                most = most.max(volume.usage().stored_bytes);
            }
        }
        let uploaded = volume.usage().uploaded_bytes - before;
        (
            uploaded as f64 / (4 * size) as f64,
            most as f64 / size as f64,
        )
    })
}

#[test]
fn random_overwrites_upload_at_most_1_3_times_their_bytes() {
    let (uploaded, stored) = overwrite(|_, blocks, rng| rng.below(blocks));
    assert!((1.0..1.3).contains(&uploaded), "{uploaded}");
    assert!(stored < 2.5, "{stored}");
}

#[test]
fn sequential_overwrites_upload_little_more_than_their_bytes() {
    let (uploaded, stored) = overwrite(|count, blocks, _| count % blocks);
    assert!((1.0..1.05).contains(&uploaded), "{uploaded}");
    assert!(stored < 2.5, "{stored}");
}

#[test]
fn many_flushes_leave_few_objects() {
    run(async {
        let limits = Limits {
            small_bytes: 64 << 10,
            small_objects: 16,
            checkpoint_objects: 32,
            ..scaled()
        };
        let store = Rc::new(MemoryStore::new());
        let volume = open_limited(&store, sized(8 * MIB), limits).await.unwrap();
        for at in 0..1000 {
            volume.write(at * 8192, noise(4096, at)).await.unwrap();
            volume.flush().await.unwrap();
        }
        volume.close().await.unwrap();
        let listed = store.list("log/").await.unwrap().len();
        assert!(listed < 120, "{listed} objects");
        let volume = open(&store, sized(8 * MIB)).await.unwrap();
        for at in 0..1000 {
            let data = read(&volume, at * 8192, 4096).await.unwrap();
            assert_eq!(data, noise(4096, at).to_vec());
        }
    });
}
