//! Orderings that no promise to a client hangs on, so that the sweep cannot find them missing, and why.
//! docs/internals/rules/README.md has the same list.

/// Of [`ARGUED`], what so few lives reach that those from which the sites are collected may not have.
pub(crate) const SELDOM: [&str; 1] = ["metadata/tree/sector.rs choose Step"];

/// Part of a site's name, and why nothing is lost without it.
pub(crate) const ARGUED: [(&str, &str); 16] = [
    (
        "cache/commit/round.rs commit_timer",
        "bounds what power loss takes of unpromised writes, and how long clean data goes unremembered",
    ),
    (
        "cache/intent/regions/clear.rs flush_behind Step: let _ = failures.flush_backing",
        "lets clean data be remembered though no client flushes",
    ),
    (
        "cache/cache.rs write_back",
        "the blocks are on the backing device, flushed; without the record they are written back once more, which only \
         who uses that device without the cache next would notice (the cache's own tests do)",
    ),
    (
        "cache/clean/write_back.rs clean_busy Lock",
        "a block that a client was changing stays dirty in the cache, which only who uses the backing device without the \
         cache next would notice (the cache's own tests do)",
    ),
    (
        "metadata/tree/summary.rs may_go Step",
        "parent and children in one unit change together, and so small a cache has one; the tree's own sweep, over \
         several units, finds it",
    ),
    (
        "metadata/tree/sector.rs choose Step",
        "matters only where the newer of a unit's copies was damaged behind a crash, which few of these lives have; the \
         tree's own sweep, whose media rot, finds it",
    ),
    (
        "cache/clean/compare.rs read_comparable Step: let _ = self.failures.flush_backing",
        "without a flush behind it nothing is compared, and all that may be dirty is written back",
    ),
    (
        "cache/attach/detach.rs end_uncleanly",
        "an end that a backing device keeps from being clean has promised nothing; it is for the machine that is switched \
         off next",
    ),
    (
        "cache/attach/detach.rs end_service Step: self.committer.commit_all().await",
        "lets clean data be remembered; all else is logged by the round of the close, and before the close",
    ),
    (
        "cache/attach/detach.rs end_service Wait: self.committer.commit_all().await",
        "lets clean data be remembered; all else is logged by the round of the close, and before the close",
    ),
    (
        "cache/attach/detach.rs end_service Step: self.committer.commit().await",
        "the mark of a clean shutdown; without it the next opening recovers as after a crash",
    ),
    (
        "cache/attach/detach.rs end_service Wait: self.committer.commit().await",
        "the mark of a clean shutdown; without it the next opening recovers as after a crash",
    ),
    (
        "cache/recover/mod.rs recover Wait: if let Err(error) = order::flush(metadata.as_ref())",
        "matters only where power tears a batch and is lost again while the next process makes that whole, which few of these \
         lives have; torn.rs goes there, leaves it out and finds it",
    ),
    (
        "cache/recover/mod.rs recover Step: if let Err(error) = order::flush(metadata.as_ref())",
        "the superblock that an opening writes behind it is flushed on the same device, before anything is served",
    ),
    (
        "cache/attach/sample.rs compare_granule Lock",
        "without it a sample beside an eviction may refuse a start, which loses nothing; in these lives clients come after \
         the samples of all volumes",
    ),
    (
        "metadata/checksums.rs format",
        "an entry of the table of checksums is believed only if it fits the digest in a record, and a cache that was just \
         formatted has none",
    ),
];

/// Why it is no surprise that this mutation is not found.
pub(crate) fn reason(name: &str) -> Option<&'static str> {
    ARGUED
        .iter()
        .find(|(part, _)| name.contains(part))
        .map(|(_, reason)| *reason)
}
