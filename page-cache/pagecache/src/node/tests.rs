//! Single steps, by hand. The simulation tests their combinations.

use super::*;
use crate::message::ToNode;

fn page(index: u64) -> PageId {
    PageId { inode: 7, index }
}

fn place(frame: u32) -> Place {
    Place {
        frame,
        generation: u64::from(frame) + 1,
    }
}

/// A node with frames 0 to 3 of the cluster, and its last effects.
struct Desk {
    node: Node,
    effects: Vec<Effect>,
}

impl Desk {
    fn new(consistency: Consistency) -> Self {
        let config = Config {
            node: NodeId::new(1).expect("a node"),
            consistency,
            frames: 4,
            unpublished_pages: 1,
            read_ahead_pages: 4,
            replicate_after: 0,
        };
        let mut effects = Vec::new();
        let node = Node::new(config, &mut effects);
        let mut desk = Self { node, effects };
        desk.receive(ToNode::Joined {
            first_frame: 0,
            frames: 4,
            unpublished_pages: 1,
        });
        desk
    }

    fn receive(&mut self, message: ToNode) -> &[Effect] {
        self.effects.clear();
        let taken = self.node.receive(message, &mut self.effects);
        taken.expect("a correct message");
        &self.effects
    }

    fn acquire(&mut self, index: u64, access: Access) -> Acquired {
        self.effects.clear();
        self.node
            .acquire(page(index), access, 100 + index, &mut self.effects)
    }

    fn map(&mut self, index: u64, frame: u32, access: Access) {
        assert_eq!(self.acquire(index, access), Acquired::Wait);
        self.receive(ToNode::Map {
            page: page(index),
            place: place(frame),
            access,
        });
    }

    fn asked_for(&self) -> Vec<u64> {
        let lookups = self.effects.iter().filter_map(|effect| match effect {
            Effect::Send(ToDirectory::Lookup { page, .. }) => Some(page.index),
            _ => None,
        });
        lookups.collect()
    }
}

#[test]
fn a_page_is_asked_for_once_and_then_costs_nothing() {
    let mut desk = Desk::new(Consistency::Strong);
    assert_eq!(desk.acquire(1, Access::Read), Acquired::Wait);
    assert_eq!(desk.asked_for(), [1]);
    assert_eq!(desk.acquire(1, Access::Read), Acquired::Wait);
    assert_eq!(desk.effects, [], "one lookup is enough for both");
    let map = ToNode::Map {
        page: page(1),
        place: place(9),
        access: Access::Read,
    };
    assert_eq!(desk.receive(map), [Effect::Ready(101), Effect::Ready(101)]);
    assert_eq!(desk.acquire(1, Access::Read), Acquired::Mapped(place(9)));
    assert_eq!(desk.effects, []);
    assert_eq!(
        desk.acquire(1, Access::Write),
        Acquired::Wait,
        "the first store asks"
    );
    assert_eq!(
        (
            desk.node.counts().hits_remote,
            desk.node.counts().hits_local
        ),
        (1, 0)
    );
}

#[test]
fn an_invalidation_waits_for_pins_and_refuses_new_ones() {
    let mut desk = Desk::new(Consistency::Strong);
    desk.map(1, 2, Access::Write);
    desk.node.pin(page(1));
    let invalidate = ToNode::Invalidate {
        page: page(1),
        place: place(2),
    };
    assert_eq!(desk.receive(invalidate), []);
    assert_eq!(desk.acquire(1, Access::Read), Acquired::Wait);
    desk.effects.clear();
    desk.node.unpin(page(1), &mut desk.effects);
    let gone = ToDirectory::Invalidated { place: place(2) };
    assert_eq!(desk.effects, [Effect::Send(gone)]);
}

#[test]
fn pages_in_use_are_reported_once_after_each_invalidation() {
    let mut desk = Desk::new(Consistency::Strong);
    desk.map(1, 1, Access::Read);
    desk.map(2, 2, Access::Read);
    desk.acquire(1, Access::Read);
    assert_eq!(desk.effects, [], "nothing presses");
    desk.receive(ToNode::Invalidate {
        page: page(2),
        place: place(2),
    });
    desk.acquire(1, Access::Read);
    let used = ToDirectory::Used { place: place(1) };
    assert_eq!(desk.effects, [Effect::Send(used)]);
    desk.acquire(1, Access::Read);
    assert_eq!(desk.effects, []);
}

#[test]
fn a_sequential_reader_is_read_ahead_of_by_twice_as_much_each_time() {
    let mut desk = Desk::new(Consistency::Strong);
    desk.node.open(7, 12);
    let mut asked = Vec::new();
    for index in 0..12 {
        desk.acquire(index, Access::Read);
        let lookups = desk.asked_for();
        for index in &lookups {
            desk.receive(ToNode::Map {
                page: page(*index),
                place: place(u32::try_from(*index).expect("small")),
                access: Access::Read,
            });
        }
        if !lookups.is_empty() {
            asked.push(lookups);
        }
    }
    let windows = [&[0, 1][..], &[2, 3, 4], &[5, 6, 7, 8, 9], &[10, 11]];
    assert_eq!(
        asked, windows,
        "one, two, four at most, and not behind the end"
    );
}

