//! Every format by example.

use forebay_trace::{Format, Op, OpenOptions, Request};

use super::check::{self, Outcome};
use super::request;

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const S: u64 = 1_000_000_000;

pub(super) const FIO_V3: &str = "fio version 3 iolog
0 a add
5 a open
130 a read 61440 4096
443 a write 774144 8192
500 a sync 774144 0
600 b trim 0 1048576
600 b sync_file_range 0 0
700 a datasync 0 0
900 a close
";

/// Small traces of text formats, with their requests.
pub(super) fn texts() -> Vec<(Format, &'static str, Vec<Request>, &'static [&'static str])> {
    use Op::{Discard, Flush, Read, Write};
    vec![
        (
            Format::Msr,
            "128166372003061629,hm,0,Read,383496192,32768,413\n\
             128166372003061630,hm,1,Write,512,512,1\r\n\
             128166372003061631,prn,0,Read,0,4096,1",
            vec![
                request(0, Read, 383_496_192, 32_768, 0),
                request(100, Write, 512, 512, 1),
                request(200, Read, 0, 4096, 2),
            ],
            &["hm_0", "hm_1", "prn_0"],
        ),
        (
            Format::Alibaba,
            "419,W,8792731648,16384,1577808144360767\n725,R,59110326272,360448,1577808144360813\n",
            vec![
                request(0, Write, 8_792_731_648, 16_384, 0),
                request(46 * US, Read, 59_110_326_272, 360_448, 1),
            ],
            &["419", "725"],
        ),
        (
            Format::Tencent,
            "1538323200,12910952,128,0,1063\n1538323199,6265640,8,1,1074\n",
            vec![
                request(S, Read, 12_910_952 * 512, 65_536, 0),
                request(0, Write, 6_265_640 * 512, 4096, 1),
            ],
            &["1063", "1074"],
        ),
        (
            Format::Systor,
            "Timestamp,Response,IOType,LUN,Offset,Size\n\
             1456095145.133076000,0.000806000,R,0,899056122368,131072\n\
             1456095145.133076001,,W,3,0,512\n",
            vec![
                request(0, Read, 899_056_122_368, 131_072, 0),
                request(1, Write, 0, 512, 1),
            ],
            &["0", "3"],
        ),
        (
            Format::Spc,
            "0,20941264,8192,W,0.551706\n1,20939840,8192,r,0.554041,more,columns\n",
            vec![
                request(0, Write, 20_941_264 * 512, 8192, 0),
                request(2_335 * US, Read, 20_939_840 * 512, 8192, 1),
            ],
            &["0", "1"],
        ),
        (
            Format::Ssdsim,
            "0 0 303567 7 0\n26214000 1 240840 6 1\n",
            vec![
                request(0, Write, 303_567 * 512, 7 * 512, 0),
                request(26_214_000, Read, 240_840 * 512, 6 * 512, 1),
            ],
            &["0", "1"],
        ),
        (
            Format::Replayer,
            "0.000 5 174224064 16 1\n0.221 5 162947904 16 0\n",
            vec![
                request(0, Read, 174_224_064 * 512, 8192, 0),
                request(221 * US, Write, 162_947_904 * 512, 8192, 0),
            ],
            &["5"],
        ),
        (
            Format::Flashsim,
            "0.000000 0 303567 1 0\n26.5 0 55590 2 1\n",
            vec![
                request(0, Write, 303_567 * 512, 4096, 0),
                request(26 * MS + 500 * US, Read, 55_590 * 512, 8192, 0),
            ],
            &["0"],
        ),
        (
            Format::VscsiCsv,
            "version,time,op,size,lbn\n1,5633898,2a,512,42932745\n1,5633899,28,6144,31954535\n\
             1,5633899,35,0,0\n1,5633900,12,36,0\n",
            vec![
                request(0, Write, 42_932_745 * 512, 512, 0),
                request(S, Read, 31_954_535 * 512, 6144, 0),
                request(S, Flush, 0, 0, 0),
            ],
            &["input"],
        ),
        (
            Format::VscsiCsvUs,
            "version,time,op,size,lbn\n1,5633898611441,2a,512,42932745\n\
             1,5633898611500,28,6144,31954535\n",
            vec![
                request(0, Write, 42_932_745 * 512, 512, 0),
                request(59 * US, Read, 31_954_535 * 512, 6144, 0),
            ],
            &["input"],
        ),
        (
            Format::Lis,
            "230027 8 0 0\n1842745 64 0 1\n",
            vec![
                request(0, Read, 230_027 * 512, 4096, 0),
                request(1, Read, 1_842_745 * 512, 32_768, 0),
            ],
            &["input"],
        ),
        (
            Format::Smartphone,
            "4043872\t\t96\t\t49152\t\t5\t\t1398396860.168065791\
             \t\t1398396860.2\t\t1398396860.3\t\t1398396860.4\n\
             52432368\t\t8\t\t4096\t\t0\t\t1398396860.168065792\
             \t\t1398396860.2\t\t1398396860.3\t\t1398396860.4\n",
            vec![
                request(0, Write, 4_043_872 * 512, 49_152, 0),
                request(1, Read, 52_432_368 * 512, 4096, 0),
            ],
            &["input"],
        ),
        (
            Format::Blkparse,
            "259,2    0        1     0.000000000  4020  Q   R 282624 + 8 [java]\n\
             259,2    0        2     0.000001581  4020  G   R 282624 + 8 [java]\n\
             259,2    0        3     0.000003650  4020  U   N [java] 1\n\
               8,16   1        4     0.000004000  4020  Q  WS 8 + 16 [java]\n\
             259,2    0        5     0.000005000  4020  Q FWS [jbd2]\n\
             259,2    0        6     0.000006000  4020  Q  DS 0 + 2048 [fstrim]\n\
             CPU0 (259,2):\n Reads Queued:           1,        4KiB\n",
            vec![
                request(0, Read, 282_624 * 512, 4096, 0),
                request(4 * US, Write, 4096, 8192, 1),
                request(5 * US, Flush, 0, 0, 0),
                request(6 * US, Discard, 0, 1 << 20, 0),
            ],
            &["259,2", "8,16"],
        ),
        (
            Format::Fiu,
            "89966527950584 4253 nfsd 508516672 8 W 6 0 88b93b628d84082186026d9da044f173\n\
             89966527996712 4253 kworker/u8:1 x 508516680 8 W 6 0 \
             b5e9f4e5ab62a4fff5313a606b0ad4e3\n\
             89966527996713 1  httpd  64 16 R  8  1\n",
            vec![
                request(0, Write, 508_516_672 * 512, 4096, 0),
                request(46_128, Write, 508_516_680 * 512, 4096, 0),
                request(46_129, Read, 32_768, 8192, 1),
            ],
            &["6,0", "8,1"],
        ),
        (
            Format::Fio,
            FIO_V3,
            vec![
                request(0, Read, 61_440, 4096, 0),
                request(313 * US, Write, 774_144, 8192, 0),
                request(370 * US, Flush, 0, 0, 0),
                request(470 * US, Discard, 0, 1 << 20, 1),
                request(570 * US, Flush, 0, 0, 0),
            ],
            &["a", "b"],
        ),
        (
            Format::Fio,
            "fio version 2 iolog\na add\na open\na read 0 4096\na read 4096 4096\na wait 1000 0\na \
             write 0 4096\na close\n",
            vec![
                request(0, Read, 0, 4096, 0),
                request(1, Read, 4096, 4096, 0),
                request(1_000 * US, Write, 0, 4096, 0),
            ],
            &["a"],
        ),
    ]
}

/// Small traces of binary formats, with their requests.
pub(super) fn binaries() -> Vec<(Format, Vec<u8>, Vec<Request>)> {
    let mut v1 = Vec::new();
    let mut v2 = Vec::new();
    for (number, command, len, lbn, time_us) in [
        (
            1_u32,
            0x2a_u16,
            512_u32,
            42_932_745_u64,
            5_633_898_611_441_u64,
        ),
        (2, 0x28, 65_536, 128, 5_633_898_611_541),
        (3, 0x35, 0, 0, 5_633_898_611_541),
        (4, 0x12, 36, 0, 5_633_898_611_541),
        (5, 0x88, 4096, 1 << 40, 5_633_898_611_542),
    ] {
        v1.extend(number.to_le_bytes());
        v1.extend(len.to_le_bytes());
        v1.extend(1_u32.to_le_bytes());
        v1.extend(command.to_le_bytes());
        v1.extend(0x0100_u16.to_le_bytes());
        v1.extend(lbn.to_le_bytes());
        v1.extend(time_us.to_le_bytes());
        v2.extend(command.to_le_bytes());
        v2.extend(0x0200_u16.to_le_bytes());
        v2.extend(number.to_le_bytes());
        v2.extend(len.to_le_bytes());
        v2.extend(1_u32.to_le_bytes());
        v2.extend(lbn.to_le_bytes());
        v2.extend(time_us.to_le_bytes());
        v2.extend(77_u64.to_le_bytes());
    }
    let vscsi = vec![
        request(0, Op::Write, 42_932_745 * 512, 512, 0),
        request(100 * US, Op::Read, 65_536, 65_536, 0),
        request(100 * US, Op::Flush, 0, 0, 0),
        request(101 * US, Op::Read, 1 << 49, 4096, 0),
    ];
    let mut oracle = Vec::new();
    for (time_s, id, size, next) in [
        (7_u32, 9_u64, 4096_u32, 3_i64),
        (7, 1, 512, -1),
        (9, 9, 4096, -1),
    ] {
        oracle.extend(time_s.to_le_bytes());
        oracle.extend(id.to_le_bytes());
        oracle.extend(size.to_le_bytes());
        oracle.extend(next.to_le_bytes());
    }
    let ids: Vec<u8> = [3_u32, 1, 0x00ff_ffff]
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect();
    vec![
        (Format::Vscsi, v1, vscsi.clone()),
        (Format::Vscsi, v2, vscsi),
        (
            Format::OracleGeneral,
            oracle,
            vec![
                request(0, Op::Read, 9 * 512, 4096, 0),
                request(0, Op::Read, 512, 512, 0),
                request(2 * S, Op::Read, 9 * 512, 4096, 0),
            ],
        ),
        (
            Format::BlockIds,
            ids,
            vec![
                request(0, Op::Read, 3 << 14, 16_384, 0),
                request(1, Op::Read, 1 << 14, 16_384, 0),
                request(2, Op::Read, 0x00ff_ffff << 14, 16_384, 0),
            ],
        ),
    ]
}

fn read(data: &[u8], format: Option<Format>) -> Outcome {
    let options = OpenOptions {
        format,
        ..OpenOptions::default()
    };
    check::read(data, &options)
}

#[test]
fn text_formats_are_read_as_expected() {
    for (format, text, requests, volumes) in texts() {
        let outcome = read(text.as_bytes(), Some(format));
        assert_eq!(outcome.error, None, "{format}");
        assert_eq!(outcome.requests, requests, "{format}");
        assert_eq!(outcome.volumes, volumes, "{format}");
    }
}

#[test]
fn binary_formats_are_read_as_expected() {
    for (format, bytes, requests) in binaries() {
        let outcome = read(&bytes, Some(format));
        assert_eq!(outcome.error, None, "{format}");
        assert_eq!(outcome.requests, requests, "{format}");
        assert_eq!(outcome.volumes, ["input"]);
    }
}

#[test]
fn every_format_has_an_example() {
    let mut formats: Vec<_> = texts().into_iter().map(|text| text.0).collect();
    formats.extend(binaries().into_iter().map(|binary| binary.0));
    // The native one is made by its writer.
    formats.push(Format::Native);
    for format in Format::ALL {
        assert!(formats.contains(&format), "{format}");
        assert_eq!(format.name().parse::<Format>().ok(), Some(format));
    }
}

#[test]
fn a_format_is_detected_from_its_beginning() {
    for (format, text, requests, _) in texts() {
        let outcome = read(text.as_bytes(), None);
        match format {
            Format::Flashsim => {
                let said = outcome.error.expect("it may be two");
                assert!(
                    said.contains("replayer or flashsim; say which with --format"),
                    "{said}"
                );
            }
            _ => assert_eq!(
                (outcome.error, outcome.requests),
                (None, requests),
                "{format}"
            ),
        }
    }
    for (format, bytes, requests) in binaries() {
        let outcome = read(&bytes, None);
        match format {
            Format::BlockIds => {
                let said = outcome.error.expect("they may be anything");
                assert!(
                    said.contains("cannot tell the format") && said.contains("block-ids"),
                    "{said}"
                );
            }
            _ => assert_eq!(
                (outcome.error, outcome.requests),
                (None, requests),
                "{format}"
            ),
        }
    }
}

#[test]
fn input_that_is_no_trace_is_refused() {
    for text in ["", "hello\nworld\n", "1,2\n", "a b c d e\n", "\u{feff}"] {
        let said = read(text.as_bytes(), None).error.expect(text);
        assert!(said.contains("input"), "{said}");
        assert!(text.is_empty() || said.contains("oracle-general"), "{said}");
    }
    let said = read(b"hello", Some(Format::Vscsi)).error.expect("refused");
    assert!(said.contains("is not a vscsi trace"), "{said}");
    let said = read(b"hello", Some(Format::Native)).error.expect("refused");
    assert!(said.contains("cut off within its header"), "{said}");
    let said = read(b"a read 0 4096\n", Some(Format::Fio))
        .error
        .expect("refused");
    assert!(said.contains("fio version 3 iolog"), "{said}");
}

#[test]
fn seconds_and_microseconds_are_distinguished_where_they_can_be() {
    let line = |time: u64| format!("1,{time},2a,512,8\n1,{},28,512,8\n", time + 2);
    for (time, unit_ns) in [(5_633_898, S), (5_633_898_611_441, US)] {
        let outcome = read(line(time).as_bytes(), None);
        assert_eq!(outcome.requests[1].time_ns, 2 * unit_ns);
    }
    let said = read(line(3_000_000_000).as_bytes(), None)
        .error
        .expect("open");
    assert!(said.contains("vscsi-csv or vscsi-csv-us"), "{said}");
}
