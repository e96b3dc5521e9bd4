//! Life cycle of a connection: use it until it is lost, then reconnect.

use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::rt;

use super::Session;
use super::slots::Pending;

/// Maximum number of connections that may be lost while a request is in flight, before the request
/// fails.
pub(super) const MAX_LOSSES: u8 = 5;

/// Device that answers at the peer's address.
pub(crate) enum Found<T> {
    /// The one that was there before, connected.
    Former(T),
    /// Another one, or one that offers less. Nothing may be sent to it.
    Other(Error),
}

/// Keeps the device connected until it is closed. `run` uses a connection until it is lost, and
/// returns the reason. `connect` makes the next one.
pub(crate) async fn stay_connected<T>(
    session: &Session,
    first: T,
    run: impl AsyncFn(T) -> Error,
    connect: impl AsyncFn() -> Result<Found<T>>,
) {
    let mut connection = first;
    loop {
        let why = run(connection).await;
        if session.is_closed() {
            break;
        }
        match session.reconnect(&why, &connect).await {
            Some(next) => connection = next,
            None => break,
        }
    }
    let over = Error::new(ErrorKind::ShuttingDown, "the device is closed");
    session.fail(&over);
    session.report_lost_at_close();
}

impl Session {
    /// Begins the use of a new connection: unflushed changes are queued first.
    pub(crate) fn begin(&self) {
        *self.away.borrow_mut() = None;
        self.begin_resend();
    }

    /// Notes the loss of a connection, and reconnects. Returns `None` if the device is closed
    /// first.
    async fn reconnect<T>(
        &self,
        why: &Error,
        connect: &impl AsyncFn() -> Result<Found<T>>,
    ) -> Option<T> {
        let peer = &self.peer;
        tracing::warn!("{peer} is lost, and is reconnected: {}", why.report());
        self.losses.set(self.losses.get() + 1);
        let lost_at = rt::now();
        let quarantine = self.rules.quarantine;
        let until = (quarantine > Duration::ZERO).then_some(lost_at + quarantine);
        let changing = self.slots.borrow_mut().requeue_all(until);
        self.fail_after_losses(why);
        self.lose(lost_at);
        // A write that was sent may still land until the peer has ended the old connection.
        let least = match changing {
            true => self.rules.silence,
            false => Duration::ZERO,
        };
        let mut try_at = lost_at + least.max(self.rules.pause);
        let mut why = why.clone();
        let mut refused = false;
        loop {
            if !refused {
                self.fail_after_patience(lost_at, &why);
            }
            let wait = try_at.saturating_sub(rt::now());
            if wait > Duration::ZERO {
                let part = wait.min(self.rules.pause);
                self.unless_closed(rt::sleep(part)).await?;
                continue;
            }
            why = match self.unless_closed(connect()).await? {
                Ok(Found::Former(made)) => return Some(made),
                // The right device may return later, but waiting requests fail now.
                Ok(Found::Other(error)) => {
                    if !std::mem::replace(&mut refused, true) {
                        tracing::error!("{}", error.report());
                    }
                    *self.away.borrow_mut() = Some(error.clone());
                    self.fail(&error);
                    error
                }
                Err(error) => {
                    refused = false;
                    error
                }
            };
            try_at = rt::now() + self.rules.pause;
        }
    }

    /// Runs `future`. Returns `None` if the device is closed first.
    async fn unless_closed<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let mut closed = pin!(self.closing.until(|| self.closed.get()));
        poll_fn(|cx| match closed.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => future.as_mut().poll(cx).map(Some),
        })
        .await
    }

    /// Fails all queued requests if the peer has been away for longer than its patience.
    fn fail_after_patience(&self, lost_at: Duration, why: &Error) {
        let patience = self.rules.patience;
        if rt::now() < lost_at + patience {
            return;
        }
        let what = format!(
            "{} has been unreachable for more than {patience:?}; still reconnecting",
            self.peer
        );
        let away = Error::with_source(ErrorKind::Unreachable, what, why.clone());
        if self.away.borrow().is_none() {
            tracing::error!("{}", away.report());
        }
        *self.away.borrow_mut() = Some(away.clone());
        self.fail(&away);
    }

    /// Fails all queued requests.
    fn fail(&self, why: &Error) {
        let waiting = self.slots.borrow_mut().take_waiting(|_| true);
        for pending in waiting {
            self.ended(pending, Err(why.clone()));
        }
    }

    /// Fails requests that were in flight at so many losses that they may be the reason for them.
    fn fail_after_losses(&self, why: &Error) {
        let too_often = |pending: &Pending| pending.losses >= MAX_LOSSES;
        let waiting = self.slots.borrow_mut().take_waiting(too_often);
        for pending in waiting {
            let what = format!(
                "{}: the connection was lost {MAX_LOSSES} times while a request at byte {} was in \
                 flight",
                self.name, pending.request.offset
            );
            let error = Error::with_source(ErrorKind::Unreachable, what, why.clone());
            self.ended(pending, Err(error));
        }
    }
}
