//! Writes: into the cache ([`slot_write`]), zeroes and discards ([`zero`](mod@zero)).

pub(crate) mod slot_write;
pub(crate) mod zero;
