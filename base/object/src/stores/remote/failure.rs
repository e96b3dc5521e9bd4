//! Conversion of errors of the crate `object_store` to errors of Forebay, without secrets.
//!
//! The texts of that crate have URLs and answers of the server: a signed URL is a secret, and an
//! answer may repeat one. So a message has no text of the crate. It has the status and the code of
//! an answer, or the cause at the end of the chain.

use std::error::Error as StdError;
use std::time::Duration;

use forebay_block::{Error, ErrorKind};
use object_store::client::{HttpError, HttpErrorKind};
use zeroize::Zeroizing;

use crate::stores::address::{Bucket, Provider};

/// Longest first line of a message, bytes. A report appends up to 20 bytes: the kind of the error.
const LINE_BYTES: usize = 100;
/// Least length of a cause in a message, bytes, however long names are.
const CAUSE_BYTES: usize = 40;

/// Description of failed requests to a store.
pub(super) struct Failure {
    name: String,
    provider: Provider,
    server: String,
    secrets: Vec<Zeroizing<String>>,
}

impl Failure {
    /// Creates one for the store `name`. No message has one of the `secrets`.
    pub(super) fn new(bucket: &Bucket, name: String, secrets: Vec<Zeroizing<String>>) -> Self {
        let server = bucket.endpoint.clone();
        Self {
            name,
            provider: bucket.provider,
            server: server
                .unwrap_or_else(|| format!("the service of {}://", bucket.provider.scheme())),
            secrets,
        }
    }

    /// Returns the error of a request that failed.
    pub(super) fn describe(
        &self,
        action: &str,
        object: &str,
        error: &object_store::Error,
    ) -> Error {
        let cause = plain(error, &self.secrets);
        let (kind, help) = match error {
            object_store::Error::NotFound { .. } if is_of_bucket(&cause) => (
                ErrorKind::InvalidInput,
                "create the bucket, or check its name".to_owned(),
            ),
            object_store::Error::NotFound { .. } => (
                ErrorKind::NotFound,
                "if the volume has not been deleted, an administrator deleted its object"
                    .to_owned(),
            ),
            object_store::Error::PermissionDenied { .. }
            | object_store::Error::Unauthenticated { .. } => (
                ErrorKind::Permission,
                format!("check the credentials, and their rights: {}", self.rights()),
            ),
            _ => match http(error).map(HttpError::kind) {
                Some(HttpErrorKind::Timeout) => (ErrorKind::TimedOut, self.reach()),
                Some(_) => (ErrorKind::Disconnected, self.reach()),
                None if cause.starts_with("status 3") => (
                    ErrorKind::InvalidInput,
                    "check `region`, and the bucket's name".to_owned(),
                ),
                None if is_too_long(&cause) => (ErrorKind::Unsupported, self.allow()),
                None => (ErrorKind::Io, format!("see the log of {}", self.server)),
            },
        };
        let begin = format!("{}: {action} {object}: ", self.name);
        let room = LINE_BYTES.saturating_sub(begin.len()).max(CAUSE_BYTES);
        let cause = cut(&cause, room);
        Error::new(kind, format!("{begin}{cause}\nhelp: {help}"))
    }

    /// Returns the error of an object that no request can create.
    pub(super) fn too_long(&self, object: &str, bytes: u64, most: u64) -> Error {
        let what = format!(
            "{}: {object} has {bytes} bytes; the store takes {most} at most\nhelp: {}",
            self.name,
            self.allow()
        );
        Error::new(ErrorKind::Unsupported, what)
    }

    fn allow(&self) -> String {
        format!(
            "allow larger objects at {}, or use smaller volumes",
            self.server
        )
    }

    /// Returns the error of a request without an answer.
    pub(super) fn silence(&self, action: &str, object: &str, limit: Duration) -> Error {
        let what = format!(
            "{}: {action} {object}: no answer for {limit:?}\nhelp: {}",
            self.name,
            self.reach()
        );
        Error::new(ErrorKind::TimedOut, what)
    }

    fn reach(&self) -> String {
        format!(
            "see whether {} runs, and is reachable from here",
            self.server
        )
    }

