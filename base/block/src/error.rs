//! Errors as kind + context + source.
//!
//! Callers match on [`ErrorKind`] for control flow. The context says what was being done and to
//! what, in words for a person; the source is what the layer below said. `Display` prints kind and
//! context only, [`Error::report`] prints the chain. An error whose context is empty stands for its
//! source alone.

use std::fmt;
use std::sync::Arc;

/// A result with Forebay's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, for control flow. At a protocol's edge [`ErrorKind::errno`] maps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The device failed the operation (EIO).
    Io,
    /// The request or a setting makes no sense (EINVAL).
    InvalidInput,
    /// The request reaches past the end of the device (EINVAL for reads, ENOSPC for writes).
    OutOfRange,
    /// The device does not take writes (EPERM).
    ReadOnly,
    /// No space left on the device (ENOSPC).
    NoSpace,
    /// What was read is not what was written: a checksum, a magic number or an invariant failed.
    Corrupt,
    /// The device, format or peer does not offer this (EOPNOTSUPP).
    Unsupported,
    /// Somebody else holds it, or it is in a state that does not allow this now (EBUSY).
    Busy,
    /// No such thing (ENOENT).
    NotFound,
    /// Data that was acknowledged is gone; the context names the ranges (EIO).
    Lost,
    /// The layer is shutting down and takes no more requests (ESHUTDOWN).
    ShuttingDown,
    /// Not allowed to (EACCES).
    Permission,
    /// A deadline passed (ETIMEDOUT).
    TimedOut,
    /// The peer went away or broke the protocol (ECONNRESET).
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

    /// The kind's name in words.
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

/// An error: kind, context and, where there is one, the source. Cheap to clone, since one failed
/// flush is told to every request that waited for it.
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
    /// An error of `kind` that says `context`.
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

    /// Like [`Error::new`], with what the layer below said.
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

    /// The kind, for control flow.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The Linux error number for this error.
    #[must_use]
    pub const fn errno(&self) -> i32 {
        self.kind.errno()
    }

    /// The operating system's own error number, if that is what the chain ends in: more exact than [`Error::errno`]
    /// for a program that made a system call and gets this for an answer.
    #[must_use]
    pub fn raw_os_error(&self) -> Option<i32> {
        let source = self.inner.as_ref()?.source.as_ref()?;
        match source.downcast_ref::<Self>() {
            Some(error) => error.raw_os_error(),
            None => source.downcast_ref::<std::io::Error>()?.raw_os_error(),
        }
    }

    /// Wraps this error: same kind, `context` on top, this error as the source.
    #[must_use]
    pub fn context(self, context: impl Into<String>) -> Self {
        Self::with_source(self.kind, context, self)
    }

    /// The whole chain on one line, outermost first. The kind stands at the end, once, and only
    /// where no error of another library or of the operating system says it better.
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

    /// What this error adds to a report, and what follows.
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
    /// An error without context; it allocates nothing.
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
