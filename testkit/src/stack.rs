//! The interface of a stack under test.

use std::future::Future;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{BlockDevice, Buf, Result};
use forebay_io::sim::{SimDisk, SimPmem, Stopper, World};

/// The machine's state at the start of a process.
#[derive(Clone, Debug)]
pub struct Process {
    /// The devices, in the order in which [`Stack::world`] added them.
    pub disks: Vec<SimDisk>,
    /// Byte-addressable media, likewise.
    pub memories: Vec<Arc<SimPmem>>,
    /// Ends the process.
    pub stopper: Stopper,
    /// Memory that outlives the process but not power loss.
    pub journal: Buf,
    /// Identifier that power loss changes.
    pub boot_id: [u8; 16],
}

/// Kind of rot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// Data of clients, where the stack promises to notice.
    Data,
    /// Metadata of the stack.
    Metadata,
}

/// Costs that rot may have.
#[derive(Clone, Debug, Default)]
pub struct Damage {
    /// Whether anything rotted.
    pub any: bool,
    /// Data without another copy. A read of it is an error that names just this.
    pub rotted: Vec<LostRange>,
    /// Ranges whose metadata rotted: they may hold any earlier contents.
    pub lost: Vec<LostRange>,
    /// Whether a crash of a process that reads the data may destroy the evidence.
    pub needs_calm: bool,
}

/// Promise of an acknowledgement against power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// An acknowledgement promises the write.
    Sync,
    /// Only a FLUSH promises it.
    Flush,
}

/// A stack of block devices under test.
pub trait Stack: 'static {
    /// The open stack.
    type Running: Running;

    /// Creates the devices.
    fn world(&self, seed: u64) -> World;

    /// Sizes of the volumes, bytes.
    fn volume_bytes(&self) -> Vec<u64>;

    /// The promise of an acknowledgement against power loss.
    fn promise(&self) -> Promise;

    /// Returns the devices of the [`World`], by index, whose writes fail for a while in some random
    /// lives. The stack must hold acknowledged data of such a device elsewhere, or report the
    /// failure to its clients. The default is none.
    fn ailing(&self) -> Range<usize> {
        0..0
    }

    /// Whether memory of the stack may hide a device's content of a failed write. Power loss shows
    /// it then, although a read showed that the write had not happened.
    fn hides_failed_writes(&self) -> bool {
        false
    }

    /// Makes fresh devices ready. Runs once, without a crash.
    fn format(&self, process: &Process) -> impl Future<Output = Result<()>>;

    /// Opens the stack, on fresh devices or after any crash.
    fn open(&self, process: &Process) -> impl Future<Output = Result<Self::Running>>;

    /// Returns, and forgets, the ranges that openings reported lost. Openings that failed or were
    /// cut off count, too. Acknowledged writes to the ranges may be undone, promised ones may not.
    fn take_lost(&self) -> Vec<LostRange> {
        Vec::new()
    }

    /// Lets something on media rot that `draw` names, while it is not in use. Does nothing if the
    /// stack has nothing of the kind.
    fn rot(
        &self,
        process: &Process,
        decay: Decay,
        draw: u64,
    ) -> impl Future<Output = Result<Damage>> {
        _ = (process, decay, draw);
        std::future::ready(Ok(Damage::default()))
    }
}

/// Data that a stack reports lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostRange {
    /// Index of the volume.
    pub volume: usize,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

/// An open stack.
pub trait Running: 'static {
    /// A new connection to each volume.
    fn volumes(&self) -> Vec<Rc<dyn BlockDevice>>;

    /// Waits until it is wholly open. A stack may serve before.
    fn opened(&self) -> impl Future<Output = Result<()>> {
        std::future::ready(Ok(()))
    }

    /// Does something that clients must not notice, picked by `draw`: a change of mode, a
    /// write-back, or anything else that the stack offers.
    fn control(&self, volume: usize, draw: u64) -> impl Future<Output = Result<()>>;

    /// Shuts down cleanly. Everything acknowledged is durable at the end.
    fn close(&self) -> impl Future<Output = Result<()>>;
}
