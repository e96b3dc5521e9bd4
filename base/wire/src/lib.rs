//! Codecs for the protocols that Forebay speaks: they translate between bytes and values. They do
//! no I/O, have no state, and allocate nothing on the data path, so that front-ends, initiators and
//! fuzzers share them.
//!
//! - [`nbd`]: the Network Block Device protocol.
//! - [`nvme`]: commands and pages of NVM Express; [`nvme_tcp`]: their transport over TCP.
//! - [`virtio_blk`]: the block device of virtio; [`ublk`]: the kernel's driver for block devices of
//!   processes.

pub mod nbd;
pub mod nvme;
pub mod nvme_tcp;
pub mod ublk;
pub mod virtio_blk;
