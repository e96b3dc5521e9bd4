//! Damage of the newest records of the log, or of most of it.

use super::*;

/// Damage to the newest records, or to all of them. After a process death the journal says how far
/// the log reached, after a clean end the superblock does.
#[test]
fn damage_of_the_end_of_the_log_is_reported() {
    for (clean, whole, known) in [
        (false, false, true),
        (true, false, true),
        (false, true, true),
        (true, true, true),
        // Power was lost: nothing records how far the log reached, but volumes are known.
        (false, true, false),
    ] {
        let world = world_with(6, 2 << 20, (20, 200), 1 << 20);
        run(&world, async move |disks| {
            make(&disks, 4096).await;
            let journal = Buf::zeroed(1 << 16);
            let open = async |boot: u8, journal: &Buf| {
                let devices = Devices {
                    data: Rc::new(disks[0].clone()),
                    metadata: None,
                };
                let options = CacheOptions {
                    journal: Some(journal.clone()),
                    accept_journal_loss: true,
                    cleaning: Cleaning::Nop,
                    ..CacheOptions::new([boot; 16])
                };
                Cache::open(devices, options).await.expect("opens")
            };
            let (cache, report) = open(9, &journal).await;
            assert!(report.never_used, "{report:?}");
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            for at in 0..20 {
                volume.write(at * 4096, pattern(1)).await.expect("writes");
                volume.flush().await.expect("flushes");
            }
            let end = cache.engine.committer.log_batch();
            if clean {
                cache.close().await.expect("closes");
            }
            drop((volume, cache));
            let from = if whole { 0 } else { end - 64 };
            disks[0].rot(131_072 + from * 64, (end + 64 - from) * 64, 1000);
            let (cache, report) = match known {
                true => open(9, &journal).await,
                false => open(8, &Buf::zeroed(1 << 16)).await,
            };
            let case = format!("clean {clean}, whole {whole}, known {known}: {report:?}");
            assert!(report.damaged_records > 0 && !report.never_used, "{case}");
            let volume_range = LostRange {
                volume: "v".into(),
                offset: 0,
                len: 1 << 20,
            };
            assert_eq!(report.possible_losses, [volume_range], "{case}");
            // It continues from there.
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            volume.write(0, pattern(3)).await.expect("writes");
            cache.close().await.expect("closes");
            let (cache, _) = open(9, &Buf::zeroed(1 << 16)).await;
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            assert_eq!(read_at(&volume, 0).await, pattern(3).to_vec(), "{case}");
        });
    }
}

/// So many of the newest records are lost that no room would be left behind them. The cache opens
/// with the rest, reports the damage, and continues.
#[test]
fn a_cache_opens_though_most_of_its_log_is_lost() {
    let world = world_with(7, 2 << 20, (20, 200), 4 << 20);
    run(&world, async |disks| {
        make(&disks, 4096).await;
        let journal = Buf::zeroed(1 << 16);
        let (cache, _) = open_with(&disks, journal.clone()).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        let records = cache.engine.committer.log_records();
        let mut written = 0_u64;
        while cache.engine.committer.log_batch() < 3 * records {
            let block = written * 7 % 1024;
            volume
                .write(block * 4096, pattern(1))
                .await
                .expect("writes");
            written += 1;
            if written.is_multiple_of(4) {
                volume.flush().await.expect("flushes");
            }
        }
        let end = cache.engine.committer.log_batch();
        drop((volume, cache));
        for unit in (end - records * 3 / 4..end).step_by(8) {
            disks[0].rot(131_072 + unit % records * 64, 512, 1000);
        }
        for life in 0..2 {
            let (cache, report) = open_with(&disks, journal.clone()).await;
            if life == 0 {
                assert!(report.damaged_records >= records / 2, "{report:?}");
                assert!(!report.possible_losses.is_empty(), "{report:?}");
                assert!(cache.engine.committer.log_batch() < end, "it has room");
            }
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            for block in 0..400 {
                let data = pattern(block as u8);
                volume.write(block * 4096, data).await.expect("writes");
            }
            volume.flush().await.expect("flushes");
            for block in 0..400 {
                assert_eq!(
                    read_at(&volume, block * 4096).await,
                    pattern(block as u8).to_vec()
                );
            }
            cache.close().await.expect("closes");
        }
    });
}
