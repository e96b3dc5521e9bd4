//! What a protocol's bytes go through: the socket itself, or TLS on it.

use std::future::Future;

use forebay_block::{Buf, Result};
use forebay_io::net::Stream;

/// A connection that carries bytes both ways. One task receives at a time, and one sends.
pub(crate) trait Channel: 'static {
    /// Receives at most `buf.len()` bytes, at least one. Zero means that the peer has ended.
    fn recv(&self, buf: Buf) -> impl Future<Output = Result<usize>>;

    /// Receives exactly `buf.len()` bytes.
    fn recv_exact(&self, buf: Buf) -> impl Future<Output = Result<()>>;

    /// Sends all of all parts.
    fn send(&self, parts: &[Buf]) -> impl Future<Output = Result<()>>;

    /// Ends the connection in both directions: what waits for it, here and at the peer, sees the end.
    fn shutdown(&self);
}

impl Channel for Stream {
    fn recv(&self, buf: Buf) -> impl Future<Output = Result<usize>> {
        Self::recv(self, buf)
    }

    fn recv_exact(&self, buf: Buf) -> impl Future<Output = Result<()>> {
        Self::recv_exact(self, buf)
    }

    fn send(&self, parts: &[Buf]) -> impl Future<Output = Result<()>> {
        Self::send(self, parts)
    }

    fn shutdown(&self) {
        Self::shutdown(self);
    }
}
