//! Damaged and hostile input: an error that says where and what, never a panic and never much
//! memory.

use std::io::{Cursor, Read};

use forebay_trace::write::{WriteOptions, Writer};
use forebay_trace::{Format, Op, OpenOptions, Trace, Volumes};

use super::check;
use super::examples::{binaries, texts};
use super::request;

fn options(format: Format, skip_bad: bool) -> OpenOptions {
    OpenOptions {
        format: Some(format),
        skip_bad,
        sort_window: 0,
        ..OpenOptions::default()
    }
}

fn native() -> Vec<u8> {
    let mut volumes = Volumes::new();
    let mut writer = Writer::new(Vec::new(), Format::Native, &WriteOptions::default()).unwrap();
    for name in ["a", "b"] {
        let volume = volumes.number(name).unwrap();
        let requests = [
            request(1, Op::Read, 512, 4096, volume),
            request(2, Op::Flush, 0, 0, 0),
        ];
        writer.write(&requests, &volumes).unwrap();
    }
    writer.finish().unwrap().0
}

/// Small sound traces of every format, to damage.
fn seeds() -> Vec<(Format, Vec<u8>)> {
    let texts = texts()
        .into_iter()
        .map(|(format, text, ..)| (format, text.as_bytes().to_vec()));
    let binaries = binaries()
        .into_iter()
        .map(|(format, bytes, _)| (format, bytes));
    let native = (Format::Native, native());
    texts.chain(binaries).chain([native]).collect()
}

#[test]
fn damaged_traces_never_break_a_reader() {
    let seeds = seeds();
    let mut state = 0x0f0e_b0a1_u64;
    let mut draw = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).expect("a small number")
    };
    let (mut requests, mut damaged) = (0, 0);
    for _ in 0..4_000 {
        let (format, mut data) = seeds[draw(seeds.len())].clone();
        for _ in 0..draw(4) {
            match draw(6) {
                0 if !data.is_empty() => {
                    let at = draw(data.len());
                    data[at] ^= 1 << draw(8);
                }
                1 => data.truncate(draw(data.len() + 1)),
                2 => data.push(u8::try_from(draw(256)).expect("a byte")),
                3 if !data.is_empty() => {
                    let at = draw(data.len());
                    data[at] = b"0123456789,. \n-R"[draw(16)];
                }
                4 => {
                    let at = draw(data.len() + 1);
                    data.splice(at..at, *b"99999999999999999999");
                }
                _ => data.extend_from_slice(&seeds[draw(seeds.len())].1),
            }
        }
        let declared = if draw(4) == 0 { None } else { Some(format) };
        let found = check::any_input(declared, &data);
        requests += found;
        damaged += usize::from(found == 0);
    }
    assert!(
        requests > 5_000,
        "the inputs reach past the first record: {requests}"
    );
    assert!(damaged > 200, "some are damaged: {damaged}");
}

#[test]
fn every_seed_is_taken() {
    for (format, data) in seeds() {
        assert!(check::any_input(Some(format), &data) > 0, "{format}");
    }
}

/// The error has the place of the record and the reason.
#[test]
fn a_bad_record_is_named() {
    for (format, text, place, what) in [
        (
            Format::Msr,
            "1,h,0,Read,0,512,0\n1,h,0,Erase,0,512,0\n",
            "line 2",
            "neither Read nor Write",
        ),
        (Format::Alibaba, "0,R,5,0,7\n", "line 1", "the size is zero"),
        (Format::Alibaba, "0,R,5,4294967296,7\n", "line 1", "4 GiB"),
        (
            Format::Alibaba,
            "0,R,18446744073709551615,4096,7\n",
            "line 1",
            "2^56 bytes",
        ),
        (
            Format::Alibaba,
            "0,R,18446744073709551616,4096,7\n",
            "line 1",
            "the offset does not fit",
        ),
        (
            Format::Alibaba,
            "\n\n0,R,-1,4096,7\n",
            "line 3",
            "the offset is no whole number",
        ),
        (
            Format::Tencent,
            "1,36028797018963968,8,0,1\n",
            "line 1",
            "more sectors",
        ),
        (Format::Spc, "0,1,512,w\n", "line 1", "the time is missing"),
        (
            Format::Systor,
            "99999999999999,0,R,0,0,512\n",
            "line 1",
            "nanoseconds",
        ),
        (Format::Lis, "1 2 3 4 5\n", "line 1", "more columns"),
        (Format::VscsiCsv, "1,5,zz,512,8\n", "line 1", "SCSI command"),
        (
            Format::Smartphone,
            "8 8 512 1 1 1 1 1\n",
            "line 1",
            "not that of the sectors",
        ),
    ] {
        let strict = check::read(text.as_bytes(), &options(format, false));
        let said = strict
            .error
            .unwrap_or_else(|| panic!("{format}: {text:?} is taken"));
        for part in ["input, ", place, what, "--skip-bad"] {
            assert!(said.contains(part), "{format}: {part:?} in {said}");
        }
        let lenient = check::read(text.as_bytes(), &options(format, true));
        assert_eq!(
            (lenient.counts.bad, lenient.error),
            (1, None),
            "{format}: {text:?}"
        );
    }
}

