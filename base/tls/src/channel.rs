//! Channel of a protocol: the socket itself, or TLS on it.

use std::future::Future;

use forebay_block::{Buf, Result};
use forebay_io::net::Stream;

/// A connection that carries bytes in both directions. One task receives and one sends at a time.
pub trait Channel: 'static {
    /// Receives at most `buf.len()` bytes, at least one. Zero means that the peer has ended.
    fn recv(&self, buf: Buf) -> impl Future<Output = Result<usize>>;

    /// Receives exactly `buf.len()` bytes.
    fn recv_exact(&self, buf: Buf) -> impl Future<Output = Result<()>>;

    /// Sends all parts completely.
    fn send(&self, parts: &[Buf]) -> impl Future<Output = Result<()>>;

    /// Ends the connection in both directions. Pending receives and sends end, on both sides.
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
