//! A lock that another client takes by force.

use super::*;
use crate::rbd::image::NOTE;

/// Has another client take the lock, as `rbd lock break` and librbd do. Returns its name.
fn take_lock(cluster: &Cluster) -> String {
    let own = cluster.state().owner.clone().expect("it is locked");
    cluster.break_lock(&own);
    cluster.lock_by_another()
}

fn check(error: &forebay_block::Error, holder: &str) {
    assert_eq!(error.kind(), ErrorKind::Busy);
    let said = format!(
        "RBD image vms/db: its exclusive lock was taken from this client; {holder} holds it now"
    );
    assert!(error.report().contains(&said), "{}", error.report());
    assert!(error.report().contains("help: "));
}

#[test]
fn a_stale_writer_is_fenced_and_names_its_successor() {
    let cluster = Cluster::new(SIZE, |change| match change {
        Change::None => Act::Answer,
        _ => Act::Hold,
    });
    with_device(&cluster, |device, cluster| async move {
        // More than librbd gets at once: some are queued.
        let writes: Vec<_> = (0..300)
            .map(|at| device.write(at * 512, Buf::copied(&[1; 512])))
            .collect();
        until(|| cluster.state().held.len() == 256).await;
        let holder = take_lock(&cluster);
        cluster.state().data.fill(9);
        cluster.release();
        for write in writes {
            check(&write.await.expect_err("it is fenced"), &holder);
        }
        // The lock is free once more. This client must not take it back.
        cluster.state().owner = None;
        cluster.state().blocklist.clear();
        let late = device.write(0, Buf::copied(&[1; 512])).await;
        check(&late.expect_err("for good"), &holder);
        let read = device.read(0, Buf::zeroed(512)).await;
        check(&read.expect_err("for good"), &holder);
        assert!(cluster.state().data.iter().all(|byte| *byte == 9));
        cluster.lock_by_another();
        let note = (NOTE.to_owned(), "another's".to_owned());
        cluster.state().notes.extend([note]);
        drop(device);
        until(|| cluster.state().open == 0).await;
        let state = cluster.state();
        assert!(
            state.owner.is_some() && !state.notes.is_empty(),
            "another's"
        );
    });
}

#[test]
fn a_lost_lock_is_noticed_without_requests() {
    for blocklisted in [true, false] {
        let cluster = Cluster::new(SIZE, |_| Act::Answer);
        with_device(&cluster, move |device, cluster| async move {
            device.write(0, Buf::zeroed(512)).await.expect("written");
            let holder = take_lock(&cluster);
            if !blocklisted {
                cluster.state().blocklist.clear();
            }
            rt::sleep(TIMES.keep * 10).await;
            let changes = cluster.state().changes.len();
            let refused = device.write(0, Buf::zeroed(512)).await;
            check(&refused.expect_err("it is fenced"), &holder);
            assert_eq!(cluster.state().changes.len(), changes, "nothing was sent");
        });
    }
}

#[test]
fn a_client_on_the_blocklist_says_that_its_lock_is_free() {
    let cluster = Cluster::new(SIZE, |_| Act::Answer);
    with_device(&cluster, |device, cluster| async move {
        let own = cluster.state().owner.clone().expect("it is locked");
        cluster.break_lock(&own);
        let refused = device.read(0, Buf::zeroed(512)).await;
        let refused = refused.expect_err("it is fenced").report();
        assert!(refused.contains("no client holds it now"), "{refused}");
    });
}

#[test]
fn a_holder_that_cannot_be_found_is_unknown() {
    let cluster = Cluster::new(SIZE, |_| Act::Answer);
    with_device(&cluster, |device, cluster| async move {
        take_lock(&cluster);
        cluster.state().connects = -110;
        let refused = device.read(0, Buf::zeroed(512)).await;
        let refused = refused.expect_err("it is fenced").report();
        assert!(refused.contains("its holder is unknown"), "{refused}");
    });
}

#[test]
fn an_image_that_shrinks_takes_no_more_requests() {
    let cluster = Cluster::new(SIZE, |_| Act::Answer);
    with_device(&cluster, |device, cluster| async move {
        let end = SIZE as u64 - 512;
        device
            .write(end, Buf::copied(&[1; 512]))
            .await
            .expect("whole");
        cluster.state().size_bytes = Some(end + 256);
        let cut = device.write(end, Buf::copied(&[2; 512])).await;
        cut.expect_err("librbd would cut it off");
        for late in [
            device.write(0, Buf::copied(&[3; 512])).await,
            device.read(0, Buf::zeroed(512)).await,
        ] {
            let error = late.expect_err("for good");
            assert_eq!(error.kind(), ErrorKind::Lost);
            assert!(
                error.report().contains("DATA IS LOST"),
                "{}",
                error.report()
            );
        }
    });
}

#[test]
fn a_change_that_librbd_has_cut_off_fails() {
    let cluster = Cluster::new(SIZE, |change| match change {
        Change::None => Act::Answer,
        _ => Act::Hold,
    });
    with_device(&cluster, |device, cluster| async move {
        let end = SIZE as u64 - 512;
        let write = |at| device.write(at, Buf::copied(&[1; 512]));
        let (cut, whole) = (write(end), write(0));
        until(|| cluster.state().held.len() == 2).await;
        cluster.state().size_bytes = Some(end);
        // The thread that asks for the lock asks for the size as well.
        rt::sleep(4 * TIMES.keep).await;
        cluster.release();
        let error = cut.await.expect_err("it is not stored");
        assert_eq!(error.kind(), ErrorKind::Lost);
        whole.await.expect("it is stored");
    });
}

#[test]
fn an_image_that_has_grown_has_its_new_size() {
    let cluster = Cluster::new(2 * SIZE, |_| Act::Answer);
    cluster.state().size_bytes = Some(SIZE as u64);
    with_device(&cluster, |device, cluster| async move {
        let beyond = 2 * SIZE as u64 - 512;
        let refused = device.write(beyond, Buf::zeroed(512)).await;
        assert_eq!(kind(refused), Some(ErrorKind::OutOfRange));
        cluster.state().size_bytes = Some(2 * SIZE as u64 + 100);
        until(|| device.info().size_bytes == 2 * SIZE as u64).await;
        let write = device.write(beyond, Buf::copied(&[7; 512])).await;
        write.expect("it is within the image");
        assert!(
            cluster.state().data[2 * SIZE - 512..]
                .iter()
                .all(|byte| *byte == 7)
        );
        // Data may be there now. The former size is too small.
        cluster.state().size_bytes = Some(SIZE as u64);
        let cut = device.write(beyond, Buf::copied(&[8; 512])).await;
        cut.expect_err("librbd would cut it off");
        let late = device.write(0, Buf::zeroed(512)).await;
        assert_eq!(kind(late), Some(ErrorKind::Lost));
    });
}
