//! Leaving, dying, and the state that a restarted directory rebuilds.

use super::*;

#[test]
fn a_leaving_node_loses_no_page() {
    let mut desk = Desk::new(2, 2, 0, 0);
    let mine = desk.publish_new(0, 1, Access::Write);
    desk.lookup(1, 1, Access::Write);
    let sent = desk.say(0, ToDirectory::Leave {});
    let going = ToNode::Invalidate {
        page: page(1),
        place: mine,
    };
    assert_eq!(sent, [(0, going), (1, going)]);
    desk.say(0, ToDirectory::Invalidated { place: mine });
    let sent = desk.say(1, ToDirectory::Invalidated { place: mine });
    let write_back = ToNode::WriteBack {
        page: page(1),
        place: mine,
    };
    assert_eq!(sent, [(0, write_back)]);
    let written = ToDirectory::WrittenBack {
        place: mine,
        ok: true,
    };
    assert_eq!(desk.say(0, written), [(0, ToNode::Left {})]);
    let other = desk.publish_new(0, 2, Access::Read);
    assert!(other.frame >= 2, "no new page is in its memory");
    assert_eq!(desk.die(0), [], "nothing of anybody was lost");
    assert_eq!(desk.lost(), []);
    assert_eq!(desk.forgotten(), [node(0)]);
}

#[test]
fn a_number_and_its_frames_are_anothers_once_all_have_forgotten() {
    let mut desk = Desk::new(3, 2, 0, 0);
    let join = ToDirectory::Join {
        frames: 2,
        unpublished_pages: 0,
    };
    let sent = desk.die(1);
    let forget = ToNode::Forget { node: node(1) };
    assert_eq!(sent[2..], [(0, forget), (2, forget)]);
    desk.say(0, ToDirectory::Forgotten { node: node(1) });
    let refused = desk.try_say(1, join).expect_err("node 2 has not forgotten");
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    desk.say(2, ToDirectory::Forgotten { node: node(1) });
    assert_eq!(desk.forgotten(), [node(1)]);
    let joined = ToNode::Joined {
        first_frame: 2,
        frames: 2,
        unpublished_pages: 0,
    };
    assert_eq!(desk.say(1, join), [(1, joined)]);
}

#[test]
fn given_up_pages_are_named() {
    let mut desk = Desk::new(2, 2, 0, 0);
    let sent = desk.lookup(0, 1, Access::Write);
    let Some(&(_, ToNode::Fill { place, .. })) = sent.first() else {
        panic!("{sent:?}");
    };
    desk.die(0);
    assert_eq!(desk.out.discarded, [place.frame]);
    let in_use = desk.publish_new(1, 2, Access::Read);
    assert!(
        desk.out.discarded.is_empty(),
        "frame {} is in use",
        in_use.frame
    );
}

