//! Tests over a librbd in memory, whose cluster answers late, in any order, never, or with errors.

mod cluster;
mod fake;
mod fence;
mod opening;
mod requests;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_block::{BlockDevice as _, BlockDeviceExt as _, Buf, ErrorKind, Request, Result};
use forebay_io::{Engine, Reactor, rt};

use super::api::Api;
use super::{Access, Address, RbdDevice, Times};
use cluster::{Act, Change, Cluster};

const SIZE: usize = 1 << 20;
const TIMES: Times = Times {
    open: Duration::from_secs(20),
    lapse: Duration::from_millis(300),
    patience: Duration::from_millis(400),
    keep: Duration::from_millis(20),
    successor: Duration::from_secs(5),
};

fn whole() -> Result<&'static Api> {
    Ok(fake::api(true))
}

fn without_zeroes() -> Result<&'static Api> {
    Ok(fake::api(false))
}

async fn open(address: &Address) -> Result<Rc<RbdDevice>> {
    RbdDevice::open_with(address, Access::Serve, whole, TIMES).await
}

/// Runs `client` with a device on the image of a cluster, and waits until the image is closed.
fn with_device<F: Future<Output = ()> + 'static>(
    cluster: &Arc<Cluster>,
    client: impl FnOnce(Rc<RbdDevice>, Arc<Cluster>) -> F + 'static,
) {
    let cluster = Arc::clone(cluster);
    run(async move {
        let device = open(&cluster.address()).await.expect("it is there");
        client(device, Arc::clone(&cluster)).await;
        until(|| cluster.state().open == 0).await;
    });
}

fn run(client: impl Future<Output = ()> + 'static) {
    let reactor = Reactor::new(Engine::Threads).expect("a reactor");
    reactor.run(client);
}

/// Waits for a condition that other threads make true.
async fn until(condition: impl Fn() -> bool) {
    let begin = rt::now();
    while !condition() {
        assert!(rt::now() - begin < Duration::from_secs(20), "it never is");
        rt::sleep(Duration::from_millis(1)).await;
    }
}

