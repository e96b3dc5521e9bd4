//! Online control: a Unix socket (mode 0600) that carries one JSON object a line, and a loopback
//! HTTP server for metrics and the status page. Both run on one tokio thread, which never touches
//! data: it asks the engine's reactor and waits.

pub mod client;
pub mod http;
pub mod protocol;
mod seats;
pub mod server;
pub mod status;
