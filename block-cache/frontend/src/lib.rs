//! Protocols that translate to block requests: NBD, NVMe/TCP, vhost-user-blk, ublk and FUSE.

pub mod fuse;
pub mod nbd;
mod net;
pub mod nvme_tcp;
mod succession;
pub mod ublk;
pub mod vhost_user;

pub use net::{MAX_CONNECTIONS, Spread};
pub use succession::Succession;
