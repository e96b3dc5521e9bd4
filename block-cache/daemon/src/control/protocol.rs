//! The control protocol: each request and each reply is one JSON object on one line.
//!
//! ```text
//! > {"command":"mode","volume":"db","mode":"wb"}
//! < {"progress":"12 MiB left to write back"}
//! < {"done":"volume \"db\" is now in mode wb (write-back)"}
//! ```
//!
//! A request has any number of `progress` replies, then one of `done`, `status` and `error`.
//!
//! `record` has `recorded` replies besides. Behind the line of each come as many bytes as it says;
//! all of them together are a trace in the native format, each reply a whole number of its frames.
//! It goes on until the client sends something or ends its side of the connection, and then has the
//! last of it and `done`.

use forebay_block::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

use super::status::Status;
use crate::config::Mode;

/// The longest line that either side accepts, bytes.
pub const LINE_BYTES: usize = 1 << 20;

/// What a client asks for.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "command", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// The state of everything.
    Status {},
    /// Write back all dirty data, of one volume or of all.
    Flush {
        /// The volume; none for all.
        volume: Option<String>,
    },
    /// Change a volume's cache mode.
    Mode {
        /// The volume.
        volume: String,
        /// The mode from now on.
        mode: Mode,
    },
    /// Change when dirty blocks are written back.
    Cleaning {
        /// The policy from now on: `auto`, `alru`, `acp` or `nop`.
        policy: String,
    },
    /// Write everything of a volume back, and let the cache forget it.
    Detach {
        /// The volume.
        volume: String,
        /// Whether what is dirty is given up in place of being written back.
        #[serde(default)]
        abandon_dirty: bool,
    },
    /// Let the cache forget a volume that is not served.
    Forget {
        /// The volume.
        volume: String,
        /// Whether what is dirty is given up.
        #[serde(default)]
        discard_dirty: bool,
    },
    /// Take a larger backing device into use.
    Grow {
        /// The volume.
        volume: String,
    },
    /// Verify all that is cached against its checksums, or stop doing so.
    Scrub {
        /// The most bytes that are read in a second; none for a default.
        #[serde(default)]
        bytes_per_second: Option<u64>,
        /// Stop the one that is under way, and begin none.
        #[serde(default)]
        stop: bool,
    },
    /// Send a trace of what clients ask from now on.
    Record {
        /// The volumes; none for all.
        #[serde(default)]
        volumes: Vec<String>,
        /// The most bytes that the trace may have.
        max_bytes: Option<u64>,
    },
}

impl Request {
    /// What whoever sent it waits for, in words; none where the daemon says something by itself all
    /// the time.
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
            Self::Scrub { .. } => Some("waiting for the scrub"),
            Self::Record { .. } => None,
        }
    }
}

/// What the daemon answers.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reply {
    /// It goes on; how far it is.
    Progress(String),
    /// A piece of a trace follows this line.
    Recorded(Recorded),
    /// It is done; what was done, in words.
    Done(String),
    /// The state of everything.
    Status(Box<Status>),
    /// It failed.
    Error {
        /// The kind, for programs.
        kind: String,
        /// What happened and what to do, for people.
        message: String,
    },
}

/// What a piece of a trace has.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Recorded {
    /// Its length, bytes; zero where nothing was asked for a while.
    pub bytes: u64,
    /// Requests that are in it.
    pub requests: u64,
    /// Requests that were served and are not in it, since the ring was full.
    pub lost: u64,
}

impl Reply {
    /// The reply for an error.
    #[must_use]
    pub fn error(error: &Error) -> Self {
        Self::Error {
            kind: error.kind().as_str().into(),
            message: error.report(),
        }
    }

    /// Whether another reply follows.
    #[must_use]
    pub const fn is_last(&self) -> bool {
        !matches!(self, Self::Progress(_) | Self::Recorded(_))
    }
}

/// Reads a request from its line.
///
/// # Errors
/// `InvalidInput` if it is none; the message names what was expected.
pub fn parse_request(line: &[u8]) -> Result<Request, Error> {
    serde_json::from_slice(line).map_err(|error| {
        Error::new(
            ErrorKind::InvalidInput,
            format!(
                "not a request: {error}; send one JSON object a line, such as \
                 {{\"command\":\"status\"}}"
            ),
        )
    })
}

/// A value as its line, with the line's end.
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
            let again = parse_request(&line(&request)).expect("what is written can be read");
            assert_eq!(again, request);
        }
    }

    #[test]
    fn what_is_no_request_is_named() {
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
            "{\"error\":{\"kind\":\"busy\",\"message\":\"volume db is in use (busy)\"}}\n"
        );
        assert!(error.is_last());
        assert!(!Reply::Progress("half".into()).is_last());
        let status = Reply::Status(Box::default());
        let again: Reply = serde_json::from_slice(&line(&status)).expect("round trip");
        assert_eq!(again, status);
    }
}
