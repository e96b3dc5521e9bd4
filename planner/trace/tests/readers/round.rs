//! A reader returns the requests that a writer wrote, as far as the format holds them.

use std::io::Cursor;
use std::path::PathBuf;

use forebay_trace::write::{Appender, FORMATS, Output, WriteOptions, Writer, Written, with_remedy};
use forebay_trace::{Format, Op, OpenOptions, Request, Trace, Volumes};
use proptest::prelude::*;

use super::{check, request};

fn written(
    format: Format,
    requests: &[Request],
    volumes: &Volumes,
    zero_unix_ns: u64,
) -> (Vec<u8>, Written) {
    let options = WriteOptions {
        zero_unix_ns,
        ..WriteOptions::default()
    };
    let mut writer = Writer::new(Vec::new(), format, &options).unwrap();
    // In several pieces, as they come.
    for piece in requests.chunks(7) {
        writer.write(piece, volumes).unwrap();
    }
    writer.finish().unwrap()
}

fn read(bytes: &[u8], format: Option<Format>) -> check::Outcome {
    let options = OpenOptions {
        format,
        ..OpenOptions::default()
    };
    let outcome = check::read(bytes, &options);
    assert_eq!(outcome.error, None);
    outcome
}

/// Returns a request as a format holds it. `None` if the format has no such request.
fn held(format: Format, request: &Request) -> Option<Request> {
    let data = matches!(request.op, Op::Read | Op::Write);
    let (unit_ns, op, one_volume, sectors) = match format {
        Format::Native => return Some(*request),
        Format::Msr => (100, data, false, false),
        Format::Alibaba => (1_000, data, false, false),
        Format::Fio => (1_000, true, false, false),
        Format::OracleGeneral => (1_000_000_000, data, true, true),
        Format::VscsiCsv => (1_000_000_000, request.op != Op::Discard, true, true),
        Format::VscsiCsvUs => (1_000, request.op != Op::Discard, true, true),
        other => panic!("{other} is not written"),
    };
    let mut held = Request {
        time_ns: request.time_ns / unit_ns * unit_ns,
        ..*request
    };
    if one_volume {
        held.volume = 0;
    }
    if sectors {
        let end = held.end_bytes().div_ceil(512) * 512;
        held.offset_bytes = held.offset_bytes / 512 * 512;
        held.len_bytes = u32::try_from(end - held.offset_bytes).unwrap();
    }
    if format == Format::OracleGeneral {
        held.op = Op::Read;
    }
    op.then_some(held)
}

fn any_request() -> impl Strategy<Value = Request> {
    let op = prop_oneof![
        Just(Op::Read),
        Just(Op::Write),
        Just(Op::Flush),
        Just(Op::Discard)
    ];
    let offset = prop_oneof![0..1_u64 << 20, 0..1_u64 << 50];
    (0..1_u64 << 40, op, offset, 1..1_u32 << 22, 0..5_u32).prop_map(
        |(time_ns, op, offset, len, volume)| match op {
            Op::Flush => request(time_ns, op, 0, 0, volume),
            _ => request(time_ns, op, offset, len, volume),
        },
    )
}

/// The requests with volumes numbered by appearance and the first time zero.
fn normal(requests: &[Request]) -> Vec<Request> {
    let mut seen = Vec::new();
    let zero_ns = requests
        .iter()
        .map(|request| request.time_ns)
        .min()
        .unwrap_or(0);
    let normal = |request: &Request| {
        let at = seen.iter().position(|volume| *volume == request.volume);
        let at = at.unwrap_or_else(|| {
            seen.push(request.volume);
            seen.len() - 1
        });
        Request {
            time_ns: request.time_ns - zero_ns,
            volume: u32::try_from(at).unwrap(),
            ..*request
        }
    };
    requests.iter().map(normal).collect()
}

