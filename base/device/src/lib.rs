//! Leaves: devices that touch media, and the emulation of slower ones.
//!
//! - [`mod@file`]: a regular file or a raw block device.
//! - [`mem`]: DRAM, completes inline.
//! - [`pmem`]: byte-addressable media, completes inline.
//! - [`emulate`]: declares latency and bandwidth over another device.
//! - [`counted`]: counts what another device is asked to do.
//! - [`nbd`]: an export of an NBD server.
//! - [`nvme_tcp`]: a namespace of an NVMe/TCP target.
//! - [`metered`]: takes the time that another device's own code takes.
//! - [`signature`]: recognises what a device holds before it is formatted.

pub mod counted;
pub mod emulate;
pub mod file;
pub mod mem;
pub mod metered;
pub mod nbd;
pub mod nvme_tcp;
mod place;
pub mod pmem;
mod receiver;
mod remote;
pub mod signature;
