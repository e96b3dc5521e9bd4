//! Features of the format: bits that say which versions may open a cache.

/// Incompatible feature: blocks of several sizes. Records have a class, and a block takes several
/// slots.
pub const INCOMPAT_SIZES: u64 = 1;
/// Incompatible feature: marks in the log do not say which blocks were overwritten in place.
pub const INCOMPAT_TRACKING: u64 = 2;
/// Incompatible feature: cached data has checksums, which who does not know them would not keep.
pub const INCOMPAT_CHECKSUMS: u64 = 4;
/// Incompatible feature: the log's unit is a line of byte-addressable media, less than a disk
/// writes whole.
pub const INCOMPAT_LINES: u64 = 8;
/// Incompatible feature: the checksums on media are those of another UUID, with which the cache was
/// formatted.
pub const INCOMPAT_LINEAGE: u64 = 16;
/// Features that a reader must know to open the cache at all.
pub const KNOWN_INCOMPAT: u64 =
    INCOMPAT_SIZES | INCOMPAT_TRACKING | INCOMPAT_CHECKSUMS | INCOMPAT_LINES | INCOMPAT_LINEAGE;
/// Features that a writer must know. None are defined yet.
pub const KNOWN_RO_COMPAT: u64 = 0;
