//! PostgreSQL on a mount of 400 KiB of memory: no commit is lost with its processes, or with the
//! node.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::cluster::{can_mount, clear, skipped};
use super::users::cluster_for_all;

/// A user of the machine other than root, as whom PostgreSQL does not run.
const UNPRIVILEGED: u32 = 65534;
/// Rows that are committed before each kill.
const ROWS: u64 = 150;
const PATIENCE: Duration = Duration::from_secs(90);

/// Returns the directory of the programs of an installed PostgreSQL.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let mut found = versions.flatten().map(|version| version.path().join("bin"));
    let programs = found.find(|programs| programs.join("initdb").exists());
    if programs.is_none() {
        skipped("there is no PostgreSQL");
    }
    programs
}

fn unprivileged(program: PathBuf) -> Command {
    let mut command = Command::new(program);
    command.uid(UNPRIVILEGED).gid(UNPRIVILEGED).current_dir("/");
    command
}

/// The processes of a running server; killed on drop.
struct Server {
    child: Child,
    programs: PathBuf,
    sockets: PathBuf,
}

impl Server {
    fn start(programs: &Path, database: &Path, sockets: &Path) -> Self {
        // Of a killed server.
        let _ = fs::remove_file(database.join("postmaster.pid"));
        let mut command = unprivileged(programs.join("postgres"));
        command.arg("-D").arg(database);
        let directory = format!("unix_socket_directories={}", sockets.display());
        command.args(["-c", "listen_addresses=", "-c", &directory]);
        command
            .process_group(0)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let server = Self {
            child: command.spawn().expect("it runs"),
            programs: programs.to_owned(),
            sockets: sockets.to_owned(),
        };
        let begin = Instant::now();
        while server.query("select 1").as_deref() != Some("1\n") {
            assert!(begin.elapsed() < PATIENCE, "it does not answer");
            std::thread::sleep(Duration::from_millis(100));
        }
        server
    }

    fn client(&self) -> Command {
        let mut client = unprivileged(self.programs.join("psql"));
        client.args(["-X", "-q", "-A", "-t", "-U", "bench", "-h"]);
        client
            .arg(&self.sockets)
            .arg("postgres")
            .stderr(Stdio::null());
        client
    }

    /// Returns the output of a query that succeeds.
    fn query(&self, query: &str) -> Option<String> {
        let output = self.client().args(["-c", query]).output().expect("it runs");
        let text = String::from_utf8(output.stdout).expect("text");
        output.status.success().then_some(text)
    }

    /// Commits rows from `first` on, each by itself. Calls `kill` after [`ROWS`] of them, and
    /// returns the number after the last acknowledged row.
    fn commit_until(&self, first: u64, kill: impl FnOnce()) -> u64 {
        let client = self
            .client()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut client = client.expect("it runs");
        let mut input = client.stdin.take().expect("piped");
        let writer = std::thread::spawn(move || {
            for row in first.. {
                let insert = format!("insert into rows values ({row}) returning number;\n");
                if input.write_all(insert.as_bytes()).is_err() {
                    break;
                }
            }
        });
        let mut next = first;
        let mut kill = Some(kill);
        for line in BufReader::new(client.stdout.take().expect("piped")).lines() {
            // A row that failed is not printed, and the client then ends.
            assert_eq!(line.expect("text"), next.to_string());
            next += 1;
            if next == first + ROWS
                && let Some(kill) = kill.take()
            {
                kill();
            }
        }
        let _ = client.kill();
        client.wait().expect("ended");
        writer.join().expect("no panic");
        assert!(kill.is_none(), "only {} rows", next - first);
        next
    }

    /// Kills all of its processes.
    fn kill(&self) {
        let group = libc::pid_t::try_from(self.child.id()).expect("a process");
        // SAFETY: a system call with integers. The group is that of the child.
        unsafe { libc::kill(-group, libc::SIGKILL) };
    }

    /// Checks that it has the rows below `next`, and perhaps one that was not acknowledged. Returns
    /// the number after the last.
    fn check(&self, next: u64) -> u64 {
        let counted = self.query("select count(*), min(number), max(number) from rows");
        let counted = counted.expect("it answers");
        let ends = [next, next + 1].map(|end| format!("{end}|0|{}\n", end - 1));
        assert!(
            ends.contains(&counted),
            "{next} were acknowledged: {counted}"
        );
        let by_index = "set enable_seqscan = off; select count(*) from rows where number >= 0";
        let count = self.query(by_index).expect("it answers");
        let count = count.trim().parse().expect("a number");
        assert!(
            counted.starts_with(&format!("{count}|")),
            "the index differs"
        );
        count
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn postgresql_loses_no_commit_with_its_processes_or_the_node() {
    if !can_mount() {
        return;
    }
    let Some(programs) = programs() else { return };
    let cluster = cluster_for_all("postgres");
    let mut node = cluster.node_for_all_users(1);
    let sockets = cluster.source().with_file_name("sockets");
    fs::create_dir(&sockets).expect("made");
    super::users::mode(&sockets, 0o777);
    let database = cluster.mountpoint(1).join("database");
    let mut make = unprivileged(programs.join("initdb"));
    make.arg("-D").arg(&database);
    let made = make.args(["-U", "bench", "-A", "trust"]).output();
    let made = made.expect("it runs");
    let said = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "{said}");
    let server = Server::start(&programs, &database, &sockets);
    let created = server.query("create table rows (number bigint primary key)");
    created.expect("created");
    let next = server.commit_until(0, || server.kill());
    drop(server);
    let server = Server::start(&programs, &database, &sockets);
    let next = server.check(next);
    let next = server.commit_until(next, || {
        node.kill();
        // Its processes end with errors of the mount.
        server.kill();
    });
    drop(server);
    clear(&cluster.mountpoint(1));
    let _node = cluster.node_for_all_users(1);
    let server = Server::start(&programs, &database, &sockets);
    server.check(next);
}
