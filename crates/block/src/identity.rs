//! What tells a medium from others.

/// What tells a medium from others, whatever it is called and whenever it is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// A number that stays with the medium (of a file: with its file system and inode); zero where nothing does.
    pub medium: u64,
    /// When a file was made, in nanoseconds since 1970: the number of an inode is given again when its file is
    /// removed. Zero where that is not known, and for what is no file.
    pub birth: u64,
}

impl Identity {
    /// Of a medium that has a number and no time of birth.
    #[must_use]
    pub const fn of(medium: u64) -> Self {
        Self { medium, birth: 0 }
    }

    /// Whether anything is known.
    #[must_use]
    pub const fn is_known(self) -> bool {
        self.medium != 0
    }

    /// Whether both are known to be one and the same medium, as far as each knows its birth.
    #[must_use]
    pub const fn is_same_as(self, other: Self) -> bool {
        self.is_known() && self.agrees_with(other)
    }

    /// Whether both are known, and are two.
    #[must_use]
    pub const fn differs_from(self, other: Self) -> bool {
        self.is_known() && other.is_known() && !self.agrees_with(other)
    }

    /// Whether nothing speaks against one medium, where what is known of both is the same number or nothing.
    #[must_use]
    pub const fn agrees_with(self, other: Self) -> bool {
        self.medium == other.medium
            && (self.birth == other.birth || self.birth == 0 || other.birth == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_speaks_against_nothing() {
        let born = |birth| Identity { medium: 7, birth };
        let unknown = Identity::default();
        assert!(born(3).is_same_as(born(3)) && !born(3).differs_from(born(3)));
        assert!(!born(3).is_same_as(born(4)) && born(3).differs_from(born(4)));
        assert!(born(3).is_same_as(Identity::of(7)) && Identity::of(7).is_same_as(born(3)));
        assert!(born(3).differs_from(Identity::of(8)));
        assert!(!unknown.is_same_as(unknown) && unknown.agrees_with(unknown));
        assert!(!unknown.differs_from(born(3)) && !born(3).differs_from(unknown));
    }
}
