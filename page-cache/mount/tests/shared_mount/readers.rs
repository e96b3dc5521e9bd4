//! Readers on one node while the other replaces, truncates and extends their files.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use super::cluster::{Cluster, can_mount};
use super::open;

/// Ends the readers when the writer ends, even by a panic.
pub(super) struct Over<'a>(pub(super) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_name_leads_to_the_old_file_or_the_new_one() {
    if !can_mount() {
        return;
    }
    let cluster = Cluster::new("renamed");
    let _nodes = [cluster.node(1), cluster.node(2)];
    let (a, b) = (cluster.mountpoint(1), cluster.mountpoint(2));
    let len = |round: u8| 4000 + 100 * usize::from(round);
    fs::write(a.join("data"), vec![0; len(0)]).expect("written");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for mount in [&a, &b] {
            let over = &over;
            scope.spawn(move || {
                let mut last = 0;
                while !over.load(Ordering::Relaxed) {
                    let seen = match fs::read(mount.join("data")) {
                        // Replaced between lookup and open, and a second time when the kernel
                        // retried.
                        Err(error) if error.raw_os_error() == Some(libc::ESTALE) => continue,
                        seen => seen.expect("there is always one"),
                    };
                    let round = seen[0];
                    assert!(round >= last, "{round} after {last}");
                    last = round;
                    assert_eq!(seen.len(), len(round));
                    assert!(seen.iter().all(|byte| *byte == round), "two files in one");
                }
            });
        }
        let _over = Over(&over);
        for round in 1..150_u8 {
            let mount = [&a, &b][usize::from(round % 2)];
            fs::write(mount.join("new"), vec![round; len(round)]).expect("written");
            fs::rename(mount.join("new"), mount.join("data")).expect("renamed");
        }
    });
}

#[test]
fn truncated_data_is_never_read() {
    if !can_mount() {
        return;
    }
    const LEN: usize = 30_000;
    const LEFT: usize = 10_001;
    let cluster = Cluster::new("cut");
    let _nodes = [cluster.node(1), cluster.node(2)];
    let paths = [1, 2].map(|number| cluster.mountpoint(number).join("data"));
    fs::write(&paths[0], vec![0; LEN]).expect("written");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for path in &paths {
            let over = &over;
            scope.spawn(move || {
                let file = open(path);
                let (mut out, mut newest) = (vec![0; LEN], vec![0; LEN]);
                while !over.load(Ordering::Relaxed) {
                    let count = file.read_at(&mut out, 0).expect("read");
                    assert!(count <= LEN);
                    for (at, byte) in out[..count].iter().enumerate() {
                        let newest = &mut newest[at];
                        let cut = at >= LEFT && *byte == 0;
                        assert!(*byte >= *newest || cut, "{byte} after {newest} at {at}");
                        *newest = (*newest).max(*byte);
                    }
                }
            });
        }
        let _over = Over(&over);
        let files = [open(&paths[0]), open(&paths[1])];
        let mut out = vec![0; LEN];
        for round in 1..120_u8 {
            let (here, there) = (usize::from(round % 2), usize::from(round % 3 == 0));
            files[here]
                .write_all_at(&vec![round; LEN], 0)
                .expect("written");
            files[there].set_len(LEFT as u64).expect("cut");
            files[1 - there].set_len(LEN as u64).expect("longer");
            files[here].read_exact_at(&mut out, 0).expect("read");
            assert!(out[..LEFT].iter().all(|byte| *byte == round));
            assert!(out[LEFT..].iter().all(|byte| *byte == 0), "round {round}");
        }
    });
}

#[test]
fn two_programs_write_beside_each_other_in_the_same_pages() {
    if !can_mount() {
        return;
    }
    const STRIPE: usize = 1000;
    const STRIPES: usize = 400;
    let cluster = Cluster::new("stripes");
    let _nodes = [cluster.node(1), cluster.node(2)];
    fs::write(cluster.mountpoint(1).join("data"), "").expect("made");
    let own = |who: usize, stripe: usize, round: usize| {
        let text = format!("{who} {stripe} {round} ");
        let text: Vec<u8> = text.into_bytes().into_iter().cycle().take(STRIPE).collect();
        text
    };
    std::thread::scope(|scope| {
        for who in 0..2 {
            let path = cluster.mountpoint(1 + who as u8).join("data");
            scope.spawn(move || {
                let file = OpenOptions::new().read(true).write(true).open(path);
                let file = file.expect("there");
                let mut out = vec![0; STRIPE];
                for round in 0..5 {
                    for stripe in (who..STRIPES).step_by(2) {
                        let at = (stripe * STRIPE) as u64;
                        if round > 0 {
                            file.read_exact_at(&mut out, at).expect("read");
                            assert_eq!(out, own(who, stripe, round - 1), "{stripe}");
                        }
                        let text = own(who, stripe, round);
                        file.write_all_at(&text, at).expect("written");
                    }
                    file.sync_all().expect("durable");
                }
            });
        }
    });
    let whole = fs::read(cluster.mountpoint(1).join("data")).expect("read");
    assert_eq!(whole.len(), STRIPES * STRIPE);
    for (stripe, text) in whole.chunks(STRIPE).enumerate() {
        assert_eq!(text, own(stripe % 2, stripe, 4), "stripe {stripe}");
    }
}
