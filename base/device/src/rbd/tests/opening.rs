//! Opening images: refusals, snapshots, identity, and the lock of other clients.

use super::*;
use crate::rbd::image::NOTE;

async fn refused(address: &Address) -> String {
    let refused = open(address).await.expect_err("refused").report();
    assert!(refused.starts_with("RBD image vms/"), "{refused}");
    assert!(refused.contains("help: "), "{refused}");
    refused
}

#[test]
fn open_errors_name_the_cause_and_the_remedy() {
    let cluster = Cluster::new(SIZE, |_| Act::Answer);
    run(async move {
        let address = cluster.address();
        let other = |change: fn(&mut Address)| {
            let mut address = address.clone();
            change(&mut address);
            address
        };
        for (address, said) in [
            (other(|a| a.conf = "/fake/none".into()), "/fake/none: the"),
            (other(|a| a.image = "dc".to_owned()), "opening the image"),
            (other(|a| a.snapshot = Some("t".to_owned())), "opening"),
        ] {
            let refused = refused(&address).await;
            assert!(refused.contains(said), "{refused}");
        }
        let wrong = other(|a| a.pool = "vm".to_owned());
        let error = open(&wrong).await.expect_err("no pool");
        assert!(error.report().contains("no pool \"vm\""), "{error}");
        cluster.state().connects = -110;
        let error = open(&address).await.expect_err("no answer");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(
            error.report().contains("no connection to the cluster"),
            "{error}"
        );
        cluster.state().connects = 0;
        cluster.state().features = 1;
        let without = refused(&address).await;
        assert!(without.contains("rbd feature enable vms/db exclusive-lock"));
        cluster.state().features = 1 << 2;
        for (source, said) in [(1, "config pool rm vms"), (2, "config image rm vms/db")] {
            cluster.state().settings[0] = ("rbd_cache".to_owned(), "true".to_owned(), source);
            let cached = refused(&address).await;
            assert!(cached.contains(&format!("{said} rbd_cache")), "{cached}");
        }
        until(|| cluster.state().open == 0).await;
        assert_eq!(cluster.state().owner, None);
    });
}

#[test]
fn a_machine_without_librbd_names_the_package() {
    fn none() -> Result<&'static Api> {
        // SAFETY: there is no such library.
        unsafe { forebay_io::library::Library::open(c"libno-such-rbd.so.1") }
            .map_err(crate::rbd::api::not_installed)?;
        unreachable!("it is not there")
    }
    let cluster = Cluster::new(SIZE, |_| Act::Answer);
    run(async move {
        let opened = RbdDevice::open_with(&cluster.address(), Access::Serve, none, TIMES).await;
        let refused = opened.expect_err("it is missing").report();
        assert!(refused.contains("install the package librbd1"), "{refused}");
        assert!(refused.contains("libno-such-rbd.so.1"), "{refused}");
    });
}

#[test]
fn an_image_is_known_by_identifiers_and_not_by_names() {
    let cluster = Cluster::new(SIZE, |_| Act::Answer);
    run(async move {
        let mut address = cluster.address();
        let mut known = Vec::new();
        for image in ["10a2", "10a2", "10b7"] {
            cluster.state().image = image.to_owned();
            let device = open(&address).await.expect("it is there");
            known.push(device.info().identity);
        }
        assert!(known[0].is_same_as(known[1]));
        assert!(known[0].differs_from(known[2]), "an exchanged image");
        address.snapshot = Some("s".to_owned());
        let snapshot = open(&address).await.expect("it is there");
        assert!(snapshot.info().identity.differs_from(known[2]));
    });
}

#[test]
fn a_snapshot_is_read_only_and_takes_no_lock() {
    let cluster = Cluster::new(SIZE, |_| Act::Answer);
    let other = cluster.lock_by_another();
    run(async move {
        let mut address = cluster.address();
        address.snapshot = Some("s".to_owned());
        let device = open(&address).await.expect("with any holder of the lock");
        assert!(device.read_only());
        let buf = Buf::zeroed(512);
        device.read(0, buf.clone()).await.expect("read");
        let written = device.write(0, buf).await;
        assert_eq!(kind(written), Some(ErrorKind::ReadOnly));
        let zeroed = device.write_zeroes(0, 512).await;
        assert_eq!(kind(zeroed), Some(ErrorKind::ReadOnly));
        let owner = cluster.state().owner.clone().expect("as before");
        assert!(other.ends_with(&owner), "{other}");
        assert_eq!(cluster.state().changes, [Change::None]);
    });
}