    const fn rights(&self) -> &'static str {
        match self.provider {
            Provider::S3 => "s3:GetObject, PutObject, DeleteObject, ListBucket",
            Provider::Google => "role Storage Object User",
            Provider::Azure => "role Storage Blob Data Contributor",
        }
    }
}

/// Returns whether the cause is that the bucket or container does not exist.
fn is_of_bucket(cause: &str) -> bool {
    cause.ends_with(", NoSuchBucket") || cause.ends_with(", ContainerNotFound")
}

/// Returns whether the cause is the length of the object.
fn is_too_long(cause: &str) -> bool {
    cause.starts_with("status 413") || cause.ends_with(", EntityTooLarge")
}

/// Returns the first `len` bytes of a text, or fewer if a character ends beyond.
fn cut(text: &str, len: usize) -> &str {
    &text[..text.floor_char_boundary(len)]
}

/// Returns whether the server has answered with a status that `object_store` does not classify.
pub(super) fn has_answer(error: &object_store::Error) -> bool {
    matches!(error, object_store::Error::Generic { .. }) && http(error).is_none()
}

fn chain(error: &object_store::Error) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(Some(error as &(dyn StdError + 'static)), |&link| {
        link.source()
    })
}

/// Returns the failure of the connection, if that is the cause.
fn http(error: &object_store::Error) -> Option<&HttpError> {
    chain(error).find_map(|link| link.downcast_ref())
}

/// Returns the cause, in one line, without URLs, answers of a server, and `secrets`.
pub(super) fn plain(error: &object_store::Error, secrets: &[Zeroizing<String>]) -> String {
    let last = chain(error)
        .last()
        .map_or_else(String::new, ToString::to_string);
    let text = match status(&last) {
        Some(status) => status,
        None => last,
    };
    let words = text
        .split_whitespace()
        .map(|word| match word.contains("://") {
            true => "(a URL)",
            false => word,
        });
    let mut text = words.collect::<Vec<_>>().join(" ");
    // Short values, such as the name of a region, are no secrets.
    for secret in secrets.iter().filter(|secret| secret.len() >= 12) {
        text = text.replace(secret.as_str(), "(a secret)");
    }
    text.truncate(text.floor_char_boundary(LINE_BYTES));
    text
}

/// Returns the status in the text of an answer, with the provider's code. The crate offers both in
/// no other way.
fn status(text: &str) -> Option<String> {
    let redirect = "Received redirect without LOCATION";
    if text.starts_with(redirect) {
        return Some("status 301 Moved Permanently".to_owned());
    }
    let body_of_ok = text.strip_prefix("Server returned error response: ");
    let (status, body) = match body_of_ok {
        Some(body) => ("200 OK", body),
        None => text
            .strip_prefix("Server returned non-2xx status code: ")?
            .split_once(':')?,
    };
    let code = body
        .split_once("<Code>")
        .and_then(|(_, rest)| rest.split_once("</Code>"));
    let is_code = |code: &&str| code.len() < 64 && code.bytes().all(|b| b.is_ascii_alphanumeric());
    Some(match code.map(|(code, _)| code).filter(is_code) {
        Some(code) => {
            let number = status.split(' ').next().unwrap_or(status);
            format!("status {number}, {code}")
        }
        None => format!("status {status}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_its_status_and_code_alone() {
        for (text, expected) in [
            (
                "Server returned non-2xx status code: 403 Forbidden: <Error><Code>\
                 SignatureDoesNotMatch</Code><StringToSign>SECRET</StringToSign></Error>",
                "status 403, SignatureDoesNotMatch",
            ),
            (
                "Server returned non-2xx status code: 503 Slow Down: <Code>no code</Code>",
                "status 503 Slow Down",
            ),
            (
                "Server returned error response: <Code>SlowDown</Code>",
                "status 200, SlowDown",
            ),
        ] {
            assert_eq!(status(text).as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_cause_has_no_url_and_no_secret() {
        let secrets = [Zeroizing::new("wJalrXUtnFEMI/K7MDENG".to_owned())];
        let error = object_store::Error::Generic {
            store: "S3",
            source: "got wJalrXUtnFEMI/K7MDENG\nfrom https://h/?sig=abc at once".into(),
        };
        assert_eq!(
            plain(&error, &secrets),
            "got (a secret) from (a URL) at once"
        );
    }
}
