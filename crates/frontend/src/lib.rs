//! Protocols to block requests, nothing else: NBD and FUSE.

pub mod fuse;
pub mod nbd;
