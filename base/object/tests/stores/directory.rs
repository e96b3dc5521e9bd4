//! A directory as a store.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use forebay_block::ErrorKind;
use forebay_object::store::{Creation, Store as _};
use forebay_object::stores::Use;
use forebay_object::stores::directory::DirectoryStore;
use forebay_testkit::daemon::{Process, Scratch};

use crate::{contract, run};

/// Names the directory for the child process of the test that kills it.
const CHILD: &str = "FOREBAY_TEST_CREATES_IN";

async fn open(path: PathBuf, purpose: Use) -> DirectoryStore {
    DirectoryStore::open(&path, purpose).await.expect("open")
}

#[test]
fn a_directory_keeps_the_contract() {
    let scratch = Scratch::new("objects-contract");
    let path = scratch.directory().to_owned();
    run(async move {
        let store = open(path, Use::Write).await;
        contract::check(&store).await;
    });
    assert_eq!(left(scratch.directory()), 0, "no temporary file is left");
}

/// Returns the number of temporary files with data. An empty one stays for ten minutes.
fn left(directory: &Path) -> usize {
    let entries = std::fs::read_dir(directory.join(".incomplete"));
    let bytes = entries.expect("it is there").map(|entry| {
        let about = entry.and_then(|entry| entry.metadata());
        about.expect("no process writes there").len()
    });
    bytes.filter(|bytes| *bytes > 0).count()
}

/// Content of an object by its name.
fn content(number: u64) -> Bytes {
    let word = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    word.repeat(1 << 20).into()
}

#[test]
fn a_kill_leaves_no_part_of_an_object() {
    if let Some(directory) = std::env::var_os(CHILD) {
        return run(async move {
            let store = open(directory.into(), Use::Write).await;
            for number in 0.. {
                let name = format!("log/{number:016x}");
                let created = store.create(&name, content(number)).await;
                created.expect("it runs until it is killed");
            }
        });
    }
    let program = std::env::current_exe().expect("this one");
    let mut parts = 0;
    for round in 0..8_u64 {
        let scratch = Scratch::new(&format!("objects-kill-{round}"));
        let mut command = Command::new(&program);
        command
            .args(["--exact", "directory::a_kill_leaves_no_part_of_an_object"])
            .env(CHILD, scratch.directory())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = Process::spawn(&mut command);
        let begin = std::time::Instant::now();
        while !scratch.path("log/0000000000000001").exists() {
            assert!(begin.elapsed() < Duration::from_secs(60), "it creates none");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(round * 3));
        child.kill();
        parts += left(scratch.directory());
        let path = scratch.directory().to_owned();
        run(async move {
            let store = open(path, Use::Write).await;
            let listed = store.list("log/").await.expect("listed");
            assert!(listed.len() >= 2);
            for (number, object) in (0..).zip(listed) {
                assert_eq!(object.name, format!("log/{number:016x}"));
                let read = store
                    .read(&object.name, 0..u64::MAX / 2)
                    .await
                    .expect("there");
                assert!(read == content(number), "{} is whole", object.name);
            }
        });
        assert_eq!(
            left(scratch.directory()),
            0,
            "the next start removes the rest"
        );
    }
    assert!(parts > 0, "no kill came in the middle of a creation");
}

#[test]
fn a_missing_directory_is_not_created() {
    let scratch = Scratch::new("objects-missing");
    let (missing, file) = (scratch.path("mount/db"), scratch.path("file"));
    std::fs::write(&file, "mine").expect("written");
    run(async move {
        for purpose in [Use::Write, Use::Read] {
            let error = DirectoryStore::open(&missing, purpose)
                .await
                .expect_err("none");
            assert_eq!(error.kind(), ErrorKind::NotFound);
            assert!(error.report().contains("mkdir -p"), "{}", error.report());
            assert!(!missing.exists());
            let error = DirectoryStore::open(&file, purpose)
                .await
                .expect_err("a file");
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{}", error.report());
        }
    });
}

#[test]
fn a_look_changes_nothing() {
    let scratch = Scratch::new("objects-look");
    let path = scratch.directory().to_owned();
    run(async move {
        let store = open(path, Use::Read).await;
        assert!(store.list("log/").await.expect("listed").is_empty());
        let error = store.read("volume", 0..1).await.expect_err("none");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    });
    let entries = std::fs::read_dir(scratch.directory()).expect("it is there");
    assert_eq!(entries.count(), 0);
}

#[test]
fn files_of_others_are_no_objects_and_a_moved_directory_stays_the_store() {
    let scratch = Scratch::new("objects-others");
    let (path, moved) = (scratch.path("db"), scratch.path("moved"));
    std::fs::create_dir_all(path.join("log/lost+found")).expect("made");
    std::fs::write(path.join("log/.hidden"), "mine").expect("written");
    std::fs::write(path.join("log/Notes.txt"), "mine").expect("written");
    run(async move {
        let store = open(path.clone(), Use::Write).await;
        let created = store.create("log/a", Bytes::from_static(b"ours")).await;
        assert_eq!(created.expect("created"), Creation::Created);
        let listed = store.list("log/").await.expect("listed");
        let names: Vec<_> = listed.into_iter().map(|it| it.name).collect();
        assert_eq!(names, ["log/a"]);
        std::fs::rename(&path, &moved).expect("moved");
        std::fs::create_dir(&path).expect("another one");
        let created = store.create("log/b", Bytes::from_static(b"ours")).await;
        assert_eq!(created.expect("created"), Creation::Created);
        assert!(moved.join("log/b").exists() && !path.join("log").exists());
    });
}
