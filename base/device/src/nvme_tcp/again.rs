//! What was acknowledged and not flushed is sent again on the next association, before anything else.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Op, Request, Result, completion_pair};
use forebay_io::rt;

use super::Shared;
use super::kept::{Plan, in_words, merged};
use super::life::MOST_LOSSES;
use super::slots::Asked;

/// A loss that is not over: not everything has been sent again.
pub(super) struct Again {
    lost_at: Duration,
    writes: usize,
    bytes: u64,
    /// An association was made, and it is under way.
    begun: bool,
}

impl Shared {
    /// The association is lost.
    pub(super) fn lose(&self, lost_at: Duration) {
        let mut again = self.again.borrow_mut();
        match &mut *again {
            // The target has not been back for anybody.
            Some(Again { begun, .. }) => {
                if std::mem::take(begun) {
                    self.again_lost.set(self.again_lost.get() + 1);
                }
            }
            None => {
                *again = Some(Again {
                    lost_at,
                    writes: 0,
                    bytes: 0,
                    begun: false,
                });
            }
        }
    }

    /// On a new association: queues what was not flushed.
    pub(super) fn begin_again(self: &Rc<Self>) {
        if self.again.borrow().is_none() {
            return;
        }
        let losses = self.losses.get();
        let plan = match self.again_lost.get() < MOST_LOSSES {
            true => self.kept.borrow_mut().plan(losses),
            // It may be the reason for the losses.
            false => Plan {
                gone: self.kept.borrow_mut().give_up(losses),
                ..Plan::default()
            },
        };
        self.lose_ranges(plan.gone);
        if let Some(again) = &mut *self.again.borrow_mut() {
            again.writes = plan.again.len();
            again.bytes = plan.again.iter().map(|one| one.len).sum();
            again.begun = true;
        }
        let asked = plan.again.into_iter().map(|request| Asked {
            request,
            // Whoever asked for it was told long ago.
            done: completion_pair().0,
            before: 0,
            again: true,
            sent_at: None,
            moved: 0,
            damaged: 0,
            losses: 0,
        });
        let none = {
            let mut slots = self.slots.borrow_mut();
            slots.wait_first(asked.collect());
            slots.nothing_again()
        };
        if none {
            self.is_back();
        }
    }

    fn lose_ranges(&self, ranges: impl IntoIterator<Item = Range<u64>>) {
        let mut gone = self.gone.borrow_mut();
        gone.extend(ranges);
        *gone = merged(std::mem::take(&mut *gone));
    }

    /// The first flush failed, so that what others wrote before may be gone, nobody knows where.
    pub(super) fn lose_unseen(&self, why: &Error) {
        tracing::error!(
            "NVMe/TCP target {}: its first flush failed: WHAT WAS WRITTEN TO IT BEFORE AND NOT FLUSHED MAY BE GONE, and the next flush fails for that: {}",
            self.name,
            why.report()
        );
        let bytes = self.offer.size_bytes;
        self.lose_ranges(std::iter::once(0..bytes));
    }

    /// The device is closed: what was not flushed when the target was lost goes with it, and is named.
    pub(super) fn name_what_goes(&self) {
        if self.again.borrow_mut().take().is_none() {
            return;
        }
        let kept = self.kept.borrow_mut().give_up(self.losses.get());
        self.lose_ranges(kept);
        let gone = self.gone.borrow();
        if !gone.is_empty() {
            tracing::error!(
                "NVMe/TCP target {} is closed while it is away: WHAT WAS WRITTEN SINCE THE LAST FLUSH MAY BE GONE at {}, if it lost power",
                self.name,
                in_words(&gone)
            );
        }
    }

    /// A change that was sent again has ended.
    pub(super) fn sent_again(&self, request: &Request, outcome: Result<()>) {
        if let Err(error) = outcome {
            tracing::error!(
                "NVMe/TCP target {}: what was not flushed when it was lost was sent again, and failed: {}",
                self.name,
                error.report()
            );
            self.lose_ranges(std::iter::once(
                request.offset..request.offset + request.len,
            ));
        }
        let last = self.slots.borrow_mut().answered();
        if last {
            self.is_back();
        }
    }

    /// All that was not flushed is at the target again, or gone.
    fn is_back(&self) {
        self.again_lost.set(0);
        let Some(over) = self.again.borrow_mut().take() else {
            return;
        };
        let (name, away) = (&self.name, rt::now() - over.lost_at);
        let sent = match over.writes {
            0 => "nothing had to be sent again".to_owned(),
            writes => format!(
                "{writes} changes of {} KiB that no flush had covered were sent again",
                over.bytes.div_ceil(1024)
            ),
        };
        if self.gone.borrow().is_empty() {
            tracing::info!("NVMe/TCP target {name} is back after {away:?}; {sent}");
            return;
        }
        let gone = in_words(&self.gone.borrow());
        tracing::error!(
            "NVMe/TCP target {name} is back after {away:?}; {sent}. WHAT WAS WRITTEN SINCE THE LAST FLUSH MAY BE GONE at {gone}: the next flush fails for that"
        );
        let of_flush = |asked: &Asked| asked.request.op == Op::Flush;
        let waiting = self.slots.borrow_mut().take_waiting(of_flush);
        if waiting.is_empty() {
            return;
        }
        if let Some(why) = self.tell_gone() {
            for asked in waiting {
                asked.done.complete(Err(why.clone()));
            }
        }
    }

    /// Says what may be gone, once; none if nothing is.
    pub(super) fn tell_gone(&self) -> Option<Error> {
        // While it is sent again, nobody knows yet.
        if self.again.borrow().is_some() || self.gone.borrow().is_empty() {
            return None;
        }
        let gone = std::mem::take(&mut *self.gone.borrow_mut());
        let what = format!(
            "{} was lost and is back: what was written since the last flush may be gone at {}; write it again, then flush, or compare what matters with a copy",
            self.name,
            in_words(&gone)
        );
        Some(Error::new(ErrorKind::Io, what))
    }
}
