//! Session of a host on one queue, as its handshake made it.

use super::auth::Chap;
use super::controller::Membership;
use super::reply::Style;

/// Result of a handshake.
pub(super) struct Session {
    pub(super) membership: Membership,
    pub(super) connection: u64,
    pub(super) style: Style,
    pub(super) queue: u16,
    /// Number of entries.
    pub(super) queue_size: u16,
    /// Whether the host disables flow control of the submission queue.
    pub(super) no_flow_control: bool,
    /// Submission queue head after Connect.
    pub(super) head: u16,
    /// Authentication of the host, if it was required.
    pub(super) chap: Option<Chap>,
}
