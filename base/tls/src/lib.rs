//! TLS on stream sockets, for servers and for initiators.
//!
//! - [`Channel`]: a socket, or TLS on it.
//! - [`Secure`]: a TLS session on a socket.
//! - [`Tls`]: configuration of a server.
//! - [`ClientTls`]: configuration of an initiator.

mod channel;
mod client;
mod key;
mod material;
mod secure;
mod server;

pub use channel::Channel;
pub use client::{ClientTls, OwnCertificate};
pub use secure::Secure;
pub use server::{Demand, Tls};