fn kind(result: Result<()>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn a_device_has_the_properties_of_its_image() {
    let cluster = Cluster::new(SIZE + 100, |_| Act::Answer);
    with_device(&cluster, |device, cluster| async move {
        let info = device.info();
        assert_eq!((&*info.name, info.size_bytes), ("rbd:vms/db", SIZE as u64));
        assert!(!info.volatile_cache && info.fua && info.discard);
        assert!(info.identity.is_known());
        device
            .write(512, Buf::copied(&[7; 1024]))
            .await
            .expect("written");
        let fua = Request::write(4096, Buf::copied(&[8; 512]), true);
        device.start(fua).await.expect("written");
        device.flush().await.expect("nothing to do");
        let buf = Buf::zeroed(5120);
        device.read(0, buf.clone()).await.expect("read");
        let mut expected = vec![0; 512];
        expected.extend([7; 1024]);
        expected.resize(4096, 0);
        expected.extend([8; 512]);
        expected.resize(5120, 0);
        assert_eq!(buf.to_vec(), expected);
        let keep = Request::write_zeroes(512, 512, false, false);
        device.start(keep).await.expect("zeroed");
        device.write_zeroes(4096, 512).await.expect("zeroed");
        device.discard(1024, 512).await.expect("discarded");
        assert!(cluster.state().data.iter().all(|byte| *byte == 0));
        let changes: Vec<_> = cluster.state().changes.drain(..).collect();
        let expected = [
            Change::Data,
            Change::Data,
            Change::None,
            Change::Zeroes { keeps_space: true },
            Change::Zeroes { keeps_space: false },
            Change::Discard,
        ];
        assert_eq!(changes, expected);
        let options = cluster.state().options.clone();
        assert_eq!(options["rbd_cache"], "false");
        assert_eq!(options["rados_osd_op_timeout"], "0");
    });
}

#[test]
fn an_older_librbd_writes_zeroes_as_data() {
    let cluster = Cluster::new(SIZE, |_| Act::Answer);
    run(async move {
        let address = cluster.address();
        let device = RbdDevice::open_with(&address, Access::Serve, without_zeroes, TIMES).await;
        let device = device.expect("it is there");
        device
            .write(0, Buf::copied(&[7; 1024]))
            .await
            .expect("written");
        device.write_zeroes(0, 512).await.expect("zeroed");
        assert_eq!(cluster.state().changes, [Change::Data, Change::Data]);
        assert_eq!(cluster.state().data[511..513], [0, 7]);
    });
}

#[test]
fn requests_end_in_any_order_with_their_own_data() {
    let mut number = 0_u64;
    let late = move |_| {
        number += 1;
        match number % 3 {
            0 => Act::Answer,
            _ => Act::Late(Duration::from_micros(number * 7919 % 3000)),
        }
    };
    let cluster = Cluster::new(SIZE, late);
    with_device(&cluster, |device, _| async move {
        let block = |number: u64| Buf::copied(&[u8::try_from(number % 251).expect("a byte"); 512]);
        // More than librbd gets at once.
        let writes: Vec<_> = (0..800)
            .map(|at| device.write(at * 512, block(at)))
            .collect();
        for write in writes {
            write.await.expect("written");
        }
        let bufs: Vec<_> = (0..800).map(|_| Buf::zeroed(512)).collect();
        let read = |(at, buf): (usize, &Buf)| device.read(at as u64 * 512, buf.clone());
        let reads: Vec<_> = bufs.iter().enumerate().map(read).collect();
        for read in reads {
            read.await.expect("read");
        }
        for (at, buf) in bufs.iter().enumerate() {
            assert!(buf.equals(&block(at as u64)), "block {at}");
        }
    });
}

#[test]
fn a_request_that_the_cluster_fails_names_image_and_place() {
    let mut failures = vec![-5, -28];
    let fail = move |_| failures.pop().map_or(Act::Answer, Act::Fail);
    let cluster = Cluster::new(SIZE, fail);
    with_device(&cluster, |device, cluster| async move {
        let buf = Buf::copied(&[1; 512]);
        let full = device.write(1024, buf.clone()).await.expect_err("full");
        assert_eq!(full.kind(), ErrorKind::NoSpace);
        let said = "RBD image vms/db: a write of 512 bytes at byte 1024";
        assert!(full.report().contains(said), "{}", full.report());
        assert_eq!(kind(device.read(0, buf.clone()).await), Some(ErrorKind::Io));
        device
            .write(1024, buf.clone())
            .await
            .expect("the next one succeeds");
        // Another client has shrunk the image.
        cluster.state().data.truncate(4096 + 256);
        let short = device.read(4096, buf.clone()).await.expect_err("short");
        assert_eq!(short.kind(), ErrorKind::OutOfRange, "{}", short.report());
        let outside = device.write(SIZE as u64, buf).await;
        assert_eq!(kind(outside), Some(ErrorKind::OutOfRange));
    });
}

#[test]
fn a_cluster_that_takes_no_writes_fails_new_ones_and_serves_reads() {
    let full = |change| match change {
        Change::None => Act::Answer,
        _ => Act::Hold,
    };
    let cluster = Cluster::new(SIZE, full);
    with_device(&cluster, |device, cluster| async move {
        let buf = Buf::copied(&[1; 512]);
        let begin = rt::now();
        // More than librbd gets at once: some are queued.
        let held: Vec<_> = (0..300)
            .map(|at| device.write(at * 512, buf.clone()))
            .collect();
        let mut waiting = Vec::new();
        let mut refused = 0;
        for (at, write) in held.into_iter().enumerate() {
            match at {
                0..256 => waiting.push(write),
                _ => {
                    let error = write.await.expect_err("it was never sent");
                    assert_eq!(error.kind(), ErrorKind::Unreachable);
                    let said = "RBD image vms/db: the cluster has answered no write for 400ms";
                    assert!(error.report().contains(said), "{}", error.report());
                    refused += 1;
                }
            }
        }
        assert!(rt::now() - begin >= TIMES.patience);
        assert_eq!((refused, cluster.state().held.len()), (44, 256));
        let now = rt::now();
        let late = device.write(0, buf.clone()).await;
        assert_eq!(kind(late), Some(ErrorKind::Unreachable));
        assert!(rt::now() - now < TIMES.patience / 4, "at once");
        device
            .read(0, Buf::zeroed(512))
            .await
            .expect("reads are answered");
        cluster.release();
        for write in waiting {
            write.await.expect("librbd kept it");
        }
        device.write(0, buf).await.expect("as before");
    });
}

#[test]
fn a_device_that_is_dropped_ends_its_requests_before_the_image_is_closed() {
    let cluster = Cluster::new(SIZE, |_| Act::Hold);
    run(async move {
        let device = open(&cluster.address()).await.expect("it is there");
        let held: Vec<_> = (0..300)
            .map(|at| device.write(at * 512, Buf::copied(&[1; 512])))
            .collect();
        until(|| cluster.state().held.len() == 256).await;
        drop(device);
        rt::sleep(Duration::from_millis(50)).await;
        assert_eq!(cluster.state().open, 1, "requests are in flight");
        cluster.release();
        for (at, write) in held.into_iter().enumerate() {
            let expected = (at >= 256).then_some(ErrorKind::ShuttingDown);
            assert_eq!(kind(write.await), expected, "write {at}");
        }
        until(|| cluster.state().open == 0).await;
        let state = cluster.state();
        assert_eq!(state.owner, None, "the lock is free");
        assert!(state.notes.is_empty() && state.blocklist.is_empty());
    });
}

#[test]
fn a_reactor_that_ends_leaves_the_image_open_until_its_requests_have_ended() {
    let cluster = Cluster::new(SIZE, |_| Act::Hold);
    let held = Arc::clone(&cluster);
    run(async move {
        let device = open(&held.address()).await.expect("it is there");
        let write = device.write(0, Buf::copied(&[1; 512]));
        until(|| held.state().held.len() == 1).await;
        drop((write, device));
    });
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(cluster.state().open, 1, "a request is in flight");
    cluster.release();
    assert_eq!(cluster.state().data[0], 1);
    let begin = std::time::Instant::now();
    while cluster.state().open > 0 {
        assert!(begin.elapsed() < Duration::from_secs(20), "it stays open");
        std::thread::sleep(Duration::from_millis(1));
    }
}
