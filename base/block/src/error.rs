//! Errors as kind, context, help and source.
//!
//! Callers match on [`ErrorKind`] for control flow. The context describes the failed action for a
//! user. The source is the error of the layer below. `Display` prints kind, context and help only;
//! [`Error::report`] prints the chain. An error with an empty context represents its source only.
//!
//! A context is one line. The help is the remedy, if the user has one. Where an error is created,
//! one text holds both:
//!
//! ```
//! # use forebay_block::{Error, ErrorKind};
//! let busy = Error::new(ErrorKind::Busy, "volume db is attached\nhelp: detach it first");
//! let report = busy.context("format of /dev/sdb").report();
//! let expected = "format of /dev/sdb: volume db is attached\n    help: detach it first";
//! assert_eq!(report, expected);
//! ```

use std::fmt;
use std::sync::Arc;

/// A result with Forebay's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Kind of an error, for control flow. [`ErrorKind::errno`] translates it for protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The device failed the operation (EIO).
    Io,
    /// The request or a setting is invalid (EINVAL).
    InvalidInput,
    /// The request reaches past the end of the device (EINVAL for reads, ENOSPC for writes).
    OutOfRange,
    /// The device does not take writes (EPERM).
    ReadOnly,
    /// No space left on the device (ENOSPC).
    NoSpace,
    /// Data differs from the written data: a checksum, a magic number or an invariant failed.
    Corrupt,
    /// The device, format or peer does not support this (EOPNOTSUPP).
    Unsupported,
    /// Another process holds it, or its state does not allow this now (EBUSY).
    Busy,
    /// It does not exist (ENOENT).
    NotFound,
    /// Acknowledged data is lost; the context names the ranges (EIO).
    Lost,
    /// The layer is shutting down and refuses requests (ESHUTDOWN).
    ShuttingDown,
    /// Permission is denied (EACCES).
    Permission,
    /// A deadline passed (ETIMEDOUT).
    TimedOut,
    /// The peer disconnected or broke the protocol (ECONNRESET).
    Disconnected,
    /// The peer of a remote device is away. The device has every acknowledged change, and sends it
    /// to the peer before a later flush succeeds. So such a failed flush has lost nothing
    /// (EHOSTUNREACH).
    Unreachable,
}

impl ErrorKind {
    /// The Linux error number that a protocol or a system call would use for this kind.
    #[must_use]
    pub const fn errno(self) -> i32 {
        match self {
            Self::Io | Self::Corrupt | Self::Lost => 5,
            Self::InvalidInput | Self::OutOfRange => 22,
            Self::ReadOnly => 1,
            Self::NoSpace => 28,
            Self::Unsupported => 95,
            Self::Busy => 16,
            Self::NotFound => 2,
            Self::ShuttingDown => 108,
            Self::Permission => 13,
            Self::TimedOut => 110,
            Self::Disconnected => 104,
            Self::Unreachable => 113,
        }
    }

    /// Returns the name of the kind.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Io => "I/O error",
            Self::InvalidInput => "invalid input",
            Self::OutOfRange => "out of range",
            Self::ReadOnly => "read-only",
            Self::NoSpace => "no space left",
            Self::Corrupt => "corrupt",
            Self::Unsupported => "not supported",
            Self::Busy => "busy",
            Self::NotFound => "not found",
            Self::Lost => "data lost",
            Self::ShuttingDown => "shutting down",
            Self::Permission => "permission denied",
            Self::TimedOut => "timed out",
            Self::Disconnected => "disconnected",
            Self::Unreachable => "unreachable",
        }
    }
}

/// An error: kind, context and, if there is one, the source. Cloning is cheap, since a failed flush
/// fails every request that waited for it.
#[derive(Clone)]
pub struct Error {
    kind: ErrorKind,
    inner: Option<Arc<Inner>>,
}

struct Inner {
    context: String,
    help: Option<String>,
    source: Option<Source>,
}

/// The error of the layer below.
type Source = Box<dyn std::error::Error + Send + Sync>;

impl Inner {
    /// Separates the text of an error into context and help.
    fn new(text: String, source: Option<Source>) -> Self {
        let (context, help) = match split_help(&text) {
            Some((context, help)) => (context.to_owned(), Some(help.to_owned())),
            None => (text, None),
        };
        Self {
            context,
            help,
            source,
        }
    }

    /// Returns the context with the kind at its end, once: a report that became text has it. The
    /// context of a refusal describes its kind.
    fn with_kind(&self, kind: ErrorKind) -> String {
        let is_refusal = matches!(
            kind,
            ErrorKind::InvalidInput | ErrorKind::Busy | ErrorKind::Lost
        );
        let kind = format!(" ({})", kind.as_str());
        match is_refusal || self.context.ends_with(&kind) {
            true => self.context.clone(),
            false => format!("{}{kind}", self.context),
        }
    }
}

/// Begins the help in a report.
const HELP: &str = "\n    help: ";

