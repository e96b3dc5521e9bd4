//! Replaying traces, on a configuration and over NBD.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::support::{Place, Process, text};

/// A trace of 2,000 requests to two volumes, half of them writes.
fn generate(place: &Place) -> String {
    let trace = text(&place.path("trace.fbt")).to_owned();
    let load = "--volumes 2 --requests 1000 --reads 50 --sizes 4K:60,64K:40 --working-set 16M \
        --rate 100000";
    let mut arguments = vec!["trace", "generate", &trace];
    arguments.extend(load.split_whitespace());
    place.ok(&arguments);
    trace
}

fn uri(place: &Place) -> String {
    format!("nbd+unix:///db?socket={}", text(&place.path("nbd.sock")))
}

fn replayed(place: &Place, arguments: &[&str]) -> Value {
    let mut all = vec!["replay", "--json"];
    all.extend(arguments);
    serde_json::from_str(&place.ok(&all)).expect("JSON")
}

fn number(value: &Value, place: &str) -> u64 {
    let number = value.pointer(place).and_then(Value::as_u64);
    number.unwrap_or_else(|| panic!("{place} in {value}"))
}

#[test]
fn a_trace_is_replayed_on_a_configuration() {
    let place = Place::new("replay", "wb");
    let (trace, config) = (generate(&place), place.path("forebay.toml"));
    let on = ["--on", text(&config)];
    let said = place.refused(&["replay", &trace, on[0], on[1]]);
    assert!(
        said.contains("--destroy-data") && said.contains("--skip-writes"),
        "{said}"
    );
    assert!(said.contains("db (64 MiB, holds nothing)"), "{said}");
    let done = replayed(
        &place,
        &[&trace, on[0], on[1], "--destroy-data", "--verify"],
    );
    assert_eq!(number(&done, "/requests"), 2000);
    let (reads, writes) = (
        number(&done, "/operations/read/requests"),
        number(&done, "/operations/write/requests"),
    );
    assert_eq!(reads + writes, 2000);
    assert!((800..1200).contains(&reads), "{done}");
    assert_eq!(number(&done, "/verified/wrong"), 0);
    assert!(number(&done, "/verified/sectors") > 10_000, "{done}");
    assert!(
        number(&done, "/engine/write_to_cache/bytes") >= number(&done, "/operations/write/bytes")
    );
    assert!(number(&done, "/engine/read_from_core/bytes") > 0, "{done}");
    assert!(
        done["engine"]["processing_us"].as_f64().expect("a number") > 0.1,
        "{done}"
    );
    assert_eq!(done["volumes"][1]["to"], "db", "{done}");
    // The cache has the written data, and a second run finds it there: everything fits.
    let second = replayed(
        &place,
        &[&trace, on[0], on[1], "--skip-writes", "--depth", "4"],
    );
    assert_eq!(number(&second, "/operations/write/requests"), 0);
    assert_eq!(number(&second, "/skipped_writes"), writes);
    assert_eq!(number(&second, "/engine/read_misses"), 0, "{second}");
    assert_eq!(
        number(&second, "/engine/read_from_core/bytes"),
        0,
        "{second}"
    );
    // At the recorded times: 2,000 requests at 200,000 a second, a fifth as fast.
    let timed = replayed(
        &place,
        &[&trace, on[0], on[1], "--skip-writes", "--speed", "0.2"],
    );
    assert!(
        timed["elapsed_us"].as_f64().expect("a number") > 30_000.0,
        "{timed}"
    );
    assert!(timed["late"]["by"]["p50_us"].is_number(), "{timed}");
    let said = place.ok(&[
        "replay",
        &trace,
        on[0],
        on[1],
        "--skip-writes",
        "--limit",
        "100",
    ]);
    assert!(
        said.contains("request processing:") && said.contains("read from core"),
        "{said}"
    );
}

#[test]
fn a_trace_is_replayed_over_nbd_and_recorded_meanwhile() {
    let place = Place::new("replay-nbd", "wb");
    let (trace, uri, back) = (generate(&place), uri(&place), place.path("back.fbt"));
    let daemon = place.serve(&[]);
    let mut recorder = place.command(&["trace", "record", text(&back)]);
    let mut recorder = recorder.stdout(Stdio::null()).spawn().expect("it runs");
    place.wait_for_log("recording db");
    let arguments = [
        &*trace,
        "--on",
        &uri,
        "--destroy-data",
        "--verify",
        "--depth",
        "16",
    ];
    let done = replayed(&place, &arguments);
    assert_eq!(number(&done, "/requests"), 2000);
    assert_eq!(number(&done, "/verified/wrong"), 0);
    assert_eq!(done["engine"], Value::Null);
    daemon.terminate();
    assert!(recorder.wait().expect("it ends").success());
    // The daemon's counters match the requests that were sent.
    let seen: Value =
        serde_json::from_str(&place.ok(&["trace", "stats", "--json", text(&back)])).expect("JSON");
    let sent: Value =
        serde_json::from_str(&place.ok(&["trace", "stats", "--json", &trace])).expect("JSON");
    for of in ["/writes/requests", "/writes/bytes"] {
        assert_eq!(number(&seen, of), number(&sent, of), "{seen}");
    }
    let verified = number(&seen, "/reads/bytes") - number(&sent, "/reads/bytes");
    assert!(verified >= number(&done, "/verified/sectors") * 512);
    assert_eq!(number(&seen, "/lost"), 0);
}

