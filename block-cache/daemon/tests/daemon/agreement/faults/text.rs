//! Errors in the text of a configuration.

use super::Part::{CacheKeys, Export, Server, Volume};
use super::{Fault, add, any, change, memory, with_keys};

pub(super) const FAULTS: &[Fault] = &[
    // The text of the configuration.
    Fault::new(
        "an unknown key",
        Server,
        any,
        |p| add(p, "[server]", "reactor = 2"),
        &["unknown field"],
    )
    .sample(),
    Fault::new(
        "too many reactors",
        Server,
        any,
        |p| add(p, "[server]", "reactors = 65"),
        &["65 reactors"],
    ),
    Fault::new(
        "public metrics",
        Server,
        any,
        |p| change(p, "127.0.0.1:0", "0.0.0.0:0"),
        &["no loopback"],
    ),
    Fault::new(
        "busy threads",
        Server,
        any,
        |p| add(p, "[server]", "io = \"threads\"\npoll = \"busy\""),
        &["cannot look for work"],
    ),
    Fault::new(
        "no string",
        Server,
        any,
        |p| add(p, "[server]", "io = 7"),
        &["wanted string or table"],
    ),
    Fault::new(
        "no TOML",
        Server,
        any,
        |p| add(p, "[server]", "io = \"auto"),
        &["string"],
    ),
    Fault::new(
        "an unknown mode",
        Volume,
        any,
        |p| add(p, "[[volume]]", "promotion = \"nhit:0\""),
        &["promotion"],
    ),
    Fault::new(
        "an unknown device",
        Volume,
        any,
        |p| change(p, "backing = \"", "backing = \"no-"),
        &["which does not exist"],
    )
    .sample(),
    Fault::new(
        "a burst alone",
        Volume,
        any,
        |p| add(p, "[[volume]]", "burst = \"1s\""),
        &["has a burst"],
    ),
    Fault::new(
        "no time",
        Volume,
        any,
        |p| add(p, "[[volume]]", "timeout = \"0s\""),
        &["timeout"],
    ),
    Fault::new(
        "a volume of nothing",
        Export,
        any,
        |p| change(p, "volume = \"db\"", "volume = \"dc\""),
        &["which does not exist"],
    ),
    Fault::new(
        "a public export",
        Export,
        any,
        |p| change(p, "unix:nbd.sock", "0.0.0.0:10809"),
        &["insecure"],
    ),
    Fault::new(
        "two protocols",
        Export,
        any,
        |p| add(p, "[[export]]", "fuse = \"mount\""),
        &["names two protocols"],
    ),
    Fault::new(
        "a long socket",
        Export,
        any,
        |p| change(p, "nbd.sock", &"x".repeat(120)),
        &["107 bytes"],
    ),
    Fault::new(
        "no time between commits",
        CacheKeys,
        with_keys,
        |p| add(p, "[cache]", "commit_interval = \"1ns\""),
        &["`commit_interval` of 1 ns"],
    ),
    Fault::new(
        "days between commits",
        CacheKeys,
        with_keys,
        |p| add(p, "[cache]", "commit_interval = \"72h\""),
        &["`commit_interval` of 3 d 0 h"],
    ),
    Fault::new(
        "a small journal",
        CacheKeys,
        with_keys,
        |p| change(p, "journal_size = \"1M\"", "journal_size = \"1K\""),
        &["between 1M and 1G"],
    ),
    Fault::new(
        "no size",
        CacheKeys,
        with_keys,
        |p| change(p, "journal_size = \"1M\"", "journal_size = \"1Q\""),
        &["is not a size"],
    ),
    Fault::new(
        "marks in the wrong order",
        CacheKeys,
        with_keys,
        |p| add(p, "[cache]", "dirty_low = \"90%\""),
        &["the low mark"],
    ),
    Fault::new(
        "an unknown policy",
        CacheKeys,
        with_keys,
        |p| change(p, "\"nop\"", "\"none\""),
        &["no cleaning policy"],
    ),
    Fault::new(
        "blocks of no size",
        CacheKeys,
        with_keys,
        |p| add(p, "[cache]", "block_sizes = [\"3K\"]"),
        &["is not possible"],
    ),
    Fault::new(
        "dirty data in memory",
        Volume,
        memory,
        |p| change(p, "mode = \"wt\"", "mode = \"wb\""),
        &["loses acknowledged writes"],
    ),
];
