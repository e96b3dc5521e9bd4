//! What the front-ends on stream sockets share: accepting, spreading connections over reactors,
//! receiving, TLS, deadlines, and a log that nobody can fill.

mod accept;
mod channel;
mod deadline;
mod log;
mod receive;
mod secure;
mod spread;

pub(crate) use accept::{Protocol, serve};
pub(crate) use channel::Channel;
pub(crate) use deadline::Deadline;
pub(crate) use receive::{Progress, Receiver};
pub(crate) use secure::Secure;
pub(crate) use spread::Place;
pub use spread::Spread;

#[cfg(test)]
mod tests;
