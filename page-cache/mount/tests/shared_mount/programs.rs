//! Unmodified programs that map their files, in a mapped directory on two nodes: LMDB, RocksDB,
//! SQLite.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use super::cluster::{Cluster, MAPPED, can_mount, can_run, can_run_with};
use super::locks::soon;
use super::mapped::Map;
use super::open;

/// Returns a program that is ended after this number of seconds, for example if it waits for a lost
/// lock.
fn bounded(seconds: &str, program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", seconds, program]);
    command
}

/// More seconds than any of these programs takes on a busy machine.
const BOUND: &str = "100";

fn run(program: &str, arguments: &[&str]) -> Output {
    let output = bounded(BOUND, program).args(arguments).output();
    output.unwrap_or_else(|error| panic!("{program}: {error}"))
}

/// Returns the output of a successful program.
fn printed(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

fn plain(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// Returns alternating keys and values of a loader of this name.
fn pairs(name: &str, count: usize) -> Vec<String> {
    let pair = |n| [format!("{name}{n:06}"), format!("{n} ").repeat(n % 40 + 1)];
    (0..count).flat_map(pair).collect()
}

/// Formats pairs for `mdb_load`, which waits for more of them.
fn loadable(pairs: &[String]) -> String {
    const HEAD: &str = "VERSION=3\nformat=print\ntype=btree\nmapsize=67108864\nHEADER=END\n";
    let lines = pairs.iter().map(|line| format!(" {line}\n"));
    HEAD.to_owned() + &lines.collect::<String>()
}

/// Writes pairs to a file, at whose end the load ends.
fn to_load(path: &Path, pairs: &[String]) -> File {
    fs::write(path, loadable(pairs)).expect("written");
    File::open(path).expect("there")
}

/// Starts a load into a database.
fn load(mut by: Command, database: &Path, from: impl Into<Stdio>) -> Child {
    let command = by.arg(database).stdin(from).stderr(Stdio::piped());
    command.spawn().expect("it runs")
}

/// Returns the pairs in the output of `mdb_dump`.
fn listed(text: &str) -> Vec<String> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(' '));
    lines.map(str::to_owned).collect()
}

fn dumped(database: &Path) -> Vec<String> {
    listed(&printed("mdb_dump", &["-p", plain(database)]))
}

#[test]
fn lmdb_has_writers_and_readers_on_two_nodes() {
    if !can_mount() || !can_run_with("mdb_load", "-V") {
        return;
    }
    const EACH: usize = 2000;
    /// Pairs of one transaction of `mdb_load`.
    const TOGETHER: usize = 100;
    let cluster = Cluster::new("lmdb");
    let _nodes = [cluster.node(1), cluster.node(2)];
    let databases = [1, 2].map(|number| cluster.mountpoint(number).join(MAPPED).join("lmdb"));
    fs::create_dir(&databases[0]).expect("made");
    let load_pairs = |at: &Path, name, pairs: &[String]| {
        let from = cluster.source().with_file_name(name);
        load(bounded(BOUND, "mdb_load"), at, to_load(&from, pairs))
    };
    // Its lock file is mapped, and contains a mutex of all writers.
    let (a, b) = (pairs("a", EACH), pairs("b", EACH));
    let mut loaders = [
        load_pairs(&databases[0], "a", &a),
        load_pairs(&databases[1], "b", &b),
    ];
    for loader in &mut loaders {
        assert!(loader.wait().expect("ended").success());
    }
    let mut all = [a, b].concat();
    assert_eq!(dumped(&databases[0]), all);
    assert_eq!(dumped(&databases[1]), all);
    // A process that is killed in the middle blocks no other, and its transaction is not visible.
    let (c, d) = (pairs("c", 3 * TOGETHER / 2), pairs("d", 10));
    let mut killed = load(Command::new("mdb_load"), &databases[0], Stdio::piped());
    let mut more = killed.stdin.take().expect("piped");
    more.write_all(loadable(&c).as_bytes()).expect("it reads");
    all.extend_from_slice(&c[..2 * TOGETHER]);
    soon("the first part is there", || dumped(&databases[1]) == all);
    let mut waiting = load_pairs(&databases[1], "d", &d);
    killed.kill().expect("ours");
    killed.wait().expect("ended");
    assert!(waiting.wait().expect("ended").success());
    all.extend(d);
    assert_eq!(dumped(&databases[0]), all);
    // In other directories it cannot map, and reports that.
    let other = cluster.mountpoint(1).join("lmdb");
    fs::create_dir(&other).expect("made");
    let refused = load_pairs(&other, "e", &all).wait_with_output();
    let refused = refused.expect("ended");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{said}");
    assert!(said.contains("No such device"), "{said}");
}

