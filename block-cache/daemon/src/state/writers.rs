//! Writers of a volume in object storage that this state directory knows.

use std::fmt;

use super::digits::{hex, unhex};

/// Number of writers in a record.
const RECORDED: usize = 4;

/// Writers that served a volume in object storage with this record, or were about to, the last one
/// first. None of them is known for a volume elsewhere, and in records of earlier versions.
///
/// A writer is recorded before it claims the volume. A process that ends in between leaves a writer
/// that may have claimed it, or whose claim is still under way. So the former ones stay in the
/// record until a later claim has succeeded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writers([Option<[u8; 16]>; RECORDED]);

impl Writers {
    /// Returns the record of one writer, whose claim has succeeded.
    #[must_use]
    pub const fn of(id: [u8; 16]) -> Self {
        let mut writers = [None; RECORDED];
        writers[0] = Some(id);
        Self(writers)
    }

    /// Whether any writer is known.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.0[0].is_some()
    }

    /// Whether there is no room for another one. Then the last one that has claimed the volume may
    /// be missing.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.0[RECORDED - 1].is_some()
    }

    /// Whether this is one of them.
    #[must_use]
    pub fn has(&self, id: [u8; 16]) -> bool {
        self.0.contains(&Some(id))
    }

    /// Returns them with another one, in the place of the oldest.
    #[must_use]
    pub fn with(self, id: [u8; 16]) -> Self {
        let mut writers = Self::of(id).0;
        let others = self.0.into_iter().flatten().filter(|other| *other != id);
        for (place, other) in writers[1..].iter_mut().zip(others) {
            *place = Some(other);
        }
        Self(writers)
    }

    /// Returns the writers in a text that [`fmt::Display`] made.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut writers = [None; RECORDED];
        for (number, id) in text.split(' ').enumerate() {
            *writers.get_mut(number)? = Some(unhex(id)?);
        }
        Some(Self(writers))
    }
}

impl fmt::Display for Writers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<_> = self.0.iter().flatten().map(hex).collect();
        f.write_str(&ids.join(" "))
    }
}
