//! A session: one process that has a volume open and uses it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDeviceExt as _, Buf, Error, ErrorKind, Result};
use forebay_io::rt;
use forebay_io::sim::Rng;

use super::model::{Model, SECTORS, Verdict, ZONES, decode, encode};
use super::store::{Line, Profile, Shelf};
use crate::fault::Faults;
use crate::limits::Limits;
use crate::options::{Access, Options, Times};
use crate::volume::ObjectVolume;

/// Store and model, which outlive a session.
#[derive(Debug)]
pub(super) struct World {
    pub(super) shelf: Rc<Shelf>,
    pub(super) model: RefCell<Model>,
    /// Complete snapshots: the values that a sector may have. One each after the first look.
    pub(super) snapshots: RefCell<BTreeMap<String, BTreeMap<u64, Vec<u64>>>>,
    pub(super) faults: Faults,
    pub(super) limits: Limits,
    /// The first violation.
    pub(super) failure: RefCell<Option<String>>,
    names: RefCell<u64>,
}

impl World {
    pub(super) fn new(seed: u64, faults: Faults) -> Rc<Self> {
        let rng = Rng::labelled(seed, 2);
        let profile = Profile {
            failure: [0, 20, 100][rng.index(3)],
            late: [0, 100, 400][rng.index(3)],
            longest_ms: [10, 100, 400][rng.index(3)],
        };
        let limits = Limits {
            batch_sectors: [32, 64, 128][rng.index(3)],
            checkpoint_bytes: [4 << 10, 16 << 10, 64 << 10][rng.index(3)],
            checkpoint_ratio: 2,
            checkpoint_objects: [3, 8, 20][rng.index(3)],
            slack_bytes: [0, 4 << 10][rng.index(2)],
            small_bytes: 4 << 10,
            small_objects: [3, 12][rng.index(2)],
        };
        Rc::new(Self {
            shelf: Shelf::new(seed, profile),
            model: RefCell::default(),
            snapshots: RefCell::default(),
            faults,
            limits,
            failure: RefCell::default(),
            names: RefCell::default(),
        })
    }

    /// Notes a violation.
    pub(super) fn note(&self, verdict: Verdict) {
        if let Err(what) = verdict {
            self.failure.borrow_mut().get_or_insert(what);
        }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// Notes an error that has no cause in the simulation. Returns whether the session goes on.
    pub(super) fn excuse(&self, what: &str, error: &Error, may_be_fenced: bool) -> bool {
        match error.kind() {
            ErrorKind::Unreachable => true,
            ErrorKind::Busy if may_be_fenced => false,
            _ => {
                self.note(Err(format!("{what}: {}", error.report())));
                false
            }
        }
    }

    pub(super) async fn open(&self, line: &Rc<Line>, options: Options) -> Result<Rc<ObjectVolume>> {
        let options = Options {
            times: Times {
                patience: Duration::from_secs(5),
                first_pause: Duration::from_millis(20),
                longest_pause: Duration::from_millis(500),
            },
            ..options
        };
        let line = Rc::clone(line);
        ObjectVolume::open_with(line, options, self.limits, self.faults).await
    }

    /// Opens the volume to serve it.
    pub(super) async fn serve(&self, line: &Rc<Line>) -> Result<Rc<ObjectVolume>> {
        let options = Options {
            size_bytes: Some(SECTORS * 512),
            ..Options::new(Access::Serve)
        };
        self.open(line, options).await
    }

    /// Compares all zones with the model after a crash.
    pub(super) async fn check_recovered(&self, volume: &ObjectVolume, ordered: bool) {
        let mut zones = Vec::new();
        for sectors in ZONES {
            match read(volume, sectors.start, sectors.end).await {
                Ok(data) => zones.push((sectors.start, data)),
                Err(error) => {
                    return self.note(Err(format!("after a crash: {}", error.report())));
                }
            }
        }
        let checked = self.model.borrow_mut().check_recovered(&zones, ordered);
        self.note(checked);
    }

    /// Compares all complete snapshots with the model.
    pub(super) async fn check_snapshots(&self, line: &Rc<Line>) {
        let names: Vec<_> = self.snapshots.borrow().keys().cloned().collect();
        for name in names {
            let options = Options {
                snapshot: Some(name.clone()),
                ..Options::new(Access::Look)
            };
            let checked = async {
                let volume = self.open(line, options).await.map_err(|it| it.report())?;
                self.check_snapshot(&volume, &name).await
            };
            let checked: Verdict = checked.await;
            self.note(checked.map_err(|it| format!("snapshot {name}: {it}")));
        }
    }

    async fn check_snapshot(&self, volume: &ObjectVolume, name: &str) -> Verdict {
        for sectors in ZONES {
            let data = read(volume, sectors.start, sectors.end)
                .await
                .map_err(|it| it.report())?;
            let mut snapshots = self.snapshots.borrow_mut();
            let Some(allowed) = snapshots.get_mut(name) else {
                return Ok(()); // It has been deleted meanwhile.
            };
            for (at, value) in sectors.clone().zip(decode(sectors.start, &data)?) {
                let Some(values) = allowed.get_mut(&at) else {
                    continue;
                };
                if !values.contains(&value) {
                    return Err(format!("sector {at} has {value}, not of {values:?}"));
                }
                *values = vec![value];
            }
        }
        Ok(())
    }
}

/// Reads sectors.
pub(super) async fn read(volume: &ObjectVolume, start: u64, end: u64) -> Result<Buf> {
    let buf = Buf::scratch(((end - start) * 512) as usize);
    buf.fill(0xa5);
    volume.read(start * 512, buf.clone()).await?;
    Ok(buf)
}

/// One of the tasks of a session.
pub(super) struct Client {
    pub(super) world: Rc<World>,
    pub(super) volume: Rc<ObjectVolume>,
    /// Zones of the session, all of which a flush covers.
    pub(super) zones: Vec<usize>,
    /// Zone that this task uses.
    pub(super) zone: usize,
    pub(super) may_be_fenced: bool,
    pub(super) rng: Rng,
}

impl Client {
    /// Makes `count` requests. Ends with the volume.
    pub(super) async fn run(&self, count: u64) {
        for _ in 0..count {
            if self.world.has_failed() {
                return;
            }
            let outcome = match self.rng.below(100) {
                0..50 => self.write().await,
                50..60 => self.zero().await,
                60..72 => self.flush().await,
                72..92 => self.read().await,
                92..94 => self.snapshot().await,
                _ => {
                    rt::sleep(Duration::from_millis(self.rng.below(300))).await;
                    Ok(())
                }
            };
            if let Err(error) = outcome
                && !self.world.excuse("request", &error, self.may_be_fenced)
            {
                return;
            }
        }
    }

