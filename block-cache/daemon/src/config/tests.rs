//! Results of a valid configuration; every invalid one is reported with file, line and remedy.

use super::*;

mod cleaning;
mod durations;
mod exports;
mod layers;
mod object;
mod several;
mod tls;
mod ublk;

const GOOD: &str = r#"
[[device]]
name = "ssd"
kind = "file"
path = "/dev/nvme0n1"

[[device]]
name = "disk"
kind = "file"
path = "db.img"
direct = false

[[device]]
name = "slow"
kind = "emulate"
on = "disk"
latency = "1ms"
flush_latency = "2ms"
bandwidth = "100MB/s"
iops = 3000

[cache]
data = "ssd"
durability = "sync"
dirty_limit = "40%"

[[volume]]
name = "db"
backing = "slow"
mode = "wb"
promotion = "nhit:2"
sequential_cutoff = "1M"
iops_limit = 2000
bandwidth_limit = "50MB/s"
burst = "2s"

[[export]]
volume = "db"
nbd = "127.0.0.1:10809"

[[export]]
volume = "db"
nbd = "unix:/run/forebay/db.sock"

[[export]]
volume = "db"
fuse = "/run/forebay/db"

[[export]]
volume = "db"
vhost-user-blk = "vm.sock"

[server]
reactors = 2
control = "/run/x.sock"
state = "state"
io = "threads"
"#;

fn parse(text: &str) -> Result<Config> {
    Config::parse(Path::new("/etc/forebay.toml"), text)
}

#[test]
fn names_are_plain_and_no_names_of_own_files() {
    let named = |noun: &str, name: &str| {
        let (from, uses) = match noun {
            "device" => ("name = \"slow\"", "backing = \"slow\""),
            _ => ("name = \"db\"", "volume = \"db\""),
        };
        let uses_new = uses.split(" = ").next().expect("a key").to_owned();
        let text = GOOD.replace(from, &format!("name = \"{name}\""));
        parse(&text.replace(uses, &format!("{uses_new} = \"{name}\"")))
    };
    for name in ["_a", "a.b-c_d", "9", &"a".repeat(64)] {
        for noun in ["device", "volume"] {
            let parsed = named(noun, name);
            assert!(parsed.is_ok(), "{noun} {name}: {parsed:?}");
        }
    }
    for name in ["", "-a", ".a", "..", "a/b", "a b", &"a".repeat(65)] {
        for noun in ["device", "volume"] {
            let report = named(noun, name).expect_err(name).report();
            assert!(report.contains("cannot be the name of a"), "{report}");
            assert!(report.contains("a letter, digit or '_'"), "{report}");
        }
    }
    // Slots have records of such names in the state directory.
    let report = named("device", "forebay-0123").expect_err("ours").report();
    assert!(report.contains("Forebay's own files"), "{report}");
    assert!(named("volume", "forebay-0123").is_ok());
}

/// Returns the error of GOOD with `from` replaced by `to`.
fn broken(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from:?} is in the example");
    let text = GOOD.replacen(from, to, 1);
    let error = parse(&text).expect_err(&format!("{to:?} should be refused"));
    let report = error.report();
    let at = GOOD.find(from).expect("checked above") + from.len() - from.trim_start().len();
    let first = 1 + GOOD[..at].matches('\n').count();
    let last = first + to.trim().matches('\n').count();
    assert!(
        (first..=last).any(|line| report.contains(&format!("/etc/forebay.toml:{line}: "))),
        "names the file and line {first}: {report}"
    );
    assert!(report.contains("help: "), "names the remedy: {report}");
    report
}

#[test]
fn a_path_identifies_a_file_if_the_user_says_so() {
    let good = parse(GOOD).expect("the example is right");
    assert!(good.devices.iter().all(|device| !device.known_by_path));
    let text = GOOD.replace("direct = false", "identity = \"path\"");
    let config = parse(&text).expect("right");
    let known = |name: &str| config.stack(name).pop().expect("a leaf").known_by_path;
    assert!(known("slow") && !known("ssd"));
    let report = broken("direct = false", "identity = \"serial\"");
    assert!(
        report.contains("is no identity of device \"disk\""),
        "{report}"
    );
    let report = broken("latency = \"1ms\"", "identity = \"path\"");
    assert!(
        report.contains("`identity` means nothing to device \"slow\""),
        "{report}"
    );
}

