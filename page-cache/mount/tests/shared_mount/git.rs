//! A repository that is cloned on one node and read on the other.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};

use super::cluster::{Cluster, MAPPED, can_mount, can_run};

fn git(at: &Path, arguments: &[&str]) -> String {
    let output = git_said(at, arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "git {arguments:?}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

fn git_said(at: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("git");
    command.arg("-C").arg(at);
    // It maps a few pages of a pack at a time, repeatedly.
    for small in ["packedGitWindowSize=8k", "packedGitLimit=64k"] {
        command.args(["-c", &format!("core.{small}")]);
    }
    command.args(arguments);
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "somebody");
        command.env(format!("GIT_{who}_EMAIL"), "somebody@example.org");
    }
    command.env("GIT_CONFIG_NOSYSTEM", "1");
    command.env("GIT_CONFIG_GLOBAL", "/dev/null");
    command.output().expect("it runs")
}

#[test]
fn a_repository_cloned_on_one_node_is_sound_on_the_other() {
    cloned_is_sound("git", "");
}

#[test]
fn a_repository_in_a_mapped_directory_is_sound_on_the_other_node() {
    cloned_is_sound("git-mapped", MAPPED);
}

fn cloned_is_sound(name: &str, directory: &str) {
    if !can_mount() || !can_run("git") {
        return;
    }
    let cluster = Cluster::new(name);
    let _nodes = [cluster.node(1), cluster.node(2)];
    let [a, b] = [1, 2].map(|number| cluster.mountpoint(number).join(directory));
    git(&a, &["init", "--quiet", "--initial-branch=main", "first"]);
    for round in 0..4_u32 {
        // Commits by both nodes alternate.
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
    // A byte of the pack that is changed on one node is detected on the other.
    let packs = fs::read_dir(a.join("second/.git/objects/pack")).expect("there");
    let mut packs = packs.map(|entry| entry.expect("listed").path());
    let pack = packs.find(|path| path.extension().is_some_and(|end| end == "pack"));
    let pack = pack.expect("it was packed");
    fs::set_permissions(&pack, Permissions::from_mode(0o600)).expect("ours");
    let file = File::options().read(true).write(true).open(&pack);
    let (file, mut byte) = (file.expect("there"), [0]);
    file.read_exact_at(&mut byte, 500).expect("read");
    file.write_all_at(&[!byte[0]], 500).expect("written");
    let found = git_said(&b.join("second"), &["fsck", "--full"]);
    assert!(!found.status.success());
}