#[test]
fn lmdb_whose_writers_have_a_lock_each_is_found_damaged() {
    if !can_mount() || !can_run_with("mdb_load", "-V") {
        return;
    }
    const EACH: usize = 1000;
    /// A damaged database may occupy its reader for ever.
    const BOUND: &str = "20";
    let cluster = Cluster::new("lmdb-none");
    let _nodes = [cluster.node(1), cluster.node(2)];
    // The lock is beside the file, and the file has two names.
    let databases = [(1, "db1"), (2, "db2")]
        .map(|(number, name)| cluster.mountpoint(number).join(MAPPED).join(name));
    let load_pairs = |at: usize, name: &str, pairs: &[String]| {
        let from = cluster.source().with_file_name(name);
        let mut by = bounded(BOUND, "mdb_load");
        by.arg("-n");
        load(by, &databases[at], to_load(&from, pairs))
    };
    let damaged = || {
        for database in &databases {
            // From the attempt before.
            let _ = fs::remove_file(database);
        }
        let mut all = pairs("a", 1);
        let made = load_pairs(0, "a", &all).wait();
        assert!(made.expect("ended").success());
        fs::hard_link(&databases[0], databases[0].with_file_name("db2")).expect("linked");
        let (b, c) = (pairs("b", EACH), pairs("c", EACH));
        let mut loaders = [load_pairs(0, "b", &b), load_pairs(1, "c", &c)];
        let ended = loaders
            .each_mut()
            .map(|loader| loader.wait().expect("ended").success());
        all.extend([b, c].concat());
        let mut list = bounded(BOUND, "mdb_dump");
        let list = list.args(["-n", "-p"]).arg(&databases[0]).output();
        let list = list.expect("it runs");
        let sound = list.status.success() && listed(&String::from_utf8_lossy(&list.stdout)) == all;
        !(ended == [true; 2] && sound)
    };
    assert!((0..20).any(|_| damaged()), "nothing happened at once");
}

