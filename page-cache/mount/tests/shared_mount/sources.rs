//! Mapped directories on failing and unsuitable sources.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_mount::Users;

use super::cluster::{Cluster, MAPPED, can_mount, skipped};
use super::{names, number, open, text};

/// Runs a system program that prepares a test.
pub(super) fn made(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status();
    let status = status.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(status.success(), "{program} {arguments:?}");
}

/// Creates a directory in the directory that has the source.
pub(super) fn sibling(source: &Path, name: &str) -> PathBuf {
    let path = source.with_file_name(name);
    fs::create_dir_all(&path).expect("made");
    path
}

pub(super) fn plain(path: &Path) -> &str {
    path.to_str().expect("text")
}

/// A file system of 64 MiB on a disk that has room for 8.
fn on_a_small_disk(source: &Path) -> Vec<PathBuf> {
    let disk = sibling(source, "disk");
    made(
        "mount",
        &["-t", "tmpfs", "-o", "size=8M", "tmpfs", plain(&disk)],
    );
    let image = disk.join("image");
    let file = File::create(&image).expect("made");
    file.set_len(64 << 20).expect("there is nothing in it");
    made(
        "mkfs.ext4",
        &["-q", "-F", "-O", "^has_journal", plain(&image)],
    );
    made("mount", &["-o", "loop", plain(&image), plain(source)]);
    vec![disk, source.to_owned()]
}

#[test]
fn a_later_failure_of_a_write_is_reported_to_each_user_of_the_file() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::on("small-disk", on_a_small_disk);
    let _nodes = [cluster.node(1), cluster.node(2)];
    let paths = [1, 2].map(|number| cluster.mountpoint(number).join(MAPPED).join("data"));
    fs::write(&paths[0], "data").expect("written");
    let sync = |file: &File| number(file.sync_all());
    let files = [open(&paths[0]), open(&paths[0]), open(&paths[1])];
    fs::write(&paths[0], vec![7; 24 << 20]).expect("the disk says later that it is full");
    for file in &files {
        assert!(matches!(sync(file), Some(libc::EIO | libc::ENOSPC)));
    }
}

/// A tree on an overlay.
fn stacked(source: &Path) -> Vec<PathBuf> {
    let [lower, upper, work] = ["lower", "upper", "work"].map(|name| sibling(source, name));
    let (lower, upper, work) = (plain(&lower), plain(&upper), plain(&work));
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
    made(
        "mount",
        &["-t", "overlay", "-o", &options, "overlay", plain(source)],
    );
    vec![source.to_owned()]
}

#[test]
fn a_source_that_cannot_be_mapped_is_refused_when_it_is_mounted() {
    if !can_mount() {
        return;
    }
    let mut cluster = Cluster::on("stacked", stacked);
    let a = cluster.mountpoint(1);
    let node = cluster.node_here(1);
    let refused = forebay_mount::mount(
        node.names().expect("it can be written to"),
        &a,
        Users::Mounter,
    );
    let said = refused.expect_err("nothing there can be mapped").report();
    assert!(
        said.contains("overlayfs") && said.contains("--map"),
        "{said}"
    );
    assert!(!a.exists(), "the mountpoint was made for this mount");
    assert_eq!(
        names(&cluster.source().join(".forebay")),
        ["files", "pool", "removed"]
    );
    drop(node);
    cluster.kill_directory();
    cluster.map_nothing();
    cluster.start_directory();
    let _one = cluster.node(1);
    fs::write(a.join("data"), "data").expect("written");
    assert_eq!(text(&a.join("data")), "data");
    // Neither can SQLite's logs.
    for name in ["db-wal", "db-shm"] {
        let refused = fs::write(a.join(name), "log");
        assert_eq!(number(refused), Some(libc::EOPNOTSUPP));
        assert!(!cluster.source().join(name).exists(), "{name} is made");
        fs::write(cluster.source().join(name), "log").expect("written");
        assert_eq!(number(File::open(a.join(name))), Some(libc::EOPNOTSUPP));
    }
}

#[test]
fn a_user_with_permission_to_mount_but_not_to_map_gets_an_error() {
    const ELSEWHERE: [&str; 4] = ["unshare", "--user", "--map-root-user", "--mount"];
    if !can_mount() {
        return;
    }
    let mut tried = Command::new(ELSEWHERE[0]);
    let tried = tried.args(&ELSEWHERE[1..]).arg("true").status();
    if !tried.is_ok_and(|status| status.success()) {
        skipped("no user namespace can be made");
        return;
    }
    let mut cluster = Cluster::new("namespace");
    let node = |cluster: &Cluster| {
        let output = cluster.node_by(&ELSEWHERE, 1);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said)
    };
    let (mounted, said) = node(&cluster);
    assert!(
        !mounted && said.contains("CAP_SYS_ADMIN") && said.contains("--map"),
        "{said}"
    );
    cluster.wait(|status| status.nodes.is_empty());
    cluster.kill_directory();
    cluster.map_nothing();
    cluster.start_directory();
    let (mounted, said) = node(&cluster);
    assert!(mounted, "{said}");
}
