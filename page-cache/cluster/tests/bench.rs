//! The benchmark of the library interface: each row runs, and has the expected counts.

#[allow(dead_code, reason = "the table is printed by the benchmark alone")]
#[path = "../benches/pagecache/main.rs"]
mod pagecache;

use pagecache::{Effort, Row, calls, measure};

const EFFORT: Effort = Effort {
    runs: 5,
    pages: 20,
    rounds: 2,
};

#[test]
fn each_row_runs_and_a_hit_sends_no_message() {
    let rows = measure(EFFORT).expect("it runs");
    let names: Vec<&str> = rows.iter().map(|row| &*row.what).collect();
    let expected = [
        "first remote hit, map",
        "local hit, map",
        "remote hit, map",
        "local hit, read_at of 4 KiB",
        "remote hit, read_at of 4 KiB",
        "remote hit, read_at, software coherence",
        "remote hit, read_at, emulated 0 ns, 16 GB/s",
        "remote hit, read_at, emulated 400 ns, 8 GB/s",
        "remote hit, read_at, emulated 400 ns, 16 GB/s",
        "remote hit, read_at, emulated 400 ns, 32 GB/s",
        "remote hit, read_at, emulated 1000 ns, 16 GB/s",
        "invalidation of 0: a node goes",
        "invalidation of 1: a node goes",
        "invalidation of 20: a node goes",
    ];
    assert_eq!(names, expected);
    for row in &rows {
        assert_eq!(row.us.len(), EFFORT.runs, "{row:?}");
        assert!(row.us.iter().all(|us| *us > 0.0), "{row:?}");
    }
    let [
        first,
        local,
        remote,
        local_read,
        remote_read,
        software,
        fast,
        narrow,
        middle,
        wide,
        slow,
        none,
        one,
        all,
    ] = &rows[..]
    else {
        panic!("fourteen rows");
    };
    // A node sends two heartbeats a second, and holds its lock for that. The minimum of all runs
    // has none.
    for row in [local, remote, local_read, remote_read] {
        assert_eq!(least(&row.messages), 0.0, "{row:?}");
    }
    for row in [local, remote] {
        assert_eq!(least(&row.calls), 0.0, "{row:?}");
    }
    // It reads the file's size from the tree.
    for row in [local_read, remote_read, software, fast, slow] {
        assert_eq!(least(&row.calls), 1.0, "{row:?}");
    }
    for (row, at_least_us) in [
        (fast, 0.256),
        (narrow, 0.912),
        (middle, 0.656),
        (wide, 0.528),
        (slow, 1.256),
    ] {
        assert!(least(&row.us) >= at_least_us, "{row:?}");
        assert_eq!(least(&row.messages), 0.0, "{row:?}");
    }
    assert!(median(&first.messages) >= 2.0, "asked, answered: {first:?}");
    assert!(least(&first.calls) >= 1.0, "it waited: {first:?}");
    // Each page is requested from two nodes, which acknowledge. The median is compared, since a
    // node that waits for a processor may send messages after the count.
    let [none, one, all] = [none, one, all].map(|row: &Row| median(&row.messages));
    assert!(one >= none + 4.0, "{none}, {one}");
    assert!(all >= one + 19.0 * 4.0, "{one}, {all}");
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

#[test]
fn each_system_call_is_counted_and_nothing_else() {
    let (sum, none) = calls::of(|| (0..1000_u64).sum::<u64>()).expect("the kernel counts");
    assert_eq!((sum, none), (499_500, 0));
    let parent = || {
        // SAFETY: it takes nothing and changes nothing.
        unsafe { libc::getppid() }
    };
    let (parents, three) = calls::of(|| [parent(), parent(), parent()]).expect("the kernel counts");
    assert_eq!((parents, three), ([parent(); 3], 3));
}
