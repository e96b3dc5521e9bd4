//! The control protocol: each request and each reply is one JSON object on one line.
//!
//! ```text
//! > {"command":"mode","volume":"db","mode":"wb"}
//! < {"progress":"12 MiB left to write back"}
//! < {"done":"volume \"db\" is now in mode wb (write-back)"}
//! ```
//!
//! A request whose client has closed the connection before the daemon begins it is dropped.
//! Otherwise it has any number of `progress` replies, then one of `done`, `status` and `error`.
//!
//! `record` has `recorded` replies besides. Each line is followed by the number of bytes that it
//! states. All of these bytes together are a trace in the native format. Each reply has a whole
//! number of frames. The recording continues until the client sends anything, or shuts down its
//! side of the connection. Then the rest and `done` follow.

use forebay_block::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

use crate::config::Mode;
use crate::status::Status;

/// Longest line that either side accepts, bytes.
pub const LINE_BYTES: usize = 1 << 20;

/// A request of a client.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "command", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// Return the complete status.
    Status {},
    /// Write back all dirty data, of one volume or of all.
    Flush {
        /// Name of the volume; `None` for all.
        volume: Option<String>,
    },
    /// Change a volume's cache mode.
    Mode {
        /// Name of the volume.
        volume: String,
        /// New mode.
        mode: Mode,
    },
    /// Change the cleaning policy.
    Cleaning {
        /// New policy: `auto`, `alru`, `acp` or `nop`.
        policy: String,
    },
    /// Write back all data of a volume, and remove it from the cache.
    Detach {
        /// Name of the volume.
        volume: String,
        /// Whether dirty data is abandoned instead of written back.
        #[serde(default)]
        abandon_dirty: bool,
    },
    /// Remove a volume from the cache that is not served.
    Forget {
        /// Name of the volume.
        volume: String,
        /// Whether dirty data is discarded.
        #[serde(default)]
        discard_dirty: bool,
    },
    /// Apply the size of a larger backing device.
    Grow {
        /// Name of the volume.
        volume: String,
    },
    /// Make a snapshot of a volume in object storage, delete one, or list them.
    Snapshot {
        /// Name of the volume.
        volume: String,
        /// Name of the snapshot; `None` to list all.
        #[serde(default)]
        name: Option<String>,
        /// Whether the snapshot is deleted.
        #[serde(default)]
        delete: bool,
    },
    /// Verify all cached data against its checksums, or stop.
    Scrub {
        /// Most bytes to read per second; `None` for the default.
        #[serde(default)]
        bytes_per_second: Option<u64>,
        /// Stop the running scrub, and start none.
        #[serde(default)]
        stop: bool,
    },
    /// Send a trace of clients' requests from now on.
    Record {
        /// Names of the volumes; empty for all.
        #[serde(default)]
        volumes: Vec<String>,
        /// Largest size of the trace, bytes.
        max_bytes: Option<u64>,
    },
}

impl Request {
    /// Returns the name of the command.
    #[must_use]
    pub const fn command(&self) -> &'static str {
        match self {
            Self::Status {} => "status",
            Self::Flush { .. } => "flush",
            Self::Mode { .. } => "mode",
            Self::Cleaning { .. } => "cleaning",
            Self::Detach { .. } => "detach",
            Self::Forget { .. } => "forget",
            Self::Grow { .. } => "grow",
            Self::Snapshot { .. } => "snapshot",
            Self::Scrub { .. } => "scrub",
            Self::Record { .. } => "record",
        }
    }

    /// Describes what the client waits for; `None` if the daemon reports continuously by itself.
    #[must_use]
    pub const fn waits_for(&self) -> Option<&'static str> {
        match self {
            Self::Status {} => Some("waiting for the engine to answer"),
            Self::Flush { .. } => Some("waiting for dirty data to be written back"),
            Self::Mode { .. } => Some("waiting for the mode to change"),
            Self::Cleaning { .. } => Some("waiting for the cleaning policy to change"),
            Self::Detach { .. } => Some("waiting for the volume to be detached"),
            Self::Forget { .. } => Some("waiting for the cache to forget the volume"),
            Self::Grow { .. } => Some("waiting for the backing device's size"),
            Self::Snapshot { .. } => Some("waiting for the snapshot"),
            Self::Scrub { .. } => Some("waiting for the scrub"),
            Self::Record { .. } => None,
        }
    }
}

/// A reply of the daemon.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reply {
    /// Progress of the request.
    Progress(String),
    /// A part of a trace follows this line.
    Recorded(Recorded),
    /// The request succeeded; a description of the result.
    Done(String),
    /// The complete status.
    Status(Box<Status>),
    /// The snapshots of a volume in object storage, by name in ascending order.
    Snapshots(Vec<ListedSnapshot>),
    /// The request failed.
    Error {
        /// Kind of the error, for programs.
        kind: String,
        /// Description and remedy, for people.
        message: String,
    },
}

