//! More volumes than a cache can know, over several configurations.

use forebay_metadata::superblock::{Superblock, VolumeEntry};

use super::*;
use crate::state::CacheId;

/// Returns a configuration with these volumes, over new files, on the cache of [`FILES`].
fn with_volumes(scratch: &Scratch, names: &[String], mode: &str) -> Config {
    let mut text = FILES.split("volume = ").next().expect("text").to_owned();
    let (mut devices, mut volumes) = (String::new(), String::new());
    for name in names {
        let made = std::fs::File::create(scratch.0.join(name)).expect("made");
        made.set_len(1 << 20).expect("sparse");
        devices.push_str(&format!(
            "{{ name = \"on-{name}\", kind = \"file\", path = \"{name}\" }},\n"
        ));
        volumes.push_str(&format!(
            "{{ name = \"{name}\", backing = \"on-{name}\", mode = \"{mode}\" }},\n"
        ));
    }
    text = text.replace(
        "    { name = \"disk\"",
        &format!("{devices}    {{ name = \"disk\""),
    );
    scratch.config(&format!("{text}volume = [{volumes}]\n"))
}

fn named(prefix: &str, count: usize) -> Vec<String> {
    (0..count)
        .map(|number| format!("{prefix}{number}"))
        .collect()
}

/// Runs on a reactor of its own, which drops all that holds devices at its end.
fn alone<T: 'static>(future: impl Future<Output = T> + 'static) -> T {
    let reactor = Reactor::new(Engine::Threads).expect("threads work everywhere");
    reactor.run(future)
}