#[test]
fn a_restarted_directory_rebuilds_the_nodes_state() {
    let mut desk = Desk::new(3, 2, 0, 0);
    let shared = desk.publish_new(0, 1, Access::Write);
    desk.lookup(1, 1, Access::Read);
    let lost = desk.publish_new(2, 2, Access::Write);
    desk.lookup(0, 2, Access::Read);
    let unmapped = desk.publish_new(1, 3, Access::Write);
    let shares: Vec<Share> = desk.directory.shares().collect();
    let config = desk.directory.config;
    desk.directory = Directory::recover(config, 1, &shares).expect("the same");
    assert_eq!(desk.directory.awaited(), Some(0b111));
    for (number, pages) in [(0, vec![(1, shared), (2, lost)]), (1, vec![(1, shared)])] {
        let first_frame = u32::from(number) * 2;
        let rejoin = ToDirectory::Rejoin {
            first_frame,
            frames: 2,
        };
        desk.say(number, rejoin);
        for (index, place) in pages {
            let access = Access::Read;
            let page = page(index);
            desk.say(
                number,
                ToDirectory::Have {
                    page,
                    place,
                    access,
                },
            );
        }
        assert_eq!(desk.say(number, ToDirectory::HadAll {}), []);
    }
    assert_eq!(desk.lookup(1, 3, Access::Read), [], "node 2 is missing");
    desk.die(2);
    assert_eq!(desk.directory.awaited(), Some(0));
    desk.out = Outbox::default();
    let unsaved = vec![(page(1), shared), (page(2), lost), (page(3), unmapped)];
    desk.directory.recovered(unsaved, &[], &mut desk.out);
    assert_eq!(desk.lost(), [], "node 0 may still write it");
    let map = ToNode::Map {
        page: page(3),
        place: unmapped,
        access: Access::Write,
    };
    assert!(desk.sent().contains(&(1, map)), "{:?}", desk.out.messages);
    assert_eq!(desk.state(1), State::Shared);
    assert_eq!(desk.state(2), State::ToBeInvalidated);
    desk.say(0, ToDirectory::Invalidated { place: lost });
    assert_eq!(
        desk.out.written,
        [(page(2), lost)],
        "it was in node 2's memory"
    );
    let refilled = desk.publish_new(0, 2, Access::Read);
    assert!(
        refilled.generation > lost.generation.max(unmapped.generation),
        "never an old generation again"
    );
}

#[test]
fn a_node_that_dies_during_recovery_is_not_admitted() {
    let config = Config {
        budget_pages: 8,
        free_low: 0,
        free_high: 0,
        placement: Placement::Node,
    };
    let waited = Share {
        node: node(0),
        first_frame: 0,
        frames: 2,
        unpublished_pages: 0,
        alive: true,
    };
    let mut directory = Directory::recover(config, 2, &[waited]).expect("possible");
    let mut out = Outbox::default();
    let join = ToDirectory::Join {
        frames: 2,
        unpublished_pages: 0,
    };
    directory
        .receive(node(1), join, &mut out)
        .expect("it is to wait");
    directory.died(node(1), &|_| None, &mut out);
    directory.died(node(0), &|_| None, &mut out);
    assert_eq!(directory.awaited(), Some(0));
    directory.recovered(Vec::new(), &[], &mut out);
    assert_eq!(
        directory.share(node(1)),
        None,
        "nobody would ever declare it"
    );
    assert_eq!(out.messages, []);
}

#[test]
fn pages_that_outlive_their_node_are_rescued_once_unmapped() {
    let mut desk = Desk::new(3, 2, 0, 0);
    desk.directory.config.placement = Placement::Pool;
    let theirs = desk.publish_new(1, 1, Access::Write);
    desk.lookup(0, 1, Access::Write);
    let invalidate = ToNode::Invalidate {
        page: page(1),
        place: theirs,
    };
    assert_eq!(
        desk.die(1),
        [(0, invalidate)],
        "and no node is notified of a death"
    );
    assert_eq!(
        (&desk.out.rescues[..], &desk.lost()[..]),
        (&[][..], &[][..])
    );
    let flush = ToDirectory::Flush {
        page: page(1),
        place: theirs,
    };
    assert_eq!(desk.say(0, flush), [], "it waits");
    assert_eq!(desk.lookup(2, 1, Access::Read), [], "and so does who looks");
    assert_eq!(desk.say(0, ToDirectory::Invalidated { place: theirs }), []);
    assert_eq!(desk.out.rescues, [(page(1), theirs)]);
    assert_eq!(desk.forgotten(), []);
    desk.out = Outbox::default();
    desk.directory.rescued(theirs, &mut desk.out);
    let sent = desk.sent();
    let flushed = ToNode::Flushed {
        page: page(1),
        place: theirs,
        ok: true,
    };
    assert_eq!(sent[0], (0, flushed));
    assert!(matches!(sent[1], (2, ToNode::Fill { .. })), "{sent:?}");
    assert_eq!(desk.forgotten(), [node(1)], "its number may be another's");
}

