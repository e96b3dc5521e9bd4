//! Files that differ from what their formats usually look like.

use forebay_trace::read::TimeUnit;
use forebay_trace::{Format, Op, OpenOptions, Trace};

use super::check::{self, Outcome};
use super::examples::{binaries, texts};

fn read(data: &[u8], format: Option<Format>, skip_bad: bool) -> Outcome {
    let options = OpenOptions {
        format,
        skip_bad,
        ..OpenOptions::default()
    };
    check::read(data, &options)
}

const MARK: &str = "\u{feff}";

#[test]
fn titles_and_byte_order_marks_are_no_records() {
    let titles = [
        (
            Format::Msr,
            "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime",
        ),
        (
            Format::Msr,
            "\"Timestamp\", \"Hostname\", \"DiskNumber\", \"Type\", \"Offset\"",
        ),
        (Format::Tencent, "Timestamp,Offset,Size,IOType,VolumeID"),
        (Format::Alibaba, "device_id,opcode,offset,length,timestamp"),
        (Format::Systor, "Timestamp,Response,IOType,LUN,Offset,Size"),
        (Format::Spc, "ASU,LBA,Size,Opcode,Timestamp"),
        (Format::VscsiCsv, "version,time,op,size,lbn"),
    ];
    for (format, title) in titles {
        let (_, text, requests, _) = texts()
            .into_iter()
            .find(|text| text.0 == format)
            .expect("one");
        // Some examples begin with a title.
        let text = text.strip_prefix(&format!("{title}\n")).unwrap_or(text);
        for (before, ignored) in [
            (String::new(), 0),
            (MARK.to_owned(), 0),
            (format!("{title}\n"), 1),
            (format!("{title}\r\n"), 1),
            (format!("{MARK}{title}\n"), 1),
        ] {
            for known in [Some(format), None] {
                for skip_bad in [false, true] {
                    let outcome = read(format!("{before}{text}").as_bytes(), known, skip_bad);
                    assert_eq!(outcome.error, None, "{format}: {before}");
                    assert_eq!(outcome.requests, requests, "{format}: {before}");
                    assert_eq!(outcome.counts.bad, 0, "{format}: {before}");
                    assert!(outcome.counts.ignored >= ignored, "{format}: {before}");
                }
            }
        }
        // Files that were joined; a title that comes late and is another one is a bad record.
        let joined = format!("{title}\n{}\n{title}\n{}", text.trim_end(), text);
        let outcome = read(joined.as_bytes(), Some(format), false);
        assert_eq!(
            (outcome.error, outcome.requests.len()),
            (None, 2 * requests.len())
        );
        let late = format!("{}\nother,{title}\n", text.trim_end());
        let said = read(late.as_bytes(), Some(format), false)
            .error
            .expect("no record");
        assert!(said.contains("line "), "{said}");
    }
}

#[test]
fn a_mark_alone_changes_no_other_format() {
    for (format, text, requests, volumes) in texts() {
        let outcome = read(format!("{MARK}{text}").as_bytes(), Some(format), false);
        assert_eq!(outcome.error, None, "{format}");
        assert_eq!(outcome.requests, requests, "{format}");
        assert_eq!(outcome.volumes, volumes, "{format}");
    }
}

#[test]
fn an_unknown_beginning_is_shown() {
    for text in ["Zeit;Ort;Art\n1;2;R\n", "hello world\n", "\u{feff}x\n"] {
        let said = read(text.as_bytes(), None, false).error.expect("no trace");
        let first = text.trim_start_matches(MARK).lines().next().expect("one");
        assert!(
            said.contains(&format!("it begins with \"{first}\"")),
            "{said}"
        );
    }
}

#[test]
fn blkparse_without_queue_events_takes_the_best_that_there_are() {
    let line = |number: u32, event: &str| {
        format!(
            "  8,16   0 {number:8}     0.00001798{number}  5314  {event}   R 1611592 + 256 [java]\n"
        )
    };
    let cases: [(&[&str], usize, Option<&str>); 5] = [
        (&["I", "D", "C"], 0, Some("the I events")),
        (&["D", "C"], 0, Some("the D events")),
        (&["C"], 0, Some("the C events")),
        (&["Q", "I", "D", "C"], 0, None),
        (&["G", "I", "D", "Q", "C"], 3, None),
    ];
    for (events, at, remark) in cases {
        let text: String = (1..)
            .zip(events)
            .map(|(number, event)| line(number, event))
            .collect();
        for format in [Some(Format::Blkparse), None] {
            let options = OpenOptions {
                format,
                ..OpenOptions::default()
            };
            let outcome = check::read(text.as_bytes(), &options);
            assert_eq!(outcome.error, None, "{events:?}");
            assert_eq!(outcome.requests.len(), 1, "{events:?}, at {at}");
            assert_eq!(outcome.requests[0].offset_bytes, 1_611_592 * 512);
            let data = std::io::Cursor::new(text.clone().into_bytes());
            let trace = Trace::from_reader("input", data, &options).expect("opens");
            let remarks = trace.remarks().join(" ");
            match remark {
                Some(remark) => assert!(remarks.contains(remark), "{events:?}: {remarks}"),
                None => assert_eq!(remarks, "", "{events:?}"),
            }
        }
    }
    // Nothing of these is a request.
    let outcome = read(line(1, "G").as_bytes(), Some(Format::Blkparse), false);
    assert_eq!((outcome.requests.len(), outcome.counts.ignored), (0, 1));
}

