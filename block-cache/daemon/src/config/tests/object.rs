//! Volumes in object storage.

use super::{DeviceKind, parse};

const TEXT: &str = r#"
device = [
    { name = "ssd", kind = "file", path = "/dev/ssd" },
    { name = "far", kind = "object", url = "s3://bucket/db", size = "2T" },
]
cache = { data = "ssd" }
volume = [{ name = "db", backing = "far" }]
export = [{ volume = "db", nbd = "127.0.0.1:10809" }]
"#;

#[test]
fn a_folder_of_objects_backs_a_volume_and_no_cache() {
    let config = parse(TEXT).expect("right");
    let DeviceKind::Object(volume) = &config.device("far").kind else {
        panic!("{config:?}");
    };
    assert_eq!(volume.to_string(), "s3://bucket/db");
    assert_eq!(volume.size_bytes, Some(2 << 40));
    let other = "{ name = \"too\", kind = \"object\", url = \"s3://bucket/db\" },\n]\ncache";
    for (from, to, said) in [
        ("url = \"s3://bucket/db\", ", "", "has no `url`"),
        ("s3://bucket/db", "s3://bucket", "names no folder"),
        (
            "s3://bucket/db",
            "s3://K:SECRET@bucket/db",
            "more than a bucket",
        ),
        ("\"2T\"", "\"1000\"", "not a multiple of 4K"),
        (
            "size = \"2T\"",
            "size = \"2T\", snapshot = \"s\"",
            "has the size of its volume",
        ),
        ("size = \"2T\"", "snapshot = \"s\"", "lies on a snapshot"),
        ("size = \"2T\"", "prices = \"free\"", "is no list of prices"),
        (
            "size = \"2T\"",
            "endpoint = \"http://s3.lan\"",
            "in plain text",
        ),
        ("size = \"2T\"", "uri = \"x\"", "`uri` means nothing"),
        (
            "s3://bucket/db",
            "/srv/db\", credentials = \"/s",
            "needs no secret",
        ),
        (
            "s3://bucket/db",
            "/srv/db\", region = \"x",
            "no endpoint and no region",
        ),
        ("data = \"ssd\"", "data = \"far\"", "another machine's"),
        ("]\ncache", other, "are both s3://bucket/db"),
        (
            "nbd = \"127.0.0.1:10809\"",
            "ublk = 3",
            "outlives the daemon",
        ),
        (
            "nbd = \"127.0.0.1:10809\"",
            "vhost-user-blk = \"vm.sock\"",
            "outlives the daemon",
        ),
    ] {
        let report = parse(&TEXT.replacen(from, to, 1)).expect_err(to).report();
        assert!(report.contains(said), "{to}: {report}");
        assert!(report.contains("help: "), "{report}");
        assert!(!report.contains("SECRET"), "{report}");
    }
}