#[test]
fn a_look_at_an_image_changes_nothing_and_fences_no_client() {
    let cluster = Cluster::new(SIZE, |_| Act::Answer);
    let other = cluster.lock_by_another();
    run(async move {
        let address = cluster.address();
        let look = async || RbdDevice::open_with(&address, Access::Look, whole, TIMES).await;
        let refused = look().await.expect_err("another client lives");
        assert!(refused.report().contains(&other), "{}", refused.report());
        // The other client is cut off from the cluster for a while.
        cluster.state().watchers.clear();
        let owner = cluster.state().owner.clone();
        let device = look().await.expect("no client has it open");
        assert!(device.read_only());
        device.read(0, Buf::zeroed(512)).await.expect("read");
        let written = device.write(0, Buf::zeroed(512)).await;
        assert_eq!(kind(written), Some(ErrorKind::ReadOnly));
        let state = cluster.state();
        assert_eq!(state.owner, owner);
        assert!(state.blocklist.is_empty() && state.notes.is_empty());
    });
}

#[test]
fn a_lock_of_a_live_client_refuses_the_start_with_its_name() {
    let cluster = Cluster::new(SIZE, |_| Act::Answer);
    let other = cluster.lock_by_another();
    run(async move {
        let address = cluster.address();
        let error = open(&address).await.expect_err("it is locked");
        assert_eq!(error.kind(), ErrorKind::Busy);
        let said = format!("its lock is held by {other}\n");
        assert!(error.report().contains(&said), "{}", error.report());
        // A second device of this process is another client.
        let own = cluster.state().owner.take();
        let first = open(&address).await.expect("the lock is free");
        assert_ne!(cluster.state().owner, own);
        let second = open(&address).await.expect_err("it is locked");
        let own = format!("(forebay, process {} of ", std::process::id());
        assert!(second.report().contains(&own), "{}", second.report());
        drop(first);
        open(&address)
            .await
            .expect("it is closed, and the lock free");
    });
}

#[test]
fn a_client_that_has_ended_loses_its_lock_when_its_watch_lapses() {
    let cluster = Cluster::new(SIZE, |_| Act::Answer);
    cluster.lock_by_another();
    run(async move {
        let address = cluster.address();
        let dead = cluster.state().owner.clone().expect("another");
        let lapses = Arc::clone(&cluster);
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            lapses.state().watchers.clear();
        });
        let device = open(&address).await.expect("the other one has ended");
        thread.join().expect("it ends");
        assert!(cluster.state().blocklist.contains(&dead));
        device.write(0, Buf::zeroed(512)).await.expect("written");
    });
}

#[test]
fn the_lock_of_an_ended_process_of_this_machine_is_broken_at_once() {
    let cluster = Cluster::new(SIZE, |_| Act::Answer);
    run(async move {
        let address = cluster.address();
        drop(open(&address).await.expect("it is free"));
        until(|| cluster.state().open == 0).await;
        let device = open(&address).await.expect("it is free");
        let note = cluster.state().notes[NOTE].clone();
        drop(device);
        until(|| cluster.state().open == 0).await;
        cluster.lock_by_another();
        let dead = cluster.state().owner.clone().expect("another");
        let (_, process) = note.split_once(' ').expect("an address");
        let (process, start) = process.rsplit_once(' ').expect("a start");
        let start = start.parse::<u64>().expect("a number") + 1;
        let note = format!("{dead} {process} {start}");
        cluster.state().notes.insert(NOTE.to_owned(), note);
        let begin = rt::now();
        open(&address).await.expect("the lock was broken");
        assert!(rt::now() - begin < TIMES.lapse, "no wait");
        assert!(cluster.state().blocklist.contains(&dead));
    });
}

#[test]
fn a_start_that_is_given_up_leaves_no_lock() {
    let cluster = Cluster::new(SIZE, |_| Act::Answer);
    cluster.lock_by_another();
    run(async move {
        let address = cluster.address();
        let times = Times {
            open: Duration::from_millis(50),
            lapse: Duration::from_secs(20),
            ..TIMES
        };
        let late = RbdDevice::open_with(&address, Access::Serve, whole, times).await;
        let late = late.expect_err("it took too long").report();
        assert!(
            late.contains("the cluster has not opened it within 50ms"),
            "{late}"
        );
        until(|| cluster.state().open == 0).await;
        assert_eq!(cluster.state().watchers.len(), 1, "only the other one");
    });
}
