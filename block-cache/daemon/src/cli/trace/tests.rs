use std::path::{Path, PathBuf};

use clap::Parser as _;
use forebay_trace::{OpenOptions, Trace};

use super::super::{Arguments, run};

/// A directory that is removed at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("forebay-cli-trace-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn command(line: &str) -> Result<(), String> {
    let arguments = Arguments::try_parse_from(line.split_whitespace());
    let arguments = arguments.map_err(|error| error.to_string())?;
    run(arguments).map(|_| ()).map_err(|error| error.report())
}

fn requests(path: impl AsRef<Path>) -> (u64, Vec<String>) {
    let mut trace = Trace::open(&[path], &OpenOptions::default()).unwrap();
    let (mut batch, mut requests) = (Vec::new(), 0);
    while trace.fill(&mut batch).unwrap() {
        requests += batch.len() as u64;
    }
    (requests, trace.volumes().names().to_vec())
}

#[test]
fn a_trace_is_generated_converted_and_looked_at() {
    let folder = Folder::new("life");
    let (native, csv, one) = (
        folder.path("a.fbt"),
        folder.path("b.csv.zst"),
        folder.path("c.bin"),
    );
    command(&format!(
        "forebay trace generate --preset msr --requests 1000 {native}"
    ))
    .unwrap();
    let (count, names) = requests(&native);
    assert_eq!(count, 7_000);
    assert!(
        names.iter().all(|name| name.starts_with("generated-")),
        "{names:?}"
    );
    command(&format!("forebay trace convert {native} {csv} --to msr")).unwrap();
    assert_eq!(requests(&csv), (count, names));
    let oracle = "--to oracle-general --volume generated-usr_1";
    command(&format!("forebay trace convert {csv} {one} {oracle}")).unwrap();
    assert_eq!(requests(&one).0, 1_000);
    command(&format!("forebay trace stats {native} {native} --json")).unwrap();
    command(&format!(
        "forebay trace stats {csv} --volume generated-prn_1 --top 3"
    ))
    .unwrap();
    // No other file remains.
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 3);
}

#[test]
fn a_load_of_ones_own() {
    let folder = Folder::new("load");
    let out = folder.path("a.csv.gz");
    let line = "--volumes 2 --requests 500 --reads 100 --sizes 512:1,64K:3 --write-sizes 8K:1 \
                --working-set 1G --zipf 1.2 --sequential 30 --rate 10 --steady --seed 4 --to \
                alibaba";
    command(&format!("forebay trace generate {line} {out}")).unwrap();
    assert_eq!(requests(&out).0, 1_000);
}

/// A pipe can be read only once.
#[test]
fn several_caches_and_the_page_take_one_pass() {
    let folder = Folder::new("pipe");
    let (trace, pipe, page) = (
        folder.path("a.csv"),
        folder.path("pipe"),
        folder.path("report.html"),
    );
    command(&format!(
        "forebay trace generate {trace} --requests 20000 --to alibaba --sequential 20"
    ))
    .unwrap();
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let source = std::thread::spawn({
        let (trace, pipe) = (trace.clone(), pipe.clone());
        move || std::fs::copy(trace, pipe)
    });
    command(&format!(
        "forebay simulate {pipe} --cache 16M --cache 64M --compare --html {page}"
    ))
    .unwrap();
    source.join().unwrap().unwrap();
    let html = std::fs::read_to_string(&page).unwrap();
    // Two sizes of eleven caches, in each drawing with one bar per cache.
    assert_eq!(html.matches("<rect class=\"s1\"").count(), 2 * 11 * 5);
    // The page is not read back, and no other file is written.
    let both = "--cache 10%wss --html";
    let said = command(&format!("forebay simulate {trace} {both} {page}")).unwrap_err();
    assert!(
        said.contains("exists") && said.contains("--force"),
        "{said}"
    );
    command(&format!("forebay simulate {trace} {both} {page} --force")).unwrap();
    let said = command(&format!("forebay simulate {trace} {both} {trace} --force")).unwrap_err();
    assert!(said.contains("this is the trace"), "{said}");
    let said = command(&format!("forebay simulate {trace} {both} {page}/x")).unwrap_err();
    assert!(said.contains("is not a directory"), "{said}");
    let said = command(&format!("forebay simulate {trace} --cache 100T")).unwrap_err();
    assert!(said.contains("--cache: 100"), "{said}");
    let said = command(&format!("forebay simulate {trace} --cache 10%")).unwrap_err();
    assert!(said.contains("write 10%wss"), "{said}");
}

