//! Single steps, by hand. The simulation tests their combinations.

mod evict;
mod filled;
mod members;
mod replicas;

use super::*;
use crate::message::LockRange;

fn node(number: u8) -> NodeId {
    NodeId::new(number).expect("below the most")
}

fn page(index: u64) -> PageId {
    PageId { inode: 7, index }
}

/// A directory and its last output.
struct Desk {
    directory: Directory,
    out: Outbox,
}

impl Desk {
    /// Returns the pages that are lost if no node has written them back.
    fn lost(&self) -> Vec<PageId> {
        let written = self.out.written.iter().map(|(page, _)| *page);
        self.out.lost.iter().copied().chain(written).collect()
    }

    /// Creates `nodes` nodes of `frames` frames each.
    fn new(nodes: u8, frames: u32, free_low: u32, free_high: u32) -> Self {
        let config = Config {
            budget_pages: u32::from(nodes) * frames,
            free_low,
            free_high,
            placement: Placement::Node,
        };
        let mut desk = Self {
            directory: Directory::new(config).expect("a possible configuration"),
            out: Outbox::default(),
        };
        for number in 0..nodes {
            let unpublished_pages = 0;
            desk.say(
                number,
                ToDirectory::Join {
                    frames,
                    unpublished_pages,
                },
            );
        }
        desk
    }

    fn try_say(&mut self, from: u8, message: ToDirectory) -> Result<Vec<(u8, ToNode)>> {
        self.out = Outbox::default();
        self.directory.receive(node(from), message, &mut self.out)?;
        Ok(self.sent())
    }

    fn say(&mut self, from: u8, message: ToDirectory) -> Vec<(u8, ToNode)> {
        self.try_say(from, message).expect("a correct message")
    }

    fn sent(&self) -> Vec<(u8, ToNode)> {
        let messages = self.out.messages.iter();
        messages
            .map(|(to, message)| (to.number(), *message))
            .collect()
    }

    fn forgotten(&self) -> Vec<NodeId> {
        self.out.forgotten.iter().map(|share| share.node).collect()
    }

    fn die(&mut self, number: u8) -> Vec<(u8, ToNode)> {
        self.die_with(number, None)
    }

    /// A node dies that has filled and written this page.
    fn die_with(&mut self, number: u8, unsaved: Option<(PageId, Place)>) -> Vec<(u8, ToNode)> {
        self.out = Outbox::default();
        let unsaved = |frame| unsaved.filter(|(_, place)| place.frame == frame);
        let out = &mut self.out;
        self.directory.died(node(number), &unsaved, out);
        self.sent()
    }

    fn lookup(&mut self, from: u8, index: u64, access: Access) -> Vec<(u8, ToNode)> {
        let page = page(index);
        self.say(from, ToDirectory::Lookup { page, access })
    }

    /// Looks up a page that is not in memory, and publishes it.
    fn publish_new(&mut self, from: u8, index: u64, access: Access) -> Place {
        let sent = self.lookup(from, index, access);
        let Some(&(_, ToNode::Fill { place, .. })) = sent.first() else {
            panic!("expected a frame to fill, not {sent:?}");
        };
        self.say(from, ToDirectory::Publish { place });
        place
    }

    fn state(&self, index: u64) -> State {
        self.directory
            .page(page(index))
            .map_or(State::Invalid, |(state, _)| state)
    }
}

#[test]
fn a_page_is_filled_once_and_then_mapped() {
    let mut desk = Desk::new(2, 4, 0, 0);
    let sent = desk.lookup(0, 1, Access::Read);
    let Some(&(0, ToNode::Fill { place, .. })) = sent.first() else {
        panic!("{sent:?}");
    };
    assert_eq!(desk.state(1), State::Exclusive);
    assert_eq!(desk.lookup(1, 1, Access::Read), [], "it waits for the fill");
    let map = ToNode::Map {
        page: page(1),
        place,
        access: Access::Read,
    };
    assert_eq!(desk.say(0, ToDirectory::Publish { place }), [(1, map)]);
    assert_eq!(desk.state(1), State::Shared);
    let other = desk.publish_new(1, 2, Access::Read);
    assert!(other.frame >= 4, "the frame is the filler's own");
    assert_eq!(desk.state(2), State::Owner);
    assert_ne!(other.generation, place.generation);
}

#[test]
fn a_failed_fill_passes_to_the_next_waiting_node() {
    let mut desk = Desk::new(2, 2, 0, 0);
    let sent = desk.lookup(0, 1, Access::Read);
    let Some(&(0, ToNode::Fill { place, .. })) = sent.first() else {
        panic!("{sent:?}");
    };
    desk.lookup(1, 1, Access::Read);
    let sent = desk.say(0, ToDirectory::Abandon { place });
    assert!(matches!(sent[..], [(1, ToNode::Fill { .. })]), "{sent:?}");
}

