//! Orderings that the sweep does not find missing within its seeds: those that no client's promise
//! hangs on, and those whose absence opens a window that is narrower than the seeds reach. The second
//! kind is a debt: each needs a life that goes there, or an argument that moves it to the first.

/// Why an ordering is not found missing.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reason {
    /// Nothing that was promised depends on it.
    Redundant(&'static str),
    /// It matters, and the lives do not reach the window.
    Narrow(&'static str),
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Redundant(why) => write!(f, "redundant: {why}"),
            Narrow(window) => write!(f, "a narrow window: {window}"),
        }
    }
}

use Reason::{Narrow, Redundant};

/// Part of a site's name, and why its absence is not found.
const ARGUED: [(&str, Reason); 28] = [
    (
        "cache/clean.rs write_back_passes",
        Redundant(
            "the blocks are clean on the backing device, flushed; without the record a crash writes them back once more",
        ),
    ),
    (
        "cache/commit.rs commit_timer",
        Redundant(
            "bounds what power loss takes of unpromised writes, and how long clean data goes unremembered; no promise",
        ),
    ),
    (
        "cache/region.rs mark_timer Step: let _ = self.flush_backing",
        Redundant("lets clean data be remembered though no client flushes; no promise"),
    ),
    (
        "cache/open.rs settle Step: engine.commit().await",
        Redundant(
            "the mark of a clean shutdown; without it the next opening recovers as after a crash",
        ),
    ),
    (
        "cache/open.rs settle Wait: engine.commit().await",
        Redundant(
            "the mark of a clean shutdown; without it the next opening recovers as after a crash",
        ),
    ),
    (
        "cache/open.rs settle Step: engine.flush_backing",
        Narrow("an unannounced write round the cache, a clean shutdown, then power loss"),
    ),
    (
        "cache/open.rs settle Step: engine.commit().await?",
        Narrow("records and the mark of a clean shutdown in one batch, torn between the two"),
    ),
    (
        "cache/open.rs settle Wait: engine.commit().await?",
        Narrow("records and the mark of a clean shutdown in one batch, torn between the two"),
    ),
    (
        "cache/open.rs go_into_service Step: self.commit().await?",
        Narrow("a process that dies while it opens, after one that died with writes not logged"),
    ),
    (
        "cache/open.rs go_into_service Wait: self.commit().await?",
        Narrow("a process that dies while it opens, after one that died with writes not logged"),
    ),
    (
        "cache/open.rs go_into_service Step: self.commit().await",
        Narrow(
            "the record of the opening: needed when the process journal itself is gone, which lives never do (the cache's own tests do)",
        ),
    ),
    (
        "cache/open.rs go_into_service Wait: self.commit().await",
        Narrow(
            "the record of the opening: needed when the process journal itself is gone, which lives never do (the cache's own tests do)",
        ),
    ),
    (
        "cache/attach.rs attach_alone",
        Narrow(
            "what a dead process wrote round the cache, flushed by a client that lived on, with nothing else written before power goes",
        ),
    ),
    (
        "cache/commit.rs settle",
        Narrow("a write round the cache between a write-back and its record, region announced"),
    ),
    (
        "cache/mode/around.rs write_present Step: engine.settle",
        Narrow("a write round the cache between a write-back and its record, region announced"),
    ),
    (
        "cache/mode/zero.rs zero_cached Step: engine.settle",
        Narrow("a discard between a write-back and its record"),
    ),
    (
        "cache/mode/fetch.rs without_promotion Lock",
        Narrow("a slot evicted and filled anew within one read of it"),
    ),
    (
        "cache/mode/fetch.rs promoting Lock: let _lock = engine.locks.shared",
        Narrow("a slot evicted and filled anew within one read of it"),
    ),
    (
        "cache/fast.rs try_fast Lock",
        Narrow("a slot evicted or cleaned within one read or write of it"),
    ),
    (
        "cache/region.rs clear_marks Step: && let Err(error) = self.flush_backing",
        Narrow("an announced write, three quiet seconds without any flush, then power loss"),
    ),
    (
        "cache/region.rs clear_marks Step: let committed",
        Narrow("records and the end of their mark in one batch, torn between the two"),
    ),
    (
        "cache/region.rs clear_marks Wait: let committed",
        Narrow("records and the end of their mark in one batch, torn between the two"),
    ),
    (
        "cache/region.rs make_exact Step: self.commit",
        Narrow("records and the next mark in one batch, torn between the two"),
    ),
    (
        "cache/region.rs make_exact Wait: self.commit",
        Narrow("records and the next mark in one batch, torn between the two"),
    ),
    (
        "cache/region.rs make_exact Step: self.flush_backing",
        Narrow(
            "an announced write, then a mark of the other kind, then power loss before any flush",
        ),
    ),
    (
        "metadata/replay.rs mend",
        Narrow("a torn batch, mended; then power loss before anything else is flushed"),
    ),
    (
        "metadata/superblock.rs write Wait",
        Narrow("each copy's flush covers the other copy's write: both windows must be hit"),
    ),
    (
        "fault ClaimBeforeFlush",
        Narrow("found within some hundred seeds"),
    ),
];

/// Why it is no surprise that this mutation is not found.
pub(crate) fn reason(name: &str) -> Option<Reason> {
    (ARGUED.iter())
        .filter(|(part, _)| name.contains(part))
        .max_by_key(|(part, _)| part.len())
        .map(|(_, reason)| *reason)
}
