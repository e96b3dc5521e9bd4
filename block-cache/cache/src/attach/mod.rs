//! Volumes come and go: attach, grow, detach (rule 6).

pub(crate) mod detach;
pub(crate) mod identity;
pub(crate) mod idle;
mod logical_blocks;
pub(crate) mod sample;
pub(crate) mod stale;

use std::ops::Range;
use std::rc::Rc;

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, Error, ErrorKind, Result};
use forebay_io::rt;
use forebay_metadata::order::Site;
use forebay_metadata::superblock::{MAX_NAME_BYTES, MAX_VOLUMES, VolumeEntry};
use forebay_policy::{BlockId, BlockKey};

use crate::attach::idle::{no_number, no_room};
use crate::cache::Cache;
use crate::commit::queue::Entry;
use crate::engine::Engine;
use crate::geometry::Block;
use crate::lock::lock_of;
use crate::options::VolumeOptions;
use crate::request::CachedVolume;
use crate::volume::backing::Backing;
use crate::volume::{AttachedVolume, Found};
use crate::volume_size::{check_volume_size, shrank, shrunk_clean};

fn refuse<T>(kind: ErrorKind, what: String) -> Result<T> {
    Err(Error::new(kind, what))
}

/// Knowledge of an attach that the cache is about to lose, and that the caller stores first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announcement {
    /// Names under which a flush of the backing device failed with clients' writes at stake.
    pub lost: Vec<String>,
    /// Whether an opening found data of the volume lost, and no start has reported that.
    pub has_unreported_loss: bool,
    /// Other volumes that were served from the backing device. The cache has no dirty data of them,
    /// and forgets them.
    pub forgotten: Vec<String>,
}

impl Cache {
    /// Attaches `backing` as a cached volume under the name by which this cache knows it. Returns
    /// it as a device of this reactor.
    ///
    /// The volume's epoch is raised, durably, before this returns. The caller stores
    /// [`Cache::volume_epoch`] outside the cache before it serves the volume.
    ///
    /// # Errors
    /// - `Busy` if the volume is attached.
    /// - `Busy` if it holds dirty data that is older than writes made without this cache. The
    ///   message names the data.
    /// - `InvalidInput` for a name that is empty or over 64 bytes.
    /// - `InvalidInput` for a backing device that shrank below dirty data, or that has more blocks
    ///   than can be numbered.
    /// - `InvalidInput` for a backing device that a clean copy shows to be another one.
    /// - `InvalidInput` for a backing device whose blocks are larger than a granule, or larger than
    ///   the cache device writes atomically.
    /// - `NoSpace` for a 65th volume.
    /// - The devices' own errors.
    pub async fn attach(
        &self,
        name: &str,
        backing: Rc<dyn BlockDevice>,
        options: VolumeOptions,
    ) -> Result<Rc<dyn BlockDevice>> {
        let announce = async |_| Ok(());
        self.attach_announced(name, backing, options, announce)
            .await
    }

    /// As [`Cache::attach`]. Waits for `announce` after the last check that may refuse the attach,
    /// and before the superblock has the new epoch and backing device. The caller stores both
    /// outside the cache there. A refused attach does not call it.
    ///
    /// # Errors
    /// As [`Cache::attach`], and the error of `announce`.
    pub async fn attach_announced(
        &self,
        name: &str,
        backing: Rc<dyn BlockDevice>,
        options: VolumeOptions,
        announce: impl AsyncFnOnce(Announcement) -> Result<()>,
    ) -> Result<Rc<dyn BlockDevice>> {
        // One at a time: names and numbers are looked up first and given out at the end.
        self.engine.attaching.acquire(1).await;
        let result = self.attach_alone(name, backing, options, announce).await;
        self.engine.attaching.release(1);
        result
    }

