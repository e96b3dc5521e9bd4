//! Metadata on byte-addressable media: lives with crashes, the faults that they find, and the cost.

mod cost;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use forebay_block::{BlockDevice, Completion, DeviceInfo, ErrorKind, Persistence, Request};
use forebay_cache::failpoints::{Part, reached, take_out};
use forebay_cache::{Cache, CacheOptions, Devices, Durability, FormatOptions, Mode};
use forebay_device::pmem::PmemDevice;
use forebay_io::sim::{DiskConfig, Outcome, World};
use forebay_testkit::rotation::{Lives, assert_found_by_each_rotation, print_row};

use super::stack::families::target;
use super::stack::{CHANGING, LINES, SUMS, Setup, StoreFault, TREE, plant_store_fault};

const LIVES: Lives = Lives {
    pinned: &[],
    gate: 150,
    whole: 500,
    share: 10,
};

fn setup(seed: u64) -> Setup {
    const VARIANTS: [u64; 4] = [0, CHANGING, SUMS | CHANGING, TREE | CHANGING];
    let draw = seed as usize;
    Setup {
        mode: Mode::ALL[draw % Mode::ALL.len()],
        durability: [Durability::Sync, Durability::Flush][draw / 6 % 2],
        fits: (draw / 12).is_multiple_of(2),
        variant: LINES | VARIANTS[draw / 24 % VARIANTS.len()],
    }
}

#[test]
fn random_lives() {
    let seeds = LIVES.seeds();
    let count = seeds.len() as u64;
    let mut crashes = 0;
    for seed in seeds {
        match target(setup(seed)).random(seed) {
            Ok(report) => crashes += report.crashes,
            Err(failure) => panic!("{failure}"),
        }
    }
    eprintln!("{count} seeds, {crashes} crashes");
    print_row("lives on lines", count, crashes);
}

/// A device that calls itself a disk.
struct AsDisk(Rc<dyn BlockDevice>);

impl BlockDevice for AsDisk {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            byte_addressable: false,
            ..self.0.info()
        }
    }

    fn submit(&self, request: Request, done: Completion) {
        self.0.submit(request, done);
    }
}

#[test]
fn lines_need_such_media_and_data_other_ones() {
    let mut world = World::new(1);
    let disk = world.add_disk(&DiskConfig::new("cache", 1 << 20));
    let memory = world.add_memory(1 << 20);
    let outcome = world.run(1, async move {
        let pmem = Rc::new(PmemDevice::new(memory, "pm", Persistence::Media));
        let disk: Rc<dyn BlockDevice> = Rc::new(disk);
        let devices = |data: &Rc<dyn BlockDevice>, metadata: Option<Rc<dyn BlockDevice>>| Devices {
            data: Rc::clone(data),
            metadata,
        };
        let options = FormatOptions::new(4096, [7; 16]);
        let torn: Rc<dyn BlockDevice> = Rc::clone(&pmem) as Rc<dyn BlockDevice>;
        for metadata in [None, Some(Rc::clone(&disk))] {
            let refused = forebay_cache::format(&devices(&torn, metadata), &options).await;
            let error = refused.expect_err("power loss would tear its blocks");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        }
        let right = devices(&disk, Some(Rc::clone(&torn)));
        (forebay_cache::format(&right, &options).await).expect("formatted");
        let called_disk = devices(&disk, Some(Rc::new(AsDisk(torn))));
        let opened = Cache::open(called_disk, CacheOptions::new([1; 16])).await;
        let report = opened.expect_err("no disk writes lines").report();
        assert!(report.contains("of kind \"pmem\""), "{report}");
        let opened = Cache::open(right, CacheOptions::new([1; 16])).await;
        let (cache, _) = opened.expect("opens");
        cache.close().await.expect("closes");
    });
    assert_eq!(outcome, Outcome::Finished(()));
}

/// Whether the lives of `seed` find the planted fault.
fn finds(seed: u64) -> bool {
    let run = || target(setup(seed)).random(seed);
    !matches!(catch_unwind(AssertUnwindSafe(run)), Ok(Ok(_)))
}

/// Asserts that a life finds the planted fault.
fn found(what: &dyn std::fmt::Debug) {
    let found = (0..200).find(|seed| finds(*seed));
    eprintln!("{what:?}: found by seed {found:?}");
    assert!(found.is_some(), "{what:?} is not found");
}

#[test]
fn lines_that_are_not_durable_are_found() {
    for fault in [StoreFault::Unfenced, StoreFault::Unflushed] {
        plant_store_fault(Some(fault));
        found(&fault);
        plant_store_fault(None);
    }
}

#[test]
fn the_gate_finds_each_fault_in_ten_rotations() {
    for fault in [StoreFault::Unfenced, StoreFault::Unflushed] {
        plant_store_fault(Some(fault));
        assert_found_by_each_rotation(&fault, |rotation| {
            LIVES.of(rotation).into_iter().find(|seed| finds(*seed))
        });
        plant_store_fault(None);
    }
}

#[test]
fn a_torn_record_that_is_believed_is_found() {
    let _ = reached();
    for seed in 0..40 {
        if let Err(failure) = target(setup(seed)).random(seed) {
            panic!("{failure}");
        }
    }
    let sites: Vec<_> = (reached().into_iter())
        .filter(|(file, _, _, part)| {
            file.ends_with("metadata/src/record.rs") && *part == Part::Step
        })
        .collect();
    let [checksum] = sites[..] else {
        panic!("no life met a torn record: {sites:?}");
    };
    take_out(Some(checksum));
    found(&checksum);
    take_out(None);
}
