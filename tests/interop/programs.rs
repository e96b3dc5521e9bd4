//! Programs of other projects, where they are installed.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Timeout for a program.
const PATIENCE: Duration = Duration::from_secs(100);

/// Returns a search path with the system's own programs first: a private Python does not know
/// libnbd.
fn path() -> String {
    let inherited = std::env::var("PATH").unwrap_or_default();
    format!("/usr/bin:/bin:/usr/sbin:/sbin:{inherited}")
}

fn found(program: &str) -> bool {
    path()
        .split(':')
        .any(|folder| std::path::Path::new(folder).join(program).is_file())
}

fn skip(what: &str, package: &str) {
    // Written past the test harness, which hides the output of tests that pass.
    let line = format!("SKIPPED: {what} (apt-get install {package})\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Whether `program` can be run. If not, prints a line that names its package.
pub(crate) fn requires(program: &str, package: &str) -> bool {
    let there = found(program);
    if !there {
        skip(&format!("{program} is not installed"), package);
    }
    there
}

/// Whether fio supports NBD.
pub(crate) fn requires_fio() -> bool {
    if !requires("fio", "fio") {
        return false;
    }
    let list = Command::new("fio").arg("--enghelp").output();
    let has = list.is_ok_and(|list| String::from_utf8_lossy(&list.stdout).contains("nbd"));
    if !has {
        skip("fio was built without its nbd engine", "fio");
    }
    has
}

/// Whether nbdsh runs with its Python module.
pub(crate) fn requires_nbdsh() -> bool {
    if !requires("nbdsh", "python3-libnbd") {
        return false;
    }
    let works = Command::new("nbdsh")
        .args(["-c", "pass"])
        .env("PATH", path())
        .output()
        .is_ok_and(|output| output.status.success());
    if !works {
        skip("nbdsh finds no libnbd module", "python3-libnbd");
    }
    works
}

/// Runs a program to its end. Returns its status and output.
pub(crate) fn run_any(program: &str, arguments: &[&str]) -> Output {
    let child = Command::new(program)
        .args(arguments)
        .env("PATH", path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let id = child.id();
    let (send, receive) = std::sync::mpsc::channel();
    std::thread::spawn(move || send.send(child.wait_with_output()));
    let started = Instant::now();
    match receive.recv_timeout(PATIENCE) {
        Ok(output) => output.expect("its output"),
        Err(_) => {
            let _ = Command::new("kill").args(["-9", &id.to_string()]).status();
            panic!(
                "{program} {arguments:?} is stuck after {} s",
                started.elapsed().as_secs()
            );
        }
    }
}

/// Runs a program that must succeed. Returns its output.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = run_any(program, arguments);
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout).into_owned(),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}\n{out}\n{err}",
        output.status
    );
    out
}

/// Runs a Python program in nbdsh, with `uri` bound to an address.
pub(crate) fn nbdsh(uri: &str, program: &str) -> String {
    run("nbdsh", &["-c", &format!("uri = {uri:?}\n{program}")])
}