/// Returns the parts of a text before and behind the line `help:`. A list of problems with a help
/// each is no such text.
fn split_help(text: &str) -> Option<(&str, &str)> {
    let (begin, _) = text
        .match_indices('\n')
        .find(|(at, _)| text[at + 1..].trim_start_matches(' ').starts_with("help: "))?;
    let help = text[begin + 1..]
        .trim_start_matches(' ')
        .strip_prefix("help: ")?;
    let is_list = help
        .lines()
        .any(|line| line.trim_start().starts_with("help: "));
    (!is_list).then(|| (&text[..begin], help))
}

/// Returns the place in `out` of the last context, if `text` begins with it as a whole.
fn repeated(out: &str, text: &str) -> Option<usize> {
    let contexts = out.strip_suffix(": ")?;
    let begin = contexts.rfind(": ").map_or(0, |at| at + 2);
    let rest = text.strip_prefix(&contexts[begin..])?;
    let is_whole = rest.starts_with([' ', ':']);
    (is_whole && begin < contexts.len()).then_some(begin)
}

impl Error {
    /// Creates an error of `kind` with `context`. A line `help: …` at its end is the help.
    #[must_use]
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self::create(kind, context.into(), None)
    }

    /// Stays out of line: the code of hits is small then.
    #[cold]
    #[inline(never)]
    fn create(kind: ErrorKind, text: String, source: Option<Source>) -> Self {
        Self {
            kind,
            inner: Some(Arc::new(Inner::new(text, source))),
        }
    }

    /// Creates an error with the error of the layer below. A line `help: …` at the end of `context`
    /// is the help.
    #[must_use]
    pub fn with_source(
        kind: ErrorKind,
        context: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::create(kind, context.into(), Some(source.into()))
    }

    /// Returns the kind, for control flow.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// Returns the Linux error number.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        self.kind.errno()
    }

    /// Returns the operating system's error number, if the chain ends in one. It is more exact than
    /// [`Error::errno`] for a program whose system call failed.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        let source = self.inner.as_ref()?.source.as_ref()?;
        match source.downcast_ref::<Self>() {
            Some(error) => error.raw_os_error(),
            None => source.downcast_ref::<std::io::Error>()?.raw_os_error(),
        }
    }

    /// Wraps this error: same kind, with `context`, and this error as the source.
    #[must_use]
    pub fn context(self, context: impl Into<String>) -> Self {
        Self::with_source(self.kind, context, self)
    }

    /// Returns the whole chain on one line, outermost first. A context that the next text begins
    /// with is left out. The kind is at the end, once. It is left out for a refusal
    /// (`InvalidInput`, `Busy`, `Lost`), and where the error of another library or of the operating
    /// system describes it better. The help is on the next line. If several errors of the chain
    /// have one, it is that of the innermost, which is nearest to the cause.
    #[must_use]
    pub fn report(&self) -> String {
        let mut out = String::new();
        let mut remedy = None;
        let mut link: &(dyn std::error::Error + 'static) = self;
        loop {
            let (text, next) = match link.downcast_ref::<Self>() {
                Some(error) => {
                    remedy = error.help().or(remedy);
                    error.link()
                }
                None => (link.to_string(), link.source()),
            };
            // A context and the text below it may begin with the same name.
            if let Some(begin) = repeated(&out, &text) {
                out.truncate(begin);
            }
            out.push_str(&text);
            let Some(next) = next else { break };
            if !text.is_empty() {
                out.push_str(": ");
            }
            link = next;
        }
        match remedy {
            Some(help) if !out.contains(HELP) => out + HELP + help,
            _ => out,
        }
    }

    /// Returns the remedy of this error, without those of its sources.
    fn help(&self) -> Option<&str> {
        self.inner.as_ref()?.help.as_deref()
    }

    /// Returns this error's part of a report without its help, and the next error.
    fn link(&self) -> (String, Option<&(dyn std::error::Error + 'static)>) {
        match self.inner.as_deref() {
            Some(Inner {
                context,
                source: Some(source),
                ..
            }) => (context.clone(), Some(source.as_ref())),
            Some(inner) => (inner.with_kind(self.kind), None),
            None => (self.kind.as_str().to_owned(), None),
        }
    }
}

impl From<ErrorKind> for Error {
    /// Creates an error without context, and without allocation.
    fn from(kind: ErrorKind) -> Self {
        Self { kind, inner: None }
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind as K;
        let kind = match error.kind() {
            K::NotFound => ErrorKind::NotFound,
            K::PermissionDenied => ErrorKind::Permission,
            K::InvalidInput | K::InvalidData => ErrorKind::InvalidInput,
            K::StorageFull | K::QuotaExceeded | K::FileTooLarge => ErrorKind::NoSpace,
            K::ReadOnlyFilesystem => ErrorKind::ReadOnly,
            K::Unsupported => ErrorKind::Unsupported,
            K::ResourceBusy | K::WouldBlock | K::AddrInUse => ErrorKind::Busy,
            K::TimedOut => ErrorKind::TimedOut,
            K::ConnectionReset | K::BrokenPipe | K::UnexpectedEof | K::ConnectionAborted => {
                ErrorKind::Disconnected
            }
            _ => ErrorKind::Io,
        };
        Self::with_source(kind, "", error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.inner.as_deref() {
            Some(Inner {
                context,
                source: Some(source),
                ..
            }) if context.is_empty() => source.fmt(f)?,
            Some(inner) => f.write_str(&inner.with_kind(self.kind))?,
            None => f.write_str(self.kind.as_str())?,
        }
        match self.help() {
            Some(help) => write!(f, "{HELP}{help}"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.kind, self.report())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        let inner = self.inner.as_ref()?;
        let source = inner.source.as_deref()?;
        match inner.context.is_empty() {
            true => source.source(),
            false => Some(source as &(dyn std::error::Error + 'static)),
        }
    }
}

/// Adds context to the error of a result.
pub trait Context<T> {
    /// On error: same kind, `context()` on top, the error as the source.
    ///
    /// # Errors
    /// The error of `self`, wrapped.
    fn context<C: Into<String>>(self, context: impl FnOnce() -> C) -> Result<T>;
}

impl<T, E: Into<Error>> Context<T> for std::result::Result<T, E> {
    fn context<C: Into<String>>(self, context: impl FnOnce() -> C) -> Result<T> {
        self.map_err(|error| error.into().context(context()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_own_number_is_found_below_contexts() {
        let system = Error::from(std::io::Error::from_raw_os_error(39));
        let wrapped = system.context("removing a directory").context("serving");
        assert_eq!((wrapped.raw_os_error(), wrapped.errno()), (Some(39), 5));
        assert_eq!(Error::new(ErrorKind::Io, "ours").raw_os_error(), None);
    }

    #[test]
    fn report_prints_the_chain_once() {
        let low = Error::new(ErrorKind::Io, "pread of 4096 bytes at 0");
        let high = low.context("cache device c0");
        assert_eq!(high.kind(), ErrorKind::Io);
        assert_eq!(
            high.report(),
            "cache device c0: pread of 4096 bytes at 0 (I/O error)"
        );
        let bare = Error::from(ErrorKind::ShuttingDown).context("volume db");
        assert_eq!(bare.report(), "volume db: shutting down");
    }

    #[test]
    fn a_name_and_the_kind_are_printed_once() {
        let low = Error::new(ErrorKind::Busy, "volume \"db\" is attached");
        let high = low.context("volume \"db\"").context("a.toml:2");
        assert_eq!(high.report(), "a.toml:2: volume \"db\" is attached");
        let other = Error::new(ErrorKind::Busy, "volume db2 is attached").context("volume db");
        assert_eq!(other.report(), "volume db: volume db2 is attached");
        let text = Error::new(ErrorKind::Corrupt, high.report());
        let text = Error::new(ErrorKind::Corrupt, text.report());
        let expected = "a.toml:2: volume \"db\" is attached (corrupt)";
        assert_eq!(
            (text.report(), text.to_string()),
            (expected.into(), expected.into())
        );
    }

    #[test]
    fn help_is_the_last_line_of_a_report() {
        for text in [
            "d is full\nhelp: make room",
            "d is full\n    help: make room",
        ] {
            let low = Error::new(ErrorKind::NoSpace, text);
            let expected = "d is full (no space left)\n    help: make room";
            assert_eq!(
                (low.report(), low.to_string()),
                (expected.into(), expected.into())
            );
            let high = low.context("write of 512 bytes").context("volume db");
            let expected = format!("volume db: write of 512 bytes: {expected}");
            assert_eq!(high.report(), expected);
        }
    }

    #[test]
    fn the_help_nearest_to_the_cause_is_printed() {
        let system = Error::from(std::io::Error::from_raw_os_error(28));
        let low = system.context("write of 512 bytes\nhelp: make room");
        let high = low.context("cache c\nhelp: restart");
        assert_eq!(
            high.report(),
            "cache c: write of 512 bytes: No space left on device (os error 28)\n    \
             help: make room"
        );
        // A report that became text, such as a reply of the daemon, is a source with its own help.
        let text = "d is full (no space left)\n    help: make room";
        let received = Error::with_source(ErrorKind::NoSpace, "", text).context("a\nhelp: b");
        assert_eq!(received.report(), format!("a: {text}"));
    }

    #[test]
    fn a_list_of_problems_keeps_its_order() {
        let list = "1: no size\n    help: add one\n2: no name\n    help: add one";
        assert_eq!(
            Error::new(ErrorKind::Io, list).report(),
            format!("{list} (I/O error)")
        );
        let none = "see the help: it is long";
        assert_eq!(
            Error::new(ErrorKind::Io, none).report(),
            format!("{none} (I/O error)")
        );
    }

    #[test]
    fn an_operating_system_error_keeps_its_kind() {
        let error: Error = std::io::Error::from_raw_os_error(28).into();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert_eq!(error.errno(), 28);
        let said = "No space left on device (os error 28)";
        assert_eq!(error.to_string(), said);
        assert!(std::error::Error::source(&error).is_none());
        let high = error.context("write of 512 bytes").context("device d");
        assert_eq!(
            high.report(),
            format!("device d: write of 512 bytes: {said}")
        );
    }
}
