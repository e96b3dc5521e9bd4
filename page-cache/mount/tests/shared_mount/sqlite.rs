//! One SQLite database with programs of two nodes as its clients, with a rollback journal, and with
//! a write-ahead log.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::cluster::{Cluster, MAPPED, can_mount, can_run};

/// Adds numbered rows. Prints each committed one, and retries the others.
const WRITER: &str = r#"
import sqlite3, sys, time
path, who, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
def connect():
    address = f"file:{path}?vfs={sys.argv[4]}"
    db = sqlite3.connect(address, timeout=100, isolation_level=None, uri=True)
    db.execute(f"pragma synchronous = {sys.argv[5]}")
    return db
db = connect()
n = 0
failed = 0
while n < count:
    try:
        db.execute("begin immediate")
        if db.execute("select 1 from log where who = ? and n = ?", (who, n)).fetchone() is None:
            last, rows = db.execute("select coalesce(max(id), 0), count(*) from log").fetchone()
            total = db.execute("select n from total").fetchone()[0]
            assert last == rows == total, (last, rows, total)
            row = (last + 1, who, n, who * (n * 97 % 3000))
            db.execute("insert into log values (?, ?, ?, ?)", row)
            db.execute("update total set n = n + 1")
        db.execute("commit")
        print(n, flush=True)
        n += 1
    except (sqlite3.OperationalError, sqlite3.DatabaseError) as error:
        print(who, n, error, file=sys.stderr, flush=True)
        failed += 1
        if failed > 50:
            raise
        try:
            db.close()
            time.sleep(0.1)
            db = connect()
        except sqlite3.OperationalError:
            pass
"#;

const CHECK: &str = r#"
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=100)
print(db.execute("pragma integrity_check").fetchone()[0])
counted = db.execute("select count(*), max(id) from log").fetchone()
assert counted == db.execute("select n, n from total").fetchone()
for who, n, text in db.execute("select who, n, text from log order by id"):
    assert text == who * (n * 97 % 3000), (who, n)
    print(who, n)
"#;

const MAKE: &str = r#"
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
assert db.execute(f"pragma journal_mode = {sys.argv[2]}").fetchone()[0] == sys.argv[2]
db.executescript(
    "create table log (id integer primary key, who, n, text);"
    "create index whose on log (who, n);"
    "create table total (n);"
    "insert into total values (0)"
)
"#;

fn python(script: &str, database: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("python3");
    command.arg("-c").arg(script).arg(database).args(arguments);
    command.stdout(Stdio::piped());
    command
}

fn made(database: &Path, journal: &str) {
    let made = python(MAKE, database, &[journal]).status();
    let made = made.expect("it runs");
    assert!(made.success());
}

fn writer(database: &Path, who: &str, count: usize) -> Child {
    writer_with(database, who, count, ["unix", "full"])
}

/// A writer with the locks of a `vfs`, and with this setting of `synchronous`.
fn writer_with(database: &Path, who: &str, count: usize, [vfs, synchronous]: [&str; 2]) -> Child {
    let arguments = [who, &count.to_string(), vfs, synchronous];
    let mut command = python(WRITER, database, &arguments);
    command.spawn().expect("it runs")
}

/// Returns the rows that a writer has reported as committed.
fn committed(writer: &mut Child) -> Vec<usize> {
    let mut said = String::new();
    let stdout = writer.stdout.as_mut().expect("piped");
    stdout.read_to_string(&mut said).expect("text");
    said.lines().map(|n| n.parse().expect("a number")).collect()
}

/// Returns the rows of an intact database.
fn rows(database: &Path) -> Vec<String> {
    sound(database).unwrap_or_else(|said| panic!("{said}"))
}

