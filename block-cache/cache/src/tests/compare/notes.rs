//! Notes in the superblock of data that an earlier process failed to write. A note stays until all
//! of that data was rewritten.

use std::time::Duration;

use forebay_block::Request;
use forebay_io::sim::Trouble;
use forebay_metadata::superblock::Superblock;

use super::*;

#[test]
fn data_lost_in_an_earlier_process_is_rewritten_though_it_compares_equal() {
    const AT: u64 = 6 * BLOCK + GRANULE;
    let shows = |disk| {
        Rc::new(Showing {
            disk,
            shown: (AT, 2),
        }) as Rc<dyn BlockDevice>
    };
    for (fault, expected) in [(None, 2), (Some(Fault::ForgetFailure), 1)] {
        let world = crashed(AT);
        world.disks()[1].set_faults(FaultPlan {
            fail_nth: Some((OpClass::Flush, 2)),
            ..FaultPlan::default()
        });
        // Its flush fails, and then it loses power.
        run(&world, async move |disks| {
            plant(fault);
            let options = CacheOptions::new([10; 16]);
            let (cache, _) = (Cache::open(devices(&disks), options).await).expect("opens");
            attach(&cache, &disks, Mode::WriteBack).await;
            while cache.stats().write_back_errors == 0 {
                rt::sleep(Duration::from_millis(1)).await;
            }
            plant(None);
        });
        world.crash_power(Keep::None);
        recovered_in(11, &world, shows, None);
        assert_eq!(world.disks()[1].peek(AT, 1)[0], expected, "{fault:?}");
    }
    for (fault, expected) in [(None, 2), (Some(Fault::CompareAfterProcessDeath), 1)] {
        let world = killed(AT);
        recovered_in(9, &world, shows, fault);
        assert_eq!(world.disks()[1].peek(AT, 1)[0], expected, "{fault:?}");
    }
    // The process that rewrote the data lost power before the rewrite was durable. The earlier
    // process death is not forgotten.
    let world = killed(AT);
    run(&world, async |disks| {
        let options = CacheOptions {
            accept_journal_loss: true,
            cleaning: Cleaning::Nop,
            ..CacheOptions::new([9; 16])
        };
        let (cache, _) = (Cache::open(devices(&disks), options).await).expect("opens");
        attach(&cache, &disks, Mode::WriteBack).await;
    });
    world.crash_power(Keep::None);
    recovered_in(10, &world, shows, None);
    assert_eq!(world.disks()[1].peek(AT, 1)[0], 2);
}

/// Whether the superblock says of a volume that its backing device may show what it has lost.
async fn noted(disks: &[SimDisk], name: &str) -> bool {
    let superblock = Superblock::read(&disks[0]).await.expect("sound");
    let mut volumes = superblock.volumes.iter();
    volumes
        .find(|volume| volume.name == name)
        .expect("it is known")
        .may_show_lost
}

/// The note of a failure goes when all data that it may concern was rewritten. Then comparisons are
/// made.
#[test]
fn the_note_of_a_failure_goes_when_nothing_is_left_of_it() {
    const AT: u64 = 4 * BLOCK + GRANULE;
    let world = killed(AT);
    run(&world, async move |disks| {
        let options = CacheOptions {
            accept_journal_loss: true,
            ..CacheOptions::new([9; 16])
        };
        let (cache, _) = (Cache::open(devices(&disks), options).await).expect("opens");
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        assert!(noted(&disks, "v").await, "the process before it died");
        while cache.stats().dirty_blocks > 0 {
            rt::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(cache.stats().recovery.compared_bytes, 0);
        rt::sleep(Duration::from_secs(60)).await;
        assert!(!noted(&disks, "v").await);
        cache.set_cleaning(Cleaning::Nop);
        write(&volume, AT, 3).await;
        volume.flush().await.expect("flushes");
    });
    world.crash_power(Keep::None);
    let stats = recovered(&world, itself, None);
    // Its record may have been written behind the last write, and then calls that dirty.
    assert!(stats.recovery.compared_bytes >= BLOCKS * BLOCK - GRANULE);
    assert_eq!(stats.write_back_bytes, GRANULE);
    assert_eq!(world.disks()[1].peek(AT, 1)[0], 3);
}

/// Two volumes have such a note. While that of the first is taken back on media, a write to the
/// second one's backing device fails: its own stays.
#[test]
fn a_failure_while_another_note_is_taken_back_is_not_forgotten() {
    let mut world = killed(4 * BLOCK);
    world.add_disk(&config("other", VOLUME_BYTES, 512));
    run(&world, async move |disks| {
        let options = CacheOptions {
            accept_journal_loss: true,
            cleaning: Cleaning::Nop,
            ..CacheOptions::new([9; 16])
        };
        let (cache, _) = (Cache::open(devices(&disks), options).await).expect("opens");
        attach(&cache, &disks, Mode::WriteBack).await;
        let device: Rc<dyn BlockDevice> = Rc::new(disks[2].clone());
        let options = VolumeOptions::new(Mode::PassThrough);
        let other = (cache.attach("w", Rc::clone(&device), options).await).expect("attaches");
        assert!(noted(&disks, "v").await && noted(&disks, "w").await);
        // A write that is going to fail, and does not end yet.
        disks[2].set_faults(FaultPlan {
            fail_nth: Some((OpClass::Write, 1)),
            from_nth: Some((1, Trouble::Stalls(1_000_000_000))),
            ..FaultPlan::default()
        });
        let failing = other.start(Request::write(0, Buf::zeroed(512), false));
        cache.write_back(Some("v")).await.expect("writes back");
        assert_eq!(disks[2].counters().failed, 1, "it is under way");
        let first = cache.engine.volumes.named("v").expect("attached");
        while first.may_show_lost() {
            rt::sleep(Duration::from_micros(10)).await;
        }
        // In memory it has gone, on media it has not.
        disks[2].set_faults(FaultPlan::default());
        failing.await.expect_err("it fails");
        let entry = cache.engine.superblock.current().volumes[0].clone();
        assert!(entry.name == "v" && entry.may_show_lost, "{entry:?}");
        rt::sleep(Duration::from_secs(60)).await;
        assert!(!noted(&disks, "v").await);
        assert!(noted(&disks, "w").await, "its device may show what it lost");
    });
}