#[test]
fn a_node_without_room_fills_the_memory_of_one_with_room() {
    let mut desk = Desk::new(2, 2, 0, 0);
    desk.publish_new(0, 1, Access::Read);
    desk.publish_new(0, 2, Access::Read);
    let place = desk.publish_new(0, 3, Access::Read);
    assert!(place.frame >= 2, "frame {} is node 1's", place.frame);
    assert_eq!(
        desk.state(3),
        State::Shared,
        "it is mapped by a node that is not its owner"
    );
}

#[test]
fn a_frame_is_reused_after_all_acknowledgements_and_the_write_back() {
    let mut desk = Desk::new(2, 1, 0, 0);
    let first = desk.publish_new(0, 1, Access::Write);
    desk.lookup(1, 1, Access::Read);
    desk.publish_new(1, 2, Access::Read);
    // The budget is used up: page 1 is colder, and goes.
    let sent = desk.lookup(1, 3, Access::Read);
    let gone = ToNode::Invalidate {
        page: page(1),
        place: first,
    };
    assert_eq!(sent, [(0, gone), (1, gone)]);
    assert_eq!(desk.state(1), State::ToBeInvalidated);
    assert_eq!(
        desk.lookup(0, 1, Access::Read),
        [],
        "lookups wait meanwhile"
    );
    assert_eq!(desk.say(0, ToDirectory::Invalidated { place: first }), []);
    let write = ToNode::WriteBack {
        page: page(1),
        place: first,
    };
    assert_eq!(
        desk.say(1, ToDirectory::Invalidated { place: first }),
        [(0, write)]
    );
    let sent = desk.say(
        0,
        ToDirectory::WrittenBack {
            place: first,
            ok: true,
        },
    );
    let Some(&(
        1,
        ToNode::Fill {
            page: filled,
            place,
            ..
        },
    )) = sent.first()
    else {
        panic!("{sent:?}");
    };
    assert_eq!((filled, place.frame), (page(3), first.frame));
    assert!(place.generation > first.generation);
}

#[test]
fn a_page_that_the_store_refuses_stays() {
    let mut desk = Desk::new(1, 2, 0, 0);
    let place = desk.publish_new(0, 1, Access::Write);
    desk.publish_new(0, 2, Access::Read);
    desk.lookup(0, 3, Access::Read);
    desk.say(0, ToDirectory::Invalidated { place });
    let sent = desk.say(0, ToDirectory::WrittenBack { place, ok: false });
    assert_eq!(desk.state(1), State::Owner);
    assert!(
        matches!(
            sent[..],
            [(
                0,
                ToNode::Invalidate {
                    page: PageId { index: 2, .. },
                    ..
                }
            )]
        ),
        "the other page goes: {sent:?}"
    );
}

#[test]
fn a_batch_goes_at_a_time() {
    let mut desk = Desk::new(1, 16, 2, 8);
    for index in 0..14 {
        desk.publish_new(0, index, Access::Read);
    }
    let sent = desk.lookup(0, 14, Access::Read);
    let invalidated = sent
        .iter()
        .filter(|(_, message)| matches!(message, ToNode::Invalidate { .. }));
    assert_eq!(invalidated.count(), 7, "one is free, so that eight will be");
    assert_eq!(desk.state(6), State::ToBeInvalidated);
    assert_eq!(desk.state(7), State::Owner);
}

#[test]
fn a_recently_used_page_stays() {
    let mut desk = Desk::new(1, 2, 0, 0);
    let place = desk.publish_new(0, 1, Access::Read);
    desk.publish_new(0, 2, Access::Read);
    desk.say(0, ToDirectory::Used { place });
    desk.lookup(0, 3, Access::Read);
    assert_eq!(
        (desk.state(1), desk.state(2)),
        (State::Owner, State::ToBeInvalidated)
    );
}

#[test]
fn a_flush_covers_earlier_stores() {
    let mut desk = Desk::new(2, 2, 0, 0);
    let place = desk.publish_new(0, 1, Access::Write);
    desk.lookup(1, 1, Access::Write);
    let write = ToNode::WriteBack {
        page: page(1),
        place,
    };
    let flush = ToDirectory::Flush {
        page: page(1),
        place,
    };
    assert_eq!(desk.say(0, flush), [(0, write)]);
    assert_eq!(
        desk.say(1, flush),
        [],
        "the write-back in progress may be too early for it"
    );
    let flushed = ToNode::Flushed {
        page: page(1),
        place,
        ok: true,
    };
    let written = ToDirectory::WrittenBack { place, ok: true };
    assert_eq!(desk.say(0, written), [(0, flushed), (0, write)]);
    assert_eq!(desk.say(0, written), [(1, flushed)]);
    let gone = Place {
        generation: 999,
        ..place
    };
    let sent = desk.say(
        1,
        ToDirectory::Flush {
            page: page(1),
            place: gone,
        },
    );
    assert!(matches!(sent[..], [(1, ToNode::Flushed { ok: true, .. })]));
}

