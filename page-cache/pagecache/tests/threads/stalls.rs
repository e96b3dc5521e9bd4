//! A store that does not answer for one file. Only users of that file wait.

use std::sync::mpsc::channel;
use std::time::Duration;

use forebay_block::ErrorKind;
use forebay_pagecache::message::PageId;
use forebay_pagecache::node::Consistency;

use crate::cluster::{Cluster, PAGE};
use crate::{byte_of, page};

const STALLED: u64 = 2;
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