#[test]
fn a_valid_configuration_is_parsed_completely() {
    let config = parse(GOOD).expect("the example is right");
    assert_eq!(config.warnings, Vec::<String>::new());
    assert_eq!(config.devices.len(), 3);
    let DeviceKind::Emulate {
        read_latency,
        flush_latency,
        bandwidth_bytes_per_s,
        iops,
        ..
    } = &config.device("slow").kind
    else {
        panic!("slow is emulated");
    };
    assert_eq!(read_latency.as_millis(), 1);
    assert_eq!(flush_latency.as_millis(), 2);
    assert_eq!(*bandwidth_bytes_per_s, Some(100_000_000));
    assert_eq!(*iops, Some(3000));
    let leaf = config.stack("slow")[1];
    assert_eq!(
        leaf.kind,
        DeviceKind::File {
            path: "/etc/db.img".into(),
            direct: false
        }
    );
    let cache = config.cache.as_ref().expect("there is a cache");
    assert_eq!(cache.durability, Durability::Sync);
    assert_eq!(cache.dirty_limit_percent, 40);
    assert_eq!(config.volumes[0].mode, Mode::WriteBack);
    assert_eq!(config.volumes[0].promotion, Promotion::Nhit { hits: 2 });
    assert_eq!(config.volumes[0].sequential_cutoff_bytes, 1 << 20);
    let limits = config.volumes[0].limits;
    assert_eq!(limits.iops.map(u32::from), Some(2000));
    assert_eq!(
        limits.bandwidth_bytes_per_s.map(u64::from),
        Some(50_000_000)
    );
    assert_eq!(limits.burst, std::time::Duration::from_secs(2));
    assert_eq!(config.exports.len(), 4);
    let disk = Protocol::VhostUserBlk("/etc/vm.sock".into());
    assert_eq!(config.exports[3].protocol, disk);
    assert_eq!(config.server.state, Path::new("/etc/state"));
    assert_eq!(config.server.io, Io::Threads);
}

#[test]
fn limits_that_let_nothing_through_are_refused() {
    let report = broken("iops_limit = 2000", "iops_limit = 0");
    assert!(report.contains("leave `iops_limit` out"), "{report}");
    let report = broken("bandwidth_limit = \"50MB/s\"", "bandwidth_limit = \"0B/s\"");
    assert!(report.contains("admits no request"), "{report}");
    let alone = "iops_limit = 2000\nbandwidth_limit = \"50MB/s\"\nburst = \"2s\"";
    let report = broken(alone, "burst = \"2s\"");
    assert!(report.contains("a burst and no limit"), "{report}");
}

#[test]
fn a_request_is_given_a_time_that_makes_sense() {
    let config = parse(GOOD).expect("the example is right");
    assert_eq!(config.volumes[0].timeout.as_secs(), 60);
    let limit = "iops_limit = 2000";
    let said = GOOD.replace(limit, &format!("{limit}\ntimeout = \"5s\""));
    let config = parse(&said).expect("a good time");
    assert_eq!(config.volumes[0].timeout.as_secs(), 5);
    for (wrong, parts) in [
        ("10ms", ["a `timeout` of 10 ms is less than", "minimum, 1s"]),
        (
            "2h",
            ["a `timeout` of 2 h 0 min is more than", "maximum, 1h"],
        ),
    ] {
        let report = broken(limit, &format!("{limit}\ntimeout = \"{wrong}\""));
        assert!(report.contains("write 1s to 1h"), "{report}");
        for part in parts {
            assert!(report.contains(part), "{part} in {report}");
        }
    }
    let report = broken(limit, &format!("{limit}\ntimeout = \"9999999999h\""));
    assert!(report.contains("\"9999999999h\" is more than"), "{report}");
    assert!(report.contains("timeout = "), "the line is shown: {report}");
}

