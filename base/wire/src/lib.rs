//! Pure codecs for the protocols that Forebay speaks: bytes in, values out, and the reverse. No I/O,
//! no state, no allocation on the data path, so that front-ends, initiators and fuzzers share them.
//!
//! - [`nbd`]: the Network Block Device protocol.
//! - [`nvme`]: commands and pages of NVM Express; [`nvme_tcp`]: their way over TCP.
//! - [`virtio_blk`]: the block device of virtio; [`ublk`]: the kernel's driver of block devices that processes serve.

pub mod nbd;
pub mod nvme;
pub mod nvme_tcp;
pub mod ublk;
pub mod virtio_blk;