    async fn attach_alone(
        &self,
        name: &str,
        backing: Rc<dyn BlockDevice>,
        options: VolumeOptions,
        announce: impl AsyncFnOnce(Announcement) -> Result<()>,
    ) -> Result<Rc<dyn BlockDevice>> {
        let engine = &self.engine;
        let info = backing.info();
        let logical_block = info.logical_block_bytes;
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return refuse(
                ErrorKind::InvalidInput,
                format!(
                    "volume name {name:?} is empty or long\nhelp: use 1 to {MAX_NAME_BYTES} bytes"
                ),
            );
        }
        self.check_logical_blocks(&info)?;
        if engine.volumes.named(name).is_ok() {
            return refuse(
                ErrorKind::Busy,
                format!("volume {name:?} is attached already"),
            );
        }
        let size_bytes = info.size_bytes - info.size_bytes % u64::from(logical_block);
        check_volume_size(engine.geometry.sizes(), size_bytes)?;
        let known = engine.known_volume(name);
        if known.is_none() && engine.superblock.current().volumes.len() >= MAX_VOLUMES {
            return Err(no_room(&self.idle_volumes()));
        }
        let backing = Backing::new(backing);
        let id = match &known {
            Some(known) => known.id,
            None => engine.superblock.current().next_volume,
        };
        if id == u16::MAX {
            return Err(no_number());
        }
        let sized = (info.identity, size_bytes);
        let former = engine.former_volumes(name, sized);
        let earlier: Vec<&VolumeEntry> = known.iter().chain(&former).collect();
        // Clients of a volume with `sync` need not flush what a dead process left in the device's
        // cache. A start that may yet be refused changes no device: `flush_attached` does it then.
        let needed = engine.committer.is_sync() && !engine.service.holds_write_back();
        let lost = engine
            .failures
            .flush_inherited(name, &earlier, &backing, needed)
            .await?;
        let may_show_lost = engine.failures.may_show_lost(&earlier, options.epoch);
        let owes_report = earlier.iter().any(|entry| entry.has_unreported_loss);
        let has_unreported_loss = owes_report
            && earlier
                .iter()
                .any(|entry| engine.superblock.is_lossy(entry.id));
        engine
            .check_identity(name, known.as_ref(), &former, sized, &options)
            .await?;
        if let Some(known) = &known {
            self.check_stale(name, &options)?;
            // Clean copies are the evidence, so none is dropped before.
            engine
                .compare_sample(known, backing.device(), &options)
                .await?;
            engine.drop_stale(known, &options).await?;
            // The reclaimer must not take the block at the old end while it is filled up.
            let last = BlockKey::new(known.id, engine.geometry.region_at(known.size_bytes));
            let _lock = match size_bytes > known.size_bytes {
                true => Some(engine.locks.exclusive(last, u64::MAX).await),
                false => None,
            };
            engine.resize(known, size_bytes, &backing).await?;
            let was_bytes = known.size_bytes;
            let is_other = info.identity.is_known()
                && !options.adopt
                && (known.identity).is_replaced_by(was_bytes, info.identity, size_bytes);
            if size_bytes < was_bytes && !is_other {
                tracing::warn!(volume = name, "{}", shrunk_clean(was_bytes, size_bytes));
            }
        }
        let epoch = options
            .epoch
            .max(known.as_ref().map_or(0, |known| known.epoch))
            + 1;
        let has_flush_to_report = !lost.is_empty();
        announce(Announcement {
            lost,
            has_unreported_loss,
            forgotten: former.iter().map(|entry| entry.name.clone()).collect(),
        })
        .await?;
        let is_former = |id| former.iter().any(|entry| entry.id == id);
        engine
            .superblock
            .change(|superblock| {
                (superblock.volumes).retain(|volume| volume.id != id && !is_former(volume.id));
                superblock.volumes.push(VolumeEntry {
                    id,
                    name: name.to_owned(),
                    epoch,
                    size_bytes,
                    identity: info.identity,
                    flush_failed: false,
                    may_show_lost,
                    // The start may yet be refused by another volume.
                    has_unreported_loss: owes_report || has_flush_to_report,
                    differs_at: None,
                });
                superblock.next_volume = superblock.next_volume.max(id + 1);
            })
            .await?;
        for entry in &former {
            engine.marks.forget_volume(entry.id);
        }
        let blocks = engine.map.borrow().units() as usize;
        let found = Found {
            id,
            name: name.to_owned(),
            epoch,
            size_bytes,
            logical_block,
            may_show_lost,
            has_unreported_loss,
        };
        let (measured, cleaning) = (engine.admission.new_measures(), engine.cleaner.policy());
        let volume = AttachedVolume::new(found, backing, &options, blocks, measured, cleaning);
        let volume = Rc::new(volume);
        engine.map.borrow_mut().expect_volume(id, size_bytes);
        engine.volumes.insert(Rc::clone(&volume));
        engine.failures.note_changes(&volume);
        rt::spawn(Rc::clone(&engine.cleaner).clean_volume(Rc::clone(&volume)));
        Ok(Rc::new(CachedVolume {
            engine: Rc::clone(engine),
            volume,
        }))
    }

    /// Returns whether a flush of a volume's backing device failed with clients' writes at stake,
    /// and no attach has reported that.
    #[must_use]
    pub fn has_failed_flush(&self, name: &str) -> bool {
        let known = self.engine.known_volume(name);
        known.is_some_and(|known| known.flush_failed)
    }

    /// Returns whether an opening found data of a volume lost, and no start has reported that.
    #[must_use]
    pub fn has_unreported_loss(&self, name: &str) -> bool {
        let known = self.engine.known_volume(name);
        known.is_some_and(|known| known.has_unreported_loss)
    }

    /// Takes the size of a volume's backing device over, if it has grown. Returns the volume's
    /// size.
    ///
    /// # Errors
    /// `NotFound` for an unknown volume, `InvalidInput` if the device shrank or has more blocks
    /// than can be numbered, or the devices' own.
    pub async fn grow(&self, name: &str) -> Result<u64> {
        let engine = &self.engine;
        let volume = engine.volumes.named(name)?;
        let size = volume.backing.device().info().size_bytes;
        let size = size - size % u64::from(volume.logical_block);
        let old = volume.size_bytes();
        if size < old {
            return refuse(
                ErrorKind::InvalidInput,
                format!(
                    "{}: the backing device has {size} bytes, the volume {old}\n\
                     help: give the device its {old} bytes back, since data beyond its end is lost",
                    volume.name
                ),
            );
        }
        check_volume_size(engine.geometry.sizes(), size)?;
        let known = engine.known_volume(name);
        if let Some(known) = known.filter(|_| size > old) {
            let last = volume.region_key(engine.geometry.region_at(old));
            let _lock = engine.locks.exclusive(last, u64::MAX).await;
            engine.resize(&known, size, &volume.backing).await?;
            engine
                .superblock
                .change(|superblock| {
                    for entry in &mut superblock.volumes {
                        if entry.id == known.id {
                            entry.size_bytes = size;
                        }
                    }
                })
                .await?;
            volume.set_size_bytes(size);
            engine.map.borrow_mut().expect_volume(volume.id, size);
        }
        Ok(size)
    }
}

