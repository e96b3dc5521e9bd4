//! The opening of the stack. Clients come when it is open, or during the opening.

use std::cell::Cell as Counter;
use std::rc::Rc;

use forebay_block::{BlockDevice, Error, ErrorKind, Result};
use forebay_cache::{
    Cache, CacheOptions, OpeningMap, OpeningVolume, RecoveryReport, ReportSink, VolumeOptions,
};
use forebay_io::rt;
use forebay_io::sim::SimDisk;
use forebay_io::sync::Promise;
use forebay_metadata::journal::Journal;
use forebay_metadata::superblock::Superblock;
use forebay_testkit::stack::{LostRange, Process};
use forebay_volume::Volume;

use super::setup::{Setup, VOLUMES};
use super::{CacheStack, Losses, OpenCache, name};

thread_local! {
    static READS_BEFORE_OPEN: Counter<(u64, u64)> = const { Counter::new((0, 0)) };
}

/// Returns the numbers of reads that this thread's stacks served before their caches were open:
/// reads of certainly clean zones, and of other ones.
#[allow(dead_code, reason = "not every test counts them")]
pub(crate) fn reads_before_open() -> (u64, u64) {
    READS_BEFORE_OPEN.get()
}

/// The volumes that are served before the cache is open.
struct Online {
    map: OpeningMap,
    volumes: Vec<Rc<OpeningVolume>>,
}

pub(super) async fn open(stack: &CacheStack, process: &Process) -> Result<OpenCache> {
    // The opening reports losses, and the model must know them before it reads.
    let is_poisoned = Journal::recover(&process.journal, &[7; 16], &process.boot_id)
        .is_some_and(|found| found.poisoned);
    let has_rotted = (process.disks.iter()).any(|disk| disk.counters().rotted > 0)
        || process
            .memories
            .iter()
            .any(|memory| memory.counts().rotted > 0);
    let online = match stack.details.opens_after {
        Some(delay) if !is_poisoned && !has_rotted => {
            let online = serve_online(stack, process).await?;
            online.map(|online| (delay, Rc::new(online)))
        }
        _ => None,
    };
    let opened = Promise::new();
    let devices = match online {
        None => {
            let (cache, _) = open_cache(stack, process, None).await?;
            let mut devices = Vec::new();
            for volume in 0..VOLUMES {
                devices.push(attach(stack, process, &cache, volume).await?);
            }
            opened.set(Ok(cache));
            devices
        }
        Some((delay, online)) => {
            // The daemon does the same.
            let (stack, process) = (CacheStack::new(stack.setup), process.clone());
            let (set, of) = (opened.clone(), Rc::clone(&online));
            rt::spawn(async move {
                rt::sleep(delay).await;
                let result = open_behind(&stack, &process, &of).await;
                if let Err(error) = &result {
                    (of.volumes.iter()).for_each(|volume| volume.hand_over(Err(error.clone())));
                }
                set.set(result);
            });
            let volumes = online.volumes.iter().map(Rc::clone);
            let devices = volumes.map(|volume| volume as Rc<dyn BlockDevice>);
            devices.collect()
        }
    };
    let volumes = devices.into_iter().enumerate();
    Ok(OpenCache {
        cache: opened,
        volumes: volumes
            .map(|(number, device)| {
                let volume = Volume::new(name(number), device, false);
                volume.time_out(stack.timeout());
                volume
            })
            .collect(),
    })
}

/// Returns the volumes before the cache is open. `None` if one of them must wait.
async fn serve_online(stack: &CacheStack, process: &Process) -> Result<Option<Online>> {
    let map = OpeningMap::default();
    let devices = stack.devices(process);
    let holder = devices.metadata.as_ref().unwrap_or(&devices.data);
    let superblock = Superblock::read(holder.as_ref()).await?;
    let volume = |number| {
        OpeningVolume::new(
            &devices,
            &superblock,
            stack.setup.durability,
            &name(number),
            backing(process, number),
            &options(stack, process),
            Some(&map),
        )
    };
    let volumes: Option<Vec<_>> = (0..VOLUMES).map(volume).collect();
    Ok(volumes.map(|volumes| Online { map, volumes }))
}

