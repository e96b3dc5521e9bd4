//! HTTP on loopback: `/` the status page, `/metrics` for Prometheus, `/status.json`, `/healthz`.

use std::future::Future;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener as StdListener};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener;
use forebay_block::{Context as _, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};

use super::protocol::Reply;
use super::seats::{Seat, Seats};
use super::server::Answer;
use crate::status::Status;

/// Returns the present status.
pub type Source = Arc<dyn Fn() -> Answer + Send + Sync>;

/// Most concurrent clients.
pub const CLIENTS: usize = 64;
/// Least time between two log lines about refused clients.
const LOG_PAUSE: Duration = Duration::from_secs(10);
/// Time limit for an answer of the engine.
const ENGINE_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves for ever, with at most `most` clients: a further one replaces the client that was idle
/// longest. Runs on a tokio runtime.
///
/// # Errors
/// If the listener cannot be used.
pub async fn serve(listener: StdListener, source: Source, most: usize) -> Result<()> {
    let what = || "HTTP listener for metrics";
    listener.set_nonblocking(true).context(what)?;
    let limited = Limited {
        listener: TcpListener::from_std(listener).context(what)?,
        seats: Seats::new(most),
        logged_at: None,
    };
    axum::serve(limited, router(source)).await.context(what)
}

/// A listener with a bounded number of clients.
struct Limited {
    listener: TcpListener,
    seats: Seats,
    logged_at: Option<Instant>,
}

impl Listener for Limited {
    type Io = Seated;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Seated, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => {
                    if let Some(seat) = self.seats.take() {
                        // Lets a disconnected client release its descriptor before the next accept.
                        tokio::task::yield_now().await;
                        return (Seated::new(stream, seat), address);
                    }
                }
                Err(error) => {
                    if self
                        .logged_at
                        .is_none_or(|logged_at| logged_at.elapsed() >= LOG_PAUSE)
                    {
                        self.logged_at = Some(Instant::now());
                        tracing::warn!("metrics: {error}; it is tried again");
                    }
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A client's connection, which ends when another client takes its seat.
struct Seated {
    stream: TcpStream,
    seat: Arc<Seat>,
    evicted: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Seated {
    fn new(stream: TcpStream, seat: Seat) -> Self {
        let seat = Arc::new(seat);
        let waiting = Arc::clone(&seat);
        Self {
            stream,
            seat,
            evicted: Box::pin(async move { waiting.evicted().await }),
        }
    }
}

impl AsyncRead for Seated {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if self.evicted.as_mut().poll(cx).is_ready() {
            // The future has completed.
            self.evicted = Box::pin(std::future::ready(()));
            return Poll::Ready(Ok(()));
        }
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_ready() {
            self.seat.end();
        }
        read
    }
}

impl AsyncWrite for Seated {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn router(source: Source) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/metrics", get(metrics))
        .route("/status.json", get(json))
        .route("/healthz", get(health))
        .layer(from_fn(meant))
        .with_state(source)
}

/// Answers only requests for an address or for this machine. Otherwise another site whose name
/// resolves to this address could read the page in a user's browser (DNS rebinding).
async fn meant(request: Request, next: Next) -> Response {
    let header = request.headers().get(header::HOST);
    let header = header.map(|host| host.to_str().is_ok_and(is_here));
    let named = request.uri().authority().map(|host| is_here(host.as_str()));
    match header.into_iter().chain(named).all(|is_here| is_here) {
        true => next.run(request).await,
        false => {
            let why = "this page is served for the name localhost and for addresses. Use one of \
                these, or have the proxy in front put the address into the Host header\n";
            (StatusCode::MISDIRECTED_REQUEST, why).into_response()
        }
    }
}

/// Whether a host, with or without a port, is an address or `localhost`.
fn is_here(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else {
        return false;
    };
    let host = authority.host();
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<Ipv4Addr>().is_ok()
        || bare.is_some_and(|host| host.parse::<Ipv6Addr>().is_ok())
}

async fn status(source: &Source) -> Result<Status, Box<Response>> {
    let message = match tokio::time::timeout(ENGINE_TIMEOUT, source()).await {
        Ok(Reply::Status(status)) => return Ok(*status),
        Ok(Reply::Error { message, .. }) => message,
        Ok(_) => "the engine gave no status".into(),
        Err(_) => format!("the engine has not answered for {ENGINE_TIMEOUT:?}"),
    };
    Err(Box::new(
        (StatusCode::SERVICE_UNAVAILABLE, message + "\n").into_response(),
    ))
}

/// Returns the present status, rendered with `render`.
async fn shown(
    source: &Source,
    kind: &'static str,
    render: impl FnOnce(&Status) -> Vec<u8>,
) -> Response {
    match status(source).await {
        Ok(status) => ([(header::CONTENT_TYPE, kind)], render(&status)).into_response(),
        Err(response) => *response,
    }
}

async fn page(State(source): State<Source>) -> Response {
    let render = |status: &Status| crate::page::render(status).into_bytes();
    shown(&source, "text/html; charset=utf-8", render).await
}

async fn metrics(State(source): State<Source>) -> Response {
    let render = |status: &Status| forebay_terminal::metrics::render(status).into_bytes();
    shown(&source, "text/plain; version=0.0.4; charset=utf-8", render).await
}

async fn json(State(source): State<Source>) -> Response {
    let render = |status: &Status| super::protocol::line(status);
    shown(&source, "application/json", render).await
}

/// Returns 200 while I/O is served, 503 on shutdown or if the engine does not answer.
async fn health(State(source): State<Source>) -> Response {
    match status(&source).await {
        Ok(status) if status.shutting_down => {
            (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n").into_response()
        }
        Ok(_) => "ok\n".into_response(),
        Err(response) => *response,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_localhost_are_here() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:9809",
            "[::1]:9809",
            "localhost",
            "LocalHost:80",
        ] {
            assert!(is_here(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "evil.example:9809",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "[evil]",
            "::1",
            "127.0.0.1 evil",
        ] {
            assert!(!is_here(host), "{host}");
        }
    }
}