    fn sectors(&self) -> std::ops::Range<u64> {
        let zone = ZONES[self.zone].clone();
        let longest = [4, 16, 160][self.rng.index(3)];
        let start = zone.start + self.rng.below(zone.end - zone.start);
        start..(start + 1 + self.rng.below(longest)).min(zone.end)
    }

    pub(super) async fn write(&self) -> Result<()> {
        let sectors = self.sectors();
        let value = self.world.model.borrow_mut().value();
        let data = encode(sectors.clone(), value);
        let written = self.world.model.borrow_mut().write(sectors.clone(), value);
        let fua = self.rng.chance(1, 12);
        match fua {
            true => self.volume.write_fua(sectors.start * 512, data).await?,
            false => self.volume.write(sectors.start * 512, data).await?,
        }
        self.world.model.borrow_mut().acknowledge(&written, fua);
        Ok(())
    }

    async fn zero(&self) -> Result<()> {
        let sectors = self.sectors();
        let len = (sectors.end - sectors.start) * 512;
        let written = self.world.model.borrow_mut().write(sectors.clone(), 0);
        match self.rng.chance(1, 2) {
            true => self.volume.discard(sectors.start * 512, len).await?,
            false => self.volume.write_zeroes(sectors.start * 512, len).await?,
        }
        self.world.model.borrow_mut().acknowledge(&written, false);
        Ok(())
    }

    pub(super) async fn flush(&self) -> Result<()> {
        let mark = self.world.model.borrow_mut().mark(&self.zones);
        self.volume.flush().await?;
        self.world.model.borrow_mut().flushed(&mark);
        Ok(())
    }

    async fn read(&self) -> Result<()> {
        let sectors = self.sectors();
        let data = read(&self.volume, sectors.start, sectors.end).await?;
        let checked = self
            .world
            .model
            .borrow_mut()
            .check_read(sectors.start, &data);
        self.world.note(checked);
        Ok(())
    }

    /// Creates a snapshot, or deletes one.
    async fn snapshot(&self) -> Result<()> {
        let names: Vec<_> = self.world.snapshots.borrow().keys().cloned().collect();
        if names.len() > 2 {
            let name = &names[self.rng.index(names.len())];
            self.world.snapshots.borrow_mut().remove(name);
            let deleted = self.volume.delete_snapshot(name).await;
            return match deleted {
                // Another task has deleted it, or an attempt whose answer was lost.
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                deleted => deleted,
            };
        }
        let name = {
            let mut names = self.world.names.borrow_mut();
            *names += 1;
            format!("s{names}")
        };
        let mark = self.world.model.borrow_mut().mark(&self.zones);
        self.volume.snapshot(&name).await?;
        let allowed = self.world.model.borrow().allowed(mark);
        self.world.snapshots.borrow_mut().insert(name, allowed);
        Ok(())
    }
}
