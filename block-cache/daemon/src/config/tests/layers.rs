//! Devices over devices.

use super::*;

#[test]
fn a_transit_cache_lies_over_any_device() {
    let config = parse(TRANSIT).expect("right");
    let expected = DeviceKind::Transit {
        on: "table".into(),
        capacity_bytes: 64 << 20,
        policy: forebay_caiti::PMBD_70,
    };
    assert_eq!(config.device("fast").kind, expected);
    let stack: Vec<_> = config
        .stack("fast")
        .iter()
        .map(|d| d.name.clone())
        .collect();
    assert_eq!(stack, ["fast", "table", "pm"]);
    let plain = TRANSIT.replace(", capacity = \"64M\", policy = \"pmbd-70\"", "");
    let config = parse(&plain).expect("right");
    let DeviceKind::Transit {
        capacity_bytes,
        policy,
        ..
    } = &config.device("fast").kind
    else {
        panic!("{config:?}");
    };
    assert_eq!((*capacity_bytes, policy.as_str()), (512 << 20, "caiti"));
    let of_sync = |config: Config| config.warnings.iter().any(|w| w.contains("saves no time"));
    assert!(!of_sync(config));
    let sync = TRANSIT.replace("\"flush\"", "\"sync\"");
    assert!(of_sync(parse(&sync).expect("right")));
    for (from, to, said) in [
        ("pmbd-70", "fifo", "there is no policy \"fifo\""),
        ("64M", "4K", "between 1M and 1T"),
        (
            "capacity = \"64M\"",
            "size = \"64M\"",
            "`size` means nothing",
        ),
        ("on = \"table\"", "on = \"pm\"", "tears blocks"),
        (
            "{ name = \"fast\", kind = \"transit\", on = \"table\"",
            "{ name = \"low\", kind = \"transit\", on = \"table\" }, { name = \"fast\", kind = \
             \"transit\", on = \"low\"",
            "lies over another one",
        ),
    ] {
        let report = parse(&TRANSIT.replace(from, to)).expect_err(to).report();
        assert!(
            report.contains(said) && report.contains("help: "),
            "{report}"
        );
    }
}

#[test]
fn a_memory_profile_lies_between_media_and_table() {
    let slow = "{ name = \"slow\", kind = \"emulate\", on = \"pm\", profile = \"optane-dimm\" },\n";
    let text = TRANSIT
        .replace(
            "    { name = \"table\"",
            &format!("    {slow}    {{ name = \"table\""),
        )
        .replace(
            "on = \"pm\" },\n    { name = \"fast\"",
            "on = \"slow\" },\n    { name = \"fast\"",
        );
    let config = parse(&text).expect("right");
    let DeviceKind::EmulatedMemory { on, profile } = &config.device("slow").kind else {
        panic!("{config:?}");
    };
    assert_eq!((on.as_str(), profile.name), ("pm", "optane-dimm"));
    for (from, to, said) in [
        ("optane-dimm", "flash", "no memory profile \"flash\""),
        (
            "profile = ",
            "latency = \"1ms\", profile = ",
            "says all of its latencies",
        ),
        (
            "\"emulate\", on = \"pm\"",
            "\"emulate\", on = \"disk\"",
            "lies on device \"disk\" of kind mem",
        ),
        ("on = \"table\"", "on = \"slow\"", "tears blocks"),
    ] {
        let report = parse(&text.replacen(from, to, 1)).expect_err(to).report();
        assert!(
            report.contains(said) && report.contains("help: "),
            "{report}"
        );
    }
}

const REMOTE: &str = r#"
device = [
    { name = "ssd", kind = "mem", size = "32M" },
    { name = "far", kind = "nvme-tcp", uri = "nvme-tcp://127.0.0.1/nqn.a:b?queue_depth=16" },
    { name = "slow", kind = "emulate", on = "far", latency = "1ms" },
]
cache = { data = "ssd" }
volume = [{ name = "db", backing = "slow" }]
export = [{ volume = "db", nbd = "127.0.0.1:0" }]
"#;

#[test]
fn a_namespace_of_another_machine_backs_a_volume_and_no_cache() {
    let config = parse(REMOTE).expect("right");
    let DeviceKind::NvmeTcp { uri, secrets } = &config.device("far").kind else {
        panic!("{config:?}");
    };
    assert_eq!(uri.to_string(), "nvme-tcp://127.0.0.1:4420/nqn.a:b");
    assert_eq!((uri.queue_depth, secrets), (16, &None));
    let with = REMOTE.replace("depth=16\"", "depth=16\", secrets = \"/etc/s\"");
    let config = parse(&with).expect("right");
    let DeviceKind::NvmeTcp { secrets, .. } = &config.device("far").kind else {
        panic!("{config:?}");
    };
    assert_eq!(secrets.as_deref(), Some(std::path::Path::new("/etc/s")));
    let twin = "    { name = \"too\", kind = \"nvme-tcp\", uri = \
        \"nvme-tcp://127.0.0.1:4420/nqn.a:b\" },\n]\ncache";
    for (from, to, said) in [
        ("nqn.a:b", "a:b", "not the NQN of a subsystem"),
        ("data = \"ssd\"", "data = \"slow\"", "another machine's"),
        (
            "data = \"ssd\"",
            "data = \"ssd\", metadata = \"far\"",
            "another machine's",
        ),
        ("uri = ", "path = ", "`path` means nothing"),
        (
            "size = \"32M\"",
            "size = \"32M\", secrets = \"s\"",
            "`secrets` means nothing",
        ),
        (
            "\n]\ncache",
            twin,
            "are both nvme-tcp://127.0.0.1:4420/nqn.a:b",
        ),
    ] {
        let report = parse(&REMOTE.replacen(from, to, 1)).expect_err(to).report();
        assert!(report.contains(said), "{to}: {report}");
        assert!(report.contains("help: "), "{report}");
    }
}

