//! Memory of a command, and the data that it receives.

use std::rc::Rc;

use forebay_block::Buf;
use forebay_wire::nvme::{Data, PAGE_BYTES, Status};
use forebay_wire::nvme_tcp::DataHeader;

use super::connection::{Connection, Failure};
use super::receive::Capsule;
use super::reply::Reply;
use super::slots::Verdict;

/// Share of a command in its connection's memory.
pub(super) struct Memory<'a> {
    connection: &'a Rc<Connection>,
    slot: u16,
    /// Cost in the connection's budget, bytes.
    cost: u64,
    /// Part of the cost that has no buffer yet, bytes.
    reserved: u64,
}

/// Returns the cost of a buffer: sizes are powers of two, at least one page.
fn cost_bytes(bytes: u32) -> u64 {
    u64::from(bytes.max(PAGE_BYTES).next_power_of_two())
}

impl Memory<'_> {
    pub(super) const fn of(connection: &Rc<Connection>, slot: u16) -> Memory<'_> {
        Memory {
            connection,
            slot,
            cost: 0,
            reserved: 0,
        }
    }

    /// Returns the cost to give back when the answer was sent, bytes.
    pub(super) const fn cost(&self) -> u64 {
        self.cost
    }

    pub(super) const fn slot(&self) -> u16 {
        self.slot
    }

    /// Waits until there is memory for `count` buffers of `bytes`. The command may be aborted until
    /// then. A command with several buffers reserves them together: otherwise each could hold its
    /// first buffer and wait for its second for ever.
    pub(super) async fn reserve(&mut self, count: u64, bytes: u32) -> Result<(), Failure> {
        let connection = self.connection;
        let cost = count * cost_bytes(bytes);
        if !connection.budget.try_acquire(cost) {
            connection.slots().pause(self.slot);
            connection.budget.acquire(cost).await;
        }
        self.cost += cost;
        self.reserved += cost;
        connection.slots().resume(self.slot).map_err(failure)
    }

    /// Returns a buffer of `bytes`, once there is memory for it.
    pub(super) async fn take(&mut self, bytes: u32) -> Result<Buf, Failure> {
        let cost = cost_bytes(bytes);
        if self.reserved < cost {
            self.reserve(1, bytes).await?;
        }
        self.reserved -= cost;
        Ok(Buf::scratch(bytes as usize))
    }

    /// Receives the data of a command, which must have exactly `bytes`.
    pub(super) async fn receive(&mut self, capsule: &Capsule, bytes: u32) -> Result<Buf, Failure> {
        let data = capsule.command.data()?;
        if data.length() != bytes {
            return Err(Status::DATA_SGL_LENGTH_INVALID.into());
        }
        match data {
            Data::InCapsule { offset, .. } => in_capsule(capsule, offset, bytes),
            Data::Transport { .. } if capsule.data.is_some() => {
                Err(Status::DATA_SGL_LENGTH_INVALID.into())
            }
            Data::Transport { length } => {
                let buf = self.take(length).await?;
                let connection = self.connection;
                connection.slots().expect(self.slot, buf.clone());
                connection.slots().pause(self.slot);
                let ask = DataHeader {
                    cid: capsule.command.cid,
                    tag: self.slot,
                    offset: 0,
                    length,
                };
                connection.queue_reply(Reply::R2t(ask));
                match connection.slots().verdict(self.slot).await {
                    Verdict::Ready => {
                        connection.slots().resume(self.slot).map_err(failure)?;
                        Ok(buf)
                    }
                    verdict => Err(failure(verdict)),
                }
            }
        }
    }
}

fn in_capsule(capsule: &Capsule, offset: u64, bytes: u32) -> Result<Buf, Failure> {
    let here = capsule.data.as_ref().ok_or(Status::SGL_OFFSET_INVALID)?;
    if !capsule.sound {
        return Err(Status::TRANSIENT_TRANSPORT_ERROR.into());
    }
    let end = offset.checked_add(u64::from(bytes));
    let end = end.filter(|end| *end <= here.len() as u64);
    let end = usize::try_from(end.ok_or(Status::SGL_OFFSET_INVALID)?).expect("within a buffer");
    let part = here.slice(end - bytes as usize..end);
    if offset == 0 {
        return Ok(part);
    }
    // Devices need aligned memory.
    let aligned = Buf::scratch(part.len());
    aligned.copy_from_buf(&part);
    Ok(aligned)
}

fn failure(verdict: Verdict) -> Failure {
    match verdict {
        Verdict::Aborted => Status::ABORT_REQUESTED.into(),
        Verdict::Damaged => Status::TRANSIENT_TRANSPORT_ERROR.into(),
        Verdict::Lost | Verdict::Displaced => Failure::Unanswered,
        Verdict::Ready | Verdict::Event(_) => Status::INTERNAL_ERROR.into(),
    }
}
