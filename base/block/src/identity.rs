//! Identity of a device: which medium it is on, and where on that medium it begins.

/// Evidence on which an identity rests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Basis {
    /// A name that the medium itself carries: a world-wide name, a serial number, a UUID, a file's
    /// inode.
    #[default]
    Name,
    /// The position of the device in this machine, and its driver. Another medium may be there next
    /// time.
    Place,
    /// Only the path in the configuration, which the user guarantees.
    Path,
    /// Only the address in the configuration: the server, and the name of the device there.
    Address,
}

/// Identity of a device, independent of its name and of the time of opening.
///
/// A device is a part of a medium. Two devices are the same if they begin at the same byte of the
/// same medium. The length is not part of the identity, since a device may grow. Rules for the size
/// of a volume compare it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Number that stays with the medium (of a file: with its file system and inode); zero if there
    /// is none.
    pub medium: u64,
    /// Creation time of a file, nanoseconds since 1970: an inode number may be reused after its
    /// file is removed. Zero if it is unknown, and for a medium that is not a file.
    pub birth: u64,
    /// First byte of the medium that the device shows. `None` if it is unknown: earlier versions
    /// did not record it.
    pub start: Option<u64>,
    /// Another number of the same medium, by which an earlier version or another configuration
    /// knows it; zero for none. It is never recorded.
    pub alias: u64,
    /// Instance of a device without a name; zero if it is unknown. The upper half is a hash of the
    /// machine's boot, and the lower half the kernel's count of attached disks.
    pub instance: u64,
    /// Evidence for [`Identity::medium`]. It is never recorded.
    pub basis: Basis,
}

impl Identity {
    /// Returns the identity of a medium that has a number and nothing else.
    #[must_use]
    pub const fn of(medium: u64) -> Self {
        Self {
            medium,
            birth: 0,
            start: None,
            alias: 0,
            instance: 0,
            basis: Basis::Name,
        }
    }

    /// Returns whether anything is known.
    #[must_use]
    pub const fn is_known(self) -> bool {
        self.medium != 0
    }

    /// Returns whether both are known to be the same device, as far as each is known.
    #[must_use]
    pub const fn is_same_as(self, other: Self) -> bool {
        self.is_known() && self.agrees_with(other)
    }

    /// Returns whether both are known, and are different devices.
    #[must_use]
    pub const fn differs_from(self, other: Self) -> bool {
        self.is_known() && other.is_known() && !self.agrees_with(other)
    }

    /// Returns whether no known property of both contradicts that they are one device.
    #[must_use]
    pub const fn agrees_with(self, other: Self) -> bool {
        let starts_agree = match (self.start, other.start) {
            (Some(one), Some(two)) => one == two,
            _ => true,
        };
        self.shares_medium_with(other) && starts_agree
    }

    /// Returns whether the device `now` of `now_bytes` cannot be the one that was recorded as
    /// `self` with `size_bytes`.
    ///
    /// A device without a name is compared by its size, too. One of another size at the same
    /// position is more likely another device than the same one, grown.
    #[must_use]
    pub const fn is_replaced_by(self, size_bytes: u64, now: Self, now_bytes: u64) -> bool {
        let unnamed = matches!(now.basis, Basis::Place) && self.is_known();
        self.differs_from(now) || (unnamed && size_bytes != now_bytes)
    }

    /// Returns whether two devices of these sizes in bytes share data: they are the same, or
    /// overlapping parts of one medium. If one of the starts is unknown, parts of one medium count
    /// as overlapping.
    #[must_use]
    pub const fn overlaps(self, size_bytes: u64, other: Self, other_bytes: u64) -> bool {
        if !self.is_known() || !self.shares_medium_with(other) {
            return false;
        }
        match (self.start, other.start) {
            (Some(one), Some(two)) => {
                one == two
                    || (one < two.saturating_add(other_bytes)
                        && two < one.saturating_add(size_bytes))
            }
            _ => true,
        }
    }

