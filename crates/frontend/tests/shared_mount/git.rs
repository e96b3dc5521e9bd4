//! A repository that is cloned on one node and read on the other.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::cluster::{Cluster, can_mount, can_run};

fn git(at: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.arg("-C").arg(at).args(arguments);
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "somebody");
        command.env(format!("GIT_{who}_EMAIL"), "somebody@example.org");
    }
    command.env("GIT_CONFIG_NOSYSTEM", "1");
    command.env("GIT_CONFIG_GLOBAL", "/dev/null");
    let output = command.output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "git {arguments:?}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn a_repository_cloned_on_one_node_is_sound_on_the_other() {
    if !can_mount() || !can_run("git") {
        return;
    }
    let cluster = Cluster::new("git");
    let _nodes = [cluster.node(1), cluster.node(2)];
    let (a, b) = (cluster.mountpoint(1), cluster.mountpoint(2));
    git(&a, &["init", "--quiet", "--initial-branch=main", "first"]);
    for round in 0..4_u32 {
        // Commits by both, in turns.
        let here = [&a, &b][round as usize % 2].join("first");
        for number in 0..40_u32 {
            let text = format!("{round} {number}\n").repeat((number * number) as usize);
            let directory = here.join(format!("d{}", number % 5));
            fs::create_dir_all(&directory).expect("made");
            fs::write(directory.join(format!("f{number}")), text).expect("written");
        }
        git(&here, &["add", "."]);
        git(&here, &["commit", "--quiet", "-m", "one more"]);
    }
    let from = b.join("first");
    let from = from.to_str().expect("text");
    // Packs are mapped; nothing is linked.
    git(&a, &["clone", "--quiet", "--no-local", from, "second"]);
    for (at, name) in [(&b, "second"), (&a, "second"), (&a, "first")] {
        let at = at.join(name);
        git(&at, &["fsck", "--full", "--strict"]);
        assert_eq!(git(&at, &["status", "--porcelain"]), "");
        assert_eq!(git(&at, &["rev-list", "--count", "HEAD"]), "4\n");
    }
    git(&b.join("second"), &["gc", "--quiet", "--prune=now"]);
    git(&a.join("second"), &["fsck", "--full", "--strict"]);
    let f = |at: &Path| fs::read(at.join("d4/f39")).expect("read");
    assert_eq!(f(&a.join("second")), f(&b.join("first")));
}
