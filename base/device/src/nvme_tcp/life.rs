//! The life of a device: its association, the loss of it, and the next one.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::rt;

use super::associate::{Association, Offer, keep_alive};
use super::queue::Queue;
use super::receive::receive;
use super::send::Link;
use super::{Shared, Times, Uri, associate};

/// How often a device looks whether it has waited too long, in parts of the shortest of its times.
const LOOKS: u32 = 4;

/// Associations that may be lost with a request on its way, before it is given up.
pub(super) const MOST_LOSSES: u8 = 5;

/// An association, made in the time that a target has.
pub(super) async fn in_time(uri: &Uri, times: &Times) -> Result<Association> {
    // Boxed, since it is a part of others' futures, and has pages in it: a task has no more room than 64 KiB.
    let making = Box::pin(associate(uri, times.keep_alive));
    let made = rt::at_most(times.answer, making).await;
    made.unwrap_or_else(|| {
        let what = format!("no association was made within {:?}", times.answer);
        Err(Error::new(ErrorKind::TimedOut, what))
    })
}

/// Keeps the device connected until it is closed.
pub(super) async fn live(shared: Rc<Shared>, mut association: Association) {
    loop {
        let why = use_up(&shared, association).await;
        if shared.closed.get() {
            break;
        }
        match come_back(&shared, &why).await {
            Some(next) => association = next,
            None => break,
        }
    }
    let over = Error::new(ErrorKind::ShuttingDown, "the device is closed");
    fail(&shared, &over);
    shared.name_what_goes();
}

/// Uses an association until it is lost or the device is closed; nothing of it touches any memory then. Why.
async fn use_up(shared: &Rc<Shared>, association: Association) -> Error {
    let Association {
        mut admin,
        io,
        offer,
    } = association;
    let link = Rc::new(Link::new(io.stream, io.style, offer.depth));
    rt::spawn(receive(Rc::clone(shared), Rc::clone(&link), io.receiver));
    *shared.away.borrow_mut() = None;
    *shared.link.borrow_mut() = Some(Rc::clone(&link));
    shared.begin_again();
    shared.pump();
    let why = watch(shared, &link, &mut admin).await;
    *shared.link.borrow_mut() = None;
    link.break_off(why);
    admin.stream.shutdown();
    link.changed.until(|| link.is_quiet()).await;
    link.broken().expect("it was broken off")
}

/// Waits until an association is over, and keeps it alive until then. Why.
async fn watch(shared: &Shared, link: &Link, admin: &mut Queue) -> Error {
    let Times {
        keep_alive: alive,
        answer,
        ..
    } = shared.times;
    let look = alive.min(answer) / LOOKS;
    let mut said = rt::now();
    loop {
        let over = || link.broken().is_some() || shared.closed.get();
        rt::at_most(look, link.changed.until(over)).await;
        if let Some(why) = link.broken() {
            return why;
        }
        if shared.closed.get() {
            return Error::new(ErrorKind::ShuttingDown, "the device is closed");
        }
        let now = rt::now();
        let oldest = shared.slots.borrow().oldest();
        if oldest.is_some_and(|sent| now - sent > answer) {
            let what = format!("a command was not answered within {answer:?}");
            return Error::new(ErrorKind::TimedOut, what);
        }
        if now - said >= alive / 2 {
            said = now;
            match rt::at_most(alive, keep_alive(admin)).await {
                Some(Ok(())) => {}
                Some(Err(why)) => return why,
                None => {
                    let what = format!("a keep-alive was not answered within {alive:?}");
                    return Error::new(ErrorKind::TimedOut, what);
                }
            }
        }
    }
}

