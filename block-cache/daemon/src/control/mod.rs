//! Online control: a Unix socket (mode 0600) with one JSON object per line, and a loopback HTTP
//! server for metrics and the status page. Both run on one tokio thread. It never accesses data: it
//! asks the engine's reactor and waits.

pub mod client;
pub mod http;
pub mod peer;
pub mod protocol;
mod seats;
pub mod server;
