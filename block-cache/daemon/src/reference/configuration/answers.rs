//! The documentation of the keys, compared with the answers of the parser.

use std::path::Path;

use super::{Key, TABLES, keys, kinds};
use crate::config::Config;

/// Place of the tested key.
const PLACE: &str = "# key\n";

/// Returns a valid configuration with [`PLACE`] in the table, of a kind or protocol.
fn sample(table: &str, kind: &str) -> String {
    let device = match (table, kind) {
        ("device", "nvme-tcp") => "uri = \"nvme-tcp://127.0.0.1/nqn.2014-08.org.example:x\"\n",
        ("device", "nbd") => "uri = \"nbd://127.0.0.1/x\"\n",
        ("device", "rbd") => "pool = \"x\"\nimage = \"x\"\n",
        ("device", "object") => "url = \"/srv/x\"\n",
        ("device", "mem") => "size = \"1M\"\n",
        ("device", "transit" | "emulate") => "on = \"x\"\n",
        ("device", "btt") => "on = \"p\"\n",
        _ => "path = \"b.img\"\n",
    };
    let under = match device {
        "on = \"x\"\n" => "[[device]]\nname = \"x\"\nkind = \"file\"\npath = \"x.img\"\n",
        "on = \"p\"\n" => "[[device]]\nname = \"p\"\nkind = \"pmem\"\npath = \"p.img\"\n",
        _ => "",
    };
    let export = match (table, kind) {
        ("export", "nvme-tcp") => "nvme-tcp = \"127.0.0.1:4420\"\nnqn = \"nqn.2014-08.org.x:x\"\n",
        ("export", "vhost-user-blk") => "vhost-user-blk = \"/run/x.sock\"\n",
        ("export", "ublk") => "ublk = 1\n",
        ("export", "fuse") => "fuse = \"/run/x\"\n",
        _ => "nbd = \"127.0.0.1:10809\"\n",
    };
    let kind = match table {
        "device" if !kind.is_empty() => kind,
        _ => "file",
    };
    let place = |of: &str| if of == table { PLACE } else { "\n" };
    format!(
        "[server]\n{}[cache]\ndata = \"a\"\n{}\
         [[device]]\nname = \"a\"\nkind = \"file\"\npath = \"a.img\"\n{under}\
         [[device]]\nname = \"b\"\nkind = \"{kind}\"\n{device}{}\
         [[volume]]\nname = \"v\"\nbacking = \"b\"\niops_limit = 100\n{}\
         [[export]]\nvolume = \"v\"\n{export}{}",
        place("server"),
        place("cache"),
        place("device"),
        place("volume"),
        place("export"),
    )
}

/// Returns the sample of a key's table with this line in place of others of the key.
fn with(table: &str, kind: &str, key: &str, line: &str) -> String {
    let text = sample(table, kind);
    let (before, after) = text.split_once(PLACE).expect("the table has the place");
    // The tables before and after have keys of the same name.
    let (before, own) = before.rsplit_once('[').expect("the table has a head");
    let begin = format!("{key} = ");
    let blank = |line: &str| match line.starts_with(&begin) {
        true => "\n".to_owned(),
        false => line.to_owned(),
    };
    let own: String = own.split_inclusive('\n').map(blank).collect();
    format!("{before}[{own}{line}\n{after}")
}

fn parse(text: &str) -> Result<Config, String> {
    let parsed = Config::parse(Path::new("/etc/forebay.toml"), text);
    let config = parsed.map_err(|error| error.report())?;
    Ok(Config {
        server: crate::config::Server {
            metrics_line: None,
            ..config.server
        },
        ..config
    })
}

/// Returns a value of the type in TOML.
fn value(kind: &str, text: &str) -> String {
    match kind {
        "integer" | "boolean" => text.to_owned(),
        "list of sizes" | "list of texts" => format!("[\"{text}\"]"),
        _ => format!("\"{text}\""),
    }
}

/// Every key, with its table and each kind or protocol that has it.
fn places() -> Vec<(&'static str, String, Key)> {
    let mut places = Vec::new();
    for (table, ..) in TABLES {
        for key in keys(table) {
            let kinds = match key.of.is_empty() {
                true => vec![String::new()],
                false => key.of.clone(),
            };
            places.extend(kinds.into_iter().map(|kind| (table, kind, key.clone())));
        }
    }
    places
}

#[test]
fn the_samples_are_valid() {
    for (table, kind, _) in places() {
        // Byte-addressable media are no backing device without a table.
        if kind != "pmem" {
            let parsed = parse(&sample(table, &kind));
            assert!(parsed.is_ok(), "{table} {kind}: {parsed:?}");
        }
    }
}

#[test]
fn the_documented_keys_are_those_of_the_parser() {
    for (table, ..) in TABLES {
        let report = parse(&with(table, "", "zzz", "zzz = 1")).expect_err("no such key");
        let (_, expected) = report.split_once("or use ").expect("the keys are listed");
        let line = expected.lines().next().unwrap_or_default();
        let known: Vec<_> = line.split('`').skip(1).step_by(2).collect();
        let keys = keys(table);
        let documented: Vec<_> = keys.iter().map(|key| key.name.as_str()).collect();
        assert_eq!(documented, known, "[{table}]");
    }
}