/// A snapshot of a volume in object storage.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct ListedSnapshot {
    /// Name.
    pub name: String,
    /// Size of the volume at its creation, bytes.
    pub size_bytes: u64,
    /// Time of its creation, seconds since 1970.
    pub created_s: u64,
}

/// Description of a part of a trace.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Recorded {
    /// Length, bytes; zero if there were no requests for a while.
    pub bytes: u64,
    /// Number of requests in it.
    pub requests: u64,
    /// Number of requests that are missing in it, since the ring was full.
    pub lost: u64,
}

impl Reply {
    /// Returns the reply for an error.
    #[must_use]
    pub fn error(error: &Error) -> Self {
        Self::Error {
            kind: error.kind().as_str().into(),
            message: error.report(),
        }
    }

    /// Whether no further reply follows.
    #[must_use]
    pub const fn is_last(&self) -> bool {
        !matches!(self, Self::Progress(_) | Self::Recorded(_))
    }
}

/// Parses a request from its line.
///
/// # Errors
/// `InvalidInput` for an invalid request; the message names the expected form.
pub fn parse_request(line: &[u8]) -> Result<Request, Error> {
    serde_json::from_slice(line).map_err(|error| {
        Error::new(
            ErrorKind::InvalidInput,
            format!(
                "not a request: {error}\n\
                 help: send one JSON object a line, such as {{\"command\":\"status\"}}"
            ),
        )
    })
}

/// Returns a value as its line, with the line feed.
#[must_use]
pub fn line(value: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(value).unwrap_or_else(|error| {
        let message = format!("a reply could not be written: {error}").replace(['"', '\\'], "'");
        format!("{{\"error\":{{\"kind\":\"invalid input\",\"message\":\"{message}\"}}}}").into()
    });
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_plain_json() {
        let cases = [
            (r#"{"command":"status"}"#, Request::Status {}),
            (r#"{"command":"flush"}"#, Request::Flush { volume: None }),
            (
                r#"{"command":"mode","volume":"db","mode":"wb"}"#,
                Request::Mode {
                    volume: "db".into(),
                    mode: Mode::WriteBack,
                },
            ),
            (
                r#"{"command":"cleaning","policy":"nop"}"#,
                Request::Cleaning {
                    policy: "nop".into(),
                },
            ),
            (
                r#"{"command":"grow","volume":"db"}"#,
                Request::Grow {
                    volume: "db".into(),
                },
            ),
            (
                r#"{"command":"snapshot","volume":"db","name":"monday"}"#,
                Request::Snapshot {
                    volume: "db".into(),
                    name: Some("monday".into()),
                    delete: false,
                },
            ),
            (
                r#"{"command":"scrub","bytes_per_second":1000}"#,
                Request::Scrub {
                    bytes_per_second: Some(1000),
                    stop: false,
                },
            ),
            (
                r#"{"command":"record"}"#,
                Request::Record {
                    volumes: Vec::new(),
                    max_bytes: None,
                },
            ),
            (
                r#"{"command":"record","volumes":["db"],"max_bytes":4096}"#,
                Request::Record {
                    volumes: vec!["db".into()],
                    max_bytes: Some(4096),
                },
            ),
        ];
        for (text, request) in cases {
            assert_eq!(parse_request(text.as_bytes()).expect(text), request);
            let parsed = parse_request(&line(&request)).expect("what is written can be read");
            assert_eq!(parsed, request);
        }
    }

    #[test]
    fn invalid_requests_are_refused_with_the_expected_form() {
        for text in [
            "",
            "{}",
            "status",
            r#"{"command":"stop"}"#,
            r#"{"command":"mode","volume":"db"}"#,
            r#"{"command":"mode","volume":"db","mode":"xx"}"#,
            r#"{"command":"status","more":1}"#,
        ] {
            let error = parse_request(text.as_bytes()).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            assert!(error.report().contains("one JSON object a line"), "{text}");
        }
    }

    #[test]
    fn replies_say_whether_more_follows() {
        let error = Reply::error(&Error::new(ErrorKind::Busy, "volume db is in use"));
        let text = String::from_utf8(line(&error)).expect("JSON is UTF-8");
        assert_eq!(
            text,
            "{\"error\":{\"kind\":\"busy\",\"message\":\"volume db is in use\"}}\n"
        );
        assert!(error.is_last());
        assert!(!Reply::Progress("half".into()).is_last());
        let status = Reply::Status(Box::default());
        let parsed: Reply = serde_json::from_slice(&line(&status)).expect("round trip");
        assert_eq!(parsed, status);
    }
}