impl Engine {
    fn known_volume(&self, name: &str) -> Option<VolumeEntry> {
        self.superblock
            .current()
            .volumes
            .iter()
            .find(|volume| volume.name == name)
            .cloned()
    }

    /// Returns the dirty byte ranges of these blocks in their volume, in ascending order. Adjacent
    /// ranges are merged.
    pub(crate) fn dirty_ranges(&self, blocks: impl Iterator<Item = BlockId>) -> Vec<Range<u64>> {
        let map = self.map.borrow();
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for entry in blocks.map(|id| map.state(id)) {
            let whole = 0..u32::MAX;
            let runs = self.geometry.runs(entry.class, entry.dirty, whole);
            let at = |byte: u32| self.geometry.backing_offset(entry.block(), byte);
            ranges.extend(runs.map(|run| at(run.start)..at(run.end)));
        }
        ranges.sort_unstable_by_key(|range| range.start);
        ranges.dedup_by(|next, range| {
            let joins = next.start == range.end;
            if joins {
                range.end = next.end;
            }
            joins
        });
        ranges
    }

    /// The blocks of a volume: a number may name another block after the next wait.
    pub(crate) fn blocks_of(&self, volume: u16) -> Vec<(BlockId, Block)> {
        let map = self.map.borrow();
        map.of_volume(volume)
            .map(|id| (id, map.state(id).block()))
            .collect()
    }