#[test]
fn syntax_and_unknown_keys_are_named() {
    assert!(broken("[cache]", "[cache").contains("help"));
    let report = broken("dirty_limit = \"40%\"", "dirty_limits = \"40%\"");
    assert!(report.contains("unknown field `dirty_limits`"), "{report}");
    assert!(
        report.contains("`dirty_limit`"),
        "lists the right name: {report}"
    );
    assert!(broken("[cache]\n", "[cash]\n").contains("unknown field `cash`"));
    assert!(broken("kind = \"file\"", "kind = \"ssd\"").contains("unknown variant `ssd`"));
    assert!(broken("reactors = 2", "reactors = \"two\"").contains("invalid type"));
    assert!(broken("direct = false", "direct = false\ndirect = true").contains("keep one"));
}

#[test]
fn values_are_named_with_how_to_write_them() {
    assert!(broken("latency = \"1ms\"", "latency = \"1\"").contains("\"250us\""));
    assert!(broken("latency = \"1ms\"", "latency = 1").contains("duration such as"));
    assert!(broken("\"100MB/s\"", "\"100\"").contains("100MB/s"));
    assert!(broken("\"40%\"", "\"140%\"").contains("60%"));
    assert!(broken("mode = \"wb\"", "mode = \"wbb\"").contains("write-back"));
    assert!(broken("nhit:2", "nhit:0").contains("always"));
    assert!(broken("\"1M\"", "\"1Mb\"").contains("powers of 1024"));
    assert!(broken("reactors = 2", "reactors = 0").contains("from 1 to 64"));
    assert!(broken("name = \"db\"", "name = \"../db\"").contains("cannot be the name"));
}

#[test]
fn names_must_lead_somewhere_and_have_one_user() {
    let report = broken("data = \"ssd\"", "data = \"sdd\"");
    assert!(report.contains("does not exist"), "{report}");
    assert!(report.contains("\"ssd\", \"disk\", \"slow\""), "{report}");
    assert!(broken("backing = \"slow\"", "backing = \"disk\"").contains("used by"));
    assert!(broken("on = \"disk\"", "on = \"slow\"").contains("lies on itself"));
    assert!(broken("name = \"disk\"", "name = \"ssd\"").contains("already"));
    assert!(broken("volume = \"db\"", "volume = \"dc\"").contains("does not exist"));
    assert!(parse(&GOOD.replace("\"db.img\"", "\"/dev/nvme0n1\"")).is_err());
}

#[test]
fn a_name_is_offered_once() {
    let text = GOOD.replace("name = \"disk\"", "name = \"ssd\"");
    let report = parse(&text).unwrap_err().report();
    assert!(report.contains("use one of \"ssd\", \"slow\""), "{report}");
}

#[test]
fn an_empty_file_serves_nothing() {
    for text in ["", "# nothing\n", "[server]\nreactors = 2\n"] {
        let report = parse(text).expect_err("empty").report();
        assert!(
            report.starts_with("/etc/forebay.toml:1: there is no volume"),
            "{report}"
        );
        assert!(report.contains("help: add a [[volume]]"), "{report}");
        assert!(
            !report.contains("invalid input"),
            "the kind adds nothing: {report}"
        );
    }
}

#[test]
fn keys_belong_to_their_kind() {
    let report = broken("direct = false", "size = \"1G\"");
    assert!(report.contains("belongs to kind = \"mem\""), "{report}");
    let missing = parse("[[device]]\nname = \"d\"\nkind = \"mem\"\n").unwrap_err();
    assert!(missing.report().contains("add size"), "{missing:?}");
    let missing = parse("[[device]]\nkind = \"mem\"\n").unwrap_err().report();
    assert!(missing.contains("/etc/forebay.toml:1: "), "{missing}");
    assert!(missing.contains("add the key"), "{missing}");
}

