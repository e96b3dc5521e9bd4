//! Several files as one trace, order, and time zero.

use std::path::PathBuf;

use forebay_trace::{Format, Op, OpenOptions, Request, Trace};

use super::request;

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("forebay-trace-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn read_all(trace: &mut Trace) -> Vec<Request> {
    let (mut batch, mut all) = (Vec::new(), Vec::new());
    while trace.fill(&mut batch).unwrap() {
        all.append(&mut batch);
    }
    all
}

#[test]
fn files_are_merged_by_time() {
    let folder = Folder::new("merge");
    let first = folder.file(
        "a.csv",
        "7,R,0,512,100\n7,R,512,512,300\n7,R,1024,512,200\n9,W,0,512,500\n",
    );
    let second = folder.file("b.csv", "8,W,0,512,150\n7,R,0,512,250\n8,W,512,512,300\n");
    let mut trace = Trace::open(&[first, second], &OpenOptions::default()).unwrap();
    let all = read_all(&mut trace);
    let us = |us: u64| (us - 100) * 1_000;
    assert_eq!(
        all,
        [
            request(us(100), Op::Read, 0, 512, 0),
            request(us(150), Op::Write, 0, 512, 1),
            request(us(250), Op::Read, 0, 512, 0),
            request(us(300), Op::Read, 512, 512, 0),
            // Out of order in its file: where it is there.
            request(us(200), Op::Read, 1024, 512, 0),
            request(us(300), Op::Write, 512, 512, 1),
            request(us(500), Op::Write, 0, 512, 2),
        ]
    );
    assert_eq!(trace.volumes().names(), ["7", "8", "9"]);
    assert_eq!(trace.counts().out_of_order, 1);
    assert_eq!(trace.zero_unix_ns(), 100_000);
    assert_eq!(trace.progress().read_bytes(), trace.size_bytes());
}

#[test]
fn long_files_are_merged_whole() {
    let folder = Folder::new("long");
    let count = 30_000_u64;
    let files: Vec<_> = (0..3_u64)
        .map(|volume| {
            let line = |n| format!("{volume},R,{},512,{}\n", n * 512, n * 3 + volume);
            folder.file(
                &volume.to_string(),
                (0..count).map(line).collect::<String>(),
            )
        })
        .collect();
    let mut trace = Trace::open(&files, &OpenOptions::default()).unwrap();
    let all = read_all(&mut trace);
    assert_eq!(all.len() as u64, 3 * count);
    for (number, found) in all.iter().enumerate() {
        let number = number as u64;
        let volume = u32::try_from(number % 3).unwrap();
        assert_eq!(
            *found,
            request(number * 1_000, Op::Read, number / 3 * 512, 512, volume)
        );
    }
}

#[test]
fn a_bad_record_of_one_file_comes_when_it_is_due() {
    let folder = Folder::new("bad");
    let good = folder.file("good.csv", "7,R,0,512,1\n7,R,0,512,5\n7,R,0,512,6\n");
    let bad = folder.file(
        "bad.csv",
        "8,R,0,512,2\n8,R,0,512,3\n8,X,0,512,4\n8,R,0,512,5\n",
    );
    let files = [good, bad];
    let mut trace = Trace::open(&files, &OpenOptions::default()).unwrap();
    let mut batch = Vec::new();
    assert!(trace.fill(&mut batch).unwrap());
    let times: Vec<_> = batch
        .iter()
        .map(|request| request.time_ns / 1_000)
        .collect();
    assert_eq!(times, [0, 1, 2]);
    let said = trace.fill(&mut batch).expect_err("a bad record").report();
    assert!(said.contains("bad.csv, line 3"), "{said}");
    let options = OpenOptions {
        skip_bad: true,
        ..OpenOptions::default()
    };
    assert_eq!(
        read_all(&mut Trace::open(&files, &options).unwrap()).len(),
        6
    );
}

#[test]
fn a_file_is_a_volume_where_the_format_has_none() {
    let folder = Folder::new("volume");
    let one = folder.file("one.lis", "1 1 0 0\n2 1 0 1\n");
    let two = folder.file("two.lis.old", "5 1 0 0\n");
    let mut trace = Trace::open(&[&two, &one], &OpenOptions::default()).unwrap();
    assert_eq!(trace.format(), Format::Lis);
    let volumes: Vec<_> = read_all(&mut trace)
        .iter()
        .map(|request| request.volume)
        .collect();
    assert_eq!(volumes, [0, 1, 1]);
    assert_eq!(trace.volumes().names(), ["two", "one"]);
}

#[test]
fn a_sort_window_sorts_requests_within_its_length() {
    let text = "7,R,0,512,5\n7,R,0,512,3\n7,R,0,512,4\n7,R,0,512,9\n7,R,0,512,1\n7,R,0,512,9\n";
    for (sort_window, expected, out_of_order) in [
        (0, [4, 2, 3, 8, 0, 8], 2),
        (2, [2, 3, 0, 4, 8, 8], 1),
        (100, [0, 2, 3, 4, 8, 8], 0),
    ] {
        let options = OpenOptions {
            sort_window,
            ..OpenOptions::default()
        };
        let mut trace = Trace::from_reader("input", text.as_bytes(), &options).unwrap();
        let all = read_all(&mut trace);
        let times: Vec<_> = all.iter().map(|request| request.time_ns / 1_000).collect();
        assert_eq!(times, expected, "window {sort_window}");
        assert_eq!(trace.counts().out_of_order, out_of_order);
    }
}

#[test]
fn requests_before_time_zero_are_counted() {
    let mut text: String = (0..70_000)
        .map(|n| format!("7,R,0,512,{}\n", 1_000 + n))
        .collect();
    text += "7,R,0,512,10\n";
    let mut trace =
        Trace::from_reader("input", std::io::Cursor::new(text), &OpenOptions::default()).unwrap();
    let all = read_all(&mut trace);
    assert_eq!(all.last(), Some(&request(0, Op::Read, 0, 512, 0)));
    assert_eq!(
        (trace.counts().before_zero, trace.counts().out_of_order),
        (1, 1)
    );
}

#[test]
fn files_that_do_not_fit_together_are_refused() {
    let folder = Folder::new("mixed");
    let alibaba = folder.file("a.csv", "7,R,0,512,100\n");
    let msr = folder.file(
        "m.csv",
        "128166372003061629,hm,0,Read,383496192,32768,413\n",
    );
    let refused = |files: &[PathBuf]| {
        let opened = Trace::open(files, &OpenOptions::default());
        opened.err().expect("refused").report()
    };
    let said = refused(&[alibaba, msr]);
    assert!(
        said.contains("is alibaba and") && said.contains("convert them first"),
        "{said}"
    );
    assert!(refused(&[]).contains("a trace needs a file"));
    assert!(refused(std::slice::from_ref(&folder.0)).contains("directory"));
    let said = refused(&[folder.0.join("none")]);
    assert!(
        said.contains("none") && said.contains("No such file"),
        "{said}"
    );
}
