//! The model disk: what a read of each sector may return.
//!
//! The model hears of every operation when a client submits it and when the client learns of its
//! end. It knows nothing of caches. Its rules, for each sector by itself:
//!
//! - A read returns the last write acknowledged before the read was submitted, or one in flight
//!   meanwhile. Of writes in flight together either may come last. What was read stays read.
//! - After process death: the last acknowledged write, or one that was in flight.
//! - After power loss: nothing older than the last promised write. A promise is an acknowledgement
//!   followed by a FLUSH that succeeded, an acknowledgement with FUA, or with [`Promise::Sync`] any
//!   acknowledgement.
//! - A failed write or a discard has happened or has not, for good (a failed write that was read may
//!   still go with the process). A failed FLUSH promises nothing.
//! - A write that failed in a spell ([`Model::set_spell`]) has happened or has not until power is lost: until then what was
//!   read stays, but no FLUSH promises it. Of what was acknowledged it takes nothing away.
//! - While a stack hides failed writes ([`Model::set_hiding`]), a write that failed, or whose process
//!   died, may be there after power loss although a read showed that it had not happened. A FLUSH
//!   that succeeds after the read ends that doubt.
//! - Once read, the outcome of a crash or of a discard stays, and the next FLUSH promises it.

mod history;
mod rot;

use forebay_block::{Buf, Op, Request, Result};

use crate::stack::{LostRange, Promise};
use crate::stamp::{self, Content, SECTOR_BYTES};
use history::{Ending, History};
use rot::Rot;

/// How a simulated process ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The process dies.
    Process,
    /// Power is lost.
    Power,
}

/// An operation under way, from [`Model::submit`] to [`Model::end`].
#[derive(Debug)]
#[must_use = "an operation that does not end stays in flight"]
pub struct Ticket {
    volume: usize,
    op: Op,
    first: usize,
    sectors: usize,
    number: u64,
    submitted: u64,
}

/// What a client intends; the model makes the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intent {
    /// The kind of operation.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Bytes; zero for a flush.
    pub len: u64,
}

/// The model of all volumes of a stack.
#[derive(Clone, Debug)]
pub struct Model {
    promise: Promise,
    volumes: Vec<Vec<History>>,
    /// Counts events.
    now: u64,
    /// The last write's number.
    number: u64,
    /// Submission times of reads in flight.
    reads: Vec<u64>,
    /// Dirty data that rotted, and that nobody has rewritten.
    rot: Vec<Rot>,
    /// A device may show what it failed to write.
    in_spell: bool,
    /// Memory of the stack may hide what its device holds of a failed write.
    hiding: bool,
}

impl Model {
    /// Volumes of these sizes, in bytes, that hold durable zeroes.
    #[must_use]
    pub fn new(promise: Promise, volume_bytes: &[u64]) -> Self {
        let volume = |bytes: &u64| vec![History::new(); *bytes as usize / SECTOR_BYTES];
        Self {
            promise,
            volumes: volume_bytes.iter().map(volume).collect(),
            now: 1,
            number: 0,
            reads: Vec::new(),
            rot: Vec::new(),
            in_spell: false,
            hiding: false,
        }
    }

    /// Whether a device may from now on show until power is lost what it fails to write.
    pub const fn set_spell(&mut self, in_spell: bool) {
        self.in_spell = in_spell;
    }

    /// Whether power loss may show from now on what failed and what reads did not show.
    pub const fn set_hiding(&mut self, hiding: bool) {
        self.hiding = hiding;
    }

    /// Whether a device may show until power is lost what a client was told has failed, or was not told of in a spell.
    #[must_use]
    pub fn may_show_failed(&self) -> bool {
        let is_doubtful =
            |history: &History| history.may_be_shown() || self.in_spell && history.is_in_flight();
        self.volumes.iter().flatten().any(is_doubtful)
    }

    /// Number of volumes.
    #[must_use]
    pub const fn volume_count(&self) -> usize {
        self.volumes.len()
    }

    /// Size of a volume, bytes.
    #[must_use]
    pub fn volume_bytes(&self, volume: usize) -> u64 {
        (self.volumes[volume].len() * SECTOR_BYTES) as u64
    }

