//! Resends acknowledged but unflushed changes on a new connection, before any other command.

use std::ops::Range;
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Op, Request, Result};
use forebay_io::rt;

use super::Session;
use super::fault::{self, Fault};
use super::reconnect::MAX_LOSSES;
use super::slots::Pending;
use super::unflushed::{Plan, in_words, merged};

/// State of a loss until everything has been sent again.
pub(crate) struct Resend {
    lost_at: Duration,
    writes: usize,
    bytes: u64,
    /// Whether a connection exists on which the resend runs.
    begun: bool,
}

impl Session {
    /// Notes the loss of the connection.
    pub(super) fn lose(&self, lost_at: Duration) {
        let mut resend = self.resend.borrow_mut();
        match &mut *resend {
            // An earlier loss is not over: the peer has served no new request since.
            Some(Resend { begun, .. }) => {
                if std::mem::take(begun) {
                    self.lost_resends.set(self.lost_resends.get() + 1);
                }
            }
            None => {
                *resend = Some(Resend {
                    lost_at,
                    writes: 0,
                    bytes: 0,
                    begun: false,
                });
            }
        }
    }

    /// Queues the unflushed changes on a new connection.
    pub(crate) fn begin_resend(&self) {
        if self.resend.borrow().is_none() {
            return;
        }
        let losses = self.losses.get();
        let plan = match self.lost_resends.get() < MAX_LOSSES {
            _ if fault::has(Fault::FlushAcrossLoss) => Plan::default(),
            true => self.unflushed.borrow_mut().plan(losses),
            // The resend may be the reason for the losses.
            false => Plan {
                lost: self.unflushed.borrow_mut().give_up(losses),
                ..Plan::default()
            },
        };
        self.add_lost(plan.lost);
        if let Some(resend) = &mut *self.resend.borrow_mut() {
            resend.writes = plan.resend.len();
            resend.bytes = plan.resend.iter().map(|one| one.len).sum();
            resend.begun = true;
        }
        let pending = plan.resend.into_iter().map(Pending::resent);
        let none = {
            let mut slots = self.slots.borrow_mut();
            slots.queue_resend(pending.collect());
            slots.resend_is_done()
        };
        if none {
            self.finish_resend();
        }
    }

    fn add_lost(&self, ranges: impl IntoIterator<Item = Range<u64>>) {
        if fault::has(Fault::LostUnreported) {
            return;
        }
        let mut lost = self.lost.borrow_mut();
        lost.extend(ranges);
        *lost = merged(std::mem::take(&mut *lost));
    }

    /// Judges the result of the first flush. If it failed, or the connection was lost before its
    /// end, changes of earlier processes may be lost, in unknown places. A flush that was repeated
    /// after a loss does not cover them, since this device has no copies to send again.
    pub(crate) fn judge_first_flush(&self, flushed: Result<()>) {
        let lost = || Error::new(ErrorKind::Disconnected, "the connection was lost meanwhile");
        let why = match flushed {
            Err(error) => error,
            Ok(()) if self.losses() > 0 => lost(),
            Ok(()) => return,
        };
        tracing::error!(
            "{}: the first flush failed. UNFLUSHED DATA OF EARLIER PROCESSES MAY BE LOST: {}",
            self.peer,
            why.report()
        );
        self.add_lost(std::iter::once(0..self.rules.size_bytes));
    }

    /// Gives up the unflushed changes of a device that is closed while its peer is away, and logs
    /// their ranges.
    pub(super) fn report_lost_at_close(&self) {
        if self.resend.borrow_mut().take().is_none() {
            return;
        }
        let unflushed = self.unflushed.borrow_mut().give_up(self.losses.get());
        self.add_lost(unflushed);
        let lost = self.lost.borrow();
        if !lost.is_empty() {
            tracing::error!(
                "{} is closed while it is unreachable: UNFLUSHED DATA MAY BE LOST at {}, if it \
                 lost power",
                self.peer,
                in_words(&lost)
            );
        }
    }

    /// Completes a change that was sent again.
    pub(super) fn complete_resent(&self, request: &Request, outcome: Result<()>) {
        if let Err(error) = outcome {
            tracing::error!(
                "{}: an unflushed write failed when it was sent a second time: {}",
                self.peer,
                error.report()
            );
            self.add_lost(std::iter::once(
                request.offset..request.offset + request.len,
            ));
        }
        let last = self.slots.borrow_mut().answered();
        if last {
            self.finish_resend();
        }
    }

    /// Ends the resend: each unflushed change is at the peer again, or recorded as lost.
    fn finish_resend(&self) {
        self.lost_resends.set(0);
        let Some(resend) = self.resend.borrow_mut().take() else {
            return;
        };
        let (peer, away) = (&self.peer, rt::now() - resend.lost_at);
        let sent = match resend.writes {
            0 => "no unflushed write had to be sent a second time".to_owned(),
            writes => format!(
                "{writes} unflushed writes of {} KiB were sent a second time",
                resend.bytes.div_ceil(1024)
            ),
        };
        if self.lost.borrow().is_empty() {
            tracing::info!("{peer} is connected, after {away:?}; {sent}");
            return;
        }
        let lost = in_words(&self.lost.borrow());
        tracing::error!(
            "{peer} is connected, after {away:?}; {sent}. UNFLUSHED DATA MAY BE LOST at {lost}"
        );
        let of_flush = |pending: &Pending| pending.request.op == Op::Flush;
        let waiting = self.slots.borrow_mut().take_waiting(of_flush);
        if waiting.is_empty() {
            return;
        }
        if let Some(why) = self.take_lost_error() {
            for pending in waiting {
                pending.done.complete(Err(why.clone()));
            }
        }
    }

    /// Returns the error that names the lost ranges, once. Returns `None` if nothing is lost.
    pub(super) fn take_lost_error(&self) -> Option<Error> {
        // The lost ranges are known only after the resend.
        if self.resend.borrow().is_some() || self.lost.borrow().is_empty() {
            return None;
        }
        let lost = std::mem::take(&mut *self.lost.borrow_mut());
        let what = format!(
            "{} was disconnected: UNFLUSHED DATA MAY BE LOST at {}\n\
             help: write these ranges a second time and flush, or compare them with a copy",
            self.name,
            in_words(&lost)
        );
        Some(Error::new(ErrorKind::Io, what))
    }
}