#[test]
fn reactors_that_never_sleep_are_asked_for() {
    let poll = |text: &str| parse(text).expect("it is in order").server.poll;
    assert_eq!(poll(GOOD), Poll::Adaptive);
    let busy = GOOD.replace("io = \"threads\"", "poll = \"busy\"");
    assert_eq!(poll(busy.as_str()), Poll::Busy);
    let report = broken("io = \"threads\"", "io = \"threads\"\npoll = \"busy\"");
    assert!(report.contains("cannot look for work"), "{report}");
}

#[test]
fn a_cache_in_memory_holds_no_only_copy() {
    let memory = GOOD.replace(
        "kind = \"file\"\npath = \"/dev/nvme0n1\"",
        "kind = \"mem\"\nsize = \"64M\"",
    );
    let report = parse(&memory).unwrap_err().report();
    assert!(report.contains("volatile = true"), "{report}");
    let accepted = memory.replace("\"64M\"", "\"64M\"\nvolatile = true");
    let config = parse(&accepted).expect("volatile says that it is meant");
    assert_eq!(config.memory_cache(), Some(true));
    assert!(config.warnings[0].contains("is lost when the daemon ends"));
    let through = parse(&memory.replace("\"wb\"", "\"wt\"")).expect("wt keeps no dirty data");
    assert_eq!(through.memory_cache(), Some(false));
}

/// GOOD with the cache on a table over mapped memory.
const ON_TABLE: &str =
    "kind = \"btt\"\non = \"pm\"\n\n[[device]]\nname = \"pm\"\nkind = \"pmem\"\npath = \"pm\"";

#[test]
fn blocks_on_byte_addressable_media_need_a_table() {
    let file = "kind = \"file\"\npath = \"/dev/nvme0n1\"";
    let good = GOOD.replace(file, ON_TABLE);
    let config = parse(&good).expect("a table over memory");
    assert_eq!(config.warnings, Vec::<String>::new());
    let stack = config.stack("ssd");
    assert_eq!(stack[0].kind, DeviceKind::Btt { on: "pm".into() });
    let path = PathBuf::from("/etc/pm");
    assert_eq!(stack[1].kind, DeviceKind::Pmem { path });
    assert_eq!(config.file_of("ssd"), Some(Path::new("/etc/pm")));

    let said = |kind: &str| {
        let refused = parse(&GOOD.replacen(file, kind, 1));
        refused.expect_err(kind).report()
    };
    let bare = said("kind = \"pmem\"\npath = \"/dev/dax0.0\"");
    assert!(bare.starts_with("/etc/forebay.toml:23: "), "{bare}");
    assert!(bare.contains("a power loss tears blocks"), "{bare}");
    assert!(bare.contains("forebay format --btt"), "{bare}");
    // Metadata needs no table there, with or without emulated latency.
    let apart = |metadata: &str, kind: &str| {
        let data = format!("data = \"ssd\"\nmetadata = \"{metadata}\"");
        let text = GOOD.replacen("data = \"ssd\"", &data, 1);
        parse(&format!(
            "{text}\n[[device]]\nname = \"pm\"\nkind = \"pmem\"\npath = \"pm\"\n{kind}"
        ))
    };
    apart("pm", "").expect("lines");
    let slowed = "[[device]]\nname = \"e\"\nkind = \"emulate\"\non = \"pm\"\n";
    apart("e", &format!("{slowed}profile = \"optane-dimm\"\n")).expect("lines");
    let between = apart("e", &format!("{slowed}latency = \"1ms\"\n")).expect_err("a layer");
    assert!(
        between.report().contains("the cache's metadata"),
        "{between:?}"
    );
    let slower = said(&ON_TABLE.replace("\"btt\"", "\"emulate\""));
    assert!(slower.contains("device \"pm\" of kind pmem"), "{slower}");
    let on_file = said(&ON_TABLE.replace("\"pmem\"", "\"file\""));
    let what = "of kind btt lies on device \"pm\" of kind file";
    assert!(on_file.contains(what), "{on_file}");

    let foreign = said("kind = \"btt\"\non = \"disk\"\nlatency = \"1ms\"");
    assert!(
        foreign.contains("belongs to kind = \"emulate\""),
        "{foreign}"
    );
    let foreign = said("kind = \"pmem\"\npath = \"/dev/dax0.0\"\non = \"disk\"");
    let what = "belongs to kind = \"emulate\" or \"btt\"";
    assert!(foreign.contains(what), "{foreign}");
    assert!(said("kind = \"pmem\"").contains("has no `path`"));
    assert!(said("kind = \"btt\"").contains("has no `on`"));
}

