//! Policies for write-back: when dirty blocks are written back, how many at a time, and which. Each
//! policy has a file.
//!
//! Each attached volume has its own [`Cleaner`], since each has its own backing device. The load of
//! one device says nothing about another, and no volume waits for another's device. The engine
//! requests a [`Turn`] and writes a batch back. It reports the result ([`Cleaner::ended`]), rests,
//! and asks for the next. Meanwhile it reports the latency of the clients' I/O ([`Cleaner::note`]).

mod acp;
mod alru;
mod auto;
mod nop;

use std::fmt;
use std::time::Duration;

/// When dirty blocks are written back. docs/operate/cleaning.md has the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Cleaning {
    /// `auto`: in the backing device's order, as fast as the clients' latency allows.
    #[default]
    Auto,
    /// `alru`: blocks that were not written for half a minute or longer.
    Alru,
    /// `acp`: always and as fast as it goes, the fullest part of the volume first.
    Acp,
    /// `nop`: only if room is needed, or on request.
    Nop,
}

impl Cleaning {
    /// All policies, in the order of the documentation.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Alru, Self::Acp, Self::Nop];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Alru => "alru",
            Self::Acp => "acp",
            Self::Nop => "nop",
        }
    }

    /// The policy of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.as_str() == name)
    }
}

impl fmt::Display for Cleaning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The most blocks of a volume, or windows of them, that are written back at a time.
pub const WIDEST: usize = 64;
/// How many when nothing is in a hurry.
const GENTLE: usize = 4;
/// Time without a request after which a volume has no clients.
pub const IDLE: Duration = Duration::from_secs(1);

/// Input of a policy, for one decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyInput {
    /// The time, since any moment.
    pub now: Duration,
    /// Dirty share of the cache.
    pub dirty_percent: u64,
    /// The low mark: below it nothing is in a hurry.
    pub low_percent: u64,
    /// High mark: from it on, writes that miss bypass the cache.
    pub high_percent: u64,
    /// Room is needed where dirty blocks lie.
    pub wanted: bool,
    /// Time since the last request of a client for the volume.
    pub idle: Duration,
    /// How often the hand came to the volume's end.
    pub rounds: u64,
}

impl PolicyInput {
    const fn is_above_high(&self) -> bool {
        self.dirty_percent >= self.high_percent
    }
}

/// A batch that is to be written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// How many windows at a time, at most [`WIDEST`].
    pub width: usize,
    /// Whether blocks that were written since the hand last passed are left alone.
    pub spare: bool,
    /// Begin where most is dirty, not where the hand is.
    pub fullest: bool,
    /// Nothing but what room is needed for.
    pub only_wanted: bool,
}

/// Result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The time.
    pub now: Duration,
    /// How long it took.
    pub took: Duration,
    /// Nothing was there to be written back.
    pub empty: bool,
}

/// The device that a client's I/O waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoDevice {
    /// The backing device.
    Backing,
    /// The cache device.
    Cache,
}

/// A volume's policy at work.
#[derive(Clone, Debug)]
pub enum Cleaner {
    /// See [`Cleaning::Auto`].
    Auto(Box<auto::Auto>),
    /// See [`Cleaning::Alru`].
    Alru(alru::Alru),
    /// See [`Cleaning::Acp`].
    Acp,
    /// See [`Cleaning::Nop`].
    Nop,
}

impl Cleaner {
    /// One that knows nothing yet.
    #[must_use]
    pub fn new(cleaning: Cleaning) -> Self {
        match cleaning {
            Cleaning::Auto => Self::Auto(Box::default()),
            Cleaning::Alru => Self::Alru(alru::Alru::default()),
            Cleaning::Acp => Self::Acp,
            Cleaning::Nop => Self::Nop,
        }
    }

    /// Which policy it is.
    #[must_use]
    pub const fn cleaning(&self) -> Cleaning {
        match self {
            Self::Auto(_) => Cleaning::Auto,
            Self::Alru(_) => Cleaning::Alru,
            Self::Acp => Cleaning::Acp,
            Self::Nop => Cleaning::Nop,
        }
    }

    /// Returns the next action, or `None` to wait until something changes, half a second at most.
    pub fn turn(&mut self, input: &PolicyInput) -> Option<Turn> {
        match self {
            Self::Auto(auto) => Some(auto.turn(input)),
            Self::Alru(alru) => alru.turn(input),
            Self::Acp => Some(acp::turn()),
            Self::Nop => nop::turn(input),
        }
    }

    /// A turn has ended. Returns how long to rest.
    pub fn ended(&mut self, ended: &Ended) -> Duration {
        match self {
            Self::Auto(auto) => auto.ended(ended),
            Self::Alru(alru) => alru.ended(ended),
            Self::Acp | Self::Nop => Duration::ZERO,
        }
    }

    /// Notes the latency of a client's I/O, `took`; `during_cleaning` if a write-back ran
    /// meanwhile.
    pub fn note(&mut self, device: IoDevice, took: Duration, during_cleaning: bool) {
        if let Self::Auto(auto) = self {
            auto.note(device, took, during_cleaning);
        }
    }
}

#[cfg(test)]
mod tests;
