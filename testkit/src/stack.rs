//! What a test says about the stack under test.

use std::future::Future;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use forebay_block::{BlockDevice, Buf, Result};
use forebay_io::sim::{SimDisk, SimPmem, Stopper, World};

/// What a process finds when it starts.
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
    /// Changes with power loss.
    pub boot_id: [u8; 16],
}

/// What rots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decay {
    /// What clients stored, where the stack promises to notice.
    Data,
    /// What the stack keeps beside that.
    Metadata,
}

/// What rot may cost.
#[derive(Clone, Debug, Default)]
pub struct Damage {
    /// Something rotted.
    pub any: bool,
    /// Data that is nowhere else: reading it is an error that names just this.
    pub rotted: Vec<LostRange>,
    /// What the metadata spoke of that rotted: it may be as it was at any time before.
    pub lost: Vec<LostRange>,
    /// Whether a crash of a process that reads the data may take the evidence along.
    pub needs_calm: bool,
}

/// Promise of an acknowledgement against power loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// Everything.
    Sync,
    /// Nothing, before a FLUSH.
    Flush,
}

/// A stack of block devices under test.
pub trait Stack: 'static {
    /// What runs while the stack is open.
    type Running: Running;

    /// Makes the devices.
    fn world(&self, seed: u64) -> World;

    /// Sizes of the volumes, bytes.
    fn volume_bytes(&self) -> Vec<u64>;

    /// What an acknowledgement promises against power loss.
    fn promise(&self) -> Promise;

    /// Devices of the [`World`], by index, whose writes fail for a while in some random lives: such of which the stack keeps what it
    /// has acknowledged elsewhere, or tells its clients of the failure. None, unless it says so.
    fn ailing(&self) -> Range<usize> {
        0..0
    }

    /// Whether memory of the stack may hide what a device that fails holds of a failed write.
    /// Power loss shows it then, although a read showed that the write had not happened.
    fn hides_failed_writes(&self) -> bool {
        false
    }

    /// Makes fresh devices ready. Runs once, without a crash.
    fn format(&self, process: &Process) -> impl Future<Output = Result<()>>;

    /// Opens the stack, on fresh devices or after any crash.
    fn open(&self, process: &Process) -> impl Future<Output = Result<Self::Running>>;

    /// Lets something on media rot that `draw` names, while nobody uses it; nothing, where the stack has nothing
    /// of the kind.
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

/// Data that a stack says is lost.
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

    /// What opening it has reported as lost: there, acknowledged writes may be undone, promised ones
    /// not.
    fn lost(&self) -> Vec<LostRange>;

    /// Waits until it is open wholly: a stack may serve before.
    fn opened(&self) -> impl Future<Output = Result<()>> {
        std::future::ready(Ok(()))
    }

    /// Does something that clients must not notice, picked by `draw`: a change of mode, a
    /// write-back, whatever the stack offers.
    fn control(&self, volume: usize, draw: u64) -> impl Future<Output = Result<()>>;

    /// Shuts down cleanly; everything acknowledged is durable when it ends.
    fn close(&self) -> impl Future<Output = Result<()>>;
}