#[test]
fn traces_that_cannot_be_replayed_are_refused_with_a_remedy() {
    let place = Place::new("replay-no", "wb");
    let (trace, uri) = (generate(&place), uri(&place));
    let config = place.path("forebay.toml");
    let refused = |more: &[&str]| {
        let mut arguments = vec!["replay"];
        arguments.extend(more);
        place.refused(&arguments)
    };
    let said = refused(&[&trace, "--on", &uri]);
    assert!(said.contains("NBD server") && said.contains(&uri), "{said}");
    let said = refused(&["none.fbt", "--on", text(&config)]);
    assert!(said.contains("none.fbt"), "{said}");
    let said = refused(&[&trace, "--on", text(&config), "--on", &uri]);
    assert!(
        said.contains("one configuration, or on NBD exports"),
        "{said}"
    );
    let said = refused(&[&trace, "--on", text(&config), "--map", "a=logs"]);
    assert!(
        said.contains("no volume \"logs\"") && said.contains("there are: db"),
        "{said}"
    );
    std::fs::write(
        place.path("bad.csv"),
        "0,R,0,4096,1\n0,R,4096,4096,2\nnonsense\n0,R,4096,4096,4\n",
    )
    .expect("written");
    let bad = place.path("bad.csv");
    let bad = [text(&bad), "--format", "alibaba", "--on", text(&config)];
    let said = refused(&bad);
    assert!(
        said.contains("bad.csv, line 3") && said.contains("--skip-bad"),
        "{said}"
    );
    let mut skipping = vec!["replay", "--skip-bad"];
    skipping.extend(bad);
    let said = place.ok(&skipping);
    assert!(
        said.contains("3 requests") && said.contains("could not be read"),
        "{said}"
    );
    std::fs::write(place.path("far.csv"), "0,R,104857600,4096,1\n").expect("written");
    let far = place.path("far.csv");
    let far = [text(&far), "--format", "alibaba", "--on", text(&config)];
    let mut refuse = vec!["--past-end", "refuse"];
    refuse.extend(far);
    let said = refused(&refuse);
    assert!(
        said.contains("reaches past its end at 67108864") && said.contains("--past-end"),
        "{said}"
    );
    let mut fold = vec!["replay"];
    fold.extend(far);
    assert!(place.ok(&fold).contains("1 request reached past the end"));
    let mut skip = vec!["--past-end", "skip"];
    skip.extend(far);
    let done = replayed(&place, &skip);
    assert_eq!(number(&done, "/requests"), 0, "{done}");
    assert_eq!(number(&done, "/past_end"), 1, "{done}");
    assert_eq!(number(&done, "/skipped_past_end"), 1, "{done}");
    skip.insert(0, "replay");
    let said = place.ok(&skip);
    assert!(said.contains(": 0 requests in"), "{said}");
    assert!(said.contains("1 request left out: past the end"), "{said}");
    refuse.insert(0, "replay");
    let output = place.run(&refuse);
    assert_eq!(
        output.stdout, b"",
        "nothing was done: nothing but the error"
    );
    let daemon = place.serve(&[]);
    let said = refused(&[&trace, "--on", text(&config)]);
    assert!(
        said.contains("a daemon answers on the control socket"),
        "{said}"
    );
    daemon.terminate();
}

/// A second volume of 64 MiB with a trace of two volumes that write.
fn with_a_second_volume(name: &str, read_only: bool) -> (Place, String) {
    let place = Place::new(name, "wb");
    let second = std::fs::File::create(place.path("small.img")).expect("made");
    second.set_len(64 << 20).expect("sparse");
    let more = format!(
        r#"
[[device]]
name = "disk2"
kind = "file"
path = "small.img"

[[volume]]
name = "small"
backing = "disk2"
mode = "wt"
read_only = {read_only}

[[export]]
volume = "small"
nbd = "unix:small.sock"
"#
    );
    place.configure("wt", &more);
    let trace = place.path("two.csv");
    let requests = "7,W,0,4096,100\n8,W,4096,4096,200\n7,R,8192,4096,300\n";
    std::fs::write(&trace, requests).expect("written");
    let trace = text(&trace).to_owned();
    (place, trace)
}

fn holds_nothing(place: &Place, image: &str) -> bool {
    let data = std::fs::read(place.path(image)).expect("an image");
    let zeroes = vec![0; 1 << 20];
    data.chunks(1 << 20)
        .all(|chunk| *chunk == zeroes[..chunk.len()])
}

