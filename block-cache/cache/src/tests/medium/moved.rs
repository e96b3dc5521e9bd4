//! A copy that takes the place of a cache whose opening was cut off.

use super::*;

/// A medium with a name as long as they are.
const MOVED: u64 = 0x1234_5678_9abc;

/// A process died between the announcement and the new journal. The copy that takes the place of
/// its devices takes another generation than the original would. The journal is the copy's wherever
/// a process dies.
#[test]
fn a_moved_copy_and_its_original_never_have_one_generation() {
    let differ = |fault: Option<Fault>| {
        run(&World::new(1), async move |_| {
            let backing = TestFile::new(100, 1 << 20);
            let file = formatted(1, 2 << 20).await;
            let journal = Buf::zeroed(1 << 16);
            live(&file, &journal, &backing, 7).await;
            let (file, journal) = dead(&file, &journal);
            let before = Superblock::read(&file).await.expect("sound").service;
            let mut is_announced = 0;
            let mut differ = true;
            for nth in 0.. {
                let (left, copied) = dead(&file, &journal);
                let opened = die_opening(&left, &copied, nth, None).await;
                let left_at = Superblock::read(&left).await.expect("sound").service;
                for second in 0..16 {
                    let (copy, copied) = (left.copy(MOVED), Buf::copied(&copied.to_vec()));
                    die_moving(&copy, &copied, second, fault).await;
                    let (copy, copied) = (copy.copy(MOVED), Buf::copied(&copied.to_vec()));
                    plant(fault);
                    let moved = try_open(&copy, &copied, true, false).await;
                    plant(None);
                    let (moved, _) = moved.expect("the journal is its own");
                    assert_eq!(values(&moved, &backing).await, [7; 8], "{nth}, {second}");
                    // The original would advance by one.
                    let originals = left_at.generation..left_at.generation + 100;
                    differ &= !originals.contains(&moved.service().generation);
                }
                is_announced += u32::from(left_at.generation != before.generation);
                if opened {
                    break;
                }
            }
            assert!(
                is_announced > 1,
                "one superblock says it, and the journal does not"
            );
            differ
        })
    };
    assert!(differ(None));
    assert!(
        !differ(Some(Fault::KeepAnnounced)),
        "a planted fault was missed"
    );
}

/// As [`die_opening`], on devices to which the cache was copied.
async fn die_moving(file: &TestFile, journal: &Buf, nth: u64, fault: Option<Fault>) {
    let options = CacheOptions {
        journal: Some(journal.clone()),
        cleaning: Cleaning::Nop,
        moved: true,
        ..CacheOptions::new(BOOT)
    };
    let limited = Devices {
        data: Rc::new(Limited(file.clone(), Cell::new(nth), RefCell::default())),
        metadata: None,
    };
    plant(fault);
    let opening = Cache::open(limited, options);
    rt::at_most(std::time::Duration::from_millis(100), opening).await;
    plant(None);
}