    /// Returns whether both may be on one medium: a number of it is the same, and no other known
    /// property differs.
    const fn shares_medium_with(self, other: Self) -> bool {
        let same_medium = self.medium == other.medium
            || (self.alias != 0 && self.alias == other.medium)
            || (other.alias != 0 && other.alias == self.medium);
        let births_agree = self.birth == other.birth || self.birth == 0 || other.birth == 0;
        let (one, two) = (self.instance, other.instance);
        // Counts of two boots cannot be compared.
        let instances_agree = one == two || one == 0 || two == 0 || one >> 32 != two >> 32;
        same_medium && births_agree && instances_agree
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(start: u64) -> Identity {
        Identity {
            start: Some(start),
            ..Identity::of(7)
        }
    }

    #[test]
    fn unknown_properties_contradict_nothing() {
        let born = |birth| Identity {
            birth,
            ..Identity::of(7)
        };
        let unknown = Identity::default();
        assert!(born(3).is_same_as(born(3)) && !born(3).differs_from(born(3)));
        assert!(!born(3).is_same_as(born(4)) && born(3).differs_from(born(4)));
        assert!(born(3).is_same_as(Identity::of(7)) && Identity::of(7).is_same_as(born(3)));
        assert!(born(3).differs_from(Identity::of(8)));
        assert!(!unknown.is_same_as(unknown) && unknown.agrees_with(unknown));
        assert!(!unknown.differs_from(born(3)) && !born(3).differs_from(unknown));
        assert!(part(512).is_same_as(Identity::of(7)) && Identity::of(7).is_same_as(part(0)));
    }

    #[test]
    fn parts_that_begin_elsewhere_are_other_devices() {
        assert!(part(0).is_same_as(part(0)) && part(0).differs_from(part(512)));
        assert!(!part(0).overlaps(512, part(512), 512), "neighbours");
        assert!(!part(512).overlaps(512, part(0), 512), "neighbours");
        assert!(part(0).overlaps(513, part(512), 512), "one byte in common");
        assert!(part(512).overlaps(512, part(0), 4096), "a part of a whole");
        assert!(part(0).overlaps(u64::MAX, part(1 << 40), 1), "no overflow");
        assert!(
            part(512).overlaps(512, Identity::of(7), 0),
            "not known where"
        );
        assert!(
            !part(0).overlaps(512, Identity::of(8), 512),
            "another medium"
        );
        let unknown = Identity::default();
        assert!(!unknown.overlaps(512, unknown, 512));
    }

    #[test]
    fn a_second_number_of_a_medium_agrees_with_a_record_of_it() {
        let renamed = Identity {
            medium: 9,
            alias: 7,
            start: Some(512),
            ..Identity::default()
        };
        assert!(Identity::of(7).is_same_as(renamed) && renamed.is_same_as(Identity::of(7)));
        assert!(renamed.differs_from(part(0)) && renamed.is_same_as(part(512)));
        let neither = Identity {
            alias: 8,
            ..Identity::of(9)
        };
        assert!(neither.differs_from(Identity::of(7)));
    }

    #[test]
    fn an_instance_counts_within_its_boot() {
        let instance = |boot: u64, count: u64| Identity {
            instance: boot << 32 | count,
            basis: Basis::Place,
            ..Identity::of(7)
        };
        assert!(instance(1, 5).is_same_as(instance(1, 5)));
        assert!(instance(1, 5).differs_from(instance(1, 6)), "another disk");
        assert!(instance(1, 5).is_same_as(instance(2, 6)), "another boot");
        assert!(instance(1, 5).is_same_as(Identity::of(7)), "not recorded");
    }

    #[test]
    fn without_a_name_the_size_counts() {
        let unnamed = Identity {
            basis: Basis::Place,
            ..Identity::of(7)
        };
        let recorded = Identity::of(7);
        assert!(!recorded.is_replaced_by(512, unnamed, 512));
        assert!(recorded.is_replaced_by(512, unnamed, 1024));
        assert!(
            !recorded.is_replaced_by(512, recorded, 1024),
            "it has grown"
        );
        let vouched = Identity {
            basis: Basis::Path,
            ..unnamed
        };
        assert!(!recorded.is_replaced_by(512, vouched, 1024), "vouched for");
        assert!(!Identity::default().is_replaced_by(512, unnamed, 1024));
    }
}
