//! Task that receives replies.

use std::rc::Rc;

use forebay_block::{Error, ErrorKind, Result};
use forebay_wire::nbd::error_kind;
use forebay_wire::nbd::transmission::{SIMPLE_REPLY_BYTES, SimpleReply};

use super::Session;
use crate::receiver::Receiver;

/// Receives replies until the connection ends.
pub(super) async fn receive(session: Rc<Session>) {
    let mut receiver = Receiver::new(Rc::clone(&session.stream));
    let error = loop {
        if let Err(error) = answer(&mut receiver, &session).await {
            break error;
        }
    };
    session.break_off(error);
}

async fn answer(receiver: &mut Receiver, session: &Session) -> Result<()> {
    let reply = SimpleReply::decode(&receiver.take::<SIMPLE_REPLY_BYTES>().await?)?;
    // The request stays in its slot until its data has arrived, so that it fails if the data does
    // not.
    let into = {
        let mut waiting = session.waiting.borrow_mut();
        let pending = waiting.slots.get_mut(reply.cookie as u32 as usize);
        let pending = pending
            .and_then(Option::as_mut)
            .filter(|a| a.cookie == reply.cookie);
        let pending = pending.ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "an answer to no pending request")
        })?;
        pending.into.clone().filter(|_| reply.error == 0)
    };
    if let Some(into) = into {
        receiver.data(&into).await?;
    }
    let outcome = match reply.error {
        0 => Ok(()),
        number => {
            let what = format!("NBD server {} answered with error {number}", session.server);
            Err(Error::new(error_kind(number), what))
        }
    };
    let pending = session.waiting.borrow_mut().take(reply.cookie);
    if let Some(pending) = pending {
        pending.done.complete(outcome);
    }
    Ok(())
}
