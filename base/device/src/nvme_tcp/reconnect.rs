//! Life cycle of the connection: use an association until it is lost, then reconnect.

use std::rc::Rc;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::rt;

use super::associate::{Association, Offer, keep_alive};
use super::queue::Queue;
use super::receive::receive;
use super::send::Link;
use super::{Shared, Times, Uri, associate};
use crate::remote::reconnect::{self, Found};

/// Checks of the time limits within the shortest of these limits.
const LOOKS: u32 = 4;

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
pub(super) async fn stay_connected(shared: Rc<Shared>, association: Association) {
    let run = async |association| run(&shared, association).await;
    let connect = async || {
        let made = associate_in_time(&shared.uri, &shared.times).await?;
        Ok(match shared.offer.is_still(&made.offer) {
            true => Found::Former(made),
            false => Found::Other(wrong_namespace(&shared, &made.offer)),
        })
    };
    reconnect::stay_connected(&shared.session, association, run, connect).await;
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
    *shared.link.borrow_mut() = Some(Rc::clone(&link));
    shared.session.begin();
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
        let over = || link.broken().is_some() || shared.session.is_closed();
        rt::at_most(look, link.changed.until(over)).await;
        if let Some(why) = link.broken() {
            return why;
        }
        if shared.session.is_closed() {
            return Error::new(ErrorKind::ShuttingDown, "the device is closed");
        }
        let now = rt::now();
        let oldest = shared.session.slots.borrow().oldest();
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

/// Error for a target that serves another namespace, or the same one with less to offer.
fn wrong_namespace(shared: &Shared, now: &Offer) -> Error {
    let name = &shared.session.name;
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
