//! Requests of one kind, reads or changes. A full cluster takes no writes and answers reads. So a
//! lane that gets no answers holds up only its own kind.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Op, Request};
use forebay_io::rt;

use super::port::{Command, Token};
use crate::remote::slots::{Pending, Slots};

/// Maximum number of requests of a lane that librbd has.
const DEPTH: u16 = 256;
/// Bytes of data in flight at which a lane sends no further requests. librbd would make its callers
/// wait only at a far larger amount.
const BUDGET_BYTES: u64 = 64 << 20;

/// Returns the length of the data of a request, bytes. A discard has none, however long it is.
fn data_bytes(request: &Request) -> u64 {
    request.buf.as_ref().map_or(0, |_| request.len)
}

/// Requests of one kind.
pub(super) struct Lane {
    number: usize,
    /// Queued requests, and those that librbd has.
    pub(super) slots: RefCell<Slots>,
    in_flight: Cell<usize>,
    in_flight_bytes: Cell<u64>,
    /// Time of the last answer, or of the first request that was sent while none was in flight.
    progress_at: Cell<Duration>,
    /// Whether a silence was logged.
    warned: Cell<bool>,
    /// Error for new requests, after a silence that is longer than the patience.
    pub(super) stalled: RefCell<Option<Error>>,
}

impl Lane {
    pub(super) fn new(number: usize) -> Self {
        Self {
            number,
            slots: RefCell::new(Slots::new(DEPTH)),
            in_flight: Cell::new(0),
            in_flight_bytes: Cell::new(0),
            progress_at: Cell::new(Duration::ZERO),
            warned: Cell::new(false),
            stalled: RefCell::default(),
        }
    }

    /// Returns the number of the lane for an operation.
    pub(super) const fn of(op: Op) -> usize {
        match op {
            Op::Read => 0,
            _ => 1,
        }
    }

    const fn kind(&self) -> &'static str {
        match self.number {
            0 => "read",
            _ => "write",
        }
    }

    /// Moves queued requests to `commands`, as far as there is room.
    pub(super) fn take(&self, commands: &mut Vec<Command>) {
        while self.in_flight_bytes.get() < BUDGET_BYTES {
            let now = rt::now();
            let mut slots = self.slots.borrow_mut();
            let Some(cid) = slots.assign_slot(now) else {
                break;
            };
            let request = &slots.get(cid).expect("it was seated").request;
            if self.in_flight.get() == 0 {
                self.progress_at.set(now);
            }
            self.in_flight.set(self.in_flight.get() + 1);
            (self.in_flight_bytes).set(self.in_flight_bytes.get() + data_bytes(request));
            commands.push(Command {
                token: Token {
                    lane: self.number,
                    cid,
                },
                op: request.op,
                offset: request.offset,
                len: request.len,
                buf: request.buf.clone(),
            });
        }
    }

    /// Removes a request that has ended.
    pub(super) fn ended(&self, cid: u16, image: &str) -> Pending {
        let pending = self.slots.borrow_mut().take(cid);
        let pending = pending.expect("librbd ends a request once");
        self.in_flight.set(self.in_flight.get() - 1);
        let bytes = data_bytes(&pending.request);
        (self.in_flight_bytes).set(self.in_flight_bytes.get() - bytes);
        let silence = rt::now().saturating_sub(self.progress_at.replace(rt::now()));
        if self.warned.take() {
            tracing::warn!(
                "RBD image {image}: the cluster answers {}s, after {silence:?}",
                self.kind()
            );
        }
        *self.stalled.borrow_mut() = None;
        pending
    }

    /// Logs a silence of half the patience. After the whole patience, returns the error for queued
    /// and new requests, once.
    pub(super) fn look(&self, image: &str, patience: Duration) -> Option<Error> {
        let silence = rt::now().saturating_sub(self.progress_at.get());
        if self.in_flight.get() == 0 || silence < patience / 2 {
            return None;
        }
        let kind = self.kind();
        if !self.warned.replace(true) {
            tracing::warn!("RBD image {image}: the cluster has answered no {kind} for {silence:?}");
        }
        if silence < patience || self.stalled.borrow().is_some() {
            return None;
        }
        let cause = match self.number {
            0 => "its OSDs may be away",
            _ => "it may be full, or its OSDs away",
        };
        let what = format!(
            "RBD image {image}: the cluster has answered no {kind} for {patience:?}\n\
             help: see `ceph health detail`: {cause}; requests are served when it answers"
        );
        let error = Error::new(ErrorKind::Unreachable, what);
        tracing::error!("{}", error.report());
        *self.stalled.borrow_mut() = Some(error.clone());
        Some(error)
    }

    pub(super) const fn is_idle(&self) -> bool {
        self.in_flight.get() == 0
    }
}
