//! Errors as kind, context and source.
//!
//! Callers match on [`ErrorKind`] for control flow. The context describes the failed action for a
//! user. The source is the error of the layer below. `Display` prints kind and context only;
//! [`Error::report`] prints the chain. An error with an empty context represents its source only.

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
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// Creates an error of `kind` with `context`.
    #[must_use]
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self {
            kind,
            inner: Some(Arc::new(Inner {
                context: context.into(),
                source: None,
            })),
        }
    }

    /// Creates an error with the error of the layer below.
    #[must_use]
    pub fn with_source(
        kind: ErrorKind,
        context: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self {
            kind,
            inner: Some(Arc::new(Inner {
                context: context.into(),
                source: Some(source.into()),
            })),
        }
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

    /// Returns the whole chain on one line, outermost first. The kind is at the end, once, unless
    /// the error of another library or of the operating system describes it better.
    #[must_use]
    pub fn report(&self) -> String {
        let mut out = String::new();
        let mut link: &(dyn std::error::Error + 'static) = self;
        loop {
            let (text, next) = match link.downcast_ref::<Self>() {
                Some(error) => error.link(),
                None => (link.to_string(), link.source()),
            };
            out.push_str(&text);
            let Some(next) = next else { return out };
            if !text.is_empty() {
                out.push_str(": ");
            }
            link = next;
        }
    }

    /// Returns this error's part of a report, and the next error.
    fn link(&self) -> (String, Option<&(dyn std::error::Error + 'static)>) {
        match self.inner.as_deref() {
            Some(Inner {
                context,
                source: Some(source),
            }) => (context.clone(), Some(source.as_ref())),
            _ => (self.to_string(), None),
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
            }) if context.is_empty() => source.fmt(f),
            Some(inner) => write!(f, "{} ({})", inner.context, self.kind.as_str()),
            None => f.write_str(self.kind.as_str()),
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
