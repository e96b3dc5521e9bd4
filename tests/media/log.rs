//! Damage of the newest records of a cache's log.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use forebay::{Engine, Reactor};
use forebay_device::file::{FileDevice, FileDeviceOptions};
use forebay_io::sim::Rng;
use forebay_metadata::superblock::Superblock;

use crate::world::{Machine, Snapshot};

/// Overwrites the units of the log that changed last. Returns whether there were any.
pub(crate) fn damage_end(machine: &Machine, earlier: &Snapshot, now: &Snapshot, rng: &Rng) -> bool {
    let medium = machine.log_medium();
    let path = machine.path(medium);
    let reactor = Reactor::new(Engine::Threads).expect("a reactor");
    let superblock = reactor.run(async move {
        let options = FileDeviceOptions {
            read_only: true,
            ..FileDeviceOptions::default()
        };
        let device = FileDevice::open(&path, options).expect("the cache opens");
        Superblock::read(device.as_ref())
            .await
            .expect("a superblock")
    });
    let log = superblock.log;
    let unit = u64::from(log.unit_bytes);
    let (earlier, now) = (earlier.of(medium), now.of(medium).expect("there"));
    let changed: Vec<u64> = (0..log.records / log.unit_records())
        .map(|index| log.offset + index * unit)
        .filter(|&at| {
            let range = at as usize..(at + unit) as usize;
            earlier.is_none_or(|earlier| earlier[range.clone()] != now[range])
        })
        .collect();
    // Runs of changed units: the newest records are in the last of them, in the order of the ring.
    let Some(last) = changed.last() else {
        return false;
    };
    let count = 1 + rng.below(2);
    let file = File::options().write(true).open(machine.path(medium));
    let file = file.expect("the cache file opens");
    for nth in 0..count.min(changed.len() as u64) {
        let at = last.saturating_sub(nth * unit).max(log.offset);
        let bytes: Vec<u8> = (0..unit).map(|_| rng.draw() as u8).collect();
        file.write_all_at(&bytes, at).expect("overwritten");
    }
    true
}