#[test]
fn a_page_that_the_store_refuses_is_lost_and_reported_before_a_flush_ends() {
    let mut desk = Desk::new(3, 2, 0, 0);
    desk.directory.config.placement = Placement::Pool;
    let theirs = desk.publish_new(1, 1, Access::Write);
    desk.lookup(0, 1, Access::Write);
    desk.die(1);
    let flush = ToDirectory::Flush {
        page: page(1),
        place: theirs,
    };
    assert_eq!(desk.say(0, flush), [], "it waits");
    assert_eq!(desk.say(0, ToDirectory::Invalidated { place: theirs }), []);
    desk.out = Outbox::default();
    desk.directory.unrescued(&[theirs], &mut desk.out);
    let died = ToNode::Died {
        node: node(1),
        first_frame: theirs.frame,
        frames: 1,
    };
    let flushed = ToNode::Flushed {
        page: page(1),
        place: theirs,
        ok: false,
    };
    let forget = ToNode::Forget { node: node(1) };
    assert_eq!(
        desk.sent(),
        [(0, died), (2, died), (0, flushed), (0, forget), (2, forget)]
    );
    assert_eq!(desk.lost(), [page(1)]);
    assert_eq!(desk.out.discarded, [theirs.frame]);
    desk.say(0, ToDirectory::Forgotten { node: node(1) });
    assert_eq!(desk.forgotten(), []);
    desk.say(2, ToDirectory::Forgotten { node: node(1) });
    assert_eq!(desk.forgotten(), [node(1)], "its number may be another's");
    desk.directory.unrescued(&[theirs], &mut desk.out);
    assert_eq!(desk.lost(), [], "once");
}

#[test]
fn pages_of_several_dead_are_rescued_once_each_however_little_room_there_is() {
    let config = Config {
        budget_pages: 4,
        free_low: 1,
        free_high: 2,
        placement: Placement::Pool,
    };
    let dead = |number: u8| Share {
        node: node(number),
        first_frame: u32::from(number) * 2,
        frames: 2,
        unpublished_pages: 0,
        alive: false,
    };
    let mut directory = Directory::recover(config, 2, &[dead(0), dead(1)]).expect("possible");
    let place = |frame: u32| Place {
        frame,
        generation: 1 + u64::from(frame),
    };
    let unsaved = (0..4).map(|frame| (page(frame.into()), place(frame)));
    let mut out = Outbox::default();
    directory.recovered(unsaved.collect(), &[], &mut out);
    let mut rescued: Vec<_> = out.rescues.iter().map(|(_, place)| place.frame).collect();
    rescued.sort_unstable();
    assert_eq!(rescued, [0, 1, 2, 3]);
    assert_eq!(directory.leaving, 0, "of the dead there is no room to come");
    assert_eq!(out.lost, []);
}

#[test]
fn given_up_pages_are_reported_anew_after_a_restart() {
    let config = Config {
        budget_pages: 4,
        free_low: 0,
        free_high: 0,
        placement: Placement::Pool,
    };
    let share = |number: u8, alive| Share {
        node: node(number),
        first_frame: u32::from(number) * 2,
        frames: 2,
        unpublished_pages: 0,
        alive,
    };
    let shares = [share(0, true), share(1, false)];
    let mut desk = Desk {
        directory: Directory::recover(config, 2, &shares).expect("possible"),
        out: Outbox::default(),
    };
    let rejoin = ToDirectory::Rejoin {
        first_frame: 0,
        frames: 2,
    };
    desk.say(0, rejoin);
    desk.say(0, ToDirectory::HadAll {});
    let place = Place {
        frame: 3,
        generation: 9,
    };
    let flush = ToDirectory::Flush {
        page: page(5),
        place,
    };
    assert_eq!(
        desk.say(0, flush),
        [],
        "not before the frames were looked at"
    );
    desk.out = Outbox::default();
    // Frame 1 belongs to a living node.
    let given_up = [(page(5), 3), (page(6), 1)];
    desk.directory
        .recovered(Vec::new(), &given_up, &mut desk.out);
    let died = ToNode::Died {
        node: node(1),
        first_frame: 3,
        frames: 1,
    };
    let forget = ToNode::Forget { node: node(1) };
    let flushed = ToNode::Flushed {
        page: page(5),
        place,
        ok: true,
    };
    assert_eq!(desk.sent(), [(0, died), (0, forget), (0, flushed)]);
    assert_eq!(desk.lost(), [page(5)]);
    assert_eq!(desk.forgotten(), []);
    desk.say(0, ToDirectory::Forgotten { node: node(1) });
    assert_eq!(
        desk.out.forgotten,
        [share(1, false)],
        "its frames are clean again"
    );
}