#[test]
fn a_random_reader_is_not_read_ahead_of() {
    let mut desk = Desk::new(Consistency::Strong);
    desk.node.open(7, 100);
    for index in [50, 20, 70, 3] {
        desk.acquire(index, Access::Read);
        assert_eq!(desk.asked_for(), [index]);
    }
}

#[test]
fn a_relaxed_write_stays_until_the_file_is_closed() {
    let mut desk = Desk::new(Consistency::Relaxed);
    desk.effects.clear();
    let wrote = desk
        .node
        .write_whole(page(1), &[5; 64], 1, &mut desk.effects);
    assert_eq!(
        (wrote, &desk.effects[..]),
        (WroteWhole::Unpublished, &[][..])
    );
    let other = desk
        .node
        .write_whole(page(2), &[5; 64], 2, &mut desk.effects);
    assert_eq!(other, WroteWhole::InPlace, "it may hold one such page");
    assert_eq!(desk.acquire(1, Access::Read), Acquired::Unpublished);
    desk.node.close(7, 3, &mut desk.effects);
    assert_eq!(desk.asked_for(), [1]);
    let fill = ToNode::Fill {
        page: page(1),
        place: place(0),
        access: Access::Write,
    };
    let unpublished = Effect::FillUnpublished {
        page: page(1),
        place: place(0),
    };
    assert_eq!(desk.receive(fill), [unpublished]);
    assert_eq!(desk.acquire(1, Access::Read), Acquired::Wait);
    desk.node.filled(page(1), true, &mut desk.effects);
    let publish = Effect::Send(ToDirectory::Publish { place: place(0) });
    let done = Effect::Done {
        ticket: 3,
        ok: true,
    };
    assert_eq!(desk.effects, [publish, done, Effect::Ready(101)]);
    assert_eq!(desk.acquire(1, Access::Write), Acquired::Mapped(place(0)));
}

#[test]
fn a_strong_write_is_over_when_it_is_published() {
    let mut desk = Desk::new(Consistency::Strong);
    desk.effects.clear();
    let wrote = desk
        .node
        .write_whole(page(1), &[5; 64], 1, &mut desk.effects);
    assert_eq!(wrote, WroteWhole::Publishing);
    let map = ToNode::Map {
        page: page(1),
        place: place(8),
        access: Access::Write,
    };
    let merge = Effect::Merge {
        page: page(1),
        place: place(8),
    };
    assert_eq!(
        desk.receive(map),
        [merge],
        "somebody was faster: ours goes over it"
    );
    desk.effects.clear();
    desk.node.merged(page(1), place(8), &mut desk.effects);
    assert_eq!(
        desk.effects,
        [Effect::Done {
            ticket: 1,
            ok: true
        }]
    );
}

#[test]
fn a_flush_does_not_cover_later_stores() {
    let mut desk = Desk::new(Consistency::Strong);
    desk.map(1, 1, Access::Write);
    desk.node.stored(page(1), place(1));
    desk.effects.clear();
    desk.node.fsync(7, 1, &mut desk.effects);
    let flush = ToDirectory::Flush {
        page: page(1),
        place: place(1),
    };
    assert_eq!(desk.effects, [Effect::Send(flush)]);
    desk.node.stored(page(1), place(1));
    let flushed = ToNode::Flushed {
        page: page(1),
        place: place(1),
        ok: true,
    };
    assert_eq!(
        desk.receive(flushed),
        [Effect::Done {
            ticket: 1,
            ok: true
        }]
    );
    desk.effects.clear();
    desk.node.fsync(7, 2, &mut desk.effects);
    assert_eq!(
        desk.effects,
        [Effect::Send(flush)],
        "the second store is not in the store"
    );
    assert_eq!(
        desk.receive(flushed),
        [Effect::Done {
            ticket: 2,
            ok: true
        }]
    );
    desk.effects.clear();
    desk.node.fsync(7, 3, &mut desk.effects);
    assert_eq!(
        desk.effects,
        [Effect::Done {
            ticket: 3,
            ok: true
        }]
    );
}

#[test]
fn a_loss_is_said_by_the_next_flush_and_only_by_it() {
    let mut desk = Desk::new(Consistency::Strong);
    desk.map(1, 9, Access::Write);
    desk.node.stored(page(1), place(9));
    let dead = NodeId::new(2).expect("a node");
    desk.receive(ToNode::Died {
        node: dead,
        first_frame: 8,
        frames: 4,
    });
    for (ticket, ok) in [(1, false), (2, true)] {
        desk.effects.clear();
        desk.node.fsync(7, ticket, &mut desk.effects);
        assert_eq!(desk.effects, [Effect::Done { ticket, ok }]);
    }
}

#[test]
fn messages_that_no_correct_directory_sends_are_refused() {
    let mut desk = Desk::new(Consistency::Strong);
    desk.map(1, 1, Access::Read);
    let (page, place) = (page(2), place(2));
    let access = Access::Read;
    let wrong = [
        ToNode::Fill {
            page,
            place,
            access,
        },
        ToNode::Map {
            page,
            place,
            access,
        },
        ToNode::Invalidate { page, place },
    ];
    for message in wrong {
        let refused = desk
            .node
            .receive(message, &mut desk.effects)
            .expect_err("not now");
        assert!(refused.report().contains("node 1"), "{refused:?}");
    }
}
