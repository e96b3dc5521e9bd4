//! Pages that a node has filled before its death, without a publication that arrived.

use super::*;

/// Has a node fill a page for a write, in its own memory or in that of another node.
fn filled(desk: &mut Desk, from: u8) -> Place {
    let sent = desk.lookup(from, 1, Access::Write);
    let Some(&(_, ToNode::Fill { place, .. })) = sent.first() else {
        panic!("{sent:?}");
    };
    place
}

#[test]
fn a_page_that_was_filled_before_a_death_is_published() {
    let mut desk = Desk::new(3, 2, 0, 0);
    desk.directory.config.placement = Placement::Pool;
    let place = filled(&mut desk, 0);
    assert_eq!(desk.lookup(2, 1, Access::Read), [], "it waits for the page");
    desk.die_with(0, Some((page(1), place)));
    assert_eq!(desk.out.rescues, [(page(1), place)]);
    assert_eq!((desk.lost(), &desk.out.discarded[..]), (vec![], &[][..]));
    desk.directory.rescued(place, &mut desk.out);
    let sent = desk.sent();
    let is_filled = |(to, message): &(u8, ToNode)| match message {
        ToNode::Fill { page: found, .. } => (*to, *found) == (2, page(1)),
        _ => false,
    };
    assert!(sent.iter().any(is_filled), "{sent:?}");
}

#[test]
fn a_page_that_was_filled_in_another_nodes_memory_before_a_death_stays_there() {
    for placement in [Placement::Node, Placement::Pool] {
        let mut desk = Desk::new(3, 2, 0, 0);
        desk.directory.config.placement = placement;
        desk.publish_new(0, 2, Access::Read);
        desk.publish_new(0, 3, Access::Read);
        let place = filled(&mut desk, 0);
        assert!(place.frame >= 2, "the first node has no room");
        desk.lookup(2, 1, Access::Read);
        let sent = desk.die_with(0, Some((page(1), place)));
        assert_eq!(desk.lost(), [], "{placement:?}");
        assert!(!desk.out.rescues.contains(&(page(1), place)), "it stays");
        let is_mapped = |(to, message): &(u8, ToNode)| match message {
            ToNode::Map { place: found, .. } => (*to, *found) == (2, place),
            _ => false,
        };
        assert!(sent.iter().any(is_mapped), "{placement:?}: {sent:?}");
    }
}

#[test]
fn a_page_that_was_filled_before_a_death_is_published_by_the_next_directory() {
    let mut desk = Desk::new(2, 2, 0, 0);
    desk.directory.config.placement = Placement::Pool;
    let place = filled(&mut desk, 0);
    let shares: Vec<Share> = desk.directory.shares().collect();
    let config = desk.directory.config;
    desk.directory = Directory::recover(config, 1, &shares).expect("the same");
    for number in [0, 1] {
        let first_frame = u32::from(number) * 2;
        let frames = 2;
        desk.say(
            number,
            ToDirectory::Rejoin {
                first_frame,
                frames,
            },
        );
        if number == 0 {
            let (page, access) = (page(1), Access::Write);
            let filling = ToDirectory::Filling {
                page,
                place,
                access,
            };
            desk.say(number, filling);
        }
        desk.say(number, ToDirectory::HadAll {});
        if number == 0 {
            desk.die(0);
        }
    }
    desk.out = Outbox::default();
    let unsaved = vec![(page(1), place)];
    desk.directory.recovered(unsaved, &[], &mut desk.out);
    assert_eq!(desk.out.rescues, [(page(1), place)]);
    assert_eq!((desk.lost(), &desk.out.discarded[..]), (vec![], &[][..]));
}
