//! Faults of a target because of which it is refused.

use forebay_block::ErrorKind;

/// Fault of a target, with the error kind and a word of the error.
pub(super) const WRONG: [(Wrong, ErrorKind, &str); 10] = [
    (
        Wrong::FirstWords,
        ErrorKind::Disconnected,
        "breaks the protocol",
    ),
    (Wrong::DataLimit, ErrorKind::Disconnected, "limit on data"),
    (Wrong::Host, ErrorKind::Permission, "?host=NQN"),
    (
        Wrong::Subsystem,
        ErrorKind::NotFound,
        "no subsystem nqn.test",
    ),
    (
        Wrong::Secrets,
        ErrorKind::Permission,
        "requires authentication",
    ),
    (Wrong::Failed, ErrorKind::Io, "has failed"),
    (Wrong::NotReady, ErrorKind::TimedOut, "not ready"),
    (Wrong::NoNamespace, ErrorKind::NotFound, "no namespace"),
    (
        Wrong::Blocks,
        ErrorKind::Unsupported,
        "64 KiB without metadata",
    ),
    (Wrong::HalfPage, ErrorKind::Disconnected, "missing"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    FirstWords,
    DataLimit,
    Host,
    Subsystem,
    Secrets,
    Failed,
    NotReady,
    NoNamespace,
    Blocks,
    HalfPage,
}