#[test]
fn the_documented_defaults_are_those_of_the_parser() {
    let mut compared = 0;
    for (table, kind, key) in places() {
        let default = key.default.trim_matches('`');
        let is_value = default.starts_with('"') && default.ends_with('"')
            || default == "true"
            || default == "false"
            || default.parse::<u64>().is_ok();
        if !is_value {
            continue;
        }
        let line = format!("{} = {default}", key.name);
        let written = parse(&with(table, &kind, &key.name, &line));
        let left_out = parse(&with(table, &kind, &key.name, ""));
        assert!(written.is_ok(), "{table} {kind}: {line}: {written:?}");
        assert_eq!(written, left_out, "{table} {kind}: {line}");
        compared += 1;
    }
    assert!(compared >= 20, "{compared} defaults are values");
}

/// Returns values at the ends of a range, and values beyond them.
fn ends(key: &Key) -> (Vec<String>, Vec<String>) {
    let digits = |word: &str| {
        let end = word.find(|letter: char| !letter.is_ascii_digit());
        let (number, unit) = word.split_at(end.unwrap_or(word.len()));
        Some((number.parse::<u64>().ok()?, unit.to_owned()))
    };
    let below = |word: &str| match digits(word) {
        Some((0, _)) | None => None,
        Some((_, unit)) => Some(format!("0{unit}")),
    };
    let above = |word: &str| {
        let (number, unit) = digits(word)?;
        Some(match unit.as_str() {
            "" => (number + 1).to_string(),
            "%" => format!("{}%", number + 1),
            unit => format!("{}{unit}", number * 2),
        })
    };
    let range = key.range.replace([',', ';'], " ");
    let words: Vec<_> = range.split_whitespace().collect();
    let (mut within, mut beyond) = (Vec::new(), Vec::new());
    for (nth, word) in words
        .iter()
        .enumerate()
        .filter(|(_, word)| digits(word).is_some())
    {
        let before = nth.checked_sub(1).map(|before| words[before]);
        let after = words.get(nth + 1).copied();
        if after == Some("to") || after == Some("or") {
            within.push((*word).to_owned());
            beyond.extend(below(word));
        } else if before == Some("to") || words[..nth].ends_with(&["at", "most"]) {
            within.push((*word).to_owned());
            beyond.extend(above(word));
        }
    }
    (within, beyond)
}

#[test]
fn the_documented_ranges_are_those_of_the_parser() {
    let mut compared = 0;
    for (table, kind, key) in places() {
        let (within, beyond) = ends(&key);
        let parsed = |text: &str| {
            let line = format!("{} = {}", key.name, value(&key.kind, text));
            (parse(&with(table, &kind, &key.name, &line)), line)
        };
        for text in within {
            let (parsed, line) = parsed(&text);
            assert!(parsed.is_ok(), "{table} {kind}: {line}: {parsed:?}");
            compared += 1;
        }
        for text in beyond {
            let (parsed, line) = parsed(&text);
            assert!(parsed.is_err(), "{table} {kind}: {line} is accepted");
            compared += 1;
        }
    }
    assert!(compared >= 40, "{compared} ends of ranges");
}

/// Returns the report of the problems alone: without lines of the file and without remedies.
fn problems(text: &str) -> String {
    let report = parse(text).err().unwrap_or_default();
    let lines = report.lines().map(str::trim);
    let shown = lines.filter(|line| !line.starts_with("help:") && !line.contains(" | "));
    shown.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_documented_names_of_values_are_those_of_the_parser() {
    let mut compared = 0;
    for (table, kind, key) in places() {
        let names: Vec<_> = key.range.split(", ").collect();
        let is_name = |name: &&str| {
            let inner = name
                .strip_prefix('`')
                .and_then(|name| name.strip_suffix('`'));
            inner.is_some_and(|inner| !inner.contains('`'))
        };
        if key.kind != "text" || !names.iter().all(is_name) || key.name == "kind" {
            continue;
        }
        let names: Vec<_> = names.iter().map(|name| name.trim_matches('`')).collect();
        let said_of = |name: &str| {
            let line = format!("{} = \"{name}\"", key.name);
            problems(&with(table, &kind, &key.name, &line))
        };
        let unknown = said_of("zzz");
        assert!(unknown.contains("zzz"), "{table} {kind}: {unknown}");
        for name in &names {
            let said = said_of(name);
            let refused = said.contains(&format!("{name:?}")) || said.contains("unknown variant");
            assert!(!refused, "{table} {kind}: {} = {name:?}: {said}", key.name);
        }
        // An enum lists its names.
        if let Some((_, expected)) = unknown.split_once(", expected ") {
            let line = expected.lines().next().unwrap_or_default();
            let mut known: Vec<_> = line.split('`').skip(1).step_by(2).collect();
            let mut names = names;
            known.sort_unstable();
            names.sort_unstable();
            assert_eq!(names, known, "{table} {kind}: {}", key.name);
        }
        compared += 1;
    }
    assert!(compared >= 10, "{compared} keys with names");
}

#[test]
fn keys_of_other_kinds_are_refused_as_documented() {
    let mut compared = 0;
    for table in ["device", "export"] {
        let keys = keys(table);
        for key in keys.iter().filter(|key| !key.of.is_empty()) {
            // The key that names the protocol is not beside another one.
            if table == "export" && key.of == [key.name.as_str()] {
                continue;
            }
            for kind in kinds(&keys) {
                let text = match key.kind.as_str() {
                    "integer" => "1",
                    "boolean" => "true",
                    "size" => "1M",
                    "rate" => "1MB/s",
                    "time" => "1ms",
                    "text" if key.name == "tls" => "offered",
                    _ => "x",
                };
                let line = format!("{} = {}", key.name, value(&key.kind, text));
                let said = problems(&with(table, &kind, &key.name, &line));
                let refused = said.contains(" means ");
                let documented = key.of.contains(&kind);
                assert_eq!(refused, !documented, "{table} {kind}: {line}: {said}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 100, "{compared} keys and kinds");
}