fn sound(database: &Path) -> Result<Vec<String>, String> {
    let output = python(CHECK, database, &[]).output().expect("it runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let mut lines = text.lines().map(str::to_owned);
    match lines.next().as_deref() {
        Some("ok") if output.status.success() => Ok(lines.collect()),
        _ => Err(text),
    }
}

#[test]
fn a_database_has_clients_on_two_nodes() {
    clients_on_two_nodes("sqlite", "db", "delete");
}

#[test]
fn a_database_with_a_log_has_clients_on_two_nodes() {
    clients_on_two_nodes("sqlite-wal", "db", "wal");
}

#[test]
fn a_database_with_a_log_in_a_mapped_directory_has_clients_on_two_nodes() {
    clients_on_two_nodes("sqlite-mapped", &format!("{MAPPED}/db"), "wal");
}

fn clients_on_two_nodes(name: &str, database: &str, journal: &str) {
    if !can_mount() || !can_run("python3") {
        return;
    }
    const EACH: usize = 40;
    let cluster = Cluster::new(name);
    let (one, two) = (cluster.node(1), cluster.node(2));
    let databases = [1, 2].map(|number| cluster.mountpoint(number).join(database));
    made(&databases[0], journal);
    // By alternating short-lived programs.
    for (round, name) in ["a", "b", "c", "d"].into_iter().enumerate() {
        let mut one = writer(&databases[round % 2], name, 2);
        assert_eq!(committed(&mut one), [0, 1]);
        assert!(one.wait().expect("ended").success());
        assert_eq!(rows(&databases[(round + 1) % 2]).len(), 2 * (round + 1));
    }
    // By concurrent programs.
    let mut writers = [("e", 0), ("f", 1)].map(|(who, at)| writer(&databases[at], who, EACH));
    for writer in &mut writers {
        assert_eq!(committed(writer), (0..EACH).collect::<Vec<_>>());
        assert!(writer.wait().expect("ended").success());
    }
    let all = rows(&databases[0]);
    assert_eq!(all.len(), 8 + 2 * EACH);
    assert_eq!(all, rows(&databases[1]));
    one.end();
    two.end();
    assert_eq!(all, rows(&cluster.source().join(database)));
}

#[test]
fn a_database_outlives_a_node_that_is_killed() {
    outlives_a_node("sqlite-kill", "db", ["delete", "full"]);
}

/// No commit is synchronous. The node that is killed has no page of the log.
#[test]
fn a_database_with_a_log_outlives_a_node_that_is_killed() {
    outlives_a_node("sqlite-wal-kill", "db", ["wal", "normal"]);
}

#[test]
fn a_database_with_a_log_in_a_mapped_directory_outlives_a_node_that_is_killed() {
    let database = format!("{MAPPED}/db");
    outlives_a_node("sqlite-mapped-kill", &database, ["wal", "full"]);
}

fn outlives_a_node(name: &str, database: &str, [journal, synchronous]: [&str; 2]) {
    if !can_mount() || !can_run("python3") {
        return;
    }
    const EACH: usize = 25;
    let cluster = Cluster::new(name);
    let (mut one, _two) = (cluster.node(1), cluster.node(2));
    let databases = [1, 2].map(|number| cluster.mountpoint(number).join(database));
    made(&databases[0], journal);
    let writer =
        |at: usize, who, count| writer_with(&databases[at], who, count, ["unix", synchronous]);
    let mut survivor = writer(1, "s", 2 * EACH);
    let mut acknowledged = Vec::new();
    for who in ["k", "l", "m"] {
        let mut killed = writer(0, who, EACH);
        // At an arbitrary point of its work.
        let mut said = BufReader::new(killed.stdout.take().expect("piped")).lines();
        for _ in 0..3 {
            let n = said.next().expect("it goes on").expect("text");
            acknowledged.push(format!("{who} {n}"));
        }
        one.kill();
        killed.kill().expect("ours");
        killed.wait().expect("ended");
        acknowledged.extend(said.map(|n| format!("{who} {}", n.expect("text"))));
        one = cluster.node(1);
    }
    let said = committed(&mut survivor);
    assert!(survivor.wait().expect("ended").success());
    assert_eq!(said, (0..2 * EACH).collect::<Vec<_>>());
    acknowledged.extend(said.iter().map(|n| format!("s {n}")));
    let all = rows(&databases[0]);
    assert_eq!(all, rows(&databases[1]));
    for row in acknowledged {
        assert!(all.contains(&row), "{row} was committed, and is not there");
    }
}

#[test]
fn a_database_without_locks_is_found_damaged() {
    if !can_mount() || !can_run("python3") {
        return;
    }
    const EACH: usize = 10;
    let cluster = Cluster::new("sqlite-none");
    let _nodes = [cluster.node(1), cluster.node(2)];
    let databases = [1, 2].map(|number| cluster.mountpoint(number).join("db"));
    let damaged = || {
        // From the attempt before.
        let _ = std::fs::remove_file(&databases[0]);
        let _ = std::fs::remove_file(cluster.mountpoint(1).join("db-journal"));
        made(&databases[0], "delete");
        let writers = [("e", 0), ("f", 1)];
        let mut writers =
            writers.map(|(who, at)| writer_with(&databases[at], who, EACH, ["unix-none", "full"]));
        let ended = writers.each_mut().map(|writer| {
            committed(writer);
            writer.wait().expect("ended").success()
        });
        let all = sound(&databases[0]).is_ok_and(|rows| rows.len() == 2 * EACH);
        !(ended[0] && ended[1] && all)
    };
    assert!((0..20).any(|_| damaged()), "nothing happened at once");
}