#[test]
fn messages_that_no_correct_node_sends_are_refused() {
    let mut desk = Desk::new(2, 2, 0, 0);
    let place = desk.publish_new(0, 1, Access::Read);
    let wrong = [
        ToDirectory::Join {
            frames: 1,
            unpublished_pages: 0,
        },
        ToDirectory::Publish { place },
        ToDirectory::Abandon { place },
        ToDirectory::Invalidated { place },
        ToDirectory::WrittenBack { place, ok: true },
        ToDirectory::Publish {
            place: Place { frame: 99, ..place },
        },
        ToDirectory::Flush {
            page: page(2),
            place,
        },
    ];
    for message in wrong {
        let refused = desk.try_say(0, message).expect_err("not now");
        assert!(refused.report().contains("node 0"), "{refused:?}");
    }
    assert_eq!(desk.state(1), State::Owner);
}

#[test]
fn the_budget_is_the_clusters() {
    let config = Config {
        budget_pages: 10,
        free_low: 0,
        free_high: 0,
        placement: Placement::Node,
    };
    let mut directory = Directory::new(config).expect("possible");
    let mut out = Outbox::default();
    for number in 0..3 {
        let join = ToDirectory::Join {
            frames: 4,
            unpublished_pages: 1,
        };
        directory
            .receive(node(number), join, &mut out)
            .expect("it joins");
    }
    assert_eq!(directory.taken_pages(), 10);
    let last = ToNode::Joined {
        first_frame: 0,
        frames: 0,
        unpublished_pages: 0,
    };
    assert_eq!(out.messages.last(), Some(&(node(2), last)));
    let bad = Config {
        budget_pages: 4,
        free_low: 3,
        free_high: 4,
        placement: Placement::Node,
    };
    assert!(Directory::new(bad).is_err());
}

#[test]
fn a_page_takes_at_most_64_bytes() {
    for budget_pages in [1_000, 57_344, 57_345, 1 << 20, (1 << 20) + 1] {
        let config = Config {
            budget_pages,
            free_low: 0,
            free_high: 1,
            placement: Placement::Node,
        };
        let mut directory = Directory::new(config).expect("possible");
        let before = directory.memory_bytes();
        let mut out = Outbox::default();
        let join = ToDirectory::Join {
            frames: budget_pages,
            unpublished_pages: 0,
        };
        directory
            .receive(node(0), join, &mut out)
            .expect("it joins");
        for index in 0..u64::from(budget_pages) {
            let lookup = ToDirectory::Lookup {
                page: page(index),
                access: Access::Read,
            };
            directory
                .receive(node(0), lookup, &mut out)
                .expect("it is looked up");
            out.messages.clear();
        }
        assert_eq!(
            directory.memory_bytes(),
            before,
            "all memory was taken at the start"
        );
        let per_page = before as f64 / f64::from(budget_pages);
        assert!(
            per_page <= 64.0,
            "{per_page:.1} bytes a page of {budget_pages}"
        );
    }
}

#[test]
fn whatever_nodes_say_is_taken_or_refused() {
    for seed in 0..400 {
        let rng = forebay_io::sim::Rng::new(seed);
        let mut desk = Desk::new(3, 3, 1, 2);
        for _ in 0..400 {
            let (from, index) = (rng.index(3) as u8, rng.below(12));
            let frame = u32::try_from(rng.below(10)).expect("small");
            let current = desk
                .directory
                .entries
                .get(frame as usize)
                .map(|entry| entry.generation);
            let generation = current
                .filter(|_| rng.chance(9, 10))
                .unwrap_or(rng.below(50));
            let (page, place) = (page(index), Place { frame, generation });
            let access = if rng.chance(1, 2) {
                Access::Read
            } else {
                Access::Write
            };
            let range = LockRange {
                inode: 7,
                start: index,
                end: rng.below(14),
                exclusive: rng.chance(1, 2),
            };
            let (ticket, ok) = (rng.below(6), rng.chance(3, 4));
            let message = match rng.below(12) {
                0..=2 => ToDirectory::Lookup { page, access },
                3..=4 => ToDirectory::Publish { place },
                5 => ToDirectory::Abandon { place },
                6..=7 => ToDirectory::Invalidated { place },
                8 => ToDirectory::WrittenBack { place, ok },
                9 => match desk.directory.at(place).map(|entry| entry.page) {
                    Some(page) => ToDirectory::Flush { page, place },
                    None => ToDirectory::Used { place },
                },
                10 => ToDirectory::Lock { ticket, range },
                _ => ToDirectory::Unlock { ticket },
            };
            let refused = desk.try_say(from, message).err();
            assert!(refused.is_none_or(|error| error.kind() == ErrorKind::InvalidInput));
            if rng.chance(1, 300) {
                desk.die(from);
            }
            let used = desk
                .directory
                .entries
                .iter()
                .filter(|entry| entry.state != State::Invalid);
            assert_eq!(
                used.count(),
                desk.directory.pages.len(),
                "each page in use is in the table"
            );
        }
    }
}
