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
use driver::KernelDriver;
use export::Export;
pub use forebay_wire::ublk::NUMBERS;
pub use handshake::Left;
use handshake::{Attached, Patience};

/// Returns the path of a block device.
#[must_use]
pub fn path(number: u32) -> PathBuf {
    format!("/dev/ublkb{number}").into()
}

/// A volume as a block device of this machine, until [`UblkDevice::detach`] or the end of the
/// process.
pub struct UblkDevice(Attached<KernelDriver>);

impl std::fmt::Debug for UblkDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("UblkDevice").field(&self.path()).finish()
    }
}

/// Creates the block device `/dev/ublkb{number}` of `volume`, with a queue for each reactor of
/// `spread`, or takes over the one of an earlier process.
///
/// `origin` identifies this volume among others of its name. `gap` is the reason why this process
/// may lack writes that an earlier one acknowledged, if there is one: then no device is taken over.
/// Blocks; do not call it on a reactor.
///
/// # Errors
/// - `NotFound` without the kernel's driver.
/// - `Unsupported` if the driver is too old or io_uring is not used.
/// - `Permission` without root.
/// - `Busy` if the number is taken.
/// - `InvalidInput` if the device that waits for this volume cannot continue with it.
pub fn attach(
    volume: VolumeHandle,
    number: u32,
    origin: &[u8],
    gap: Option<String>,
    spread: &Arc<Spread>,
) -> Result<UblkDevice> {
    let place = format!("volume {:?} as {}", volume.name(), path(number).display());
    let attach = || {
        let driver = KernelDriver::new()?;
        let export = Arc::new(Export::new(volume, origin, gap));
        handshake::attach(&driver, &export, number, spread, Patience::REAL)
    };
    Ok(UblkDevice(attach().context(|| place)?))
}

/// Checks whether this machine has the driver and this process may use it, without changing
/// anything.
///
/// # Errors
/// `NotFound` and `Permission` as for [`attach`].
pub fn check_attachable() -> Result<()> {
    KernelDriver::new().map(drop)
}

/// Removes a block device that no process serves. Its users get errors. Blocks.
///
/// # Errors
/// `Busy` if a process serves it, `NotFound` if it does not exist, and as for [`attach`].
pub fn remove(number: u32) -> Result<()> {
    let remove = || handshake::remove(&KernelDriver::new()?, number);
    remove().context(|| path(number).display().to_string())
}

impl UblkDevice {
    /// Returns the path of the block device.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path(self.0.device())
    }

    /// Returns whether the device is claimed, for example by a mounted file system.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn in_use(&self) -> Result<bool> {
        self.0.in_use()
    }

    /// Removes the device after the requests in flight. A device that is in use and can wait for
    /// the next process is kept, and served until this process ends. Blocks for less than a minute,
    /// plus the time that the volume needs to answer.
    ///
    /// # Errors
    /// `TimedOut` if requests in flight do not end, or errors of the driver. The device then ends
    /// with the process.
    pub fn detach(&self) -> Result<Left> {
        let path = self.path();
        self.0.detach().context(|| path.display().to_string())
    }
}

#[cfg(test)]
mod tests;
