//! The model disk: the contents that a read of each sector may return.
//!
//! The model learns of every operation when a client submits it and when the client learns of its
//! end. It knows nothing of caches. Its rules, for each sector by itself:
//!
//! - A read returns the last write acknowledged before the read was submitted, or one in flight
//!   meanwhile. Of concurrent writes either may come last. Later reads return the same.
//! - After process death: the last acknowledged write, or one that was in flight.
//! - After power loss: nothing older than the last promised write. A promise is an acknowledgement
//!   followed by a FLUSH that succeeded, an acknowledgement with FUA, or with [`Promise::Sync`] any
//!   acknowledgement.
//! - A failed write or a discard has happened or has not, for good. A failed write that was read
//!   may still vanish with the process. A failed FLUSH promises nothing.
//! - A write that failed in a spell ([`Model::set_spell`]) has happened or has not until power
//!   loss. Until then reads agree, but no FLUSH promises it. It takes nothing away from
//!   acknowledged writes.
//! - While a stack hides failed writes ([`Model::set_hiding`]), power loss may show a failed or
//!   interrupted write that reads did not show. A FLUSH that succeeds after such a read excludes
//!   that.
//! - Once read, the outcome of a crash or of a discard stays, and the next FLUSH promises it.

mod history;
mod rot;

use forebay_block::{Buf, Op, Request, Result};

use crate::stack::{LostRange, Promise};
use crate::stamp::{self, Content, SECTOR_BYTES};
use history::{Ending, History};
use rot::Rot;

/// Crash of a simulated process.
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

/// The operation that a client intends. The model makes the request.
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
    /// Number of events so far.
    now: u64,
    /// Number of the last write.
    number: u64,
    /// Submission times of reads in flight.
    reads: Vec<u64>,
    /// Dirty data that rotted and was not rewritten.
    rot: Vec<Rot>,
    /// Whether a device may show a write that it failed.
    in_spell: bool,
    /// Whether memory of the stack may hide the device's content of a failed write.
    hiding: bool,
}

impl Model {
    /// Creates volumes of these sizes, in bytes, that hold durable zeroes.
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

    /// Sets whether a device may show, until power loss, writes that it fails from now on.
    pub const fn set_spell(&mut self, in_spell: bool) {
        self.in_spell = in_spell;
    }

    /// Sets whether power loss may show failed writes that reads did not show.
    pub const fn set_hiding(&mut self, hiding: bool) {
        self.hiding = hiding;
    }

    /// Whether a device may show, until power loss, a failed write, or one in a spell whose client
    /// got no answer.
    #[must_use]
    pub fn may_show_failed(&self) -> bool {
        let is_doubtful =
            |history: &History| history.may_be_shown() || (self.in_spell && history.is_in_flight());
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

    /// Submits an operation of a client. Returns the request, with the contents of a write.
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
            self.note_write(volume, first..first + sectors);
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

    /// Ends an operation, when the client learns of its end. `buf` is the request's.
    ///
    /// # Errors
    /// Returns a description if the operation returned an impossible result.
    ///
    /// # Panics
    /// Panics if a read comes without its buffer.
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
            self.note_write(ticket.volume, range.clone());
        }
        match ticket.op {
            Op::Read => {
                let at = self.reads.iter().position(|&at| at == ticket.submitted);
                self.reads.swap_remove(at.expect("the read is in flight"));
                if result.is_ok() {
                    self.check_reported(ticket.volume, range)?;
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

    /// Notes that the stack reports the loss of unpromised data in a range. No operation is in
    /// flight.
    pub fn lose(&mut self, lost: LostRange) {
        self.now += 1;
        let first = lost.offset as usize / SECTOR_BYTES;
        let sectors = lost.len as usize / SECTOR_BYTES;
        for history in &mut self.volumes[lost.volume][first..first + sectors] {
            history.lose_power(self.now);
        }
    }

    /// Crashes the process. No operation is in flight after that.
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