proptest! {
    #[test]
    fn requests_come_back(
        mut requests in proptest::collection::vec(any_request(), 1..60),
        zero_s in prop_oneof![Just(0), 1_000_000_000..2_000_000_000_u64],
    ) {
        let mut volumes = Volumes::new();
        for name in ["src1_0", "7", "db", "usr_12", "a b"] {
            volumes.number(name).unwrap();
        }
        requests.sort_by_key(|request| request.time_ns);
        let requests = normal(&requests);
        for format in FORMATS {
            let expected = requests.iter().filter_map(|request| held(format, request));
            let expected: Vec<_> = expected.collect();
            let mut given = requests.clone();
            if matches!(format, Format::OracleGeneral | Format::VscsiCsv | Format::VscsiCsvUs) {
                given.iter_mut().for_each(|request| request.volume = 0);
            }
            let (bytes, written) = written(format, &given, &volumes, zero_s * 1_000_000_000);
            let found = read(&bytes, Some(format));
            prop_assert_eq!(&found.requests, &normal(&expected), "{}", format);
            prop_assert_eq!(written.requests, expected.len() as u64);
            prop_assert_eq!(written.dropped, (requests.len() - expected.len()) as u64);
            if !expected.is_empty() {
                // The reader tells it by itself.
                prop_assert_eq!(read(&bytes, None).requests, found.requests, "{}", format);
            }
        }
    }

    #[test]
    fn native_files_keep_the_order(requests in proptest::collection::vec(any_request(), 1..60)) {
        let requests = normal(&requests);
        let mut volumes = Volumes::new();
        for number in 0..5 {
            volumes.number(&format!("volume {number}")).unwrap();
        }
        let (bytes, _) = written(Format::Native, &requests, &volumes, 77);
        let found = read(&bytes, None);
        prop_assert_eq!(&found.requests, &requests);
        let names = volumes.names();
        prop_assert_eq!(&found.volumes[..], &names[..found.volumes.len()]);
    }
}

#[test]
fn names_come_back() {
    let mut volumes = Volumes::new();
    for name in ["hm_0", "web", "x_y_12", "a,b"] {
        volumes.number(name).unwrap();
    }
    let requests: Vec<_> = (0..4)
        .map(|volume| request(0, Op::Read, 0, 512, volume))
        .collect();
    for (format, names) in [
        (Format::Native, ["hm_0", "web", "x_y_12", "a,b"]),
        (Format::Msr, ["hm_0", "web_0", "x_y_12", "a_b_0"]),
        (Format::Fio, ["hm_0", "web", "x_y_12", "a,b"]),
        (Format::Alibaba, ["0", "1", "2", "3"]),
    ] {
        let (bytes, _) = written(format, &requests, &volumes, 0);
        assert_eq!(read(&bytes, Some(format)).volumes, names, "{format}");
    }
}

#[test]
fn devices_stay_numbers_and_apart() {
    let mut volumes = Volumes::new();
    for name in ["1", "db", "2", "007", "7"] {
        volumes.number(name).unwrap();
    }
    let requests: Vec<_> = (0..5)
        .map(|volume| request(0, Op::Read, 0, 512, volume))
        .collect();
    let (bytes, _) = written(Format::Alibaba, &requests, &volumes, 0);
    // "db" would be 1, which is taken, so it is 2, and so on.
    assert_eq!(read(&bytes, None).volumes, ["1", "2", "3", "4", "7"]);
}

#[test]
fn one_volume_stays_one() {
    let mut volumes = Volumes::new();
    volumes.number("a").unwrap();
    volumes.number("b").unwrap();
    for format in [Format::OracleGeneral, Format::VscsiCsv, Format::VscsiCsvUs] {
        let mut writer = Writer::new(Vec::new(), format, &WriteOptions::default()).unwrap();
        writer
            .write(&[request(0, Op::Read, 0, 512, 1)], &volumes)
            .unwrap();
        let refused = writer.write(&[request(0, Op::Read, 0, 512, 0)], &volumes);
        let said = refused.expect_err("another volume").report();
        assert!(
            said.contains("\"b\" and \"a\"") && said.contains("--volume"),
            "{said}"
        );
    }
}

