//! Figures of a run, each with its phase and host.

use serde::Serialize;

use super::drive::Busy;
use super::{GREEDY_BYTES, REQUEST_BYTES};

/// Part of a run, by the concurrent actions of the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::bench) enum Phase {
    EqualRead,
    EqualWrite,
    GreedyRead,
    GreedyWrite,
    GreedyLargeRead,
    Limits,
}

impl Phase {
    /// Phases without limits.
    pub(super) const FAIR: [Self; 5] = [
        Self::EqualRead,
        Self::EqualWrite,
        Self::GreedyRead,
        Self::GreedyWrite,
        Self::GreedyLargeRead,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::EqualRead => "equal, read",
            Self::EqualWrite => "equal, write",
            Self::GreedyRead => "greedy, read",
            Self::GreedyWrite => "greedy, write",
            Self::GreedyLargeRead => "greedy, 128 KiB read",
            Self::Limits => "limits",
        }
    }

    pub(super) const fn is_greedy(self) -> bool {
        matches!(
            self,
            Self::GreedyRead | Self::GreedyWrite | Self::GreedyLargeRead
        )
    }

    pub(super) const fn load(self) -> &'static str {
        match self {
            Self::EqualWrite | Self::GreedyWrite => "write",
            _ => "read",
        }
    }

    pub(super) const fn greedy_bytes(self) -> u32 {
        match self {
            Self::GreedyLargeRead => GREEDY_BYTES,
            _ => REQUEST_BYTES,
        }
    }
}

/// States in which the daemon's memory is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::bench) enum Held {
    Nobody,
    Connected,
    Filled,
    AtDepth,
    Stalled,
    After,
}

impl Held {
    pub(super) const ALL: [Self; 6] = [
        Self::Nobody,
        Self::Connected,
        Self::Filled,
        Self::AtDepth,
        Self::Stalled,
        Self::After,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Nobody => "no connections",
            Self::Connected => "64 idle hosts",
            Self::Filled => "all is written, no connections",
            Self::AtDepth => "4 KiB reads, 4 in flight each",
            Self::Stalled => "512 KiB reads, 127 each, answers unread",
            Self::After => "all have gone",
        }
    }

    /// Returns the state to compare with.
    pub(super) const fn beside(self) -> Self {
        match self {
            Self::Nobody | Self::Connected => Self::Nobody,
            Self::Filled | Self::AtDepth | Self::Stalled | Self::After => Self::Filled,
        }
    }
}

/// One figure with its subject.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "of", rename_all = "snake_case")]
pub(in crate::bench) enum Row {
    Host {
        phase: Phase,
        host: usize,
        volume: usize,
        load: &'static str,
        depth: u32,
        request_bytes: u32,
        iops: f64,
        /// IOPS in the first second, which `iops` omits.
        first_iops: f64,
    },
    /// Use of a processor during a phase.
    Processors {
        phase: Phase,
        #[serde(flatten)]
        busy: Busy,
    },
    Memory {
        held: Held,
        resident_bytes: u64,
    },
}
