//! Pure codecs for the protocols that Forebay speaks: bytes in, values out, and the reverse. No I/O,
//! no state, no allocation on the data path, so that front-ends, initiators and fuzzers share them.
//!
//! - [`nbd`]: the Network Block Device protocol.

pub mod nbd;
