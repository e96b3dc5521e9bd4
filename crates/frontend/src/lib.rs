//! Protocols to block requests, nothing else: NBD, NVMe/TCP and FUSE.

pub mod fuse;
pub mod nbd;
mod net;
pub mod nvme_tcp;

pub use net::Spread;
