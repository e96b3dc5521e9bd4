//! Whether users of a volume's block device may continue after a start.

use forebay_cache::RecoveryReport;

use super::super::cache::recovery::{lost_of, lost_with, note_losses};
use super::*;

/// Returns the gap that a start of this configuration reports with these wishes. `recreated` says
/// whether the device was recreated afterwards.
fn gap_after(config: &Config, wishes: Wishes, recreated: bool) -> Option<String> {
    let (config, (sender, receiver)) = (config.clone(), std::sync::mpsc::channel());
    on_reactor(|| async move {
        let stack = Stack::open(&config, &wishes).await.expect("opens");
        let gap = stack.disk_gap("db").await.expect("known");
        if recreated {
            stack.clear_disk_gap("db").await.expect("noted");
            assert_eq!(stack.disk_gap("db").await.expect("known"), None);
        }
        stack.close().await.expect("closes");
        sender.send(gap).expect("the test waits");
    });
    receiver.recv().expect("said")
}

#[test]
fn possible_write_losses_are_remembered_until_the_device_is_recreated() {
    let scratch = Scratch::new("disk");
    let without = memory("true", "wb");
    let with = format!("{without}\nexport = [{{ volume = \"db\", ublk = 0 }}]\n");
    let (with, without) = (scratch.config(&with), scratch.config(&without));
    let plainly = Wishes::default;
    let starts = |wishes: Wishes, recreated| gap_after(&with, wishes, recreated);

    let unknown = starts(plainly(), false).expect("a device of which nothing is known");
    assert!(
        unknown.contains("the state directory has no record of it"),
        "{unknown}"
    );
    assert!(starts(plainly(), true).is_some());
    assert_eq!(starts(plainly(), false), None);

    let accept = Wishes {
        accept_journal_loss: true,
        ..plainly()
    };
    let asked = starts(accept, false).expect("asked for");
    assert!(asked.contains("--accept-journal-loss"), "{asked}");
    // No other sign of the loss is left.
    assert_eq!(starts(plainly(), false), Some(asked.clone()));
    assert_eq!(gap_after(&without, plainly(), false), Some(asked));
    assert!(starts(plainly(), true).is_some());

    gap_after(&without, plainly(), false).expect("others may have written");
    let others = starts(plainly(), true).expect("remembered");
    assert!(others.contains("without its block device"), "{others}");
    assert_eq!(starts(plainly(), false), None);
}

#[test]
fn virtual_machines_go_on_with_their_generation_only() {
    let scratch = Scratch::new("machine");
    let without = memory("true", "wb");
    let with =
        format!("{without}\nexport = [{{ volume = \"db\", vhost-user-blk = \"vm.sock\" }}]\n");
    let (with, without) = (scratch.config(&with), scratch.config(&without));
    let generation = |config: &Config, wishes: Wishes| {
        let (config, (sender, receiver)) = (config.clone(), std::sync::mpsc::channel());
        on_reactor(|| async move {
            let stack = Stack::open(&config, &wishes).await.expect("opens");
            let generation = stack.disk_generation("db").await.expect("known");
            stack.close().await.expect("closes");
            sender.send(generation).expect("the test waits");
        });
        receiver.recv().expect("said")
    };
    let first = generation(&with, Wishes::default());
    assert_eq!(generation(&with, Wishes::default()), first);
    let discarding = Wishes {
        discard_stale_dirty: vec!["db".into()],
        ..Wishes::default()
    };
    let second = generation(&with, discarding);
    assert_ne!(second, first);
    assert_eq!(generation(&with, Wishes::default()), second);
    assert_ne!(generation(&without, Wishes::default()), second);
}

#[test]
fn virtual_machines_do_not_go_on_after_a_detach() {
    let scratch = Scratch::new("machine-detached");
    let with = memory("true", "wb");
    let with = format!("{with}\nexport = [{{ volume = \"db\", vhost-user-blk = \"vm.sock\" }}]\n");
    let with = scratch.config(&with);
    on_reactor(|| async move {
        let wishes = Wishes::default();
        let stack = Stack::open(&with, &wishes).await.expect("opens");
        let before = stack.disk_generation("db").await.expect("known");
        stack.detach("db").await.expect("nothing is dirty");
        let after = stack.disk_generation("db").await.expect("known");
        assert_ne!(after, before);
        stack.close().await.expect("closes");
    });
}

#[test]
fn a_loss_at_the_open_is_reported_of_the_volume_that_lost_it() {
    let range = |volume: &str| forebay_cache::LostRange {
        volume: volume.into(),
        offset: 0,
        len: 4096,
    };
    let lost = RecoveryReport {
        lost: vec![range("logs")],
        ..RecoveryReport::default()
    };
    assert_eq!(lost_with(&lost, "db"), None);
    assert!(lost_with(&lost, "logs").is_some());
    let damaged = RecoveryReport {
        damaged_records: 1,
        ..RecoveryReport::default()
    };
    assert!(lost_with(&damaged, "db").is_some());
    // Other alarms report damage that may concern no volume.
    assert_eq!(lost_of(&damaged, "db"), None);
    assert_eq!(lost_of(&lost, "db"), None);
    assert!(lost_of(&lost, "logs").is_some());
}

/// The process may die in the opening, after the cache has forgotten them.
#[test]
fn losses_are_recorded_during_the_opening() {
    let scratch = Scratch::new("disk-losses");
    let state = Arc::new(StateDirectory::open(&scratch.0.join("state")).expect("made"));
    let volumes = ["db", "logs"].map(str::to_owned);
    for volume in &volumes {
        state.clear_disk_gap(volume).expect("noted");
    }
    let report = RecoveryReport {
        lost: vec![forebay_cache::LostRange {
            volume: "logs".into(),
            offset: 0,
            len: 4096,
        }],
        ..RecoveryReport::default()
    };
    on_reactor(|| async move {
        let noted = note_losses(report, Arc::clone(&state), volumes.to_vec());
        noted.await.expect("noted");
        assert_eq!(state.disk_gap("db").expect("known"), None);
        assert!(state.disk_gap("logs").expect("known").is_some());
    });
}

/// The log drops lines beyond its queue of 4,096, and no other place had the ranges.
#[test]
fn all_lost_ranges_are_listed_in_the_state_directory() {
    let scratch = Scratch::new("disk-lost-ranges");
    let path = scratch.0.join("state");
    let state = Arc::new(StateDirectory::open(&path).expect("made"));
    let range = |nth: u64| forebay_cache::LostRange {
        volume: "db".into(),
        offset: nth * 8192,
        len: 4096,
    };
    let report = RecoveryReport {
        lost: (0..5000).map(range).collect(),
        cut: vec![range(7000)],
        possible_losses: vec![forebay_cache::LostRange {
            volume: "#5".into(),
            ..range(0)
        }],
        ..RecoveryReport::default()
    };
    on_reactor(|| async move {
        let volumes = ["db", "logs"].map(str::to_owned);
        // An opening that fails later is repeated, and must not fill the file system.
        for _ in 0..3 {
            let noted = note_losses(report.clone(), Arc::clone(&state), volumes.to_vec());
            noted.await.expect("noted");
        }
    });
    let list = std::fs::read_to_string(path.join("db.lost")).expect("a list");
    for nth in (0..5000).chain([7000]) {
        let line = format!("{} 4096", nth * 8192);
        assert!(list.lines().any(|listed| listed == line), "{line}");
    }
    // Two headers, and a range whose volume the superblock does not name.
    assert_eq!(list.lines().count(), 5003);
    assert!(path.join("#5.lost").exists());
    assert!(!path.join("logs.lost").exists());
}
