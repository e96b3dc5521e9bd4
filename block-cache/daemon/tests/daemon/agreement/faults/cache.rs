//! Faults of a cache.

use super::Part::{Cache, CacheKeys, State};
use super::{
    Fault, add, cached, change, hold, lines, lived, of_log, of_superblock, on_a_file, overwrite,
    remove, set_len, superblock, table,
};

pub(super) const FAULTS: &[Fault] = &[
    // The cache.
    Fault::new(
        "no cache file",
        Cache,
        on_a_file,
        |p| {
            remove(&p.path("cache"));
            None
        },
        &["does not exist"],
    ),
    Fault::new(
        "a cache file that is held",
        Cache,
        on_a_file,
        |p| hold(&p.path("cache")),
        &["holds a lock on it"],
    ),
    Fault::new(
        "a file without a cache",
        Cache,
        superblock,
        |p| {
            overwrite(
                &p.path(p.base.superblock().expect("one")),
                0,
                &vec![0; 1 << 18],
            );
            None
        },
        &["there is no cache", "the superblocks of cache"],
    )
    .sample(),
    Fault::new(
        "two damaged superblocks",
        Cache,
        superblock,
        |p| of_superblock(p, &[0, 1]),
        &["cannot be opened"],
    ),
    Fault::new(
        "one damaged superblock",
        Cache,
        superblock,
        |p| of_superblock(p, &[1]),
        &["copies of the superblock"],
    )
    .served("the start repairs one damaged copy of the superblock"),
    Fault::new(
        "a damaged log",
        Cache,
        |base| superblock(base) && lived(base),
        of_log,
        &["damaged"],
    )
    .served("the start skips damaged records of the log, and the daemon's log names each loss")
    .sample(),
    Fault::new(
        "a copy of the cache, and a new state directory",
        Cache,
        |base| on_a_file(base) && lived(base),
        |p| {
            std::fs::copy(p.path("cache"), p.path("copy")).expect("copied");
            p.change("\"cache\"", "\"copy\"");
            remove(&p.path("state"));
            None
        },
        &["two devices hold this cache", "is a copy of the cache"],
    )
    .also(State)
    .sample(),
    Fault::new(
        "an earlier state of the cache",
        Cache,
        |base| on_a_file(base) && lived(base),
        |p| {
            p.restore_cache_after_a_life();
            None
        },
        &["an earlier state of the cache"],
    )
    .sample(),
    Fault::new(
        "a cache file that was cut",
        Cache,
        on_a_file,
        |p| set_len(&p.path("cache"), 4 << 20),
        &["cut", "smaller", "size", "bytes"],
    ),
    Fault::new(
        "metadata that was cut",
        Cache,
        lines,
        |p| set_len(&p.path("map"), 1 << 20),
        &["cut", "smaller", "size", "bytes"],
    ),
    Fault::new(
        "blocks of another size",
        CacheKeys,
        cached,
        |p| add(p, "[cache]", "block_sizes = [\"64K\"]"),
        &["was formatted with blocks"],
    )
    .sample(),
    Fault::new(
        "checksums that are not there",
        CacheKeys,
        cached,
        |p| add(p, "[cache]", "checksums = true"),
        &["without checksums"],
    ),
    Fault::new(
        "another dirty tracking",
        CacheKeys,
        cached,
        |p| add(p, "[cache]", "dirty_tracking = \"abt\""),
        &["dirty tracking"],
    ),
    Fault::new(
        "no table",
        Cache,
        table,
        |p| {
            let len = std::fs::metadata(p.path("medium")).expect("there").len();
            overwrite(&p.path("medium"), 0, &[0; 8192]);
            overwrite(&p.path("medium"), len - 8192, &[0; 8192]);
            None
        },
        &["no block translation table"],
    ),
    Fault::new(
        "a table that was cut",
        Cache,
        table,
        |p| set_len(&p.path("medium"), 8 << 20),
        &["was it truncated?"],
    ),
    Fault::new(
        "data and metadata in each other's place",
        CacheKeys,
        lines,
        |p| {
            change(
                p,
                "data = \"ssd\"\nmetadata = \"map\"",
                "data = \"map\"\nmetadata = \"ssd\"",
            )
        },
        &["pmem", "cache"],
    ),
];
