//! Sums of memory, and limits.

use std::path::Path;

use super::*;

const TEXT: &str = r#"
device = [
    { name = "ssd", kind = "file", path = "cache" },
    { name = "disk", kind = "file", path = "disk" },
    { name = "memory", kind = "mem", size = "3M" },
    { name = "fast", kind = "transit", on = "disk", capacity = "5M" },
]
cache = { data = "ssd", journal_size = "2M" }
volume = [
    { name = "db", backing = "fast", promotion = "nhit:2" },
    { name = "logs", backing = "memory", promotion = "nhit:1" },
]
"#;

fn limit(bytes: u64) -> MemoryLimit {
    MemoryLimit {
        bytes,
        is_address_space: true,
        who: "a test".into(),
    }
}

fn parsed(exports: &str) -> Config {
    let text = format!("{TEXT}export = [{exports}]\n");
    Config::parse(Path::new("f.toml"), &text).expect("right")
}

/// Returns the memory of a daemon of one reactor without its devices, bytes.
fn process() -> u64 {
    PROCESS_BYTES + (forebay_block::POOL_BYTES.0 + forebay_block::POOL_BYTES.1) as u64
}

#[test]
fn everything_that_takes_memory_is_summed() {
    let config = Config::parse(Path::new("f.toml"), TEXT).expect("right");
    let cache = CacheNeeds {
        blocks: 1 << 16,
        map_bytes: 7 << 20,
    };
    let needs = Needs::of(&config, Some(cache));
    let all = ((7 + 1 + 2 + 3 + 5) << 20) + process();
    assert_eq!(needs.total(), all, "{needs}");
    let certain = ((2 + 3 + 5) << 20) + process();
    assert_eq!(Needs::of(&config, None).total(), certain);
    needs.check_against(&limit(all)).expect("it fits");
    let refused = needs.check_against(&limit(all - 1));
    let report = refused.expect_err("it does not").report();
    let needed = format!("needs {}", human_bytes(all));
    for part in [
        &*needed,
        "(a test)",
        "map of the cache 7 MiB",
        "\"fast\" 5 MiB",
    ] {
        assert!(report.contains(part), "{part}: {report}");
    }
}

#[test]
fn requests_of_every_protocol_are_summed() {
    let base = Needs::of(&parsed(""), None).total();
    let nbd = "{ volume = \"db\", nbd = \"127.0.0.1:1\" }";
    let nvme =
        "{ volume = \"db\", nvme-tcp = \"127.0.0.1:2\", nqn = \"nqn.2026-11.io.forebay:db\" }";
    let machine = "{ volume = \"db\", vhost-user-blk = \"vm.sock\" }";
    let file = "{ volume = \"db\", fuse = \"mount\" }";
    let disk = "{ volume = \"logs\", ublk = 3 }";
    for (exports, bytes) in [
        (nbd.to_owned(), nbd::CONNECTION_BYTES),
        (nvme.to_owned(), nvme_tcp::CONNECTION_BYTES),
        (format!("{nbd}, {nvme}"), nbd::CONNECTION_BYTES),
        (machine.to_owned(), vhost_user::DISK_BYTES),
        (file.to_owned(), RESERVE_BYTES + fuse::MOUNT_BYTES),
        (
            format!("{file}, {disk}"),
            RESERVE_BYTES + LOCAL_BYTES + fuse::MOUNT_BYTES,
        ),
        (
            format!("{nbd}, {machine}, {file}"),
            nbd::CONNECTION_BYTES + vhost_user::DISK_BYTES + RESERVE_BYTES + fuse::MOUNT_BYTES,
        ),
    ] {
        let needs = Needs::of(&parsed(&exports), None);
        assert_eq!(needs.total(), base + bytes, "{exports}: {needs}");
        needs.check_against(&limit(base + bytes)).expect("fits");
        let refused = needs.check_against(&limit(base + bytes - 1));
        let report = refused.expect_err("too little").report();
        assert!(report.contains("requests of"), "{report}");
    }
}