#[test]
fn rocksdb_reads_the_other_nodes_writes_by_mappings() {
    if !can_mount() || !can_run("db_bench") {
        return;
    }
    const KEYS: usize = 20_000;
    let cluster = Cluster::new("rocksdb");
    let _nodes = [cluster.node(1), cluster.node(2)];
    let bench = |number, directory: &str, benchmarks: &str, options: &[&str]| {
        let database = cluster.mountpoint(number).join(directory).join("rocksdb");
        let database = format!("--db={}", plain(&database));
        let (benchmarks, keys) = (
            format!("--benchmarks={benchmarks}"),
            format!("--num={KEYS}"),
        );
        let common = [&*database, &*benchmarks, &*keys, "--compression_type=none"];
        run("db_bench", &[&common, options].concat())
    };
    // Written by mappings and compacted: files are created and removed.
    let written = ["--mmap_write=1", "--write_buffer_size=262144", "--sync=0"];
    let reading = ["--mmap_read=1", "--use_existing_db=1", "--readonly=1"];
    for round in 0..2 {
        let (from, to) = if round % 2 == 0 { (1, 2) } else { (2, 1) };
        let (benchmarks, existing) = match round {
            0 => ("fillseq,compact", "--use_existing_db=0"),
            _ => ("overwrite,compact", "--use_existing_db=1"),
        };
        let done = bench(
            from,
            MAPPED,
            benchmarks,
            &[&written[..], &[existing]].concat(),
        );
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{said}");
        // Each block is checked against its checksum.
        let read = bench(to, MAPPED, "readrandom,readseq", &reading);
        let said = String::from_utf8_lossy(&read.stdout);
        let found = format!("({KEYS} of {KEYS} found)");
        assert!(read.status.success() && said.contains(&found), "{said}");
        let all = format!(" {KEYS} operations");
        assert_eq!(said.matches(&all).count(), 2, "{said}");
    }
    // The checksum detects a byte that another node stores into a table.
    let tables = fs::read_dir(cluster.mountpoint(1).join(MAPPED).join("rocksdb"));
    let paths = tables
        .expect("listed")
        .map(|entry| entry.expect("listed").path());
    for path in paths.filter(|path| path.extension().is_some_and(|end| end == "sst")) {
        let file = open(&path);
        let map = Map::new(&file, file.metadata().expect("there").len(), false).expect("mapped");
        let byte = map.load(1000..1001)[0];
        map.store(1000, &[!byte]);
    }
    let refused = bench(2, MAPPED, "readrandom", &reading);
    let said = [refused.stdout, refused.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("checksum mismatch"), "{said}");
    // In other directories it cannot map, and reports that.
    let written = bench(
        1,
        "",
        "fillseq,compact",
        &["--use_existing_db=0", "--num=100"],
    );
    assert!(written.status.success());
    let refused = bench(2, "", "readrandom", &reading);
    let said = [refused.stdout, refused.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("No such device"), "{said}");
}

/// Reads a database by a mapping of this size, while it grows and shrinks on the other node.
const MAPPING_READER: &str = r#"
import sqlite3, sys
reading, writing, size, how = sys.argv[1:]
def connect(path):
    return sqlite3.connect(f"file:{path}", timeout=100, isolation_level=None, uri=True)
writer = connect(writing)
writer.execute("create table log (id integer primary key, text)")
reader = connect(reading + how)
assert reader.execute(f"pragma mmap_size = {size}").fetchone() == (int(size),)
for round in range(6):
    count = 3000 >> round
    writer.execute("begin")
    writer.execute("delete from log")
    rows = ((n, f"{round} {n} " * 20) for n in range(count))
    writer.executemany("insert into log values (?, ?)", rows)
    writer.execute("commit")
    writer.execute("vacuum")
    rows = reader.execute("select id, text from log order by id").fetchall()
    assert rows == [(n, f"{round} {n} " * 20) for n in range(count)], round
    assert reader.execute("pragma integrity_check").fetchone()[0] == "ok"
    mapped = [line for line in open("/proc/self/maps") if reading in line]
    print(len(mapped), round)
"#;

#[test]
fn sqlite_reads_the_other_nodes_writes_by_a_mapping() {
    if !can_mount() || !can_run("python3") {
        return;
    }
    let cluster = Cluster::new("sqlite-map");
    let _nodes = [cluster.node(1), cluster.node(2)];
    let [reading, writing] =
        [1, 2].map(|number| cluster.mountpoint(number).join(MAPPED).join("db"));
    let arguments = |size, how| {
        let paths = [plain(&reading), plain(&writing)];
        ["-c", MAPPING_READER, paths[0], paths[1], size, how]
    };
    let said = printed("python3", &arguments("1000000000", ""));
    let rounds: Vec<String> = (0..6).map(|round| format!("1 {round}")).collect();
    assert_eq!(said.lines().collect::<Vec<_>>(), rounds);
    // A reader with stale copies, which `immutable` makes it use, is detected.
    fs::remove_file(&writing).expect("removed");
    let old = run("python3", &arguments("0", "?immutable=1"));
    let said = String::from_utf8_lossy(&old.stderr);
    let found = ["AssertionError: 1", "is malformed"];
    assert!(found.iter().any(|found| said.contains(found)), "{said}");
}
