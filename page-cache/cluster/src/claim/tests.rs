//! Pools that want the same files, in one process: the locks belong to open files.

use std::fs;
use std::process::Command;

use forebay_io::tree::lock_byte;

use super::*;

/// A source with content, and pools.
struct Bed {
    top: PathBuf,
    pools: Vec<PathBuf>,
}

impl Bed {
    fn new(name: &str) -> Self {
        let name = format!("forebay-claim-{name}-{}", std::process::id());
        let top = std::env::temp_dir().canonicalize().expect("there");
        let top = top.join(&name);
        fs::create_dir_all(top.join("source/inner")).expect("made");
        let pools = ["a", "b"].map(|pool| Path::new("/dev/shm").join(format!("{name}-{pool}")));
        for pool in &pools {
            fs::create_dir_all(pool).expect("made");
        }
        let pools = pools.into();
        Self { top, pools }
    }

    fn source(&self) -> PathBuf {
        self.top.join("source")
    }

    fn pool(&self, index: usize) -> Pool {
        Pool::new(&self.pools[index]).expect("short")
    }

    /// Claims without waiting, or returns the reason.
    fn claim(&self, path: &Path, pool: usize) -> std::result::Result<Claim, String> {
        let path = path.canonicalize().expect("there");
        let claim = Claim::try_take(&path, &self.pool(pool)).expect("it can be locked");
        claim.map_err(|found| holder::describe(&path, &found))
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for path in self.pools.iter().chain([&self.top]) {
            let _ = fs::remove_dir_all(path);
        }
    }
}

#[test]
fn a_source_has_one_pool_whatever_path_leads_there() {
    let bed = Bed::new("paths");
    let link = bed.top.join("link");
    std::os::unix::fs::symlink(bed.source(), &link).expect("linked");
    let first = bed.claim(&bed.source(), 0).expect("it is nobody's");
    let node = bed.claim(&link, 0).expect("it is of the same pool");
    let who = format!(
        "process {} of the pool {}",
        std::process::id(),
        bed.pools[0].display()
    );
    for path in [&bed.source(), &link] {
        let refused = bed.claim(path, 1).expect_err("it is another pool's");
        assert!(refused.contains(&format!("{who} has it")), "{refused}");
        assert!(refused.contains("--pool"), "{refused}");
        assert!(refused.contains(&bed.source().display().to_string()));
    }
    drop(first);
    bed.claim(&link, 1).expect_err("a node of it is there");
    drop(node);
    let second = bed.claim(&bed.source(), 1).expect("nobody is");
    bed.claim(&bed.source(), 0)
        .expect_err("the other way round");
    drop(second);
    bed.claim(&bed.source(), 0).expect("nobody is");
}

#[test]
fn a_source_is_the_same_by_a_bind_mount() {
    let bed = Bed::new("bind");
    let bound = bed.top.join("bound");
    fs::create_dir_all(&bound).expect("made");
    let mounted = Command::new("mount")
        .arg("--bind")
        .arg(bed.source())
        .arg(&bound)
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: a source by a bind mount: nothing can be mounted here");
        return;
    }
    let first = bed.claim(&bed.source(), 0);
    let refused = bed.claim(&bound, 1).map(drop);
    let unmounted = Command::new("umount").arg("-l").arg(&bound).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    first.expect("it is nobody's");
    refused.expect_err("it is another pool's");
}

#[test]
fn a_source_that_overlaps_that_of_another_pool_is_refused() {
    let bed = Bed::new("nested");
    let (outer, inner, beside) = (
        bed.source(),
        bed.source().join("inner"),
        bed.top.join("beside"),
    );
    fs::create_dir_all(&beside).expect("made");
    let image = inner.join("image");
    fs::write(&image, [0; 512]).expect("written");
    let held = bed.claim(&outer, 0).expect("it is nobody's");
    for path in [&inner, &image] {
        let refused = bed.claim(path, 1).expect_err("it is in another pool's");
        let why = format!("has {}, which it is in", outer.display());
        assert!(refused.contains(&why), "{refused}");
    }
    bed.claim(&beside, 1).expect("it has nothing to do with it");
    drop(held);
    for path in [&inner, &image] {
        let held = bed.claim(path, 0).expect("it is nobody's");
        let refused = bed
            .claim(&outer, 1)
            .expect_err("another pool has something in it");
        assert!(refused.contains("in it"), "{refused}");
        bed.claim(&outer, 0).expect("the same pool");
        drop(held);
    }
    bed.claim(&outer, 1).expect("nobody has anything");
}

#[test]
fn an_image_has_one_pool_and_no_foreign_lock() {
    let bed = Bed::new("image");
    let image = bed.top.join("image");
    fs::write(&image, [0; 512]).expect("written");
    let held = bed.claim(&image, 0).expect("it is nobody's");
    bed.claim(&image, 1).expect_err("it is another pool's");
    drop(held);
    let file = File::options().write(true).open(&image).expect("there");
    lock_byte(&file, Zone::Source.first() + 7, Lock::Exclusive).expect("nobody has it");
    bed.claim(&image, 0).expect_err("a byte of another pool's");
    lock_byte(&file, Zone::Source.first() + 7, Lock::None).expect("given back");
    // As programs that lock whole files do.
    let all = forebay_io::tree::try_lock_range(&file, ALL, Lock::Exclusive);
    assert!(all.expect("answers"));
    let refused = bed.claim(&image, 0).expect_err("it is locked");
    assert!(refused.contains("another program"), "{refused}");
}

#[test]
fn a_claim_waits_for_a_release_and_then_names_the_holder() {
    let bed = Bed::new("wait");
    let held = bed.claim(&bed.source(), 0).expect("it is nobody's");
    let refused = Claim::take(&bed.source(), &bed.pool(1)).expect_err("it stays");
    assert_eq!(refused.kind(), ErrorKind::Busy);
    drop(held);
    // Several attempts, since this thread may start to wait too late once.
    for _ in 0..3 {
        let held = bed.claim(&bed.source(), 0).expect("it is nobody's");
        let holder = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            drop(held);
        });
        let taken = Claim::take(&bed.source(), &bed.pool(1));
        drop(taken.expect("it was let go"));
        holder.join().expect("it ended");
    }
}
