//! A page that a caller wants gone.

use super::*;

#[test]
fn a_page_that_is_not_wanted_goes_as_the_coldest_would() {
    let mut desk = Desk::new(2, 2, 0, 0);
    let place = desk.bring(0, 1, Access::Write);
    desk.lookup(1, 1, Access::Read);
    desk.bring(0, 2, Access::Read);
    desk.out = Outbox::default();
    assert!(desk.directory.evict(page(1), &mut desk.out));
    let page_1 = page(1);
    let gone = ToNode::Invalidate {
        page: page_1,
        place,
    };
    assert_eq!(desk.heard(), [(0, gone), (1, gone)]);
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
