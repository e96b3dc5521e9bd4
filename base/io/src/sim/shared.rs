//! State that the devices of a world share, and the trace of their I/O.

use std::cell::{Cell, RefCell};
use std::sync::{Arc, OnceLock};

use forebay_block::{Completion, Request};

use super::cut::Cut;
use crate::rt;

/// State that a world's devices share.
pub(super) struct Shared {
    cut: Arc<Cut>,
    last_id: Cell<u64>,
    abandoned: RefCell<Vec<Completion>>,
    digest: Cell<u64>,
}

impl Shared {
    /// Returns the state of a new world.
    pub(super) fn new() -> Self {
        Self {
            cut: Arc::default(),
            last_id: Cell::new(0),
            abandoned: RefCell::default(),
            digest: Cell::new(0),
        }
    }

    /// Returns the state of a copy of the world. It has no stop.
    pub(super) fn fork(&self) -> Self {
        Self {
            cut: Arc::new(self.cut.fork()),
            last_id: Cell::new(self.last_id.get()),
            abandoned: RefCell::default(),
            digest: Cell::new(self.digest.get()),
        }
    }

    pub(super) fn cut(&self) -> &Arc<Cut> {
        &self.cut
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.cut.is_stopped()
    }

    /// Stores a completion that will not be delivered, until the process is gone.
    pub(super) fn abandon(&self, done: Completion) {
        self.abandoned.borrow_mut().push(done);
    }

    /// Takes the completions that were abandoned.
    pub(super) fn take_abandoned(&self) -> Vec<Completion> {
        self.abandoned.take()
    }

    /// Counts an I/O. Returns whether the world stops before it.
    pub(super) fn stops_before_io(&self) -> bool {
        self.cut.stops_before_io()
    }

    pub(super) fn stops_after_io(&self) -> bool {
        self.cut.stops_after_io()
    }

    /// Returns the number of the last I/O.
    pub(super) fn last_id(&self) -> u64 {
        self.last_id.get()
    }

    /// Returns a number for an I/O. Numbers ascend.
    pub(super) fn next_id(&self) -> u64 {
        self.last_id.set(self.last_id.get() + 1);
        self.last_id.get()
    }

    /// Returns the digest of all that was traced.
    pub(super) fn digest(&self) -> u64 {
        self.digest.get()
    }

    /// Adds an event to the digest, and prints it if `FOREBAY_SIM_TRACE=1`.
    pub(super) fn trace(&self, disk: &str, what: &str, request: &Request, fails: bool) {
        let mut digest = self.digest.get();
        let op = format_op(request);
        for part in [
            rt::now().as_nanos() as u64,
            what.len() as u64,
            op.0,
            request.offset,
            request.len,
        ] {
            digest = (digest ^ part)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29);
        }
        self.digest.set(digest);
        if tracing_enabled() {
            eprintln!(
                "{:>10.6} io {:>5} {what:<11} {disk:<10} {:<9} {:>9} +{}{}",
                rt::now().as_secs_f64(),
                self.cut.io_count(),
                op.1,
                request.offset,
                request.len,
                if fails { " FAILS" } else { "" }
            );
        }
    }
}

fn format_op(request: &Request) -> (u64, &'static str) {
    use forebay_block::Op;
    match request.op {
        Op::Read => (0, "read"),
        Op::Write { fua: false } => (1, "write"),
        Op::Write { fua: true } => (2, "write fua"),
        Op::Flush => (3, "flush"),
        Op::Discard => (4, "discard"),
        Op::WriteZeroes { fua: false, .. } => (5, "zero"),
        Op::WriteZeroes { fua: true, .. } => (6, "zero fua"),
    }
}

/// Returns whether `FOREBAY_SIM_TRACE=1`.
pub(super) fn tracing_enabled() -> bool {
    static ENABLED: OnceLock<bool> = OnceLock::new();
    *ENABLED.get_or_init(|| std::env::var_os("FOREBAY_SIM_TRACE").is_some_and(|value| value == "1"))
}