#[test]
fn a_volume_that_is_mapped_wrongly_writes_nowhere_else() {
    let (place, trace) = with_a_second_volume("replay-map", false);
    let config = place.path("forebay.toml");
    let replay = |maps: &[&str]| {
        let mut line = vec!["replay", &trace, "--format", "alibaba", "--on"];
        line.extend([text(&config), "--destroy-data"]);
        line.extend(maps.iter().flat_map(|map| ["--map", map]));
        place.run(&line)
    };
    // A wrong name; one of two names; a name that the trace lacks besides its own.
    for (maps, said) in [
        (
            &["hm0=small"][..],
            "volume \"7\" of the trace has no --map, and was not replayed",
        ),
        (&["7=small"], "volume \"8\" of the trace has no --map"),
        (
            &["7=small", "7=db"],
            "--map 7=small and --map 7=db: a volume of the trace goes to one place",
        ),
    ] {
        let output = replay(maps);
        let found = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{maps:?}: {output:?}");
        assert!(found.contains(said), "{maps:?}: {found}");
        assert!(
            holds_nothing(&place, "db.img") && holds_nothing(&place, "small.img"),
            "{maps:?}"
        );
    }
    let output = replay(&["7=small", "8=small", "9=db"]);
    let found = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        found.contains("the trace has no volume \"9\" (not found)\n    help: it has 7, 8"),
        "{found}"
    );
    assert!(holds_nothing(&place, "db.img"), "only where it was sent");
    let output = replay(&["7=small", "8=small"]);
    assert!(output.status.success(), "{output:?}");
    let warned = String::from_utf8_lossy(&output.stderr);
    assert!(
        warned.contains("may replace data of small") && !warned.contains("data of db"),
        "{warned}"
    );
    assert!(holds_nothing(&place, "db.img") && !holds_nothing(&place, "small.img"));
}

#[test]
fn read_only_and_duplicate_targets_are_refused_before_anything_is_written() {
    let (place, trace) = with_a_second_volume("replay-twice", true);
    let daemon = place.serve(&[]);
    let socket = |name: &str| text(&place.path(name)).to_owned();
    let db = format!("nbd+unix:///db?socket={}", socket("nbd.sock"));
    let small = format!("nbd+unix:///small?socket={}", socket("small.sock"));
    let other_way = format!("nbd+unix:///db?socket={}", socket("./nbd.sock"));
    let default = format!("nbd+unix:///?socket={}", socket("nbd.sock"));
    let line = |on: &[&str], how: &str| {
        let mut line = vec!["replay", &trace, "--format", "alibaba", how];
        line.extend(on.iter().flat_map(|on| ["--on", on]));
        place.run(&line)
    };
    for twice in [&db, &other_way, &default] {
        let output = line(&[&db, twice], "--destroy-data");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(said.contains("the same export"), "{twice}: {said}");
        assert_eq!(output.stdout, b"", "nothing was done");
    }
    let output = line(&[&db, &small], "--destroy-data");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        said.contains("small") && said.contains("read-only") && said.contains("--skip-writes"),
        "{said}"
    );
    assert!(!said.contains("replace data"), "{said}");
    assert_eq!(output.stdout, b"", "nothing was done");
    let output = line(&[&db, &small], "--skip-writes");
    assert!(output.status.success(), "{output:?}");
    daemon.terminate();
    assert!(holds_nothing(&place, "db.img"));
}

#[test]
fn a_server_that_vanishes_ends_the_replay_with_its_name() {
    let place = Place::new("replay-gone", "wb");
    let (trace, uri) = (generate(&place), uri(&place));
    let daemon = place.serve(&[]);
    // Ten seconds of requests.
    let mut command = place.command(&["replay", &trace, "--on", &uri, "--skip-writes"]);
    let command = command.args(["--speed", "0.001"]);
    let replay = Process::spawn_piped(command);
    place.wait_until(|status| status["volumes"][0]["operations"][0]["count"].as_u64() > Some(3));
    daemon.kill();
    let output = replay.output();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("the replay has stopped") && said.contains(&uri),
        "{said}"
    );
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        printed.contains("p99 us"),
        "what was measured is printed: {printed}"
    );
}

#[test]
fn a_replay_that_is_stopped_says_how_far_it_came() {
    let place = Place::new("replay-ends", "wb");
    let (trace, config) = (generate(&place), place.path("forebay.toml"));
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // It would take ten seconds.
        let mut command = place.command(&["replay", &trace, "--on", text(&config), "--json"]);
        command.args(["--speed", "0.001", "--skip-writes"]);
        let replay = Process::spawn_piped(&mut command);
        let begin = Instant::now();
        while !place.path("journal").exists() {
            assert!(
                begin.elapsed() < Duration::from_secs(20),
                "it does not begin"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        replay.wait_until_caught(signal);
        replay.signal(signal);
        let ended = replay.output();
        assert_eq!(ended.status.code(), Some(0), "{ended:?}");
        let all: Value = serde_json::from_slice(&ended.stdout).expect("JSON");
        assert_eq!(all["interrupted"], true, "{all}");
        assert!(number(&all, "/requests") < 2000, "{all}");
        assert!(
            !place.path("journal").exists(),
            "the cache was closed in order"
        );
    }
}