#[test]
fn wrong_arguments_and_traces_are_refused_with_a_remedy() {
    let folder = Folder::new("wrong");
    let (trace, out) = (folder.path("a.csv"), folder.path("out"));
    std::fs::write(
        &trace,
        "7,R,0,512,100\n7,X,0,512,100\n7,R,0,512,300\n8,R,0,512,300\n",
    )
    .unwrap();
    let refused = |line: &str| command(&format!("forebay trace {line}")).expect_err(line);
    let said = refused(&format!("stats {trace}"));
    assert!(
        said.contains("a.csv, line 2: the operation is neither R nor W"),
        "{said}"
    );
    let said = refused(&format!(
        "convert {trace} {out} --skip-bad --to oracle-general"
    ));
    assert!(said.contains("--volume"), "{said}");
    assert!(!Path::new(&out).exists(), "nothing is left of it");
    assert!(refused(&format!("convert {trace} {trace} --force")).contains("this is the trace"));
    assert!(refused(&format!("convert {trace}")).contains("2 values"));
    let said = refused(&format!("stats {trace} --skip-bad --volume 9"));
    assert!(said.contains("no volume \"9\"; it has 7, 8"), "{said}");
    assert!(refused(&format!("stats {trace} --format csv")).contains("oracle-general"));
    assert!(refused(&format!("stats {trace} --page-size 3000")).contains("power of two"));
    assert!(
        refused(&format!("convert {trace} {out} --to lis")).contains("cannot be written as lis")
    );
    assert!(refused(&format!("generate {out} --preset x")).contains("alibaba, msr or systor"));
    assert!(refused(&format!("generate {out} --preset msr --reads 5")).contains("cannot be used"));
    assert!(refused(&format!("generate {out} --reads 101")).contains("from 0 to 100"));
    assert!(refused(&format!("generate {out} --sizes 4K")).contains("4K:60,64K:40"));
    assert!(refused(&format!("generate {out} --requests 0")).contains("1 or more"));
    command(&format!("forebay trace stats {trace} --skip-bad")).unwrap();
    let said = refused(&format!("stats {trace} --memory 4K"));
    assert!(said.contains("--memory 64K"), "{said}");
}

#[test]
fn selections_without_requests_are_refused_with_the_cause() {
    let folder = Folder::new("nothing");
    let (trace, empty, native) = (
        folder.path("a.csv"),
        folder.path("empty"),
        folder.path("none.fbt"),
    );
    std::fs::write(&trace, "7,R,0,512,100\n7,R,512,512,100\n8,W,0,512,300\n").unwrap();
    std::fs::write(&empty, "").unwrap();
    // A recording of an hour without requests.
    drop(forebay_trace::write::Appender::create(Path::new(&native), 1).unwrap());
    let refused = |line: &str| command(&format!("forebay {line}")).expect_err(line);
    for reads in ["simulate", "mrc", "trace stats", "replay --on c.toml"] {
        let said = refused(&format!("{reads} {trace} --limit 0"));
        assert!(
            said.contains("it is not a whole number, 1 or more"),
            "{reads}: {said}"
        );
    }
    for reads in ["simulate", "simulate --cache 64M", "mrc", "trace stats"] {
        let said = refused(&format!("{reads} {empty}"));
        assert!(said.contains("is empty"), "{reads}: {said}");
        let said = refused(&format!("{reads} {trace} --volume 9 --volume 7"));
        assert!(
            said.contains("no volume \"9\"; it has 7, 8"),
            "{reads}: {said}"
        );
        let said = refused(&format!("{reads} {trace} --format spc --skip-bad"));
        assert!(
            said.contains("3 records could not be read as spc"),
            "{reads}: {said}"
        );
    }
    for reads in ["simulate", "simulate --cache 64M", "mrc"] {
        let said = refused(&format!("{reads} {native}"));
        assert!(
            said.contains("none.fbt: there is no request"),
            "{reads}: {said}"
        );
    }
    let out = folder.path("out");
    let said = refused(&format!("trace convert {native} {out}"));
    assert!(said.contains("none.fbt: there is no request"), "{said}");
    assert!(!Path::new(&out).exists());
    command(&format!("forebay trace stats {native}")).unwrap();
    let said = refused("trace stats -");
    assert!(said.contains("/dev/stdin"), "{said}");
}

#[test]
fn sizes_out_of_range_are_refused_before_anything_is_read() {
    let refused = |line: &str| command(&format!("forebay {line}")).expect_err(line);
    for (line, said) in [
        (
            "mrc x --sample 1023",
            "not a whole number from 1024 to 16777216",
        ),
        (
            "mrc x --sample 4294967295",
            "not a whole number from 1024 to 16777216",
        ),
        ("mrc x --points 1", "not a whole number from 2 to 10000"),
        (
            "mrc x --points 100000000",
            "not a whole number from 2 to 10000",
        ),
        ("mrc x --block-size 3K", "power of two"),
        ("mrc x --block-size 8G", "power of two"),
        ("simulate x --cache 128K", "less than one block of 256 KiB"),
        (
            "simulate x --cache 16K --blocks 32K",
            "a --cache of 32 KiB or more",
        ),
        ("simulate x --cache 2000%wss", "no share"),
    ] {
        let error = refused(line);
        assert!(error.contains(said), "{line}: {error}");
    }
}

#[test]
fn a_share_of_the_working_set_needs_a_file() {
    // The refusal precedes the opening, which would wait for the writer of a pipe.
    let folder = Folder::new("share");
    let pipe = folder.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    for line in ["simulate", "simulate --cache 1G --cache 5%wss"] {
        for path in [pipe.as_str(), "/dev/null"] {
            let said = command(&format!("forebay {line} {path}")).unwrap_err();
            assert!(
                said.contains(path) && said.contains("needs the trace twice"),
                "{said}"
            );
            assert!(said.contains("--cache a size such as 64G"), "{said}");
        }
    }
}