#[test]
fn an_image_of_a_cluster_backs_a_volume_and_no_cache() {
    let (from, to) = (
        "kind = \"nvme-tcp\", uri = \"nvme-tcp://127.0.0.1/nqn.a:b?queue_depth=16\"",
        "kind = \"rbd\", pool = \"vms\", image = \"db\", client = \"forebay\", conf = \"/c\"",
    );
    let text = REMOTE.replace(from, to);
    let image = |text: &str| {
        let config = parse(text).expect("right");
        let DeviceKind::Rbd(address) = &config.device("far").kind else {
            panic!("{config:?}");
        };
        (**address).clone()
    };
    let named = image(&text);
    assert_eq!((&*named.to_string(), &*named.client), ("vms/db", "forebay"));
    assert_eq!(named.conf, std::path::Path::new("/c"));
    let short = text.replace(", client = \"forebay\", conf = \"/c\"", "");
    let named = image(&short);
    assert_eq!(&*named.client, "admin");
    assert_eq!(named.conf, std::path::Path::new("/etc/ceph/ceph.conf"));
    let snapshot = text.replace("image = \"db\"", "image = \"db\", snapshot = \"s\"");
    let read_only = snapshot.replace("backing = ", "read_only = true, backing = ");
    assert_eq!(image(&read_only).to_string(), "vms/db@s");
    let twin = "    { name = \"too\", kind = \"rbd\", pool = \"vms\", image = \"db\" },\n]\ncache";
    for (text, from, to, said) in [
        (&text, "pool = \"vms\", ", "", "has no `pool`"),
        (&text, "image = \"db\", ", "", "has no `image`"),
        (&text, "\"db\"", "\"vms/db\"", "\"vms/db\" names no pool"),
        (
            &text,
            "data = \"ssd\"",
            "data = \"slow\"",
            "another machine's",
        ),
        (
            &text,
            "pool = ",
            "uri = \"u\", pool = ",
            "`uri` means nothing",
        ),
        (
            &short,
            "\n]\ncache",
            twin,
            "are both vms/db of /etc/ceph/ceph.conf",
        ),
        (&snapshot, "no", "no", "lies on a snapshot"),
    ] {
        let report = parse(&text.replacen(from, to, 1)).expect_err(to).report();
        assert!(report.contains(said), "{to}: {report}");
        assert!(report.contains("help: "), "{report}");
    }
}

#[test]
fn an_nbd_export_backs_a_volume_and_no_cache() {
    let (from, to) = (
        "kind = \"nvme-tcp\", uri = \"nvme-tcp://127.0.0.1/nqn.a:b?queue_depth=16\"",
        "kind = \"nbd\", uri = \"nbd://127.0.0.1/a\", connections = 4",
    );
    let text = REMOTE.replace(from, to);
    let config = parse(&text).expect("right");
    let DeviceKind::Nbd { uri, connections } = &config.device("far").kind else {
        panic!("{config:?}");
    };
    assert_eq!(
        (&*uri.to_string(), *connections),
        ("nbd://127.0.0.1:10809/a", 4)
    );
    let config = parse(&text.replace(", connections = 4", "")).expect("right");
    let one = &config.device("far").kind;
    assert!(matches!(one, DeviceKind::Nbd { connections: 1, .. }));
    let twin =
        "    { name = \"too\", kind = \"nbd\", uri = \"nbd://127.0.0.1:10809/a\" },\n]\ncache";
    for (from, to, said) in [
        (
            "nbd://127.0.0.1/a",
            "nbd+vsock://2/a",
            "vsock is not supported",
        ),
        (
            "nbd://127.0.0.1/a",
            "nbd+unix:///a?socket=s",
            "the socket is not an absolute path",
        ),
        (
            "nbd://127.0.0.1/a",
            "nbds://127.0.0.1/a",
            "TLS needs tls-certificates",
        ),
        ("data = \"ssd\"", "data = \"slow\"", "another machine's"),
        ("uri = ", "path = ", "`path` means nothing"),
        (
            "connections = 4",
            "secrets = \"s\"",
            "`secrets` means nothing",
        ),
        (
            "connections = 4",
            "connections = 17",
            "cannot have 17 connections",
        ),
        (
            "connections = 4",
            "connections = 0",
            "cannot have 0 connections",
        ),
        ("\n]\ncache", twin, "are both nbd://127.0.0.1:10809/a"),
    ] {
        let report = parse(&text.replacen(from, to, 1)).expect_err(to).report();
        assert!(report.contains(said), "{to}: {report}");
        assert!(report.contains("help: "), "{report}");
    }
}
