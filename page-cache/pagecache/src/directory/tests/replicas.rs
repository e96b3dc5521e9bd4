use super::*;

/// Node 1 publishes a page of its own memory, and node 0 maps it. Returns its place.
fn shared(desk: &mut Desk) -> Place {
    let place = desk.publish_new(1, 1, Access::Read);
    desk.lookup(0, 1, Access::Read);
    place
}

/// Node 0 requests a replica. Returns its place.
fn replicated(desk: &mut Desk, place: Place) -> Place {
    let sent = desk.say(0, ToDirectory::Replicate { place });
    match sent[..] {
        [(0, ToNode::Replica { copy, .. })] => copy,
        _ => panic!("{sent:?}"),
    }
}

const fn drop_replica(index: u64, place: Place) -> ToNode {
    let page = PageId { inode: 7, index };
    ToNode::DropReplica { page, place }
}

#[test]
fn a_node_gets_one_replica_in_its_own_memory() {
    let mut desk = Desk::new(2, 4, 1, 2);
    let place = shared(&mut desk);
    let copy = replicated(&mut desk, place);
    assert!(copy.frame < 4 && copy.generation > place.generation);
    let replicate = ToDirectory::Replicate { place };
    assert_eq!(desk.say(0, replicate), [], "it has one");
    assert_eq!(desk.say(1, replicate), [], "it has the page");
    assert_eq!(desk.directory.held(node(0)).replicas, 1);
    assert_eq!(desk.state(1), State::Shared);
}

#[test]
fn a_store_waits_until_all_replicas_are_dropped() {
    let mut desk = Desk::new(2, 4, 1, 2);
    let place = shared(&mut desk);
    let copy = replicated(&mut desk, place);
    let sent = desk.lookup(1, 1, Access::Write);
    assert_eq!(sent, [(0, drop_replica(1, place))]);
    let replicate = ToDirectory::Replicate { place };
    assert_eq!(desk.say(0, replicate), [], "a store is awaited");
    let sent = desk.say(0, ToDirectory::Dropped { place: copy });
    let (page, access) = (page(1), Access::Write);
    assert_eq!(
        sent,
        [(
            1,
            ToNode::Map {
                page,
                place,
                access
            }
        )]
    );
    assert_eq!(desk.directory.held(node(0)).replicas, 0);
    assert_eq!(desk.say(0, replicate), [], "nodes may store into it");
    let second = ToDirectory::Dropped { place: copy };
    desk.try_say(0, second).expect_err("it has none");
}

#[test]
fn replicas_leave_before_pages() {
    let mut desk = Desk::new(2, 4, 2, 3);
    let place = shared(&mut desk);
    let copy = replicated(&mut desk, place);
    // 6 frames are free; replicas and pages begin to leave at 1.
    for index in 2..6 {
        desk.publish_new(1, index, Access::Read);
    }
    let sent = desk.lookup(1, 6, Access::Read);
    let dropped = (0, drop_replica(1, place));
    assert_eq!(
        sent.iter().filter(|sent| **sent == dropped).count(),
        1,
        "{sent:?}"
    );
    let counts = desk.directory.counts();
    assert_eq!(
        counts.invalidations, 1,
        "the replica leaves one frame of two"
    );
    assert_eq!(desk.say(0, ToDirectory::Dropped { place: copy }), []);
}

#[test]
fn no_replica_takes_a_frame_that_is_needed() {
    let mut desk = Desk::new(2, 2, 1, 3);
    let place = shared(&mut desk);
    assert_eq!(desk.say(0, ToDirectory::Replicate { place }), []);
}

#[test]
fn a_store_waits_for_no_replica_of_a_dead_node() {
    let mut desk = Desk::new(3, 4, 1, 2);
    let place = shared(&mut desk);
    replicated(&mut desk, place);
    desk.lookup(2, 1, Access::Write);
    let sent = desk.die(0);
    let map = |(to, message): &(u8, ToNode)| *to == 2 && matches!(message, ToNode::Map { .. });
    assert!(sent.iter().any(map), "{sent:?}");
}

#[test]
fn a_node_leaves_without_its_replicas() {
    let mut desk = Desk::new(2, 4, 1, 2);
    let place = shared(&mut desk);
    let copy = replicated(&mut desk, place);
    let sent = desk.say(0, ToDirectory::Leave {});
    assert_eq!(sent, [(0, drop_replica(1, place))]);
    let sent = desk.say(0, ToDirectory::Dropped { place: copy });
    assert_eq!(sent, [(0, ToNode::Left {})]);
}

/// Node 1 has written a page that node 0 maps. Node 1 has written it back if `is_clean`.
fn written(desk: &mut Desk, is_clean: bool) -> Place {
    let place = desk.publish_new(1, 1, Access::Write);
    desk.lookup(0, 1, Access::Read);
    if is_clean {
        let page = page(1);
        let write_back = (1, ToNode::WriteBack { page, place });
        assert_eq!(
            desk.say(1, ToDirectory::Flush { page, place }),
            [write_back]
        );
        desk.say(1, ToDirectory::WrittenBack { place, ok: true });
    }
    place
}

fn is_replica((to, message): &(u8, ToNode)) -> bool {
    *to == 0 && matches!(message, ToNode::Replica { .. })
}

#[test]
fn a_page_has_a_replica_after_its_write_back() {
    let mut desk = Desk::new(2, 4, 1, 2);
    let place = written(&mut desk, true);
    let page = page(1);
    let protect = ToNode::Protect { page, place };
    let replicate = ToDirectory::Replicate { place };
    assert_eq!(desk.say(0, replicate), [(0, protect), (1, protect)]);
    assert_eq!(desk.say(0, replicate), [], "it was requested");
    let protected = ToDirectory::Protected { place, ok: true };
    assert_eq!(desk.say(0, protected), [], "one node has not answered");
    let sent = desk.say(1, protected);
    assert!(matches!(&sent[..], [sent] if is_replica(sent)), "{sent:?}");
    let sent = desk.lookup(1, 1, Access::Write);
    assert_eq!(sent, [(0, drop_replica(1, place))], "the next store asks");
}

#[test]
fn a_page_has_no_replica_before_its_write_back_or_while_nodes_store() {
    let mut desk = Desk::new(2, 4, 1, 2);
    let place = written(&mut desk, false);
    let replicate = ToDirectory::Replicate { place };
    assert_eq!(desk.say(0, replicate), [], "it was not written back");
    let mut desk = Desk::new(2, 4, 1, 2);
    let place = written(&mut desk, true);
    let protected = |ok| ToDirectory::Protected { place, ok };
    assert_eq!(desk.say(0, replicate).len(), 2);
    assert_eq!(desk.say(1, protected(false)), []);
    assert_eq!(desk.say(0, protected(true)), [], "node 1 is storing");
    assert_eq!(desk.say(0, replicate).len(), 2);
    assert_eq!(desk.say(1, protected(true)), []);
    let (page, access) = (page(1), Access::Write);
    let map = ToNode::Map {
        page,
        place,
        access,
    };
    assert_eq!(
        desk.lookup(1, 1, access),
        [(1, map)],
        "a store waits for none"
    );
    assert_eq!(desk.say(0, protected(true)), [], "node 1 may store");
    assert_eq!(desk.say(0, replicate), [], "it was not written back since");
}