    /// A client is about to submit an operation: returns the request, with a write's contents.
    pub fn submit(&mut self, volume: usize, intent: Intent) -> (Ticket, Request) {
        self.now += 1;
        let first = intent.offset as usize / SECTOR_BYTES;
        let sectors = intent.len as usize / SECTOR_BYTES;
        let content = match intent.op {
            Op::Read | Op::Flush => None,
            Op::Write { .. } => Some(Content::Write(self.number + 1)),
            Op::WriteZeroes { .. } | Op::Discard => Some(Content::Zero),
        };
        if let Some(content) = content {
            self.number += 1;
            self.forget_told(volume, first..first + sectors);
            for history in &mut self.volumes[volume][first..first + sectors] {
                history.prune(self.reads.iter().copied().min().unwrap_or(self.now));
                history.submit(self.number, content, self.now);
            }
        }
        if intent.op == Op::Read {
            self.reads.push(self.now);
        }
        let buf = match intent.op {
            Op::Read => Some(Buf::scratch(intent.len as usize)),
            Op::Write { .. } => {
                let buf = Buf::scratch(intent.len as usize);
                stamp::fill(&buf, volume, first as u64, self.number);
                Some(buf)
            }
            _ => None,
        };
        let ticket = Ticket {
            volume,
            op: intent.op,
            first,
            sectors,
            number: self.number,
            submitted: self.now,
        };
        let request = Request {
            op: intent.op,
            offset: intent.offset,
            len: intent.len,
            buf,
        };
        (ticket, request)
    }

    /// The client learns of the operation's end. `buf` is the request's.
    ///
    /// # Errors
    /// In words, when the operation returned what it must not.
    ///
    /// # Panics
    /// If a read comes without its buffer.
    pub fn end(
        &mut self,
        ticket: &Ticket,
        result: &Result<()>,
        buf: Option<&Buf>,
    ) -> Result<(), String> {
        self.now += 1;
        let range = ticket.first..ticket.first + ticket.sectors;
        let now = self.now;
        if !matches!(ticket.op, Op::Read | Op::Flush) {
            self.forget_told(ticket.volume, range.clone());
        }
        match ticket.op {
            Op::Read => {
                let at = self.reads.iter().position(|&at| at == ticket.submitted);
                self.reads.swap_remove(at.expect("the read is in flight"));
                if result.is_ok() {
                    self.check_told(ticket.volume, range)?;
                    return self.check(ticket, buf.expect("a read has a buffer"));
                }
            }
            Op::Flush => {
                if result.is_ok() {
                    for history in &mut self.volumes[ticket.volume] {
                        if !history.is_settled() {
                            history.promise(ticket.submitted);
                        }
                    }
                    self.promise_rewritten(ticket.volume, ticket.submitted);
                }
            }
            Op::Write { fua } | Op::WriteZeroes { fua, .. } => {
                let promised = fua || self.promise == Promise::Sync;
                let how = match result {
                    Ok(()) => Ending::Done,
                    Err(_) if self.in_spell => Ending::FailedInSpell,
                    Err(_) if self.hiding => Ending::FailedHidden,
                    Err(_) => Ending::Failed,
                };
                for history in &mut self.volumes[ticket.volume][range.clone()] {
                    history.end(ticket.number, how, promised, now);
                }
                if result.is_ok() {
                    self.rewritten(ticket.volume, range, promised);
                }
            }
            Op::Discard => {
                let how = match result {
                    Err(_) if self.in_spell => Ending::FailedInSpell,
                    _ => Ending::Discarded,
                };
                for history in &mut self.volumes[ticket.volume][range] {
                    history.end(ticket.number, how, false, now);
                }
            }
        }
        Ok(())
    }

    fn check(&mut self, ticket: &Ticket, buf: &Buf) -> Result<(), String> {
        let mut bytes = [0; SECTOR_BYTES];
        for index in 0..ticket.sectors {
            let sector = ticket.first + index;
            buf.copy_to(index * SECTOR_BYTES, &mut bytes);
            let history = &mut self.volumes[ticket.volume][sector];
            stamp::identify(&bytes, ticket.volume, sector as u64)
                .map_err(|garbage| {
                    let allowed = history.describe(ticket.submitted);
                    (garbage, allowed)
                })
                .and_then(|content| {
                    history
                        .read(content, ticket.submitted, self.now, self.hiding)
                        .map_err(|allowed| (format!("{content:?}"), allowed))
                })
                .map_err(|(found, allowed)| {
                    format!(
                        "volume {} sector {sector} (byte {}): found {found}; {allowed}",
                        ticket.volume,
                        sector * SECTOR_BYTES
                    )
                })?;
        }
        Ok(())
    }

    /// The stack says that it has lost what was not promised of a range. Nothing is in flight.
    pub fn lose(&mut self, lost: LostRange) {
        self.now += 1;
        let first = lost.offset as usize / SECTOR_BYTES;
        let sectors = lost.len as usize / SECTOR_BYTES;
        for history in &mut self.volumes[lost.volume][first..first + sectors] {
            history.lose_power(self.now);
        }
    }

    /// The process ends early; no operation is in flight any more.
    pub fn crash(&mut self, loss: Loss) {
        self.now += 1;
        self.reads.clear();
        self.lose_rewritten(loss);
        for history in self.volumes.iter_mut().flatten() {
            if history.is_settled() {
                continue;
            }
            history.lose_process(self.now);
            if loss == Loss::Power {
                history.lose_power(self.now);
            }
            history.prune(self.now);
        }
    }
}

#[cfg(test)]
mod tests;
