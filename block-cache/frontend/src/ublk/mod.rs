#![doc = include_str!("README.md")]

mod command;
mod driver;
mod export;
mod handshake;
mod queue;

use std::path::PathBuf;
use std::sync::Arc;

use forebay_block::{Context as _, Result};
use forebay_volume::VolumeHandle;

use crate::net::Spread;
use driver::Machine;
use export::Export;
pub use forebay_wire::ublk::NUMBERS;
pub use handshake::Left;
use handshake::{Attached, Patience};

/// The block device of a number.
#[must_use]
pub fn path(number: u32) -> PathBuf {
    format!("/dev/ublkb{number}").into()
}

/// A volume as a block device of this machine, until [`UblkDevice::detach`] or the end of the process.
pub struct UblkDevice(Attached<Machine>);

impl std::fmt::Debug for UblkDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("UblkDevice").field(&self.path()).finish()
    }
}

/// Makes `volume` the block device `/dev/ublkb{number}`, with a queue for each reactor of `spread`, or takes over the one
/// that a process before this one made of it. `origin` is what this volume is told apart by from others of its name.
/// `gap` is why this process may lack writes that the one before acknowledged, if it may: then no device is taken over.
/// Blocks; not to be called on a reactor.
///
/// # Errors
/// `NotFound` without the kernel's driver, `Unsupported` where that is too old or io_uring is not used, `Permission`
/// without root, `Busy` if the number is taken, `InvalidInput` if the device that waits for this volume cannot go on
/// with it.
pub fn attach(
    volume: VolumeHandle,
    number: u32,
    origin: &[u8],
    gap: Option<String>,
    spread: &Arc<Spread>,
) -> Result<UblkDevice> {
    let place = format!("volume {:?} as {}", volume.name(), path(number).display());
    let attach = || {
        let driver = Machine::new()?;
        let export = Arc::new(Export::new(volume, origin, gap));
        handshake::attach(&driver, &export, number, spread, Patience::REAL)
    };
    Ok(UblkDevice(attach().context(|| place)?))
}

/// Whether this machine has the driver and this process may use it, as far as can be seen without changing anything.
///
/// # Errors
/// `NotFound` and `Permission` as [`attach`].
pub fn may_attach() -> Result<()> {
    Machine::new().map(drop)
}

/// Removes a block device that no process serves; whoever uses it gets errors. Blocks.
///
/// # Errors
/// `Busy` if a process serves it, `NotFound` if there is none, and as [`attach`].
pub fn remove(number: u32) -> Result<()> {
    let remove = || handshake::remove(&Machine::new()?, number);
    remove().context(|| path(number).display().to_string())
}

impl UblkDevice {
    /// The block device.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path(self.0.device())
    }

    /// Whether a file system on it is mounted, or something else has it for itself.
    ///
    /// # Errors
    /// What the system says.
    pub fn in_use(&self) -> Result<bool> {
        self.0.in_use()
    }

    /// Removes the device after what is in flight; one that is in use and can wait for the next process waits, served as long
    /// as this one lives. Blocks: less than a minute, and as long as the volume takes to answer.
    ///
    /// # Errors
    /// `TimedOut` if requests in flight do not end, or what the driver says; the device then goes its way with the process.
    pub fn detach(&self) -> Result<Left> {
        let path = self.path();
        self.0.detach().context(|| path.display().to_string())
    }
}

#[cfg(test)]
mod tests;