#[test]
fn memory_limits_the_number_of_connections() {
    let nbd = "{ volume = \"db\", nbd = \"127.0.0.1:1\" }";
    let needs = Needs::of(&parsed(nbd), None);
    let with = |more: u64| {
        let limit = limit(needs.total() + more * nbd::CONNECTION_BYTES);
        let connections = needs.connections_within(std::slice::from_ref(&limit)).0;
        let lines = needs.lines_within(&[limit]);
        assert!(lines.contains("requests of "), "{lines}");
        connections
    };
    assert_eq!((with(0), with(1), with(9)), (1, 2, 10));
    assert_eq!(with(1 << 20), MAX_CONNECTIONS);
    let lines = needs.lines_within(&[limit(needs.total() + nbd::CONNECTION_BYTES)]);
    let both = human_bytes(needs.total() + nbd::CONNECTION_BYTES);
    assert!(lines.contains(&format!("load: {both}\n")), "{lines}");
    assert!(
        lines.contains("  requests of at most 2 connections: "),
        "{lines}"
    );
}

#[test]
fn more_memory_than_the_machine_has_is_warned_of_with_the_key() {
    let used = |bytes: u64| MemoryLimit {
        is_address_space: false,
        ..limit(bytes)
    };
    let nbd = "{ volume = \"db\", nbd = \"127.0.0.1:1\" }";
    let needs = Needs::of(&parsed(nbd), None);
    let full = needs.when_full(&[]).total();
    assert_eq!(needs.warning_within(&[used(full)]), None);
    let warning = needs.warning_within(&[used(full), used(full - 1)]);
    let warning = warning.expect("it is too much");
    for part in ["f.toml:", "the export", "LimitAS=", &human_bytes(full)] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
    // Fewer connections fit into a limit of address space.
    let few = limit(needs.total() + nbd::CONNECTION_BYTES);
    assert_eq!(needs.warning_within(&[used(1 << 30), few]), None);
    // Another part is the largest.
    let needs = Needs::of(&parsed(""), None);
    let warning = needs.warning_within(&[used(8 << 20)]).expect("the process");
    assert!(warning.contains("`reactors`"), "{warning}");
}

/// Requests take memory when they come. Only a limit of address space counts all that they may.
#[test]
fn a_limit_of_used_memory_refuses_no_requests() {
    let machine = |n: u32| format!("{{ volume = \"db\", vhost-user-blk = \"vm{n}.sock\" }}");
    let nbd = "{ volume = \"db\", nbd = \"127.0.0.1:1\" }";
    let exports: Vec<String> = (0..4).map(machine).chain([nbd.to_owned()]).collect();
    let needs = Needs::of(&parsed(&exports.join(", ")), None);
    let used = MemoryLimit {
        is_address_space: false,
        ..limit(128 << 20)
    };
    needs.check_against(&used).expect("they are seldom full");
    let connections = needs.connections_within(std::slice::from_ref(&used)).0;
    assert_eq!(connections, MAX_CONNECTIONS);
    needs
        .check_against(&limit(1 << 30))
        .expect_err("an allocation could fail");
    let tight = MemoryLimit {
        is_address_space: false,
        ..limit(16 << 20)
    };
    let refused = needs
        .check_against(&tight)
        .expect_err("the process needs more");
    assert!(
        !refused.report().contains("requests of"),
        "{}",
        refused.report()
    );
}

#[test]
fn mapped_files_count_as_address_space_alone() {
    let path = std::env::temp_dir().join(format!("fb-mapped-{}", std::process::id()));
    let file = std::fs::File::create(&path).expect("made");
    file.set_len(3 << 30).expect("sparse");
    let text = format!(
        "device = [\n{{ name = \"pm\", kind = \"pmem\", path = {path:?} }},\n\
         {{ name = \"table\", kind = \"btt\", on = \"pm\" }},\n]\n\
         volume = [{{ name = \"db\", backing = \"table\" }}]\n"
    );
    let config = Config::parse(Path::new("f.toml"), &text).expect("right");
    let needs = Needs::of(&config, None);
    let mut limit = limit(needs.total());
    let refused = needs.check_against(&limit).expect_err("it is mapped");
    limit.is_address_space = false;
    needs.check_against(&limit).expect("memory suffices");
    assert!(refused.report().contains("mapped files 3 GiB"));
    std::fs::remove_file(&path).expect("it was there");
}

#[test]
fn needs_larger_than_any_memory_do_not_wrap() {
    let text = TEXT
        .replace("\"3M\"", "\"15000000T\"")
        .replace("\"5M\"", "\"15000000T\"");
    let Ok(config) = Config::parse(Path::new("f.toml"), &text) else {
        return assert!(Config::parse(Path::new("f.toml"), TEXT).is_ok());
    };
    assert!(Needs::of(&config, None).check().is_err());
}
