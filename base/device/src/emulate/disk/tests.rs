use super::*;
use crate::mem::MemDevice;
use forebay_block::{Buf, ErrorKind, IoFuture};
use forebay_io::rt::block_on_simulated;

const SIZE: u64 = 1 << 30;

fn disk() -> Rc<dyn BlockDevice> {
    EmulatedDisk::wrap(MemDevice::new("m", SIZE), DiskProfile::HDD)
}

/// Uniformly random positions, the same each time.
fn places(count: u64) -> impl Iterator<Item = u64> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    (0..count).map(move |_| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % (SIZE / 4096) * 4096
    })
}

/// Virtual time of 4 KiB writes to these positions, at this queue depth.
fn time_for(places: Vec<u64>, depth: usize) -> Duration {
    block_on_simulated(1, async move {
        let (disk, begin) = (disk(), rt::now());
        let mut running: VecDeque<IoFuture> = VecDeque::new();
        for at in places {
            if running.len() == depth {
                running.pop_front().expect("some").await.expect("sound");
            }
            running.push_back(disk.write(at, Buf::zeroed(4096)));
        }
        for io in running {
            io.await.expect("sound");
        }
        rt::now() - begin
    })
}

#[test]
fn random_requests_take_the_average_seek_and_half_a_revolution() {
    let each = time_for(places(2000).collect(), 1) / 2000;
    let declared = Duration::from_micros(8200 + 8333 / 2 + 24);
    let ratio = each.as_secs_f64() / declared.as_secs_f64();
    assert!(
        (0.97..1.03).contains(&ratio),
        "{each:?}, declared are {declared:?}"
    );
}

#[test]
fn a_longer_way_takes_longer() {
    let seek = |to| DiskProfile::HDD.seek_ns(0, to, SIZE);
    assert_eq!(seek(4096), 0, "the same track");
    let ways: Vec<u64> = [2 << 20, 64 << 20, SIZE / 2, SIZE].map(seek).to_vec();
    assert!(ways.is_sorted() && ways[0] > 1_100_000, "{ways:?}");
    assert!((14_000_000..15_000_000).contains(&ways[3]), "{ways:?}");
}

#[test]
fn a_run_moves_at_the_media_rate() {
    let took = time_for((0..4096).map(|block| block * 4096).collect(), 32);
    let declared = Duration::from_secs_f64((4096.0 * 4096.0) / 171e6);
    let ratio = took.as_secs_f64() / declared.as_secs_f64();
    // Ten tracks are crossed.
    assert!(
        (1.0..1.35).contains(&ratio),
        "{took:?}, declared are {declared:?}"
    );
}

#[test]
fn a_queue_is_sorted() {
    let random: Vec<u64> = places(2000).collect();
    let alone = time_for(random.clone(), 1);
    let queued = time_for(random.clone(), 32);
    assert!(queued < alone * 2 / 3, "{queued:?} and {alone:?}");
    let mut sorted = random;
    sorted.sort_unstable();
    let sorted = time_for(sorted, 32);
    assert!(sorted < alone / 5, "{sorted:?} and {alone:?}");
}

#[test]
fn no_request_waits_for_ever() {
    block_on_simulated(1, async {
        let disk = disk();
        let far = disk.write(SIZE - 4096, Buf::zeroed(4096));
        let over = Rc::new(Cell::new(false));
        let seen = Rc::clone(&over);
        rt::spawn(async move {
            far.await.expect("sound");
            seen.set(true);
        });
        let begin = rt::now();
        let mut at = 0;
        // There is always a request for a close position.
        while !over.get() {
            let near: Vec<_> = (0..4)
                .map(|nth| disk.write(at + nth * 4096, Buf::zeroed(4096)))
                .collect();
            for io in near {
                io.await.expect("sound");
            }
            at = (at + (64 << 10)) % (SIZE / 2);
        }
        assert!(
            rt::now() - begin < Duration::from_secs(2),
            "{:?}",
            rt::now() - begin
        );
    });
}

#[test]
fn data_errors_and_words_pass_through() {
    block_on_simulated(1, async {
        let disk = disk();
        disk.write(8192, Buf::copied(&[7; 4096]))
            .await
            .expect("sound");
        let back = Buf::zeroed(4096);
        disk.read(8192, back.clone()).await.expect("sound");
        assert_eq!(back.to_vec(), [7; 4096]);
        let error = disk.read(SIZE, Buf::zeroed(512)).await;
        assert_eq!(
            error.expect_err("past the end").kind(),
            ErrorKind::OutOfRange
        );
        let begin = rt::now();
        disk.flush().await.expect("sound");
        assert_eq!(rt::now(), begin, "nothing waits in a cache");
        let words = disk.info().emulated.expect("says so");
        assert!(
            words.starts_with("emulated: hdd, 1.1 ms track seek"),
            "{words}"
        );
        assert_eq!(DiskProfile::named("hdd"), Some(DiskProfile::HDD));
    });
}
