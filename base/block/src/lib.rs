//! Common types of all layers of Forebay: [`Buf`], [`BlockDevice`], [`DeviceInfo`], [`Request`] and
//! [`Error`]. This crate does no I/O and makes no system call.
//!
//! A Forebay configuration is a stack of block devices. Leaves use media, layers wrap other
//! devices, and exports serve a device by a protocol. All of them implement or use [`BlockDevice`].

mod allocation;
mod buf;
mod completion;
mod device;
mod error;
mod identity;

pub use allocation::{Allocation, AllocationExtent, Extents, ExtentsFuture, MAX_EXTENTS};
pub use buf::{BUF_ALIGN, Buf, Mapping, POOL_BYTES};
pub use completion::{Completion, IoFuture, abandoning, completion_pair};
pub use device::{BlockDevice, BlockDeviceExt, DeviceInfo, Op, Persistence, Request};
pub use error::{Context, Error, ErrorKind, Result};
pub use identity::{Basis, Identity};
