//! A volume that is served, and its backing device.

pub(crate) mod backing;
