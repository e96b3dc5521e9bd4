//! Life cycle of the connections: use them until one is lost, then reconnect.

use std::rc::Rc;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::rt;
use forebay_tls::ClientTls;
use forebay_wire::nbd::handshake::export;

use super::handshake::{self, Offer};
use super::line::Line;
use super::link::{Group, Link};
use super::receive::receive;
use super::{Settings, Shared, Times, Uri};
use crate::receiver::Receiver;
use crate::remote::reconnect::{self, Found};

/// Checks of the time limits within the shortest of these limits.
const LOOKS: u32 = 4;

/// Connections in the transmission phase.
pub(super) struct Connections {
    /// Offer of the first one.
    pub(super) offer: Offer,
    /// Each with its own offer.
    pub(super) lines: Vec<(Rc<Line>, Offer)>,
}

/// Connects within [`Times::answer`].
pub(super) async fn connect_in_time(
    uri: &Uri,
    tls: Option<&ClientTls>,
    settings: Settings,
) -> Result<Connections> {
    let answer = settings.times.answer;
    // Boxed, since a task has only 64 KiB of room.
    let making = Box::pin(connect(uri, tls, settings.connections));
    let made = rt::at_most(answer, making).await;
    made.unwrap_or_else(|| {
        let what = format!("no connection was made within {answer:?}");
        Err(Error::new(ErrorKind::TimedOut, what))
    })
}

/// Makes `count` connections, or one if the server does not allow several.
async fn connect(uri: &Uri, tls: Option<&ClientTls>, count: u16) -> Result<Connections> {
    let (line, offer) = handshake::connect(uri, tls).await?;
    let mut lines = vec![(line, offer)];
    let count = match offer.has(export::CAN_MULTI_CONN) {
        true => count,
        false => 1,
    };
    while lines.len() < count.into() {
        let (line, other) = handshake::connect(uri, tls).await?;
        if !offer.is_like(&other) {
            let what = "the server offers something else on each connection";
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        lines.push((line, other));
    }
    Ok(Connections { offer, lines })
}

/// Keeps the device connected until it is closed.
pub(super) async fn stay_connected(shared: Rc<Shared>, first: Connections) {
    let run = async |connections| run(&shared, connections).await;
    let connect = async || {
        let made = connect_in_time(&shared.uri, shared.tls.as_ref(), shared.settings).await?;
        let size_bytes = shared.info.borrow().size_bytes;
        Ok(match shared.offer.difference(size_bytes, &made.offer) {
            None => {
                note_size(&shared, &made.offer);
                Found::Former(made)
            }
            Some(difference) => Found::Other(another(&shared, &difference)),
        })
    };
    reconnect::stay_connected(&shared.session, first, run, connect).await;
}

/// Notes the size of an export that may have grown.
fn note_size(shared: &Shared, now: &Offer) {
    let is = now.whole_bytes();
    let was = std::mem::replace(&mut shared.info.borrow_mut().size_bytes, is);
    if is > was {
        tracing::warn!(
            "NBD server {}: the export has grown from {was} to {is} bytes: apply it with `forebay \
             grow`",
            shared.session.name
        );
    }
}

/// Error for a server whose export is not the one that was there.
fn another(shared: &Shared, difference: &str) -> Error {
    let what = format!(
        "NBD server {}: its export is another one, or offers less: {difference}. Nothing is sent \
         to it\n\
         help: let the server serve the export as before, or restart to use this one",
        shared.session.name
    );
    Error::new(ErrorKind::Disconnected, what)
}

/// Uses connections until one is lost or the device is closed, and returns the reason. No task
/// touches memory of a request after the return.
async fn run(shared: &Rc<Shared>, connections: Connections) -> Error {
    let group = Rc::new(Group::default());
    let count = connections.lines.len();
    let offer = connections.offer;
    let mut links = Vec::with_capacity(count);
    for (number, (line, offer)) in connections.lines.into_iter().enumerate() {
        let receiver = Receiver::new(Rc::clone(&line));
        let link = Rc::new(Link::new(line, &offer, &group, number, count));
        rt::spawn(receive(Rc::clone(shared), Rc::clone(&link), receiver));
        links.push(link);
    }
    shared.links.borrow_mut().clone_from(&links);
    shared.session.begin();
    if offer.allocation.is_none() {
        shared.refuse_queries();
    }
    shared.pump();
    let why = watch(shared, &group).await;
    shared.links.borrow_mut().clear();
    if shared.session.is_closed() {
        for link in &links {
            link.disconnect().await;
        }
    }
    for link in &links {
        link.break_off(why.clone());
    }
    let quiet = || links.iter().all(|link| link.is_quiet());
    group.changed.until(quiet).await;
    group.broken().expect("it was broken off")
}

/// Checks time limits until a connection is lost or the device is closed, and returns the reason.
async fn watch(shared: &Rc<Shared>, group: &Group) -> Error {
    let Times { answer, flush, .. } = shared.settings.times;
    let look = answer / LOOKS;
    loop {
        let now = rt::now();
        let released = shared.session.slots.borrow_mut().next_release(now);
        let wait = released.map_or(look, |at| look.min(at.saturating_sub(now)));
        let over = || group.broken().is_some() || shared.session.is_closed();
        rt::at_most(wait, group.changed.until(over)).await;
        if let Some(why) = group.broken() {
            return why;
        }
        if shared.session.is_closed() {
            return Error::new(ErrorKind::ShuttingDown, "the device is closed");
        }
        let now = rt::now();
        for (limit, long) in [(answer, false), (flush, true)] {
            let slots = shared.session.slots.borrow();
            let oldest = slots.oldest_of(|pending| pending.is_long() == long);
            if oldest.is_some_and(|sent| now - sent > limit) {
                let what = format!("a request was not answered within {limit:?}");
                return Error::new(ErrorKind::TimedOut, what);
            }
        }
        if released.is_some() {
            shared.pump();
        }
    }
}
