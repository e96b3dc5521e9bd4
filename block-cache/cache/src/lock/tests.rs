use std::rc::Rc;

use forebay_io::rt;

use super::*;

#[test]
fn writers_exclude_and_nobody_overtakes() {
    rt::block_on_simulated(5, async {
        let table = Rc::new(LockTable::default());
        let log = Rc::new(RefCell::new(Vec::new()));
        let key = BlockKey::new(1, 1);
        let held = table.exclusive(key, 1).await;
        for (name, exclusive) in [("r1", false), ("r2", false), ("w", true), ("r3", false)] {
            let (table, log) = (Rc::clone(&table), Rc::clone(&log));
            rt::spawn(async move {
                let _guard = if exclusive {
                    table.exclusive(key, 1).await
                } else {
                    table.shared(key, 1).await
                };
                log.borrow_mut().push(format!("+{name}"));
                rt::sleep(std::time::Duration::from_millis(1)).await;
                log.borrow_mut().push(format!("-{name}"));
            });
            rt::sleep(std::time::Duration::from_millis(1)).await;
        }
        assert!(!table.admits(key, 1, true) && table.is_exclusive(key, 1));
        drop(held);
        rt::sleep(std::time::Duration::from_secs(1)).await;
        let log = log.borrow();
        assert_eq!(log[4..], ["+w", "-w", "+r3", "-r3"], "{log:?}");
        assert!(log[..2].iter().all(|entry| entry.starts_with("+r")));
        assert!(table.locks.borrow().is_empty());
        assert!(table.admits(key, 1, true));
        table.take(key, 1, true);
        assert!(!table.admits(key, 1, false));
        table.release(key, 1, true);
        assert!(table.locks.borrow().is_empty());
    });
}

#[test]
fn a_lock_is_widened_at_once_or_not_at_all() {
    rt::block_on_simulated(7, async {
        let table = Rc::new(LockTable::default());
        let key = BlockKey::new(1, 1);
        let mut held = table.exclusive(key, 0b0001).await;
        let other = table.shared(key, 0b0100).await;
        assert!(!held.widen(0b0111) && held.granules() == 0b0001);
        assert!(table.try_exclusive(Site::here(), key, 0b0110).is_none());
        let waits = Rc::clone(&table);
        rt::spawn(async move { drop(waits.exclusive(key, 0b1100).await) });
        rt::sleep(std::time::Duration::from_millis(1)).await;
        assert!(!held.widen(0b1000), "it would overtake");
        assert!(held.widen(0b0011) && !table.admits(key, 0b0010, true));
        let handed = held.hand_over();
        assert!(!table.admits(key, 0b0001, true), "it is held still");
        drop((table.adopt(handed), other));
        rt::sleep(std::time::Duration::from_millis(1)).await;
        assert!(table.locks.borrow().is_empty());
        let had = table.try_exclusive(Site::here(), key, 0b0110);
        assert!(had.is_some() && !table.admits(key, 0b0010, false));
    });
}

#[test]
fn locks_of_disjoint_granules_do_not_block_each_other() {
    rt::block_on_simulated(6, async {
        let table = Rc::new(LockTable::default());
        let key = BlockKey::new(1, 1);
        let low = table.exclusive(key, 0b0011).await;
        assert!(table.admits(key, 0b1100, true) && !table.admits(key, 0b0110, false));
        let high = table.shared(key, 0b1100).await;
        // One who waits for a granule of each keeps others from it, but not from the rest.
        let waits = Rc::clone(&table);
        let had = Rc::new(std::cell::Cell::new(false));
        let has = Rc::clone(&had);
        rt::spawn(async move {
            let _both = waits.exclusive(key, 0b0110).await;
            has.set(true);
        });
        rt::sleep(std::time::Duration::from_millis(1)).await;
        assert!(!table.admits(key, 0b0100, false), "it would overtake");
        assert!(table.admits(key, 0b1000, false));
        drop(low);
        rt::sleep(std::time::Duration::from_millis(1)).await;
        assert!(!had.get(), "a reader is left");
        drop(high);
        rt::sleep(std::time::Duration::from_millis(1)).await;
        assert!(had.get());
        assert!(table.locks.borrow().is_empty());
    });
}

/// A range among locks of regions is exclusive, waits for earlier holders, and leaves no lock
/// behind.
#[test]
fn a_range_is_had_alone_and_its_neighbours_are_not_in_the_way() {
    rt::block_on_simulated(8, async {
        let table = Rc::new(LockTable::default());
        let key = |region| BlockKey::new(1, region);
        let reader = table.shared(key(500), 1).await;
        let (waits, log) = (Rc::clone(&table), Rc::new(RefCell::new(Vec::new())));
        let entries = Rc::clone(&log);
        rt::spawn(async move {
            let range = waits.exclusive_range(Site::here(), 1, 0..1 << 40).await;
            entries.borrow_mut().push("range");
            rt::sleep(std::time::Duration::from_millis(10)).await;
            drop(range);
        });
        rt::sleep(std::time::Duration::from_millis(1)).await;
        assert!(log.borrow().is_empty(), "a region is being read");
        // The range holds the regions before that one already, but not those after it. Other
        // volumes are not affected.
        assert!(!table.admits(key(0), 1, false) && table.is_exclusive(key(499), 1));
        assert!(table.admits(key(501), 1, true) && table.admits(BlockKey::new(2, 0), 1, true));
        assert!(table.try_exclusive(Site::here(), key(7), 1).is_none());
        let (waits, entries) = (Rc::clone(&table), Rc::clone(&log));
        rt::spawn(async move {
            let _write = waits.exclusive(key(7), 1).await;
            entries.borrow_mut().push("write");
        });
        let (waits, entries) = (Rc::clone(&table), Rc::clone(&log));
        rt::spawn(async move {
            let _range = waits.exclusive_range(Site::here(), 1, 5..10).await;
            entries.borrow_mut().push("second");
        });
        rt::sleep(std::time::Duration::from_millis(1)).await;
        drop(reader);
        rt::sleep(std::time::Duration::from_millis(5)).await;
        assert_eq!(*log.borrow(), ["range"]);
        assert!(!table.admits(key(1 << 39), 1, false), "all of it is held");
        rt::sleep(std::time::Duration::from_millis(20)).await;
        assert_eq!(*log.borrow(), ["range", "write", "second"]);
        assert!(table.locks.borrow().is_empty() && table.ranges.borrow().is_empty());
        assert!(table.admits(key(0), 1, true));
    });
}

/// One who holds a region and waits for a higher one, as the cleaner does, and a range over both.
#[test]
fn range_locks_and_ordered_region_locks_do_not_deadlock() {
    rt::block_on_simulated(9, async {
        let table = Rc::new(LockTable::default());
        let ended = Rc::new(std::cell::Cell::new(0));
        for round in 0..20 {
            let (waits, count) = (Rc::clone(&table), Rc::clone(&ended));
            rt::spawn(async move {
                let mut held = Vec::new();
                for region in 0..10 {
                    held.push(waits.shared(BlockKey::new(1, region * 3), 1).await);
                    rt::yield_now().await;
                }
                count.set(count.get() + 1);
            });
            let (waits, count) = (Rc::clone(&table), Rc::clone(&ended));
            rt::spawn(async move {
                let _range = waits.exclusive_range(Site::here(), 1, round..30).await;
                rt::yield_now().await;
                count.set(count.get() + 1);
            });
        }
        rt::sleep(std::time::Duration::from_secs(1)).await;
        assert_eq!(ended.get(), 40, "they wait for each other");
        assert!(table.locks.borrow().is_empty());
    });
}
