//! Life cycle of the connection: use an association until it is lost, then reconnect.

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

/// Checks of the time limits within the shortest of these limits.
const LOOKS: u32 = 4;

/// Maximum number of associations that may be lost while a request is in flight, before the request
/// fails.
pub(super) const MAX_LOSSES: u8 = 5;

/// Connects within [`Times::answer`].
pub(super) async fn associate_in_time(uri: &Uri, times: &Times) -> Result<Association> {
    // Boxed, since the future contains pages, and a task has only 64 KiB of room.
    let making = Box::pin(associate(uri, times.keep_alive));
    let made = rt::at_most(times.answer, making).await;
    made.unwrap_or_else(|| {
        let what = format!("no association was made within {:?}", times.answer);
        Err(Error::new(ErrorKind::TimedOut, what))
    })
}

/// Keeps the device connected until it is closed.
pub(super) async fn stay_connected(shared: Rc<Shared>, mut association: Association) {
    loop {
        let why = run(&shared, association).await;
        if shared.closed.get() {
            break;
        }
        match reconnect(&shared, &why).await {
            Some(next) => association = next,
            None => break,
        }
    }
    let over = Error::new(ErrorKind::ShuttingDown, "the device is closed");
    fail(&shared, &over);
    shared.report_lost_at_close();
}

/// Uses an association until it is lost or the device is closed, and returns the reason. No task
/// touches memory of a request after the return.
async fn run(shared: &Rc<Shared>, association: Association) -> Error {
    let Association {
        mut admin,
        io,
        offer,
    } = association;
    let link = Rc::new(Link::new(io.stream, io.style, offer.depth));
    rt::spawn(receive(Rc::clone(shared), Rc::clone(&link), io.receiver));
    *shared.away.borrow_mut() = None;
    *shared.link.borrow_mut() = Some(Rc::clone(&link));
    shared.begin_resend();
    shared.pump();
    let why = watch(shared, &link, &mut admin).await;
    *shared.link.borrow_mut() = None;
    link.break_off(why);
    admin.stream.shutdown();
    link.changed.until(|| link.is_quiet()).await;
    link.broken().expect("it was broken off")
}

/// Sends keep-alives and checks time limits until the association is over, and returns the reason.
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

/// Notes the loss of an association, and reconnects. Returns `None` if the device is closed first.
async fn reconnect(shared: &Rc<Shared>, why: &Error) -> Option<Association> {
    let name = &shared.name;
    tracing::warn!(
        "NVMe/TCP target {name} is lost, and is reconnected: {}",
        why.report()
    );
    shared.losses.set(shared.losses.get() + 1);
    let lost_at = rt::now();
    let changing = shared.slots.borrow_mut().unseat();
    fail_after_losses(shared, why);
    shared.lose(lost_at);
    // A write that was sent may still land until the target has ended the old association.
    let least = match changing {
        true => 2 * shared.offer.keep_alive,
        false => Duration::ZERO,
    };
    let mut try_at = lost_at + least.max(shared.times.pause);
    let mut why = why.clone();
    let mut refused = false;
    loop {
        if !refused {
            fail_after_patience(shared, lost_at, &why);
        }
        let wait = try_at.saturating_sub(rt::now());
        if wait > Duration::ZERO {
            let part = wait.min(shared.times.pause);
            unless_closed(shared, rt::sleep(part)).await?;
            continue;
        }
        let made = unless_closed(shared, associate_in_time(&shared.uri, &shared.times)).await?;
        why = match made {
            Ok(made) if shared.offer.is_still(&made.offer) => return Some(made),
            // The right namespace may return later, but waiting requests fail now.
            Ok(made) => {
                let error = wrong_namespace(shared, &made.offer);
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

/// Runs `future`. Returns `None` if the device is closed first.
async fn unless_closed<T>(shared: &Shared, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut closed = pin!(shared.closing.until(|| shared.closed.get()));
    poll_fn(|cx| match closed.as_mut().poll(cx) {
        Poll::Ready(()) => Poll::Ready(None),
        Poll::Pending => future.as_mut().poll(cx).map(Some),
    })
    .await
}

/// Error for a target that serves another namespace, or the same one with less to offer.
fn wrong_namespace(shared: &Shared, now: &Offer) -> Error {
    let name = &shared.name;
    let what = match shared.offer.is_same_namespace(now) {
        false => format!(
            "NVMe/TCP target {name}: its namespace is another one: the identifiers have changed. \
             Nothing is sent to it\n\
             help: let the target serve the disk that it served before, or restart to use this one"
        ),
        true => format!(
            "NVMe/TCP target {name}: its namespace is smaller or offers less than before. Nothing \
             is sent to it\n\
             help: let the target serve it as before, or restart to use it"
        ),
    };
    Error::new(ErrorKind::Disconnected, what)
}

/// Fails all queued requests if the target has been away for longer than its patience.
fn fail_after_patience(shared: &Shared, lost_at: Duration, why: &Error) {
    if rt::now() < lost_at + shared.times.patience {
        return;
    }
    let what = format!(
        "NVMe/TCP target {} has been unreachable for more than {:?}; still reconnecting",
        shared.name, shared.times.patience
    );
    let away = Error::with_source(ErrorKind::Disconnected, what, why.clone());
    if shared.away.borrow().is_none() {
        tracing::error!("{}", away.report());
    }
    *shared.away.borrow_mut() = Some(away.clone());
    fail(shared, &away);
}

/// Fails all queued requests.
fn fail(shared: &Shared, why: &Error) {
    let waiting = shared.slots.borrow_mut().take_waiting(|_| true);
    for pending in waiting {
        shared.ended(pending, Err(why.clone()));
    }
}

/// Fails requests that were in flight at so many losses that they may be the reason for them.
fn fail_after_losses(shared: &Shared, why: &Error) {
    let too_often = |pending: &super::Pending| pending.losses >= MAX_LOSSES;
    let waiting = shared.slots.borrow_mut().take_waiting(too_often);
    for pending in waiting {
        let what = format!(
            "{}: the connection was lost {MAX_LOSSES} times while a request at byte {} was in \
             flight",
            shared.name, pending.request.offset
        );
        let error = Error::with_source(ErrorKind::Disconnected, what, why.clone());
        shared.ended(pending, Err(error));
    }
}