    /// Returns whether a number still names this block.
    pub(crate) fn is_block(&self, volume: u16, id: BlockId, block: Block) -> bool {
        let map = self.map.borrow();
        map.find(block.key(volume)) == Some(id) && map.state(id).block() == block
    }

    /// Kills blocks of a volume that is not served.
    pub(crate) async fn kill(&self, volume: u16, blocks: Vec<(BlockId, Block)>) -> Result<()> {
        let mut locks = Vec::with_capacity(blocks.len());
        let mut killed = Vec::with_capacity(blocks.len());
        for (id, block) in blocks {
            let (region, granules) = lock_of(self.geometry, volume, block);
            // The reclaimer may be at it, or may have had it.
            let lock = self.locks.exclusive(region, granules).await;
            if self.is_block(volume, id, block) {
                self.committer.kill_block(id);
                killed.push(id);
                locks.push(lock);
            }
        }
        if !killed.is_empty() {
            let map = self.map.borrow();
            let slots = killed.iter().map(|id| map.slot(*id)).collect();
            drop(map);
            self.committer.queue_entry(Entry::Kill(slots));
        }
        self.committer.commit().await?;
        for id in killed {
            self.slots.forget(id);
        }
        Ok(())
    }

    /// Adapts the cached data of a volume to a new size of the backing device.
    async fn resize(&self, known: &VolumeEntry, size: u64, backing: &Backing) -> Result<()> {
        let old = known.size_bytes;
        if size < old {
            let beyond: Vec<BlockId> = {
                let map = self.map.borrow();
                map.of_volume(known.id)
                    .filter(|id| {
                        // A clean granule that the new end cuts is good as far as it goes.
                        let entry = map.state(*id);
                        self.end(entry.block(), entry.valid)
                            >= size + self.geometry.granule_bytes(entry.class)
                    })
                    .collect()
            };
            let dirty = {
                let map = self.map.borrow();
                map.of_volume(known.id).any(|id| {
                    let entry = map.state(id);
                    self.end(entry.block(), entry.dirty).min(old) > size
                })
            };
            if dirty {
                return Err(shrank(&known.name, old, size));
            }
            let mut kill = Vec::new();
            for id in beyond {
                let entry = self.map.borrow().state(id);
                if entry.dirty == 0 {
                    kill.push((id, entry.block()));
                } else {
                    self.map.borrow_mut().set(id, entry.dirty, entry.dirty);
                    self.committer.queue_record(id);
                }
            }
            return self.kill(known.id, kill).await;
        }
        // The granule at the old end was cached only up to that end. Its rest is read now.
        let unit = self.geometry.unit_of(old);
        let found = self.map.borrow().find(BlockKey::new(known.id, unit));
        if let Some(id) = found {
            let block = self.map.borrow().state(id).block();
            let granule = self.geometry.granule_bytes(block.class);
            if size == old || old.is_multiple_of(granule) {
                return Ok(());
            }
            let start = old - self.geometry.backing_offset(block, 0);
            let start = u32::try_from(start).expect("in a block");
            let end = old.next_multiple_of(granule).min(size);
            // The data that is read becomes part of a clean granule, which claims that the backing
            // device has it durably.
            if let Err(error) = backing.flush().await {
                let _ = self
                    .failures
                    .set_flush_failed(known.id, backing.owes_clients())
                    .await;
                return Err(error);
            }
            let buf = Buf::scratch(usize::try_from(end - old).expect("less than a granule"));
            backing.device().read(old, buf.clone()).await?;
            let bytes = start..start + u32::try_from(buf.len()).expect("less than a granule");
            let written = self.slots.write_data(Site::here(), id, start, buf).await;
            self.committer.block_written(id);
            self.slots.reset_checksums_at(id, bytes);
            written?;
            self.committer.commit().await?;
        }
        Ok(())
    }

    /// One past the last byte that these granules of a block cover; zero for none.
    fn end(&self, block: Block, granules: u64) -> u64 {
        match u64::from(64 - granules.leading_zeros()) {
            0 => 0,
            last => {
                let granule = self.geometry.granule_bytes(block.class);
                self.geometry.backing_offset(block, 0) + last * granule
            }
        }
    }
}