async fn open_behind(stack: &CacheStack, process: &Process, online: &Online) -> Result<Cache> {
    let (cache, report) = open_cache(stack, process, Some(&online.map)).await?;
    assert!(report.lost.is_empty(), "{:?}", report.lost);
    let (clean, dirty) = READS_BEFORE_OPEN.get();
    let served: u64 = online.volumes.iter().map(|volume| volume.served()).sum();
    READS_BEFORE_OPEN.set((clean + served, dirty + online.map.answered()));
    for (number, volume) in online.volumes.iter().enumerate() {
        let device = attach(stack, process, &cache, number).await?;
        volume.hand_over(Ok(device));
    }
    Ok(cache)
}

fn backing(process: &Process, volume: usize) -> Rc<dyn BlockDevice> {
    Rc::new(process.disks[process.disks.len() - VOLUMES + volume].clone())
}

fn options(stack: &CacheStack, process: &Process) -> VolumeOptions {
    let details = &stack.details;
    let boot = usize::from(process.boot_id[0]);
    VolumeOptions {
        promotion: details.promotion,
        sequential_cutoff_bytes: details.cutoff_bytes,
        ..VolumeOptions::new(details.modes[boot % details.modes.len()])
    }
}

async fn attach(
    stack: &CacheStack,
    process: &Process,
    cache: &Cache,
    volume: usize,
) -> Result<Rc<dyn BlockDevice>> {
    let options = options(stack, process);
    (cache.attach(&name(volume), backing(process, volume), options)).await
}

async fn open_cache(
    stack: &CacheStack,
    process: &Process,
    online: Option<&OpeningMap>,
) -> Result<(Cache, RecoveryReport)> {
    let details = &stack.details;
    let (losses, setup) = (Rc::clone(&stack.losses), stack.setup);
    let report_sink = ReportSink::new(move |report| {
        losses.note(&setup, &report);
        std::future::ready(Ok(()))
    });
    let options = CacheOptions {
        report_sink: Some(report_sink),
        durability: stack.setup.durability,
        journal: details.journal.then(|| process.journal.clone()),
        dirty_limit_percent: details.dirty_limit_percent,
        admission: details.admission,
        cleaning: details.cleaning,
        commit_interval: details.commit_interval,
        patience: stack.timeout(),
        opening_map: online.cloned(),
        ..CacheOptions::new(process.boot_id)
    };
    let (cache, report) = Cache::open(stack.devices(process), options).await?;
    if let Some(blocks) = details.blocks {
        // With several sizes, only whole groups count.
        let found = cache.stats().blocks;
        assert!(found <= blocks, "{found} blocks, {blocks} were drawn");
    }
    let count = |disk: &SimDisk| disk.counters().failed + disk.counters().rotted;
    let devices_are_well = process.disks.iter().all(|disk| count(disk) == 0)
        && process
            .memories
            .iter()
            .all(|memory| memory.counts().rotted == 0);
    if stack.losses.unreported_damage.take() {
        let what = format!("damage is not reported: {report:?}");
        return Err(Error::new(ErrorKind::Corrupt, what));
    }
    if devices_are_well && report.damaged_records + report.unreadable_units > 0 {
        let what = format!("a crash looks like damage: {report:?}");
        return Err(Error::new(ErrorKind::Corrupt, what));
    }
    if devices_are_well && !report.lost.is_empty() {
        let what = format!("data was lost though no device failed: {:?}", report.lost);
        return Err(Error::new(ErrorKind::Lost, what));
    }
    Ok((cache, report))
}

impl Losses {
    fn note(&self, setup: &Setup, report: &RecoveryReport) {
        if report.damaged_records > 0 {
            self.unreported_damage.set(false);
        }
        let ranges = report.lost.iter().map(|range| LostRange {
            volume: (0..VOLUMES)
                .find(|&volume| name(volume) == range.volume)
                .expect("a volume of ours"),
            offset: range.offset,
            len: range.len.min(setup.volume_bytes() - range.offset),
        });
        self.reported.borrow_mut().extend(ranges);
    }
}
