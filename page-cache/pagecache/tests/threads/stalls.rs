//! A store that does not answer for one file. Only users of that file wait.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use forebay_block::{Error, ErrorKind, Result};
use forebay_pagecache::client::Begun;
use forebay_pagecache::message::PageId;
use forebay_pagecache::node::Consistency;

use crate::cluster::{Cluster, Node, PAGE};
use crate::{LONG, byte_of, page};

pub(crate) const STALLED: u64 = 2;
/// More than a page that is not stalled takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(30);

/// Node 1 waits for a fill. Node 0 needs frames whose pages node 1 maps: node 1 must unmap them.
#[test]
fn a_node_answers_while_its_fill_waits_for_the_store() {
    let cluster = Cluster::new(2, 16, Consistency::Strong, None);
    let [a, b] = cluster.pair();
    let mut out = [0; PAGE];
    for index in 0..16 {
        b.write(page(index), 0, &[7; PAGE]).expect("it is written");
    }
    cluster.shelf.stall(Some(STALLED));
    let (done, ended) = channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut out = [0; PAGE];
            let stalled = PageId {
                inode: STALLED,
                index: 0,
            };
            b.read(stalled, &mut out).expect("it is read at last");
            assert_eq!(byte_of(&out), 0);
        });
        let worker = scope.spawn(|| {
            for index in 100..200 {
                a.read(page(index), &mut out).expect("it is read");
            }
            let mut own = [0; PAGE];
            for index in 0..16 {
                b.read(page(index), &mut own).expect("it is read");
                assert_eq!(byte_of(&own), 7);
            }
            let _ = done.send(());
        });
        let ended = ended.recv_timeout(LIMIT);
        cluster.shelf.stall(None);
        worker.join().expect("no panic");
        assert!(ended.is_ok(), "others waited for the stalled file");
    });
}

#[test]
fn an_operation_gives_up_at_its_limit_and_its_data_stays() {
    let limit = Duration::from_millis(300);
    for consistency in [Consistency::Strong, Consistency::Relaxed] {
        let cluster = Cluster::with_limit(1, 16, (consistency, limit), None);
        let node = &cluster.nodes[0];
        let stalled = |index| PageId {
            inode: STALLED,
            index,
        };
        node.write(stalled(0), 0, &[7; PAGE])
            .expect("it is written");
        cluster.shelf.stall(Some(STALLED));
        let mut out = [0; PAGE];
        let refused = node.read(stalled(1), &mut out);
        assert_eq!(
            refused.map_err(|error| error.kind()),
            Err(ErrorKind::TimedOut)
        );
        let refused = node.fsync(STALLED);
        assert_eq!(
            refused.map_err(|error| error.kind()),
            Err(ErrorKind::TimedOut)
        );
        node.read(stalled(0), &mut out).expect("it is in memory");
        node.read(page(0), &mut out)
            .expect("the store answers for other files");
        cluster.shelf.stall(None);
        node.fsync(STALLED).expect("the store answers");
        assert_eq!(byte_of(&cluster.shelf.page(stalled(0))), 7);
        node.read(stalled(1), &mut out)
            .expect("the fill was completed");
    }
}

/// Begins a read of a page that is in no memory. Returns the outcome, once there is one.
pub(crate) fn begin(node: &Node, page: PageId) -> Receiver<Result<()>> {
    let (done, outcome) = channel();
    match node.begin_read(page, &mut [0; PAGE]).expect("connected") {
        Begun::Waits(waiting) => waiting.then(move |readable| {
            let _ = done.send(readable);
        }),
        Begun::Read | Begun::Blocks => panic!("{page} is in memory"),
    }
    outcome
}

#[test]
fn a_read_continues_after_its_fill() {
    let cluster = Cluster::new(1, 16, Consistency::Strong, None);
    let node = &cluster.nodes[0];
    let stalled = PageId {
        inode: STALLED,
        index: 0,
    };
    cluster.shelf.stall(Some(STALLED));
    let first = begin(node, stalled);
    let second = begin(node, stalled);
    let other = begin(node, page(0));
    let readable = other.recv_timeout(LONG).expect("it is filled");
    readable.expect("the store answers for other files");
    assert!(first.try_recv().is_err(), "the store has not answered");
    cluster.shelf.stall(None);
    for outcome in [first, second] {
        let readable = outcome.recv_timeout(LONG).expect("it is filled");
        readable.expect("the store answers");
    }
    let mut out = [1; PAGE];
    let begun = node.begin_read(stalled, &mut out).expect("connected");
    assert!(matches!(begun, Begun::Read));
    drop(begun);
    assert_eq!(byte_of(&out), 0);
}

#[test]
fn a_read_that_cannot_continue_gets_the_error() {
    let limit = Duration::from_millis(300);
    let cluster = Cluster::with_limit(1, 16, (Consistency::Strong, limit), None);
    let node = &cluster.nodes[0];
    cluster.shelf.refuse_read(page(3));
    let unreadable = begin(node, page(3)).recv_timeout(LONG);
    let unreadable = unreadable.expect("it has ended");
    assert_eq!(unreadable.map_err(|error| error.kind()), Err(ErrorKind::Io));
    cluster.shelf.stall(Some(1));
    let late = begin(node, page(4));
    let start = Instant::now();
    let late = loop {
        node.say_alive(Duration::ZERO).expect("connected");
        if let Ok(late) = late.recv_timeout(Duration::from_millis(10)) {
            break late;
        }
        assert!(start.elapsed() < LONG, "it has no limit");
    };
    assert!(start.elapsed() >= limit, "it ended before its limit");
    assert_eq!(late.map_err(|error| error.kind()), Err(ErrorKind::TimedOut));
    let cut_off = begin(node, page(5));
    node.disconnect(Error::from(ErrorKind::Disconnected));
    let cut_off = cut_off.recv_timeout(LONG).expect("it has ended");
    assert_eq!(
        cut_off.map_err(|error| error.kind()),
        Err(ErrorKind::Disconnected)
    );
    cluster.shelf.stall(None);
}
