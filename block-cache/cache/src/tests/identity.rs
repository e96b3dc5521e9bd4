//! Another backing device under a volume's name, and another name for a backing device.

use forebay_block::{Completion, DeviceInfo, Identity, Request, Result};

use super::*;

/// Returns the device of this number, whose file has no known birth time.
const fn medium(number: u64) -> Identity {
    Identity::of(number)
}

/// The device 1, made at this time.
const fn born(birth: u64) -> Identity {
    Identity {
        birth,
        ..Identity::of(1)
    }
}

/// A device that says who it is.
struct Known(SimDisk, Identity);

impl BlockDevice for Known {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            identity: self.1,
            ..self.0.info()
        }
    }

    fn submit(&self, request: Request, done: Completion) {
        self.0.submit(request, done);
    }
}

async fn attach_as(
    cache: &Cache,
    disk: &SimDisk,
    name: &str,
    identity: Identity,
    adopt: bool,
) -> Result<Rc<dyn BlockDevice>> {
    let options = VolumeOptions {
        adopt,
        ..VolumeOptions::new(Mode::WriteBack)
    };
    let backing = Rc::new(Known(disk.clone(), identity));
    cache.attach(name, backing, options).await
}

/// A volume `v` on the device 1 with its first block cached, and whether that is dirty; then it is
/// closed.
async fn prepare(disks: &[SimDisk], dirty: bool) {
    let (cache, _) = open(disks, Durability::Sync).await;
    let volume = attach_as(&cache, &disks[1], "v", born(5), false)
        .await
        .expect("attaches");
    volume
        .write(0, Buf::copied(&[7; 4096]))
        .await
        .expect("writes");
    if !dirty {
        cache.write_back(None).await.expect("written back");
    }
    cache.close().await.expect("closes");
}

fn refused(result: Result<Rc<dyn BlockDevice>>, named: &str) {
    let Err(error) = result else {
        panic!("dirty data of one device was attached to another");
    };
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.report().contains(named), "{}", error.report());
}

#[test]
fn dirty_data_goes_to_its_own_device_only() {
    run(&world(3, 2 << 20, 512), async |disks| {
        make(&disks, 4096).await;
        prepare(&disks, true).await;
        let devices = Devices {
            data: Rc::new(disks[0].clone()),
            metadata: None,
        };
        let found = crate::inspect(&devices, None, &[1; 16]).await;
        let found = found.expect("sound");
        for (name, identity, may) in [
            ("v", born(5), true),
            ("v", medium(1), true),
            ("v", medium(0), true),
            ("v", medium(2), false),
            ("v", born(6), false),
            ("w", medium(1), false),
            ("w", born(5), false),
            ("w", medium(2), true),
            ("w", born(6), true),
        ] {
            let checked = found.check_identity(name, (identity, 2 << 20), false);
            assert_eq!(checked.is_ok(), may, "{name} on {identity:?}");
        }
        let size = |name, bytes| found.check_size(name, bytes).is_ok();
        assert!(size("v", 4096) && size("w", 0), "its first block is dirty");
        assert!(!size("v", 2048), "and ends there");
        let (cache, _) = open(&disks, Durability::Sync).await;
        for another in [medium(2), born(6)] {
            refused(
                attach_as(&cache, &disks[1], "v", another, false).await,
                "--adopt v",
            );
        }
        refused(
            attach_as(&cache, &disks[1], "w", born(5), false).await,
            "detach v",
        );
        let volume = attach_as(&cache, &disks[1], "v", medium(2), true)
            .await
            .expect("adopted");
        let back = Buf::scratch(4096);
        volume.read(0, back.clone()).await.expect("reads");
        assert_eq!(back.to_vec(), [7; 4096]);
    });
}

#[test]
fn clean_data_of_another_device_is_dropped() {
    for (name, identity) in [("v", medium(2)), ("v", born(6)), ("w", medium(1))] {
        run(&world(4, 2 << 20, 512), async move |disks| {
            make(&disks, 4096).await;
            prepare(&disks, false).await;
            // The device changes where the cache cannot see it.
            disks[1]
                .write(0, Buf::copied(&[8; 4096]))
                .await
                .expect("writes");
            let (cache, _) = open(&disks, Durability::Sync).await;
            let attached = attach_as(&cache, &disks[1], name, identity, false).await;
            let volume = attached.expect("nothing is dirty");
            let back = Buf::scratch(4096);
            volume.read(0, back.clone()).await.expect("reads");
            assert_eq!(back.to_vec(), [8; 4096], "{name}");
        });
    }
}