/// Opens the stack, writes to the named volumes, and closes it.
fn serve(config: &Config, written: &[&'static str]) -> Result<()> {
    let (config, written) = (config.clone(), written.to_vec());
    alone(async move {
        let stack = Stack::open(&config, &Wishes::default()).await?;
        for name in written {
            let volume = stack.volume(name)?.open();
            volume.write(0, Buf::copied(&[5; 4096])).await?;
            volume.flush().await?;
        }
        stack.close().await
    })
}

/// Returns the names of the volumes that the cache knows.
fn known(config: &Config) -> Vec<String> {
    let (config, cache) = (config.clone(), config.cache.clone().expect("a cache"));
    alone(async move {
        let holder = cache.metadata.as_ref().unwrap_or(&cache.data);
        let device = super::super::open_to_look(&config, holder, false).await;
        let found = Superblock::read(device.expect("there").as_ref()).await;
        let volumes = found.expect("a cache").volumes;
        volumes.into_iter().map(|volume| volume.name).collect()
    })
}

#[test]
fn clean_volumes_that_the_configuration_lacks_make_room_and_dirty_ones_do_not() {
    let scratch = Scratch::new("room");
    let base = scratch.0.clone();
    let most = forebay_cache::Cache::MAX_VOLUMES;
    let first = with_volumes(&scratch, &named("old", most), "wb");
    let one = with_volumes(&scratch, &named("new", 1), "wt");
    let many = with_volumes(&scratch, &named("more", most), "wt");
    let most_but_one = with_volumes(&scratch, &named("more", most - 1), "wt");
    let too_many = with_volumes(&scratch, &named("too", most + 1), "wt");
    alone(async move { make_files_of(&base, [10; 16]).await });
    serve(&first, &["old3"]).expect("as many as there may be");
    serve(&one, &["new0"]).expect("a clean one makes room");
    let state = StateDirectory::open(&one.server.state).expect("free");
    let record = state.load("old0").expect("read").expect("there");
    assert_eq!((record.cache, record.may_be_dirty), (CacheId::None, false));
    drop(state);
    // All but the dirty one are removed.
    serve(&most_but_one, &[]).expect("others make room");
    let before_refusal = known(&one);
    assert_eq!(before_refusal.len(), most);
    let refused = serve(&many, &[]).expect_err("one is dirty");
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    let report = refused.report();
    assert!(report.contains("old3 ("), "{report}");
    let refused = serve(&too_many, &[]).expect_err("too many");
    assert_eq!(refused.kind(), ErrorKind::NoSpace);
    // A refused start removed nothing.
    assert_eq!(known(&one), before_refusal);
    // Dirty data is still present, and is discarded only on explicit request.
    let config = one.clone();
    alone(async move {
        let stack = Stack::open(&config, &Wishes::default()).await;
        let stack = stack.expect("opens");
        let refused = stack.forget_volume("old3", false).await;
        assert_eq!(refused.expect_err("dirty").kind(), ErrorKind::Busy);
        let served = stack.forget_volume("new0", false).await;
        let served = served.expect_err("served").report();
        assert!(served.contains("forebay detach new0"), "{served}");
        let done = stack.forget_volume("old3", true).await.expect("forgets");
        assert!(done.contains("of dirty data DISCARDED"), "{done}");
        assert!(done.contains("bytes at 0"), "{done}");
        stack.close().await.expect("closes");
    });
    serve(&many, &[]).expect("there is room now");
    // A volume that was forgotten starts from the beginning.
    serve(&first, &[]).expect("attaches again");
}

#[test]
fn forgotten_volumes_are_not_listed_and_configured_ones_are_not_to_be_forgotten() {
    let scratch = Scratch::new("room-words");
    let base = scratch.0.clone();
    let most = forebay_cache::Cache::MAX_VOLUMES;
    let old = named("old", most);
    let first = with_volumes(&scratch, &old, "wb");
    let few = with_volumes(&scratch, &named("few", 2), "wt");
    let all = with_volumes(&scratch, &named("new", most), "wt");
    alone(async move { make_files_of(&base, [12; 16]).await });
    serve(&first, &[]).expect("as many as there may be");
    // The cache knows all of them, and has no room for one more.
    for more in [1, 2] {
        let names = [&named("more", more)[..], &old].concat();
        let refused = serve(&with_volumes(&scratch, &names, "wb"), &[]).expect_err("too many");
        assert_eq!(refused.kind(), ErrorKind::NoSpace);
        let report = refused.report();
        assert!(!report.contains("forebay forget"), "{report}");
        assert!(report.contains("use a second cache"), "{report}");
    }
    let unserved = |config: &Config| {
        let config = config.clone();
        alone(async move {
            let stack = Stack::open(&config, &Wishes::default()).await;
            let stack = stack.expect("opens");
            stack.ready().await.expect("attached");
            let unserved = stack.unserved();
            stack.close().await.expect("closes");
            unserved
        })
    };
    let listed = unserved(&few).expect("some stay");
    assert!(listed.contains("old5"), "{listed}");
    let is_listed = |name: &str| listed.split([' ', ',']).any(|other| other == name);
    assert!(
        !is_listed("old0") && !is_listed("old1"),
        "forgotten: {listed}"
    );
    assert_eq!(unserved(&all), None, "all others are forgotten");
}

/// The cache forgets a volume after the detach stopped waiting. The record in the state directory
/// must not block a later start of the volume.
#[test]
fn a_detach_that_ends_late_does_not_keep_the_next_start_from_the_volume() {
    for abandoned in [false, true] {
        for ends_well in [false, true] {
            let scratch = Scratch::new(&format!("late-{abandoned}-{ends_well}"));
            let base = scratch.0.clone();
            let config = scratch.config(FILES);
            on_reactor(|| async move {
                make_files_of(&base, [11; 16]).await;
                let stack = Stack::open(&config, &Wishes::default())
                    .await
                    .expect("opens");
                let db = stack.volume("db").expect("there").open();
                db.write(0, Buf::copied(&[5; 4096])).await.expect("written");
                db.flush().await.expect("flushed");
                let served = stack.served("db").expect("there");
                let opened = stack
                    .cache
                    .as_ref()
                    .expect("a cache")
                    .opened()
                    .await
                    .expect("open");
                // As in `Stack::detach` and `Stack::abandon`, but without a receiver of the result.
                let noted = async { stack.remember(&served, Record::clean).await };
                served.leaving.set(true);
                match abandoned {
                    false => opened
                        .cache
                        .detach_noting("db", noted)
                        .await
                        .expect("detached"),
                    true => {
                        noted.await.expect("noted");
                        opened.cache.abandon("db").await.expect("abandoned");
                    }
                }
                drop((db, served, opened));
                // Otherwise the next process finds the state that this one left.
                if ends_well {
                    stack.close().await.expect("closes");
                }
            });
            let config = scratch.config(FILES);
            on_reactor(|| async move {
                let stack = Stack::open(&config, &Wishes::default()).await;
                let stack = stack.expect("the volume is nobody's");
                assert_eq!(stack.dirty_bytes(None), 0);
                stack.close().await.expect("closes");
            });
        }
    }
}

/// Notes in the superblock that a flush of the backing device of `db` failed.
async fn note_failed_flush(base: &Path) {
    change_entries(base, |volume| volume.flush_failed = true).await;
}

/// Changes all volumes in the superblock.
async fn change_entries(base: &Path, change: impl FnMut(&mut VolumeEntry)) {
    let map = file(&base.join("map"), 8 << 20);
    let mut found = Superblock::read(map.as_ref()).await.expect("a cache");
    found.volumes.iter_mut().for_each(change);
    for _ in 0..2 {
        found.sequence += 1;
        let written = found.write(map.as_ref(), found.role).await;
        written.expect("written");
    }
}

/// The block device of a volume waits for the next daemon. The volume comes back under another
/// name, or the cache forgets it. Either way, the users of that block device lack writes.
#[test]
fn the_users_of_a_volume_that_goes_learn_of_a_failed_flush() {
    for (number, goes) in ["renamed", "forgotten"].into_iter().enumerate() {
        let scratch = Scratch::new(&format!("goes-{goes}"));
        let base = scratch.0.clone();
        let text = FILES.replace("\"wb\"", "\"wt\"");
        let first = scratch.config(&text);
        let second = match goes {
            "renamed" => scratch.config(&text.replace("\"db\"", "\"dbx\"")),
            _ => with_volumes(&scratch, &named("other", 1), "wt"),
        };
        let folder = base.clone();
        let uuid = [50 + u8::try_from(number).expect("few"); 16];
        alone(async move { make_files_of(&folder, uuid).await });
        serve(&first, &["db"]).expect("served");
        let state = StateDirectory::open(&first.server.state).expect("free");
        state.clear_disk_gap("db").expect("noted");
        drop(state);
        alone(async move { note_failed_flush(&base).await });
        let said = alone(async move {
            let stack = Stack::open(&second, &Wishes::default()).await;
            let stack = stack.expect("opens");
            let said = match goes {
                "renamed" => String::new(),
                _ => stack.forget_volume("db", false).await.expect("clean"),
            };
            stack.close().await.expect("closes");
            said
        });
        assert_eq!(said.contains("MAY BE LOST"), goes == "forgotten", "{said}");
        let state = StateDirectory::open(&first.server.state).expect("free");
        let gap = state.disk_gap("db").expect("readable").unwrap_or_default();
        assert!(gap.contains("a flush of its backing"), "{goes}: {gap:?}");
    }
}

/// A loss is reported by each start until clients can use the volume. An export may refuse a start
/// whose volumes are attached.
#[test]
fn a_loss_is_reported_until_clients_can_use_the_volume() {
    for cause in ["lost data", "a failed flush"] {
        let scratch = Scratch::new(&format!("owed-{}", cause.len()));
        let (base, folder) = (scratch.0.clone(), scratch.0.clone());
        let text = FILES.replace("\"wb\"", "\"wt\"");
        // A start without it would be a reason of its own for a gap.
        let export = "export = [{ volume = \"db\", ublk = 0 }]";
        let config = scratch.config(&format!("{text}\n{export}\n"));
        alone(async move { make_files_of(&folder, [70; 16]).await });
        serve(&config, &["db"]).expect("served");
        alone(async move {
            change_entries(&base, |volume| match cause {
                "lost data" => volume.has_unreported_loss = true,
                _ => volume.flush_failed = true,
            })
            .await;
        });
        let start = |is_served: bool, has_loss: bool| {
            let state = StateDirectory::open(&config.server.state).expect("free");
            state.clear_disk_gap("db").expect("noted");
            drop(state);
            let (config, cause) = (config.clone(), cause.to_owned());
            alone(async move {
                let stack = Stack::open(&config, &Wishes::default()).await;
                let stack = stack.expect("opens");
                let status = stack.status();
                assert_eq!(status.volumes[0].loss.is_some(), has_loss, "{cause}");
                let gap = stack.disk_gap("db").await.expect("known");
                assert_eq!(gap.is_some(), has_loss, "{cause}: {gap:?}");
                if is_served {
                    stack.forget_reported_losses().await;
                }
                stack.close().await.expect("closes");
            });
        };
        start(false, true);
        start(false, true);
        start(true, true);
        start(true, false);
    }
}