/// Notes what may be gone with an association, and makes another one. None if the device is closed first.
async fn come_back(shared: &Rc<Shared>, why: &Error) -> Option<Association> {
    let name = &shared.name;
    tracing::warn!(
        "NVMe/TCP target {name} is lost ({}); it is tried again",
        why.report()
    );
    shared.losses.set(shared.losses.get() + 1);
    let lost_at = rt::now();
    let changing = shared.slots.borrow_mut().unseat();
    fail_what_ends_them(shared, why);
    shared.lose(lost_at);
    // A write that was sent may be on its way until the target has ended the association.
    let least = match changing {
        true => 2 * shared.offer.keep_alive,
        false => Duration::ZERO,
    };
    let mut try_at = lost_at + least.max(shared.times.pause);
    let mut why = why.clone();
    let mut refused = false;
    loop {
        if !refused {
            give_up_if_late(shared, lost_at, &why);
        }
        let wait = try_at.saturating_sub(rt::now());
        if wait > Duration::ZERO {
            let part = wait.min(shared.times.pause);
            unless_closed(shared, rt::sleep(part)).await?;
            continue;
        }
        let made = unless_closed(shared, in_time(&shared.uri, &shared.times)).await?;
        why = match made {
            Ok(made) if shared.offer.is_still(&made.offer) => return Some(made),
            // The right one may come back. That is no reason for anybody to wait.
            Ok(made) => {
                let error = another(shared, &made.offer);
                if !std::mem::replace(&mut refused, true) {
                    tracing::error!("{}", error.report());
                }
                *shared.away.borrow_mut() = Some(error.clone());
                fail(shared, &error);
                error
            }
            Err(error) => {
                refused = false;
                error
            }
        };
        try_at = rt::now() + shared.times.pause;
    }
}

/// What `future` comes to; none if the device is closed first.
async fn unless_closed<T>(shared: &Shared, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut closed = pin!(shared.closing.until(|| shared.closed.get()));
    poll_fn(|cx| match closed.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => future.as_mut().poll(cx).map(Some),
    })
    .await
}

/// Says that another namespace is there, or the same one with less to offer.
fn another(shared: &Shared, now: &Offer) -> Error {
    let name = &shared.name;
    let what = match shared.offer.is_same_namespace(now) {
        false => format!(
            "NVMe/TCP target {name}: another namespace is in its place (its identifiers have changed), and nothing is sent to \
             it; help: have the target serve the disk that it served before, or restart to use this one"
        ),
        true => format!(
            "NVMe/TCP target {name}: its namespace is smaller or offers less than before, and nothing is sent to it; help: \
             have the target serve it as before, or restart to use it"
        ),
    };
    Error::new(ErrorKind::Disconnected, what)
}

/// Tells all that waits if the target has been away for too long.
fn give_up_if_late(shared: &Shared, lost_at: Duration, why: &Error) {
    if rt::now() < lost_at + shared.times.patience {
        return;
    }
    let what = format!(
        "NVMe/TCP target {} is away for more than {:?}; it is tried on",
        shared.name, shared.times.patience
    );
    let away = Error::with_source(ErrorKind::Disconnected, what, why.clone());
    if shared.away.borrow().is_none() {
        tracing::error!("{}", away.report());
    }
    *shared.away.borrow_mut() = Some(away.clone());
    fail(shared, &away);
}

/// Ends all that waits.
fn fail(shared: &Shared, why: &Error) {
    let waiting = shared.slots.borrow_mut().take_waiting(|_| true);
    for asked in waiting {
        shared.ended(asked, Err(why.clone()));
    }
}

/// Ends what was sent on so many associations that it may be the reason for their ends.
fn fail_what_ends_them(shared: &Shared, why: &Error) {
    let too_often = |asked: &super::Asked| asked.losses >= MOST_LOSSES;
    let waiting = shared.slots.borrow_mut().take_waiting(too_often);
    for asked in waiting {
        let what = format!(
            "{}: a request at byte {} was sent {MOST_LOSSES} times, and the connection was lost each time",
            shared.name, asked.request.offset
        );
        let error = Error::with_source(ErrorKind::Disconnected, what, why.clone());
        shared.ended(asked, Err(error));
    }
}
