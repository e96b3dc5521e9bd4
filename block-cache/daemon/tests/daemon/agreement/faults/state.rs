//! Faults of the process journal, the state directory and slots.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use super::Part::{Journal, Slots, State, Volume};
use super::{
    Fault, any, cached, change, hold, journal, killed, lived, overwrite, put_directory, put_file,
    put_link, put_pipe, remove, set_len, slots, slots_of,
};

pub(super) const FAULTS: &[Fault] = &[
    // The journal.
    Fault::new(
        "a directory for the journal",
        Journal,
        cached,
        |p| put_directory(&journal(p)),
        &["is a directory"],
    ),
    Fault::new(
        "a pipe for the journal",
        Journal,
        cached,
        |p| put_pipe(&journal(p)),
        &["is a named pipe"],
    ),
    Fault::new(
        "a link for the journal",
        Journal,
        cached,
        |p| put_link(&journal(p), "nowhere"),
        &["leads nowhere"],
    )
    .sample(),
    Fault::new(
        "a device for the journal",
        Journal,
        cached,
        |p| change(p, "journal = \"journal\"", "journal = \"/dev/null\""),
        &["a device node"],
    ),
    Fault::new(
        "a journal that others may open",
        Journal,
        cached,
        |p| {
            if !journal(p).exists() {
                std::fs::write(journal(p), []).expect("written");
            }
            std::fs::set_permissions(journal(p), Permissions::from_mode(0o644)).expect("ours");
            None
        },
        &["its mode is 0644"],
    ),
    Fault::new(
        "notes for a journal",
        Journal,
        cached,
        |p| put_file(&journal(p), 0o600),
        &["is not a process journal"],
    ),
    Fault::new(
        "a journal in no directory",
        Journal,
        cached,
        |p| change(p, "journal = \"journal\"", "journal = \"none/journal\""),
        &["there is no directory"],
    ),
    Fault::new(
        "no journal",
        Journal,
        killed,
        |p| {
            remove(&journal(p));
            None
        },
        &["journal"],
    )
    .sample(),
    Fault::new(
        "a journal that was overwritten",
        Journal,
        killed,
        |p| {
            overwrite(&journal(p), 0, &[0xff; 4096]);
            None
        },
        &["is not a process journal"],
    ),
    Fault::new(
        "a journal whose header was overwritten with zeroes",
        Journal,
        killed,
        |p| {
            overwrite(&journal(p), 64, &[0; 448]);
            None
        },
        &["the process journal is damaged"],
    )
    .sample(),
    Fault::new(
        "a journal that was cut",
        Journal,
        killed,
        |p| set_len(&journal(p), 1 << 19),
        &["journal"],
    ),
    Fault::new(
        "a journal that is held",
        Journal,
        killed,
        |p| hold(&journal(p)),
        &["it is locked by process"],
    ),
    // The state directory.
    Fault::new(
        "another state directory",
        State,
        lived,
        |p| change(p, "state = \"state\"", "state = \"other\""),
        &["--adopt", "adopt"],
    ),
    Fault::new(
        "no state directory",
        State,
        lived,
        |p| {
            remove(&p.path("state"));
            None
        },
        &["--adopt", "adopt"],
    ),
    Fault::new(
        "writes without the cache",
        State,
        lived,
        |p| {
            p.write_without_cache();
            None
        },
        &["older dirty data", "--discard-stale-dirty"],
    )
    .sample(),
    Fault::new(
        "writes without the cache, nobody knows where",
        State,
        lived,
        |p| {
            p.write_without_cache();
            remove(&p.path("state/db.ranges"));
            None
        },
        &["older dirty data", "--discard-stale-dirty"],
    ),
    Fault::new(
        "a damaged record of the volume",
        State,
        lived,
        |p| {
            overwrite(&p.path("state/db.epoch"), 0, &[0x5a; 16]);
            None
        },
        &["db.epoch"],
    ),
    Fault::new(
        "a directory for a record",
        State,
        any,
        |p| {
            std::fs::create_dir_all(p.path("state/db.epoch")).ok();
            remove(&p.path("state/db.epoch"));
            put_directory(&p.path("state/db.epoch"))
        },
        &["db.epoch"],
    ),
    // Slots of a transit cache.
    Fault::new(
        "no slots",
        Slots,
        slots,
        |p| {
            remove(&slots_of(p));
            None
        },
        &["was removed, or overwritten"],
    )
    .sample(),
    Fault::new(
        "slots of nobody",
        Slots,
        slots,
        |p| {
            overwrite(&slots_of(p), 0, &[0; 4096]);
            None
        },
        &["was removed, or overwritten"],
    ),
    Fault::new(
        "slots that others may open",
        Slots,
        slots,
        |p| {
            std::fs::set_permissions(slots_of(p), Permissions::from_mode(0o644)).expect("ours");
            None
        },
        &["its mode is 0644"],
    ),
    Fault::new(
        "a directory for the slots",
        Slots,
        slots,
        |p| put_directory(&slots_of(p)),
        &["is a directory"],
    ),
    Fault::new(
        "slots that were cut",
        Slots,
        slots,
        |p| set_len(&slots_of(p), 1 << 16),
        &["truncated"],
    ),
    Fault::new(
        "slots that are held",
        Slots,
        slots,
        |p| hold(&slots_of(p)),
        &["it is locked by process"],
    ),
    Fault::new(
        "damaged slots",
        Slots,
        slots,
        |p| {
            let bytes = std::fs::read(slots_of(p)).expect("there");
            let used = (4096..)
                .step_by(16)
                .find(|at| bytes[*at + 8] != 0)
                .expect("a slot in use");
            overwrite(&slots_of(p), used as u64 + 7, &[0x3a]);
            None
        },
        &["slots are damaged"],
    ),
    Fault::new(
        "no transit cache",
        Volume,
        slots,
        |p| {
            let device = "[[device]]\nname = \"fast\"\nkind = \"transit\"\non = \"disk\"\n\
                capacity = \"1M\"\npolicy = \"lru\"\n";
            p.change(device, "");
            change(p, "backing = \"fast\"", "backing = \"disk\"")
        },
        &["acknowledged blocks of it"],
    ),
];
