//! Dirty data goes back to the backing device: [`cleaner`] says when and what, [`write_back`] does it, and
//! [`compare`] leaves out, after a crash, what the backing device has already.

pub(crate) mod cleaner;
pub(crate) mod compare;
pub(crate) mod write_back;