/// The caller stores epoch and device elsewhere at that point (rule 6, step 2).
#[test]
fn an_attach_is_announced_after_its_last_check_and_before_the_superblock() {
    run(&world(3, 2 << 20, 512), async |disks| {
        make(&disks, 4096).await;
        prepare(&disks, true).await;
        let (cache, _) = open(&disks, Durability::Sync).await;
        let announced = std::cell::Cell::new(0);
        let attach = async |identity, fails: bool| {
            let recorded = || {
                let superblock = cache.engine.superblock.current();
                let known = superblock.volumes.iter().find(|known| known.name == "v");
                known.map(|known| (known.epoch, known.identity))
            };
            let before = recorded();
            let announce = async |_: Announcement| {
                announced.set(announced.get() + 1);
                assert_eq!(recorded(), before, "the superblock was first");
                match fails {
                    true => Err(ErrorKind::NoSpace.into()),
                    false => Ok(()),
                }
            };
            let options = VolumeOptions::new(Mode::WriteBack);
            let backing = Rc::new(Known(disks[1].clone(), identity));
            let attached = cache.attach_announced("v", backing, options, announce);
            let attached = attached.await.map_err(|error| error.kind());
            assert_eq!(recorded() == before, attached.is_err());
            (attached.map(drop), announced.replace(0))
        };
        let refused = attach(medium(2), false).await;
        assert_eq!(refused, (Err(ErrorKind::InvalidInput), 0));
        assert_eq!(attach(born(5), true).await, (Err(ErrorKind::NoSpace), 1));
        assert_eq!(attach(born(5), false).await, (Ok(()), 1));
    });
}

/// The device comes back under its own name or another one. Its users still learn of writes that it
/// lost, until an attach succeeds.
#[test]
fn a_loss_of_the_backing_device_is_reported_under_each_name() {
    for name in ["v", "w"] {
        run(&world(4, 2 << 20, 512), async move |disks| {
            make(&disks, 4096).await;
            prepare(&disks, false).await;
            let (cache, _) = open(&disks, Durability::Sync).await;
            let id = cache.engine.superblock.current().volumes[0].id;
            let failures = &cache.engine.failures;
            failures.set_flush_failed(id, true).await.expect("noted");
            let attach = async |fails: bool| {
                let announced = std::cell::Cell::new(None);
                let announce = async |announcement: Announcement| {
                    announced.set(Some(announcement));
                    match fails {
                        true => Err(ErrorKind::NoSpace.into()),
                        false => Ok(()),
                    }
                };
                let options = VolumeOptions::new(Mode::WriteBack);
                let backing = Rc::new(Known(disks[1].clone(), medium(1)));
                let attached = cache.attach_announced(name, backing, options, announce);
                assert_eq!(attached.await.is_err(), fails);
                announced.take()
            };
            let old = vec!["v".to_owned()];
            let expected = Some(Announcement {
                lost: old.clone(),
                has_unreported_loss: false,
                forgotten: if name == "v" { vec![] } else { old },
            });
            assert_eq!(attach(true).await, expected, "{name}");
            assert!(!cache.has_unreported_loss(name), "it is not attached");
            assert_eq!(attach(false).await, expected, "{name}: after a refusal");
            let stats = cache.stats().volumes;
            let [own] = &stats[..] else {
                panic!("one volume is attached");
            };
            assert!(own.loss.is_some() && own.name == name, "{name}");
            assert!(
                cache.has_unreported_loss(name),
                "another volume may refuse the start"
            );
            let superblock = cache.engine.superblock.current();
            let known = superblock.volumes.iter().map(|entry| &*entry.name);
            assert_eq!(known.collect::<Vec<_>>(), [name]);
            assert!(!superblock.volumes[0].flush_failed, "it is reported");
        });
    }
}

#[test]
fn a_loss_follows_its_volume_to_another_name() {
    run(&world(5, 2 << 20, 512), async move |disks| {
        make(&disks, 4096).await;
        prepare(&disks, false).await;
        let (cache, _) = open(&disks, Durability::Sync).await;
        let report = RecoveryReport {
            unnamed_overwrites: vec!["v".into()],
            ..RecoveryReport::default()
        };
        let noted = cache.engine.superblock.note_losses(&report).await;
        noted.expect("written");
        let renamed = attach_as(&cache, &disks[1], "renamed", born(5), false).await;
        drop(renamed.expect("attaches"));
        assert!(cache.has_unreported_loss("renamed") && !cache.knows("v"));
        let stats = cache.stats().volumes;
        assert!(stats.iter().all(|volume| volume.loss.is_some()));
        cache.forget_reported_losses().await.expect("written");
        assert!(!cache.has_unreported_loss("renamed"));
    });
}