#[test]
fn all_problems_are_reported_at_once() {
    let text = GOOD
        .replace("data = \"ssd\"", "data = \"x\"")
        .replace("reactors = 2", "reactors = 0");
    let report = parse(&text).unwrap_err().report();
    assert_eq!(report.matches("help: ").count(), 2, "{report}");
}

#[test]
fn relative_paths_start_at_the_file() {
    let text = "[[device]]\nname = \"d\"\nkind = \"file\"\npath = \"x.img\"\n\
                [[volume]]\nname = \"v\"\nbacking = \"d\"\n";
    let here = std::env::current_dir().expect("there is one");
    for (file, expected) in [
        ("f.toml", here.join("x.img")),
        ("sub/f.toml", here.join("sub/x.img")),
        ("/etc/f.toml", "/etc/x.img".into()),
    ] {
        let config = Config::parse(Path::new(file), text).expect("right");
        let DeviceKind::File { path, .. } = &config.devices[0].kind else {
            panic!("it is a file");
        };
        assert_eq!(*path, expected, "{file}");
    }
}

#[test]
fn a_table_with_the_wrong_brackets_is_written_right() {
    for (right, wrong) in [
        ("[[device]]", "[device]"),
        ("[[volume]]", "[volume]  # one"),
        ("[[export]]", "[ export ]"),
        ("[cache]", "[[cache]]"),
        ("[server]", "[[server]]"),
    ] {
        let report = parse(&format!("# a comment\n{wrong}\n")).expect_err(wrong);
        let report = report.report();
        let named = report.starts_with("/etc/forebay.toml:2: ");
        assert!(named, "{wrong}: {report}");
        assert!(
            report.ends_with(&format!("help: write {right}")),
            "{report}"
        );
    }
    let report = parse("device = { name = \"d\" }\n")
        .expect_err("a map")
        .report();
    assert!(
        report.contains("invalid type"),
        "nothing to say about brackets: {report}"
    );
}

#[test]
fn binary_and_oversized_files_are_refused_as_configurations() {
    let path = std::env::temp_dir().join(format!("fb-no-text-{}", std::process::id()));
    let long = "# long\n".repeat(1 << 20);
    for bytes in [&[0; 4096][..], b"\xff\xfe", long.as_bytes()] {
        std::fs::write(&path, bytes).expect("written");
        let report = Config::load(&path).expect_err("refused").report();
        assert!(report.contains("is no configuration: it "), "{report}");
        assert!(report.contains("forebay check --cache"), "{report}");
        assert!(report.len() < 1000, "{}", report.len());
    }
    std::fs::write(&path, "x".repeat(10_000)).expect("written");
    let report = Config::load(&path).expect_err("refused").report();
    assert!(report.len() < 1000, "{}", report.len());
    std::fs::remove_file(&path).expect("there");
}

#[test]
fn one_file_has_one_device() {
    let report = broken(
        "name = \"disk\"\nkind = \"file\"\npath = \"db.img\"",
        "name = \"disk\"\nkind = \"file\"\npath = \"/dev/nvme0n1\"",
    );
    assert!(
        report.contains("help: give each device a file or block device of its own\n")
            || report.ends_with("help: give each device a file or block device of its own"),
        "{report}"
    );
    assert!(!report.contains("both places"), "{report}");
}

const TRANSIT: &str = r#"
device = [
    { name = "pm", kind = "pmem", path = "pm.img" },
    { name = "table", kind = "btt", on = "pm" },
    { name = "fast", kind = "transit", on = "table", capacity = "64M", policy = "pmbd-70" },
    { name = "disk", kind = "mem", size = "32M" },
]
cache = { data = "fast", durability = "flush" }
volume = [{ name = "db", backing = "disk" }]
"#;
