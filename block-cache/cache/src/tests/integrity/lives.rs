//! Checksums over random lives that are cut off under load, and over planted faults.

use super::*;

/// Lives that are cut off under load, by kills and power cuts. Says what the first read met that
/// failed, though nothing rotted.
fn lives(seeds: std::ops::Range<u64>) -> Option<String> {
    for seed in seeds {
        let world = world(seed, 4 << 20, 512);
        let memory = journal();
        for life in 0..4_u64 {
            let memory = match life {
                2 | 3 => journal(),
                _ => memory.clone(),
            };
            let disks = world.disks().to_vec();
            world.set_stop((life > 0).then(|| Stop::AfterIo(20 + seed * 17 % 150)));
            let ended: Outcome<Result<(), String>> = world.run(seed, async move {
                if life == 0 {
                    make_summed(&disks, 8 << 10).await;
                }
                let (cache, _) = open_on_demand(&disks, &memory).await;
                let volume = attach(&cache, &disks, Mode::WriteBack).await;
                let rng = Rng::new(seed * 10 + life);
                if life == 0 {
                    // Nothing is clean, so that no region has a mark for that.
                    volume.write(0, pattern(1, 96 << 10)).await.expect("writes");
                    volume.flush().await.expect("flushes");
                    cache.close().await.expect("closes");
                    return Ok(());
                }
                read_at(&volume, 0, 96 << 10).await?;
                for _ in 0..60 {
                    let at = rng.below(20) * 4096;
                    let len = [512, 4096, 8192][rng.index(3)];
                    let buf = pattern(rng.below(256) as u8, len);
                    volume.write(at, buf).await.expect("writes");
                    if rng.chance(1, 8) {
                        volume.flush().await.expect("flushes");
                    }
                    read_at(&volume, 0, 96 << 10).await?;
                }
                Ok(())
            });
            if let Outcome::Finished(Err(message)) = &ended {
                return Some(message.clone());
            }
            match (life, ended) {
                (_, Outcome::Finished(_)) => {}
                (1, _) => world.crash_power(Keep::Random(seed)),
                _ => world.crash_process(seed),
            }
        }
    }
    None
}

#[test]
fn reads_after_kills_and_power_cuts_report_no_corruption() {
    assert_eq!(lives(0..60), None);
}

/// Corrupts a clean and a dirty granule. Returns the problem found.
fn rots() -> Option<&'static str> {
    let world = world(9, 4 << 20, 512);
    run(&world, async |disks| {
        make_summed(&disks, 32 << 10).await;
        let (cache, _) = open_on_demand(&disks, &journal()).await;
        let volume = attach(&cache, &disks, Mode::WriteBack).await;
        volume.write(0, pattern(1, 4096)).await.expect("writes");
        volume
            .write(64 << 10, pattern(2, 4096))
            .await
            .expect("writes");
        volume.flush().await.expect("flushes");
        disks[0].rot(cell_of(&disks[0], 1), 4096, 1);
        let _ = cache.write_back(None).await;
        if ![[0; 4096], [1; 4096]].contains(&disks[1].peek(0, 4096).try_into().expect("4 KiB")) {
            return Some("it is written back");
        }
        disks[0].rot(cell_of(&disks[0], 2), 4096, 1);
        let _ = cache.write_back(None).await;
        match read_at(&volume, 64 << 10, 4096).await {
            Ok(found) if found != [2; 4096] => Some("it is read"),
            _ => None,
        }
    })
}

#[test]
fn planted_faults_are_found() {
    let finds = |fault: Fault, found: &dyn Fn() -> bool| {
        plant(Some(fault));
        let was_found = found();
        plant(None);
        assert!(was_found, "{fault:?} is not found");
    };
    assert_eq!(rots(), None);
    finds(Fault::WriteCorruptBack, &|| {
        rots() == Some("it is written back")
    });
    finds(Fault::SkipVerify, &|| rots() == Some("it is read"));
    for fault in [Fault::ChecksumBeforeData, Fault::TrustOpen] {
        finds(fault, &|| lives(0..60).is_some());
    }
}
