//! HTTP on loopback: `/` the status page, `/metrics` for Prometheus, `/status.json`, `/healthz`.

use std::net::TcpListener as StdListener;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use forebay_block::{Context as _, Result};
use tokio::net::TcpListener;

use super::protocol::Reply;
use super::server::Answer;
use super::status::Status;

/// Gives the present status.
pub type Source = Arc<dyn Fn() -> Answer + Send + Sync>;

/// Serves for ever. Runs on a tokio runtime.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve(listener: StdListener, source: Source) -> Result<()> {
    let what = || "HTTP listener for metrics";
    listener.set_nonblocking(true).context(what)?;
    let listener = TcpListener::from_std(listener).context(what)?;
    axum::serve(listener, router(source)).await.context(what)
}

fn router(source: Source) -> Router {
    Router::new()
        .route("/", get(page))
        .route("/metrics", get(metrics))
        .route("/status.json", get(json))
        .route("/healthz", get(health))
        .with_state(source)
}

async fn status(source: &Source) -> Result<Status, Box<Response>> {
    let message = match source().await {
        Reply::Status(status) => return Ok(*status),
        Reply::Error { message, .. } => message,
        _ => "the engine gave no status".into(),
    };
    Err(Box::new(
        (StatusCode::SERVICE_UNAVAILABLE, message + "\n").into_response(),
    ))
}

/// The present status as `render` shows it.
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
    let render = |status: &Status| crate::metrics::render(status).into_bytes();
    shown(&source, "text/plain; version=0.0.4; charset=utf-8", render).await
}

async fn json(State(source): State<Source>) -> Response {
    let render = |status: &Status| super::protocol::line(status);
    shown(&source, "application/json", render).await
}

/// 200 while I/O is served, 503 on the way out or when the engine does not answer.
async fn health(State(source): State<Source>) -> Response {
    match status(&source).await {
        Ok(status) if status.shutting_down => {
            (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n").into_response()
        }
        Ok(_) => "ok\n".into_response(),
        Err(response) => *response,
    }
}
