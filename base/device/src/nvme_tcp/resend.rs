//! Resends acknowledged but unflushed changes on a new association, before any other command.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Op, Request, Result, completion_pair};
use forebay_io::rt;

use super::Shared;
use super::reconnect::MAX_LOSSES;
use super::slots::Pending;
use super::unflushed::{Plan, in_words, merged};

/// State of a loss until everything has been sent again.
pub(super) struct Resend {
    lost_at: Duration,
    writes: usize,
    bytes: u64,
    /// Whether an association exists on which the resend runs.
    begun: bool,
}

impl Shared {
    /// Notes the loss of the association.
    pub(super) fn lose(&self, lost_at: Duration) {
        let mut resend = self.resend.borrow_mut();
        match &mut *resend {
            // An earlier loss is not over: the target has served no new request since.
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

    /// Queues the unflushed changes on a new association.
    pub(super) fn begin_resend(self: &Rc<Self>) {
        if self.resend.borrow().is_none() {
            return;
        }
        let losses = self.losses.get();
        let plan = match self.lost_resends.get() < MAX_LOSSES {
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
        let pending = plan.resend.into_iter().map(|request| Pending {
            request,
            // The change was acknowledged before, so no caller waits for this completion.
            done: completion_pair().0,
            before: 0,
            is_resent: true,
            sent_at: None,
            moved: 0,
            damaged: 0,
            losses: 0,
        });
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
        let mut lost = self.lost.borrow_mut();
        lost.extend(ranges);
        *lost = merged(std::mem::take(&mut *lost));
    }

    /// Records that the first flush failed. Changes of earlier processes may be lost, in unknown
    /// places.
    pub(super) fn report_failed_first_flush(&self, why: &Error) {
        tracing::error!(
            "NVMe/TCP target {}: the first flush failed. UNFLUSHED DATA OF EARLIER PROCESSES MAY \
             BE LOST: {}",
            self.name,
            why.report()
        );
        let bytes = self.offer.size_bytes;
        self.add_lost(std::iter::once(0..bytes));
    }

    /// Gives up the unflushed changes of a device that is closed while its target is away, and logs
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
                "NVMe/TCP target {} is closed while it is unreachable: UNFLUSHED DATA MAY BE LOST \
                 at {}, if the target lost power",
                self.name,
                in_words(&lost)
            );
        }
    }

    /// Completes a change that was sent again.
    pub(super) fn complete_resent(&self, request: &Request, outcome: Result<()>) {
        if let Err(error) = outcome {
            tracing::error!(
                "NVMe/TCP target {}: an unflushed write failed when it was sent a second time: {}",
                self.name,
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

    /// Ends the resend: each unflushed change is at the target again, or recorded as lost.
    fn finish_resend(&self) {
        self.lost_resends.set(0);
        let Some(resend) = self.resend.borrow_mut().take() else {
            return;
        };
        let (name, away) = (&self.name, rt::now() - resend.lost_at);
        let sent = match resend.writes {
            0 => "no unflushed write had to be sent a second time".to_owned(),
            writes => format!(
                "{writes} unflushed writes of {} KiB were sent a second time",
                resend.bytes.div_ceil(1024)
            ),
        };
        if self.lost.borrow().is_empty() {
            tracing::info!("NVMe/TCP target {name} is connected, after {away:?}; {sent}");
            return;
        }
        let lost = in_words(&self.lost.borrow());
        tracing::error!(
            "NVMe/TCP target {name} is connected, after {away:?}; {sent}. UNFLUSHED DATA MAY BE \
             LOST at {lost}"
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
