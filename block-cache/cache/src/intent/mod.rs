//! Write intent: state that must be durable on media before the first byte of a write.
//!
//! [`regions`] has the marks of regions. [`dirty_tracking`] has the alternatives to *maybe dirty*
//! marks. [`zones`] has the bits by which reads are served before the map is loaded.

pub(crate) mod dirty_tracking;
pub(crate) mod regions;
pub(crate) mod zones;
