//! Records the requests that the daemon serves.

use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use forebay_trace::read::Counts;
use forebay_trace::{Op, OpenOptions, Request, Trace};

use super::support::{Place, Process, text};

/// A running recorder, killed on drop.
struct Recorder(Process);

impl Recorder {
    /// Starts one and waits until the daemon records.
    fn start(place: &Place, arguments: &[&str]) -> Self {
        let before = place.log().matches("recording db").count();
        let mut command = place.command(&["trace", "record"]);
        command.args(arguments);
        let recorder = Process::spawn_piped(&mut command);
        recorder.wait_until_caught(libc::SIGINT);
        let begin = Instant::now();
        while place.log().matches("recording db").count() == before {
            assert!(begin.elapsed() < Duration::from_secs(20), "{}", place.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        Self(recorder)
    }

    fn interrupt(&self) {
        self.0.signal(libc::SIGINT);
    }

    fn ended(self) -> Output {
        self.0.output()
    }

    /// Returns its output; it must have succeeded.
    fn ok(self) -> String {
        let output = self.ended();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    }
}

fn read(path: &Path) -> (Vec<Request>, Counts) {
    let mut trace = Trace::open(&[path], &OpenOptions::default()).expect("a trace");
    let (mut batch, mut all) = (Vec::new(), Vec::new());
    while trace.fill(&mut batch).expect("it is sound") {
        all.append(&mut batch);
    }
    let names = trace.volumes().names();
    assert!(names.is_empty() || names == ["db"], "{names:?}");
    (all, trace.counts())
}

fn asked(requests: &[Request]) -> Vec<(Op, u64, u32)> {
    let asked = requests
        .iter()
        .map(|request| (request.op, request.offset_bytes, request.len_bytes));
    asked.collect()
}

#[test]
fn a_recording_has_exactly_the_requests_made_during_it() {
    let place = Place::new("record", "wb");
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    nbd.flush().expect("before the recording");
    let out = place.path("out.fbt");
    let recorder = Recorder::start(&place, &[text(&out), "--volume", "db"]);
    let begin = Instant::now();
    let mut expected = Vec::new();
    for number in 0..200_u64 {
        let (offset, len) = (number * 12_288, 512 * (1 + number as u32 % 40));
        assert_eq!(nbd.write(offset, &vec![1; len as usize]).expect("sent"), 0);
        expected.push((Op::Write, offset, len));
        nbd.read(offset + 4096, 4096).expect("sent").expect("read");
        expected.push((Op::Read, offset + 4096, 4096));
    }
    assert_eq!(nbd.flush().expect("sent"), 0);
    expected.push((Op::Flush, 0, 0));
    let refused = nbd.read(1 << 40, 512).expect("sent");
    assert!(refused.is_err(), "past the end, and not recorded");
    recorder.interrupt();
    let said = recorder.ok();
    assert!(
        said.contains("as asked: 401 requests of 1 volume, none lost"),
        "{said}"
    );
    nbd.flush().expect("after the recording");
    let (requests, counts) = read(&out);
    assert_eq!(asked(&requests), expected);
    assert_eq!(counts, Counts::default());
    assert!(requests.is_sorted_by_key(|request| request.time_ns));
    let span = requests.last().expect("some").time_ns - requests[0].time_ns;
    let span = Duration::from_nanos(span);
    assert!(span > Duration::ZERO && span < begin.elapsed(), "{span:?}");
    // The daemon records a second time, and does not overwrite the existing file.
    let said = place.refused(&["trace", "record", text(&out)]);
    assert!(
        said.contains("exists") && said.contains("--force"),
        "{said}"
    );
    let recorder = Recorder::start(&place, &[text(&out), "--force", "--duration", "300ms"]);
    recorder.ok();
    assert_eq!(read(&out).0, []);
    daemon.terminate();
}

#[test]
fn a_recording_ends_at_its_size() {
    let place = Place::new("record-size", "wb");
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    let out = place.path("out.fbt");
    let recorder = Recorder::start(&place, &[text(&out), "--max-size", "5000"]);
    let begin = Instant::now();
    while !place.log().contains("it has the size that it may have") {
        nbd.read(4096, 4096).expect("sent").expect("read");
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", place.log());
    }
    recorder.ok();
    let size = std::fs::metadata(&out).expect("it is there").len();
    assert!((4900..=5000).contains(&size), "{size}");
    let (requests, counts) = read(&out);
    assert!(requests.len() > 150, "{}", requests.len());
    assert_eq!(counts, Counts::default());
    daemon.terminate();
}

#[test]
fn the_end_of_the_daemon_is_that_of_the_recording() {
    let place = Place::new("record-end", "wb");
    let out = place.path("out.fbt");
    for orderly in [true, false] {
        let daemon = place.serve(&[]);
        let mut nbd = place.connect();
        let recorder = Recorder::start(&place, &[text(&out), "--force"]);
        nbd.write(0, &[7; 4096]).expect("sent");
        if orderly {
            daemon.terminate();
            let said = recorder.ok();
            assert!(
                said.contains("the daemon stops: 1 request of 1 volume"),
                "{said}"
            );
        } else {
            // Until it was sent.
            let begin = Instant::now();
            while std::fs::metadata(&out).map_or(0, |file| file.len()) < 80 {
                assert!(begin.elapsed() < Duration::from_secs(20));
                std::thread::sleep(Duration::from_millis(5));
            }
            daemon.kill();
            let output = recorder.ended();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{said}");
            assert!(
                said.contains("can be read up to there: 1 request"),
                "{said}"
            );
        }
        assert_eq!(asked(&read(&out).0), [(Op::Write, 0, 4096)]);
        std::fs::remove_file(&out).expect("it is there");
    }
}

#[test]
fn a_killed_recorder_leaves_recorded_requests_and_frees_its_place() {
    let place = Place::new("record-kill", "wb");
    let daemon = place.serve(&[]);
    let mut nbd = place.connect();
    let (out, other) = (place.path("out.fbt"), place.path("other.fbt"));
    let recorder = Recorder::start(&place, &[text(&out)]);
    let said = place.refused(&["trace", "record", text(&other)]);
    assert!(said.contains("in progress already"), "{said}");
    assert!(!other.exists(), "nothing was begun");
    nbd.write(8192, &[7; 4096]).expect("sent");
    let begin = Instant::now();
    while std::fs::metadata(&out).map_or(0, |file| file.len()) < 80 {
        assert!(begin.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(recorder);
    assert_eq!(asked(&read(&out).0), [(Op::Write, 8192, 4096)]);
    let begin = Instant::now();
    while !place
        .run(&["trace", "record", text(&other), "--duration", "50ms"])
        .status
        .success()
    {
        assert!(begin.elapsed() < Duration::from_secs(20), "{}", place.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    daemon.terminate();
}

#[test]
fn recordings_that_cannot_begin_are_refused_with_the_cause() {
    let place = Place::new("record-no", "wb");
    let out = place.path("out.fbt");
    let said = place.refused(&["trace", "record", text(&out)]);
    assert!(said.contains("no daemon answers on"), "{said}");
    assert!(!out.exists());
    let daemon = place.serve(&[]);
    let said = place.refused(&["trace", "record", text(&out), "--volume", "dbx"]);
    assert!(
        said.contains("no volume \"dbx\" (not found)\n    help: there are: db"),
        "{said}"
    );
    assert!(!out.exists());
    let said = place.refused(&["trace", "record", text(&place.path("none/out"))]);
    assert!(said.contains("none/out"), "{said}");
    daemon.terminate();
}
