//! Writes: into the cache ([`slot_write`]), whether a miss is let in ([`admission`]), zeroes and discards
//! ([`zero`](mod@zero)).

pub(crate) mod admission;
pub(crate) mod slot_write;
pub(crate) mod zero;
