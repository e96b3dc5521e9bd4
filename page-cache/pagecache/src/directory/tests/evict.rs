//! Eviction of a page by request of the caller.

use super::*;

#[test]
fn a_page_that_is_not_wanted_goes_as_the_coldest_would() {
    let mut desk = Desk::new(2, 2, 0, 0);
    let place = desk.publish_new(0, 1, Access::Write);
    desk.lookup(1, 1, Access::Read);
    desk.publish_new(0, 2, Access::Read);
    desk.out = Outbox::default();
    assert!(desk.directory.evict(page(1), &mut desk.out));
    let page_1 = page(1);
    let gone = ToNode::Invalidate {
        page: page_1,
        place,
    };
    assert_eq!(desk.sent(), [(0, gone), (1, gone)]);
    assert!(
        !desk.directory.evict(page_1, &mut desk.out),
        "it is going already"
    );
    desk.say(0, ToDirectory::Invalidated { place });
    let write = ToNode::WriteBack {
        page: page_1,
        place,
    };
    assert_eq!(
        desk.say(1, ToDirectory::Invalidated { place }),
        [(0, write)],
        "after all have acknowledged"
    );
    desk.say(0, ToDirectory::WrittenBack { place, ok: true });
    assert_eq!(desk.state(1), State::Invalid);
    assert_eq!(desk.state(2), State::Owner, "no other page went");
    assert!(!desk.directory.evict(page_1, &mut desk.out), "it is gone");
    desk.lookup(1, 3, Access::Read);
    assert!(
        !desk.directory.evict(page(3), &mut desk.out),
        "it is being filled"
    );
}

/// Gives up every other page of a dead node's memory. Returns the messages to node 0, and the pages
/// with their places.
fn given_up(desk: &mut Desk, pages: u64) -> (Vec<ToNode>, Vec<(PageId, Place)>) {
    let places: Vec<_> = (0..pages)
        .map(|index| (page(index), desk.publish_new(1, index, Access::Write)))
        .collect();
    for index in 0..pages {
        desk.lookup(0, index, Access::Write);
    }
    desk.die(1);
    for (_, place) in &places {
        desk.say(0, ToDirectory::Invalidated { place: *place });
    }
    let (gone, present): (Vec<_>, Vec<_>) = places
        .into_iter()
        .partition(|(page, _)| page.index % 2 == 0);
    desk.out = Outbox::default();
    for (_, place) in present {
        desk.directory.rescued(place, &mut desk.out);
    }
    desk.out = Outbox::default();
    let places: Vec<Place> = gone.iter().map(|(_, place)| *place).collect();
    desk.directory.unrescued(&places, &mut desk.out);
    assert_eq!(desk.lost().len(), gone.len());
    let sent = desk.sent().into_iter();
    let sent = sent.filter_map(|(to, message)| (to == 0).then_some(message));
    (sent.collect(), gone)
}

#[test]
fn pages_given_up_by_the_thousand_take_time_by_the_thousand() {
    use crate::node::{self, Consistency, Effect, Node};
    const PAGES: u32 = 1 << 15;
    let mut desk = Desk::new(2, PAGES, 0, 0);
    desk.directory.config.placement = Placement::Pool;
    let begin = std::time::Instant::now();
    let (sent, gone) = given_up(&mut desk, PAGES.into());
    let died = |message: &&ToNode| matches!(message, ToNode::Died { .. });
    assert_eq!(sent.iter().filter(died).count(), gone.len());
    // Each was written by a node that has a file of its own, too.
    let config = node::Config {
        node: node(0),
        consistency: Consistency::Strong,
        frames: PAGES,
        unpublished_pages: 0,
        read_ahead_pages: 0,
        replicate_after: 0,
    };
    let mut effects = Vec::new();
    let mut writer = Node::new(config, &mut effects);
    for (page, place) in &gone {
        writer.stored(*page, *place);
    }
    for message in sent {
        let taken = writer.receive(message, &mut effects);
        taken.expect("a correct directory");
    }
    effects.clear();
    writer.fsync(7, 1, &mut effects);
    let (ticket, ok) = (1, false);
    assert_eq!(effects, [Effect::Done { ticket, ok }]);
    effects.clear();
    writer.fsync(7, 2, &mut effects);
    let (ticket, ok) = (2, true);
    assert_eq!(effects, [Effect::Done { ticket, ok }], "it is said once");
    // Comparing each message with each page, on either side, would take minutes.
    let took = begin.elapsed();
    assert!(took < std::time::Duration::from_secs(20), "{took:?}");
}

#[test]
fn neighbours_that_are_given_up_are_one_message() {
    let mut desk = Desk::new(2, 8, 0, 0);
    desk.directory.config.placement = Placement::Pool;
    let places: Vec<Place> = (0..8)
        .map(|index| desk.publish_new(1, index, Access::Write))
        .collect();
    desk.die(1);
    desk.out = Outbox::default();
    let gone = [5, 0, 1, 6, 2, 5].map(|index: usize| places[index]);
    desk.directory.unrescued(&gone, &mut desk.out);
    let died = |first_frame: u32, frames: u32| {
        let node = node(1);
        let first_frame = 8 + first_frame;
        (
            0,
            ToNode::Died {
                node,
                first_frame,
                frames,
            },
        )
    };
    assert_eq!(desk.sent(), [died(0, 3), died(5, 2)]);
    assert_eq!(desk.lost().len(), 5);
}

#[test]
fn a_refused_page_is_evicted_at_each_request_to_leave() {
    let mut desk = Desk::new(2, 2, 0, 0);
    let place = desk.publish_new(0, 1, Access::Write);
    let (leave, left) = (ToDirectory::Leave {}, (0, ToNode::Left {}));
    for ok in [false, false, true] {
        let page = page(1);
        let sent = desk.say(0, leave);
        assert_eq!(sent, [(0, ToNode::Invalidate { page, place })], "{ok}");
        assert_eq!(desk.say(0, leave), [], "it is going");
        let sent = desk.say(0, ToDirectory::Invalidated { place });
        assert_eq!(sent, [(0, ToNode::WriteBack { page, place })]);
        let sent = desk.say(0, ToDirectory::WrittenBack { place, ok });
        assert_eq!(sent.contains(&left), ok, "{sent:?}");
        if !ok {
            let map = ToNode::Map {
                page,
                place,
                access: Access::Write,
            };
            assert_eq!(desk.lookup(0, 1, Access::Write), [(0, map)]);
        }
    }
}
