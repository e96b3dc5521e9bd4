//! Orders that no promise to a client depends on, so that the sweep cannot find their loss, with
//! the reasons. docs/internals/rules/README.md has the same list.

/// Entries of [`ARGUED`] that few lives reach. The lives that collect the sites may miss them.
pub(crate) const SELDOM: [&str; 1] = ["metadata/tree/sector.rs choose Step"];

/// Part of a site's name, and the reason why its loss costs nothing.
pub(crate) const ARGUED: [(&str, &str); 16] = [
    (
        "cache/commit/round.rs commit_timer",
        "limits the unpromised writes that power loss takes, and the delay of records of clean \
         data",
    ),
    (
        "cache/intent/regions/clear.rs flush_behind Step: let _ = failures.flush_backing",
        "records clean data though no client flushes",
    ),
    (
        "cache/cache.rs write_back",
        "the blocks are on the backing device, flushed; without the record they are written back \
         once more, which matters only to a later user of that device without the cache (the \
         cache's own tests find it)",
    ),
    (
        "cache/clean/write_back.rs clean_busy Lock",
        "a block that a client was changing stays dirty in the cache, which matters only to a \
         later user of the backing device without the cache (the cache's own tests find it)",
    ),
    (
        "metadata/tree/summary.rs may_go Step",
        "parent and children in one unit change together, and so small a cache has one unit; the \
         tree's own sweep, over several units, finds it",
    ),
    (
        "metadata/tree/sector.rs choose Step",
        "matters only where the newer of a unit's copies was damaged after a crash, which few of \
         these lives have; the tree's own sweep, whose media rot, finds it",
    ),
    (
        "cache/clean/compare.rs read_comparable Step: let _ = self.failures.flush_backing",
        "without a flush after it nothing is compared, and everything that may be dirty is \
         written back",
    ),
    (
        "cache/attach/detach.rs end_uncleanly",
        "an end that a backing device makes unclean has promised nothing; the order helps a \
         machine that is then switched off",
    ),
    (
        "cache/attach/detach.rs end_service Step: self.committer.commit_all().await",
        "records clean data; the round of the close logs everything else, before the close",
    ),
    (
        "cache/attach/detach.rs end_service Wait: self.committer.commit_all().await",
        "records clean data; the round of the close logs everything else, before the close",
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
        "matters only where power tears a batch and is lost once more while the next process \
         completes it, which few of these lives have; torn.rs leaves it out there and finds it",
    ),
    (
        "cache/recover/mod.rs recover Step: if let Err(error) = order::flush(metadata.as_ref())",
        "the superblock that an opening writes later is flushed on the same device, before \
         anything is served",
    ),
    (
        "cache/attach/sample.rs compare_granule Lock",
        "without it a sample beside an eviction may refuse a start, which loses nothing; in these \
         lives clients come after the samples of all volumes",
    ),
    (
        "metadata/checksums.rs format",
        "an entry of the table of checksums counts only if it fits the digest in a record, and a \
         new cache has no record",
    ),
];

/// Returns the reason why no life finds this mutation.
pub(crate) fn reason(name: &str) -> Option<&'static str> {
    ARGUED
        .iter()
        .find(|(part, _)| name.contains(part))
        .map(|(_, reason)| *reason)
}
