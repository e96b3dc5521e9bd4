//! Kinds of headers in transmission.

/// Headers of requests and replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Headers {
    /// Compact requests, simple replies.
    Simple,
    /// Compact requests, structured replies.
    Structured,
    /// Extended requests and replies.
    Extended,
}

impl Headers {
    /// Returns whether replies are chunks.
    pub(super) fn have_chunks(self) -> bool {
        self >= Self::Structured
    }
}