#[test]
fn a_binary_file_that_was_cut_off_is_named() {
    for (format, bytes, requests) in binaries() {
        let cut = &bytes[..bytes.len() - 1];
        let strict = check::read(cut, &options(format, false));
        let said = strict.error.expect("cut off");
        assert!(
            said.contains("at byte ") && said.contains("is cut off"),
            "{said}"
        );
        assert_eq!(
            strict.requests,
            requests[..requests.len() - 1],
            "what came before is delivered"
        );
        let lenient = check::read(cut, &options(format, true));
        assert_eq!((lenient.counts.bad, lenient.error), (1, None));
    }
}

/// Wherever a recording was cut off, all whole records are read, and no damage is reported.
#[test]
fn a_native_file_is_read_up_to_where_it_was_cut_off() {
    let whole = native();
    let mut found = Vec::new();
    for end in 32..=whole.len() {
        let outcome = check::read(&whole[..end], &options(Format::Native, false));
        assert_eq!(outcome.error, None, "cut at {end}");
        found.push(outcome.requests.len());
        let rest = outcome.counts.cut_bytes > 0;
        // Whole frames: of the first name, two requests, the second name, two requests.
        assert_eq!(
            rest,
            ![32, 50, 114, 132, 196].contains(&end),
            "cut at {end}"
        );
    }
    assert_eq!((found[0], found.last()), (0, Some(&4)));
    assert!(found.is_sorted() && found.contains(&2));
}

#[test]
fn a_native_file_that_is_damaged_is_refused() {
    let whole = native();
    for at in 32..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        let outcome = check::read(&damaged, &options(Format::Native, false));
        let noticed = outcome.error.is_some() || outcome.counts.cut_bytes > 0;
        assert!(noticed && outcome.requests.len() < 4, "byte {at}");
    }
}

/// Gigabytes without a line end.
struct Endless {
    left: u64,
}

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let len = buffer
            .len()
            .min(usize::try_from(self.left).unwrap_or(usize::MAX));
        buffer[..len].fill(b'1');
        self.left -= len as u64;
        Ok(len)
    }
}

#[test]
fn a_line_of_gigabytes_takes_no_memory() {
    let line = Endless { left: 3 << 30 };
    let end: &[u8] = b"\n0,R,4096,512,7\n";
    let input = line.chain(Cursor::new(end));
    let mut trace = Trace::from_reader("input", input, &options(Format::Alibaba, true)).unwrap();
    let mut batch = Vec::new();
    assert!(trace.fill(&mut batch).unwrap());
    assert_eq!(batch, [request(0, Op::Read, 4096, 512, 0)]);
    assert_eq!(trace.counts().bad, 1);

    let line = Endless { left: 1 << 30 };
    let mut trace = Trace::from_reader("input", line, &options(Format::Alibaba, false)).unwrap();
    let said = trace.fill(&mut batch).expect_err("too long").report();
    assert!(
        said.contains("line 1: the line is longer") && said.len() < 400,
        "{said}"
    );
}

#[test]
fn too_many_volumes_are_refused() {
    let text: String = (0..70_000)
        .map(|volume| format!("{volume},R,0,512,7\n"))
        .collect();
    let strict = check::read(text.as_bytes(), &options(Format::Alibaba, false));
    assert!(
        strict
            .error
            .expect("too many")
            .contains("line 65537: the volume is one more")
    );
    let lenient = check::read(text.as_bytes(), &options(Format::Alibaba, true));
    assert_eq!(
        (lenient.requests.len(), lenient.counts.bad),
        (65_536, 4_464)
    );
}

#[test]
fn a_compressed_file_that_was_cut_off_is_named() {
    let text: String = (0..50_000)
        .map(|time| format!("7,R,{},512,{time}\n", time * 7919))
        .collect();
    let mut file = zstd::encode_all(text.as_bytes(), 1).unwrap();
    file.truncate(file.len() / 2);
    for skip_bad in [false, true] {
        let outcome = check::read(&file, &options(Format::Alibaba, skip_bad));
        let said = outcome.error.expect("cut off");
        assert!(said.contains("if the file was cut off"), "{said}");
        assert!(
            !outcome.requests.is_empty(),
            "what came before is delivered"
        );
    }
}