#[test]
fn a_last_line_that_was_cut_is_a_bad_record() {
    let msr = "128166372003061629,hm,0,Read,383496192,32768,413\n\
               128166372003061630,hm,1,Read,163840,16384,1";
    let spc = "0,20941264,8192,W,0.551706,a\n1,20939840,8192,r,0.554041,b";
    let csv = "1,5633898,2a,512,42932745,x\n1,5633899,28,6144,31954535,y";
    let fiu = "1 2 nfsd 508516672 8 W 6 0\n2 2 nfsd 508516680 8 W 6 10";
    let blk = "  8,16   0   1  0.1  53  Q   R 1611592 + 256 [java]\n  8,16   0   2  0.2  53  Q   R \
        1611592 + 256 [java]";
    for (format, text, cuts) in [
        (Format::Msr, msr, &[",1", "84,1", "6384,1"][..]),
        (Format::Spc, spc, &[",b", "41,b"]),
        (Format::VscsiCsv, csv, &[",y", "4535,y"]),
        (Format::Fiu, fiu, &[" 10"]),
        (Format::Blkparse, blk, &["]", " [java]", "6 [java]"]),
    ] {
        for end in ["", "\n"] {
            let outcome = read(format!("{text}{end}").as_bytes(), Some(format), false);
            assert_eq!(
                (outcome.error, outcome.requests.len()),
                (None, 2),
                "{format}"
            );
        }
        for cut in cuts {
            let text = text.strip_suffix(cut).expect("it ends like that");
            let said = read(text.as_bytes(), Some(format), false)
                .error
                .expect(text);
            assert!(
                said.contains("line 2") && said.contains("cut off"),
                "{format}: {said}"
            );
            let outcome = read(text.as_bytes(), Some(format), true);
            assert_eq!(
                (outcome.requests.len(), outcome.counts.bad),
                (1, 1),
                "{format}"
            );
        }
    }
}

#[test]
fn an_offset_that_no_volume_has_is_a_bad_record_of_its_line() {
    let far = 1_u64 << 56;
    let good = "419,W,8792731648,16384,1577808144360767\n";
    for bad in [
        format!("419,W,{far},16384,1577808144360768\n"),
        format!("419,R,{},8192,1577808144360768\n", far - 4096),
        format!("419,R,{},8192,1577808144360768\n", u64::MAX - 8192),
    ] {
        let text = format!("{good}{bad}{good}");
        let said = read(text.as_bytes(), Some(Format::Alibaba), false)
            .error
            .expect("too far");
        assert!(said.contains("line 2") && said.contains("2^56"), "{said}");
        let outcome = read(text.as_bytes(), Some(Format::Alibaba), true);
        assert_eq!((outcome.requests.len(), outcome.counts.bad), (2, 1));
    }
    let edge = format!("{good}419,W,{},4096,1577808144360768\n", far - 4096);
    let outcome = read(edge.as_bytes(), Some(Format::Alibaba), false);
    assert_eq!((outcome.error, outcome.requests.len()), (None, 2));
}

/// Many records of a binary format.
fn many(records: &[u8], bytes: usize) -> Vec<u8> {
    records[..bytes].repeat(200)
}

#[test]
fn a_bad_record_at_the_beginning_does_not_hide_the_format() {
    for (format, data, _) in binaries().into_iter().filter(|one| one.0 == Format::Vscsi) {
        // Five records each.
        let bytes = data.len() / 5;
        let sound = many(&data, bytes);
        for number in [0, 7, 199] {
            let zeroed = vec![0; bytes];
            let mut without_len = sound[..bytes].to_vec();
            let at = if bytes == 32 { 4 } else { 8 };
            without_len[at..at + 4].fill(0);
            for bad in [zeroed, without_len] {
                let mut damaged = sound.clone();
                damaged[number * bytes..][..bytes].copy_from_slice(&bad);
                for known in [None, Some(format)] {
                    let said = read(&damaged, known, false).error.expect("a bad record");
                    assert!(said.contains(&format!("record {} ", number + 1)), "{said}");
                    let outcome = read(&damaged, known, true);
                    assert_eq!(outcome.error, None);
                    assert_eq!((outcome.requests.len(), outcome.counts.bad), (199, 1));
                }
            }
        }
    }
}

#[test]
fn times_may_be_counted_in_another_unit() {
    let text = "0 0 303567 7 0\n300000000 1 240840 6 1\n";
    for (unit, ns) in [
        (None, 300_000_000),
        (Some(TimeUnit::Ns), 300_000_000),
        (Some(TimeUnit::HundredNs), 30_000_000_000),
        (Some(TimeUnit::Us), 300_000_000_000),
    ] {
        let options = OpenOptions {
            format: Some(Format::Ssdsim),
            time_unit: unit,
            ..OpenOptions::default()
        };
        let outcome = check::read(text.as_bytes(), &options);
        assert_eq!(
            (outcome.error, outcome.requests[1].time_ns),
            (None, ns),
            "{unit:?}"
        );
        assert_eq!(outcome.requests[1].op, Op::Read);
    }
    let with = |format, text: &str, unit| {
        let options = OpenOptions {
            format: Some(format),
            time_unit: Some(unit),
            ..OpenOptions::default()
        };
        check::read(text.as_bytes(), &options)
    };
    let outcome = with(
        Format::Spc,
        "0,8,8192,W,0.5\n0,8,8192,W,2.75\n",
        TimeUnit::Ms,
    );
    assert_eq!(outcome.requests[1].time_ns, 2_250_000);
    let said = with(Format::Lis, "230027 8 0 0\n", TimeUnit::Us)
        .error
        .expect("no times");
    assert!(said.contains("--time-unit"), "{said}");
    let late = format!("0 0 8 8 0\n{} 0 8 8 0\n", u64::MAX / 2);
    let said = with(Format::Ssdsim, &late, TimeUnit::S)
        .error
        .expect("too late");
    assert!(
        said.contains("64 bits") && said.contains("--time-unit"),
        "{said}"
    );
}
