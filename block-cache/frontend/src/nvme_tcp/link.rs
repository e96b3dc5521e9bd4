//! Link to the host of a queue. Other reactors address it by the number of its connection.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_io::net::Stream;
use forebay_io::rt;

use crate::net::Progress;

use super::slots::Slots;

/// Interval between two checks of a queue that must drain.
const SETTLE_POLL: Duration = Duration::from_millis(1);

/// The stream of a queue, with the commands in flight on it.
pub(super) struct Link {
    number: u64,
    pub(super) stream: Rc<Stream>,
    progress: Rc<Progress>,
    pub(super) slots: Slots,
    /// Whether the association has ended.
    shut: Cell<bool>,
    closing: Cell<bool>,
}

thread_local! {
    /// Links of this thread's reactor.
    static LINKS: RefCell<Vec<(u64, Weak<Link>)>> = const { RefCell::new(Vec::new()) };
}

/// Returns a unique connection number.
pub(super) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Finds a link of the calling reactor.
pub(super) fn find(number: u64) -> Option<Rc<Link>> {
    LINKS.with_borrow(|list| {
        let (_, found) = list.iter().find(|(known, _)| *known == number)?;
        found.upgrade()
    })
}

/// Ends a connection of the calling reactor.
pub(super) fn shut(number: u64) {
    if let Some(link) = find(number) {
        // Received commands that have not started are discarded.
        link.shut.set(true);
        link.stream.shutdown();
    }
}

/// Waits until all commands that have reached this machine on a connection of the calling reactor
/// have ended. Later ones are not waited for.
pub(super) async fn settle(number: u64) {
    let Some(link) = find(number) else { return };
    // The reader notices a finished receive within one turn.
    rt::sleep(SETTLE_POLL).await;
    let here = link.progress.received_bytes() + link.stream.unread_bytes();
    while !link.closing.get() && !link.progress.has_seen(here) {
        rt::sleep(SETTLE_POLL).await;
    }
    let before = link.slots.in_flight();
    loop {
        let now = link.slots.in_flight();
        if !now.iter().any(|number| before.contains(number)) {
            return;
        }
        rt::sleep(SETTLE_POLL).await;
    }
}

impl Link {
    /// Creates the link of a connection of the calling reactor, and lists it under its number.
    pub(super) fn new(
        number: u64,
        stream: &Rc<Stream>,
        progress: Rc<Progress>,
        queue_size: u16,
    ) -> Rc<Self> {
        let link = Rc::new(Self {
            number,
            stream: Rc::clone(stream),
            progress,
            slots: Slots::new(queue_size),
            shut: Cell::new(false),
            closing: Cell::new(false),
        });
        LINKS.with_borrow_mut(|list| list.push((number, Rc::downgrade(&link))));
        link
    }

    /// Returns whether the association has ended.
    pub(super) const fn is_shut(&self) -> bool {
        self.shut.get()
    }

    /// Notes that no further command is read.
    pub(super) fn close(&self) {
        self.closing.set(true);
    }

    /// Returns whether no further command is read.
    pub(super) const fn is_closing(&self) -> bool {
        self.closing.get()
    }

    /// Removes the link from the list.
    pub(super) fn remove(&self) {
        LINKS.with_borrow_mut(|list| list.retain(|(number, _)| *number != self.number));
    }
}