#[test]
fn the_next_access_is_that_of_the_same_sector() {
    let mut volumes = Volumes::new();
    volumes.number("v").unwrap();
    let offsets = [0, 512, 0, 1024, 512, 0];
    let requests: Vec<_> = offsets
        .iter()
        .map(|offset| request(0, Op::Read, *offset, 512, 0))
        .collect();
    let (bytes, _) = written(Format::OracleGeneral, &requests, &volumes, 0);
    let next = |record: &[u8]| i64::from_le_bytes(record[16..].try_into().unwrap());
    let next: Vec<_> = bytes.chunks_exact(24).map(next).collect();
    // Counted from one.
    assert_eq!(next, [3, 5, 6, -1, -1, -1]);
}

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn folder(name: &str) -> Folder {
    let path = std::env::temp_dir().join(format!("forebay-trace-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    Folder(path)
}

#[test]
fn a_recorder_goes_on_wherever_it_was_cut_off() {
    let folder = folder("append");
    let path = folder.0.join("recorded");
    let mut volumes = Volumes::new();
    volumes.number("a").unwrap();
    let mut appender = Appender::create(&path, 5).unwrap();
    appender
        .write(&[request(1, Op::Read, 0, 512, 0)], &volumes)
        .unwrap();
    appender
        .write(&[request(2, Op::Read, 0, 512, 0)], &volumes)
        .unwrap();
    appender.sync().unwrap();
    drop(appender);
    assert!(Appender::create(&path, 5).is_err(), "it exists");
    let whole = std::fs::read(&path).unwrap();
    for end in 32..=whole.len() {
        std::fs::write(&path, &whole[..end]).unwrap();
        let (mut appender, recorded) = Appender::open(&path).unwrap();
        assert_eq!(recorded.zero_unix_ns, 5);
        let mut volumes = recorded.volumes;
        let volume = volumes.number("b").unwrap();
        appender
            .write(&[request(9, Op::Write, 0, 512, volume)], &volumes)
            .unwrap();
        drop(appender);
        let found = read(&std::fs::read(&path).unwrap(), None);
        assert_eq!(
            found.requests.len() as u64,
            recorded.requests + 1,
            "cut at {end}"
        );
        assert_eq!(found.counts.cut_bytes, 0);
        assert_eq!(found.volumes.last().map(String::as_str), Some("b"));
    }
    std::fs::write(&path, b"something else that is longer than a header is").unwrap();
    let said = Appender::open(&path).err().expect("refused").report();
    assert!(
        said.contains("does not begin as a native trace does"),
        "{said}"
    );
    assert!(
        std::fs::read(&path).unwrap().starts_with(b"something"),
        "it is left alone"
    );
}

#[test]
fn a_recording_counts_lost_requests() {
    let mut volumes = Volumes::new();
    volumes.number("a").unwrap();
    let options = WriteOptions::default();
    for format in [Format::Native, Format::Alibaba] {
        let mut writer = Writer::new(Vec::new(), format, &options).unwrap();
        writer.lost(0).unwrap();
        for number in [3, (1 << 33) + 1] {
            let request = request(1_000, Op::Read, 0, 512, 0);
            writer.write(&[request], &volumes).unwrap();
            writer.lost(number).unwrap();
        }
        let bytes = std::mem::take(writer.get_mut());
        let found = read(&bytes, Some(format));
        let lost = if format == Format::Native {
            (1 << 33) + 4
        } else {
            0
        };
        assert_eq!(
            (found.requests.len(), found.counts.lost),
            (2, lost),
            "{format}"
        );
    }
    let folder = folder("lost");
    let path = folder.0.join("recorded");
    let mut appender = Appender::create(&path, 5).unwrap();
    appender.lost(7).unwrap();
    drop(appender);
    let (_, recorded) = Appender::open(&path).unwrap();
    assert_eq!((recorded.lost, recorded.requests), (7, 0));
    assert_eq!(read(&std::fs::read(&path).unwrap(), None).counts.lost, 7);
}

#[test]
fn an_output_is_whole_or_not_there() {
    let folder = folder("output");
    let mut volumes = Volumes::new();
    volumes.number("v").unwrap();
    let requests: Vec<_> = (0..10_000)
        .map(|n| request(n * 1_000, Op::Read, n * 512, 512, 0))
        .collect();
    let write = |name: &str, force: bool| {
        let output = Output::create(&folder.0.join(name), force)?;
        let mut writer = Writer::new(output, Format::Alibaba, &WriteOptions::default())?;
        writer.write(&requests, &volumes)?;
        assert!(!folder.0.join(name).exists() || force);
        writer.finish()?.0.finish()
    };
    let mut sizes = Vec::new();
    for name in ["a.csv", "a.csv.gz", "a.csv.xz", "a.csv.zst"] {
        sizes.push(write(name, false).unwrap());
        let said = write(name, false).expect_err("it exists").report();
        assert!(
            said.contains("exists") && said.contains("--force"),
            "{said}"
        );
        write(name, true).unwrap();
        let mut trace = Trace::open(&[folder.0.join(name)], &OpenOptions::default()).unwrap();
        let (mut batch, mut all) = (Vec::new(), Vec::new());
        while trace.fill(&mut batch).unwrap() {
            all.append(&mut batch);
        }
        assert!(all == requests, "{name}");
    }
    assert!(
        sizes[1..].iter().all(|size| *size * 2 < sizes[0]),
        "{sizes:?}"
    );
    drop(Output::create(&folder.0.join("left"), false).unwrap());
    assert!(
        Output::create(&folder.0, true).is_err(),
        "a folder is no file"
    );
    let mut names: Vec<_> = std::fs::read_dir(&folder.0)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["a.csv", "a.csv.gz", "a.csv.xz", "a.csv.zst"]);
}

#[test]
fn an_output_goes_behind_a_link_and_over_nothing_but_a_file() {
    use std::os::unix::fs::symlink;
    let folder = folder("links");
    let at = |name: &str| folder.0.join(name);
    std::fs::write(at("real"), "old").unwrap();
    symlink("real", at("link")).unwrap();
    symlink("nothing", at("dangling")).unwrap();
    assert!(Output::create(&at("link"), false).is_err(), "it exists");
    let mut output = Output::create(&at("link"), true).unwrap();
    std::io::Write::write_all(&mut output, b"new").unwrap();
    assert_eq!(
        std::fs::read(at("real")).unwrap(),
        b"old",
        "until it is whole"
    );
    output.finish().unwrap();
    assert_eq!(std::fs::read(at("real")).unwrap(), b"new");
    assert!(at("link").is_symlink());
    for (name, said) in [
        ("dangling", "link to nothing"),
        ("none/out", "not a directory"),
        ("real/out", "not a directory"),
        ("", "no regular file"),
        ("..", "no file's name"),
    ] {
        let error = Output::create(&at(name), true).err().expect(name).report();
        assert!(error.contains(said), "{name}: {error}");
    }
    let error = Output::create(std::path::Path::new("/dev/null"), true);
    let error = error.err().expect("a device").report();
    assert!(error.contains("no regular file"), "{error}");
}

#[test]
fn part_files_of_dead_processes_are_removed_and_of_live_ones_stay() {
    let folder = folder("stale");
    let at = |name: &str| folder.0.join(name);
    // No process has this number: they end at 2^22.
    std::fs::write(at(".out.4294967295.part"), "left").unwrap();
    // Another process holds it.
    let held = std::fs::File::create(at(".out.4294967294.part")).unwrap();
    held.lock().unwrap();
    let alive = format!(".out.{}.part", std::os::unix::process::parent_id());
    for name in [&alive, ".other.4294967295.part", ".out.x.part"] {
        std::fs::write(at(name), "").unwrap();
    }
    drop(Output::create(&at("out"), false).unwrap());
    let mut names: Vec<_> = std::fs::read_dir(&folder.0)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let mut expected = [
        ".other.4294967295.part",
        ".out.4294967294.part",
        &alive,
        ".out.x.part",
    ];
    expected.sort();
    assert_eq!(names, expected);
}

#[test]
fn errors_for_lack_of_space_name_a_remedy() {
    use std::io::{Error, ErrorKind};
    let path = std::path::Path::new("/a/b");
    let said = |kind: ErrorKind| with_remedy(path, Error::from(kind));
    for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
        let error = said(kind);
        assert_eq!(error.kind(), kind);
        let text = error.to_string();
        assert!(
            text.contains("in /a: free some space, or name a file on another"),
            "{text}"
        );
    }
    assert!(said(ErrorKind::FileTooLarge).to_string().contains("ulimit"));
    assert_eq!(
        said(ErrorKind::NotFound).to_string(),
        Error::from(ErrorKind::NotFound).to_string()
    );
}

#[test]
fn a_reader_needs_no_file() {
    let text = "7,R,0,512,100\n";
    let options = OpenOptions::default();
    let mut trace = Trace::from_reader("pipe", Cursor::new(text), &options).unwrap();
    let mut batch = Vec::new();
    assert!(trace.fill(&mut batch).unwrap());
    assert_eq!((trace.size_bytes(), trace.progress().read_bytes()), (0, 14));
}
