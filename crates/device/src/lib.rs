//! Leaves: devices that touch media, and the emulation of slower ones.
//!
//! - [`mod@file`]: a regular file or a raw block device.
//! - [`mem`]: DRAM, completes inline.
//! - [`pmem`]: byte-addressable media, completes inline.
//! - [`emulate`]: declares latency and bandwidth over another device.
//! - [`counted`]: counts what another device is asked to do.
//! - [`nbd`]: an export of an NBD server.
//! - [`metered`]: takes the time that another device's own code takes.
//! - [`signature`]: recognises what a device holds before it is formatted.

pub mod counted;
pub mod emulate;
pub mod file;
pub mod mem;
pub mod metered;
pub mod nbd;
pub mod pmem;
pub mod signature;