#[test]
fn a_dead_nodes_pages_are_lost_by_name_once_unmapped() {
    let mut desk = Desk::new(3, 2, 0, 0);
    let dirty = desk.publish_new(0, 1, Access::Write);
    desk.publish_new(0, 2, Access::Read);
    let other = desk.publish_new(1, 3, Access::Write);
    desk.lookup(1, 1, Access::Read);
    desk.lookup(0, 3, Access::Read);
    let sent = desk.die(0);
    assert_eq!(desk.lost(), [], "node 1 may still write it");
    let gone = ToNode::Invalidate {
        page: page(1),
        place: dirty,
    };
    assert_eq!(sent.last(), Some(&(1, gone)));
    assert_eq!(
        (desk.state(1), desk.state(2)),
        (State::ToBeInvalidated, State::Invalid)
    );
    assert_eq!(
        desk.directory.page(page(3)),
        Some((State::Owner, other)),
        "the dead sharer is forgotten"
    );
    assert_eq!(
        desk.lookup(2, 1, Access::Read),
        [],
        "somebody may still read what was lost"
    );
    let sent = desk.say(1, ToDirectory::Invalidated { place: dirty });
    // Page 2 was only read, page 3 is in a living node's memory.
    assert_eq!(desk.out.written, [(page(1), dirty)]);
    let Some(&(2, ToNode::Fill { place, .. })) = sent.last() else {
        panic!("{sent:?}");
    };
    let forget = ToNode::Forget { node: node(0) };
    assert_eq!(sent[..2], [(1, forget), (2, forget)]);
    assert!(place.frame >= 2, "frame {} is a dead node's", place.frame);
    assert!(
        desk.try_say(0, ToDirectory::Invalidated { place: dirty })
            .is_err()
    );
}

#[test]
fn a_dead_nodes_locks_are_granted_to_waiting_nodes() {
    let mut desk = Desk::new(2, 1, 0, 0);
    let range = |start, end, exclusive| LockRange {
        inode: 7,
        start,
        end,
        exclusive,
    };
    let lock = |ticket, range| ToDirectory::Lock { ticket, range };
    assert_eq!(
        desk.say(0, lock(1, range(0, 8, true))),
        [(0, ToNode::Locked { ticket: 1 })]
    );
    assert_eq!(desk.say(1, lock(5, range(7, 9, false))), []);
    assert_eq!(
        desk.say(1, lock(6, range(8, 9, false))),
        [(1, ToNode::Locked { ticket: 6 })]
    );
    assert_eq!(desk.say(0, lock(2, range(8, 9, true))), []);
    let sent = desk.die(0);
    assert_eq!(sent.first(), Some(&(1, ToNode::Locked { ticket: 5 })));
    assert_eq!(desk.say(1, ToDirectory::Unlock { ticket: 5 }), []);
    let twice = desk
        .try_say(1, ToDirectory::Unlock { ticket: 5 })
        .expect_err("it is gone");
    assert_eq!(twice.kind(), ErrorKind::InvalidInput);
}
