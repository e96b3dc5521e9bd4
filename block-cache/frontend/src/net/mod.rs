//! Common parts of the front-ends on stream sockets: accept, spread over reactors, receive,
//! deadlines, and a rate-limited log.

mod accept;
mod log;
mod receive;
mod spread;

pub use accept::MAX_CONNECTIONS;
pub(crate) use accept::{Protocol, serve};
pub(crate) use receive::{Progress, Receiver};
pub(crate) use spread::Place;
pub use spread::Spread;

#[cfg(test)]
mod tests;
