//! Write intent: what media says, durably, before the first byte of a write.
//!
//! [`regions`] keeps the marks of regions, [`dirty_tracking`] what takes the place of *maybe dirty*
//! marks, and [`zones`] the bits by which reads are served before the map is there.

pub(crate) mod dirty_tracking;
pub(crate) mod regions;
pub(crate) mod zones;
