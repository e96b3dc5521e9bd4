//! The changes that media suffer while Forebay is stopped, and the outcomes that are right.

use std::fs::File;

use forebay_io::sim::Rng;
use forebay_testkit::stamp::{self, SECTOR_BYTES};

use crate::log;
use crate::session::{Contents, End, Found, Model, Served, Value, identify, values};
use crate::world::{
    BLOCK, BLOCKS, CACHE, CACHE_BYTES, DISKS, JOURNAL, MEDIA, METADATA, Machine, STATE, Snapshot,
    VOLUMES,
};

/// Numbers of writes that only a foreign backing device holds.
const FOREIGN: u64 = 1 << 40;
/// Blocks that remain of a backing device that was cut.
const CUT_BLOCKS: u64 = BLOCKS / 2;

/// A change of the media.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    Nothing,
    /// Another file with other contents is in the place of a backing device.
    BackingReplaced(usize),
    /// A copy of the backing device is in its place.
    BackingCopied(usize),
    /// The backing device has the contents that it had earlier.
    BackingRolledBack(usize),
    /// Another program has written over all of the backing device.
    BackingOverwritten(usize),
    /// The volumes have each other's backing device.
    BackingsSwapped,
    BackingCut(usize),
    BackingExtended(usize),
    /// As [`Event::BackingCut`], and as long as before: the end holds zeroes.
    BackingCutAndExtended(usize),
    /// A copy of the cache device is in its place.
    CacheCopied,
    /// The cache device has the contents that it had earlier.
    CacheRolledBack,
    CacheCut,
    /// As [`Event::CacheCut`], and as long as before: the end holds zeroes.
    CacheCutAndExtended,
    JournalRemoved,
    JournalRolledBack,
    /// The journal of another cache is in its place.
    JournalSwapped,
    StateRemoved,
    StateRolledBack,
    /// The state directory of another machine is in its place.
    StateSwapped,
    /// The cache device, its journal and the state directory are as they were earlier, the backing
    /// devices are not.
    BackingsForward,
    /// The cache device and its journal are as they were earlier.
    CacheAndJournalRolledBack,
    /// The cache device and the state directory are as they were earlier.
    CacheAndStateRolledBack,
    /// The journal and the state directory are as they were earlier.
    JournalAndStateRolledBack,
    /// Everything is as it was earlier.
    AllRolledBack,
    /// The newest records of the log are overwritten.
    LogEndDamaged,
    /// A copy of one of the cache's two devices is in its place.
    PartCopied(&'static str),
    /// One of the cache's two devices has the contents that it had earlier.
    PartRolledBack(&'static str),
}

/// The state before the event.
pub(crate) struct Before<'a> {
    /// End of the last run.
    pub(crate) end: End,
    /// Whether a run lies between `earlier` and `now`.
    pub(crate) ran: bool,
    pub(crate) dirty_bytes: [u64; VOLUMES],
    pub(crate) model: &'a Model,
    pub(crate) earlier: &'a Snapshot,
    /// The contents at `earlier`.
    pub(crate) earlier_contents: &'a Contents,
    pub(crate) now: &'a Snapshot,
    /// The media of another machine.
    pub(crate) other: &'a Snapshot,
}

/// The outcomes that are right after an event.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    /// Serving would lose data or serve wrong data.
    pub(crate) must_refuse: bool,
    /// A refusal is justified.
    pub(crate) may_refuse: bool,
    /// Whether a start that reports damage or loss may serve older data.
    reports_excuse: bool,
    /// Right values of each block, where other values than the newest one are right.
    right: Vec<Right>,
}

/// Right values of the blocks of one volume.
#[derive(Clone, Debug)]
enum Right {
    /// The newest value.
    Newest,
    /// These values.
    Just(Vec<Found>),
    /// The newest value, or these.
    NewestOr(Vec<Found>),
    /// The newest value in the blocks before this one. The others need not exist.
    NewestBelow(u64),
}

impl Event {
    pub(crate) fn draw(rng: &Rng) -> Self {
        let volume = rng.index(VOLUMES);
        match rng.below(27) {
            0 => Self::Nothing,
            1 => Self::BackingReplaced(volume),
            2 => Self::BackingCopied(volume),
            3 => Self::BackingRolledBack(volume),
            4 => Self::BackingsSwapped,
            5 => Self::BackingCut(volume),
            6 => Self::BackingExtended(volume),
            7 => Self::CacheCopied,
            8 => Self::CacheRolledBack,
            9 => Self::CacheCut,
            10 => Self::CacheCutAndExtended,
            11 => Self::JournalRemoved,
            12 => Self::JournalRolledBack,
            13 => Self::JournalSwapped,
            14 => Self::StateRemoved,
            15 => Self::StateRolledBack,
            16 => Self::StateSwapped,
            17 => Self::BackingsForward,
            18 => Self::AllRolledBack,
            19 => Self::BackingCutAndExtended(volume),
            20 => Self::CacheAndJournalRolledBack,
            21 => Self::CacheAndStateRolledBack,
            22 => Self::JournalAndStateRolledBack,
            23 => Self::BackingOverwritten(volume),
            24 => Self::PartCopied([CACHE, METADATA][volume]),
            25 => Self::PartRolledBack([CACHE, METADATA][volume]),
            _ => Self::LogEndDamaged,
        }
    }

    /// Draws an event that can happen beside this one: of another medium, and neither takes back
    /// anything of the other.
    pub(crate) fn draw_second(self, rng: &Rng) -> Option<Self> {
        let (Self::BackingReplaced(volume)
        | Self::BackingCopied(volume)
        | Self::BackingRolledBack(volume)
        | Self::BackingOverwritten(volume)
        | Self::BackingCut(volume)
        | Self::BackingExtended(volume)
        | Self::BackingCutAndExtended(volume)) = self
        else {
            return None;
        };
        let other = 1 - volume;
        Some(match rng.below(10) {
            0 => Self::BackingReplaced(other),
            1 => Self::BackingRolledBack(other),
            2 => Self::BackingOverwritten(other),
            3 => Self::BackingCut(other),
            4 => Self::CacheCut,
            5 => Self::CacheCutAndExtended,
            6 => Self::JournalRemoved,
            7 => Self::JournalSwapped,
            8 => Self::StateRemoved,
            _ => Self::LogEndDamaged,
        })
    }

    /// Changes the media. Returns the backing file of each volume from then on, or nothing if there
    /// is nothing to change.
    pub(crate) fn apply(
        self,
        machine: &Machine,
        before: &Before<'_>,
        rng: &Rng,
    ) -> Option<[&'static str; VOLUMES]> {
        let mut disks = DISKS;
        let resize = |medium: &str, bytes: u64| {
            let file = File::options().write(true).open(machine.path(medium));
            file.and_then(|file| file.set_len(bytes)).expect("resized");
        };
        match self {
            Self::Nothing => {}
            Self::BackingReplaced(volume) => {
                machine.replace(DISKS[volume], &foreign(volume, rng));
            }
            Self::BackingCopied(volume) => {
                let bytes = before.now.of(DISKS[volume]).expect("there");
                machine.replace(DISKS[volume], bytes);
            }
            Self::BackingsSwapped => disks.reverse(),
            Self::BackingCut(volume) => resize(DISKS[volume], CUT_BLOCKS * BLOCK),
            Self::BackingExtended(volume) => resize(DISKS[volume], 2 * BLOCKS * BLOCK),
            Self::BackingCutAndExtended(volume) => {
                resize(DISKS[volume], CUT_BLOCKS * BLOCK);
                resize(DISKS[volume], BLOCKS * BLOCK);
            }
            Self::CacheCopied => {
                for medium in machine.cache_media() {
                    machine.replace(medium, before.now.of(medium).expect("there"));
                }
            }
            Self::PartCopied(_) | Self::PartRolledBack(_) if machine.cache_media().len() < 2 => {
                return None;
            }
            Self::PartCopied(medium) => {
                machine.replace(medium, before.now.of(medium).expect("there"));
            }
            Self::CacheCut => resize(CACHE, cut(rng)),
            Self::CacheCutAndExtended => {
                resize(CACHE, cut(rng));
                resize(CACHE, CACHE_BYTES);
            }
            Self::JournalRemoved => {
                before.now.of(JOURNAL)?;
                std::fs::remove_file(machine.path(JOURNAL)).expect("removed");
            }
            Self::JournalSwapped => {
                before.other.of(JOURNAL)?;
                machine.restore(before.other, JOURNAL);
            }
            Self::StateRemoved => machine.restore(&Snapshot::default(), STATE),
            Self::StateSwapped => machine.restore(before.other, STATE),
            Self::BackingOverwritten(volume) => {
                machine.overwrite(DISKS[volume], &foreign(volume, rng));
            }
            Self::BackingRolledBack(_)
            | Self::CacheRolledBack
            | Self::JournalRolledBack
            | Self::StateRolledBack
            | Self::BackingsForward
            | Self::CacheAndJournalRolledBack
            | Self::CacheAndStateRolledBack
            | Self::JournalAndStateRolledBack
            | Self::PartRolledBack(_)
            | Self::AllRolledBack => {
                for medium in self.media() {
                    machine.restore(before.earlier, medium);
                }
            }
            Self::LogEndDamaged => {
                let damaged = log::damage_end(machine, before.earlier, before.now, rng);
                if !damaged {
                    return None;
                }
            }
        }
        Some(disks)
    }

    /// Returns the media that the event changes in place.
    pub(crate) fn media(self) -> Vec<&'static str> {
        match self {
            Self::Nothing
            | Self::BackingsSwapped
            | Self::BackingReplaced(_)
            | Self::BackingCopied(_)
            | Self::PartCopied(_)
            | Self::CacheCopied => vec![],
            Self::PartRolledBack(medium) => vec![medium],
            Self::BackingRolledBack(volume)
            | Self::BackingOverwritten(volume)
            | Self::BackingCut(volume)
            | Self::BackingExtended(volume)
            | Self::BackingCutAndExtended(volume) => vec![DISKS[volume]],
            Self::CacheRolledBack
            | Self::CacheCut
            | Self::CacheCutAndExtended
            | Self::LogEndDamaged => vec![CACHE, METADATA],
            Self::JournalRemoved | Self::JournalRolledBack | Self::JournalSwapped => vec![JOURNAL],
            Self::StateRemoved | Self::StateRolledBack | Self::StateSwapped => vec![STATE],
            Self::BackingsForward => vec![CACHE, METADATA, JOURNAL, STATE],
            Self::CacheAndJournalRolledBack => vec![CACHE, METADATA, JOURNAL],
            Self::CacheAndStateRolledBack => vec![CACHE, METADATA, STATE],
            Self::JournalAndStateRolledBack => vec![JOURNAL, STATE],
            Self::AllRolledBack => MEDIA.to_vec(),
        }
    }

    /// Puts the media back as they were before the event.
    pub(crate) fn undo(self, machine: &Machine, before: &Before<'_>) {
        match self {
            Self::BackingReplaced(volume) | Self::BackingCopied(volume) => {
                machine.put_back(DISKS[volume]);
            }
            Self::CacheCopied => {
                let media = machine.cache_media().iter();
                media.for_each(|medium| machine.put_back(medium));
            }
            Self::PartCopied(medium) => machine.put_back(medium),
            _ => {}
        }
        for medium in self.media() {
            machine.restore(before.now, medium);
        }
    }

    /// Returns the outcomes that are right. `disks` are the contents of the backing devices.
    pub(crate) fn verdict(self, before: &Before<'_>, disks: [&[u8]; VOLUMES]) -> Verdict {
        let died = before.end == End::Death;
        // A cleaner may have written back what was dirty before the stop.
        let is_dirty = |volume: usize| {
            let backing = before.now.of(DISKS[volume]).expect("there");
            before.dirty_bytes[volume] > 0 && before.model.differs_from(volume, &values(backing))
        };
        let same = |medium: &str| before.earlier.is_same(before.now, medium);
        let mut verdict = Verdict::whole();
        match self {
            Self::Nothing => {}
            Self::BackingReplaced(volume) | Self::BackingCopied(volume) => {
                verdict.must_refuse = is_dirty(volume);
                // After a crash, clean blocks may count as dirty.
                verdict.may_refuse = died || before.dirty_bytes[volume] > 0;
                verdict.right[volume] = Right::Just(values(disks[volume]));
            }
            Self::BackingRolledBack(volume)
            | Self::BackingOverwritten(volume)
            | Self::BackingCutAndExtended(volume) => {
                verdict.may_refuse = before.now.of(DISKS[volume]) != Some(disks[volume]);
                verdict.right[volume] = Right::NewestOr(values(disks[volume]));
            }
            Self::BackingsSwapped => {
                verdict.must_refuse = (0..VOLUMES).any(is_dirty);
                verdict.may_refuse = died || before.dirty_bytes != [0; VOLUMES];
                let swapped = disks.iter().rev();
                verdict.right = swapped.map(|disk| Right::Just(values(disk))).collect();
            }
            Self::BackingCut(volume) => {
                verdict.may_refuse = true;
                verdict.right[volume] = Right::NewestBelow(CUT_BLOCKS);
            }
            Self::BackingExtended(_) => {}
            Self::CacheCopied | Self::PartCopied(_) => {
                verdict.must_refuse = died;
                verdict.may_refuse = true;
            }
            Self::CacheRolledBack | Self::PartRolledBack(_) => {
                verdict.must_refuse = before.ran;
            }
            Self::CacheCut => verdict.must_refuse = true,
            Self::CacheCutAndExtended => {
                verdict.may_refuse = true;
                verdict.reports_excuse = true;
            }
            Self::JournalRemoved => verdict.must_refuse = died,
            Self::JournalRolledBack => {
                // Without dirty data a journal has nothing that counts.
                verdict.must_refuse = died && before.ran && (0..VOLUMES).any(is_dirty);
                verdict.may_refuse = !same(JOURNAL);
            }
            Self::JournalSwapped => {
                verdict.must_refuse = died;
                verdict.may_refuse = true;
            }
            Self::StateRemoved | Self::StateSwapped => verdict.must_refuse = true,
            Self::StateRolledBack
            | Self::CacheAndJournalRolledBack
            | Self::JournalAndStateRolledBack => verdict.must_refuse = before.ran,
            Self::BackingsForward | Self::CacheAndStateRolledBack => {
                verdict.may_refuse = before.ran;
                let media = before.earlier_contents.iter().zip(disks);
                let right = media.map(|(earlier, disk)| match before.ran {
                    true => {
                        let earlier = earlier.map(Found::Value).to_vec();
                        Right::NewestOr([earlier, values(disk)].concat())
                    }
                    false => Right::Newest,
                });
                verdict.right = right.collect();
            }
            Self::AllRolledBack => {
                for volume in 0..VOLUMES {
                    let earlier = before.earlier_contents[volume];
                    verdict.right[volume] = Right::Just(earlier.map(Found::Value).to_vec());
                }
            }
            Self::LogEndDamaged => {
                verdict.may_refuse = true;
                verdict.reports_excuse = true;
            }
        }
        verdict.may_refuse |= verdict.must_refuse;
        verdict
    }
}

impl Verdict {
    /// The verdict on media that belong together.
    pub(crate) fn whole() -> Self {
        Self {
            must_refuse: false,
            may_refuse: false,
            reports_excuse: false,
            right: vec![Right::Newest; VOLUMES],
        }
    }

    /// Returns the verdict on media that another event changed as well.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.reports_excuse |= other.reports_excuse;
        // Damage may also hide that something was dirty. A start reports that.
        self.must_refuse = (self.must_refuse || other.must_refuse) && !self.reports_excuse;
        self.may_refuse |= other.may_refuse;
        for (right, other) in self.right.iter_mut().zip(other.right) {
            if !matches!(other, Right::Newest) {
                *right = other;
            }
        }
        self
    }

    /// Checks the blocks that a start serves.
    ///
    /// # Errors
    /// Returns the first wrong block.
    pub(crate) fn check(&self, served: &Served, model: &Model) -> Result<(), String> {
        for (volume, found) in served.found.iter().enumerate() {
            for (block, found) in found.iter().enumerate() {
                let excused = self.reports_excuse && is_older(found, volume, block, served, model);
                if !self.allows(volume, block, found, model) && !excused {
                    return Err(format!(
                        "volume {volume} block {block}: {found:?} was read; the newest value is \
                         {:?}; recovery: {}",
                        model.now[volume][block], served.recovery
                    ));
                }
            }
        }
        Ok(())
    }

    fn allows(&self, volume: usize, block: usize, found: &Found, model: &Model) -> bool {
        let is_newest = *found == Found::Value(model.now[volume][block]);
        match &self.right[volume] {
            Right::Newest => is_newest,
            Right::Just(values) => *found == values[block],
            Right::NewestOr(values) => {
                is_newest
                    || values
                        .iter()
                        .skip(block)
                        .step_by(BLOCKS as usize)
                        .any(|value| value == found)
            }
            Right::NewestBelow(end) => is_newest || block as u64 >= *end,
        }
    }
}

/// Whether a block of a start that reported loss holds older data, or fails.
fn is_older(found: &Found, volume: usize, block: usize, served: &Served, model: &Model) -> bool {
    match found {
        // A read that fails names its loss by itself.
        Found::Failed(_) => true,
        Found::Value(value) => served.reported && model.had(volume, block, *value),
        Found::Garbage(_) => false,
    }
}

/// Returns the size to which a cache device is cut, within its used part.
fn cut(rng: &Rng) -> u64 {
    let first = CACHE_BYTES / 8;
    first + rng.below((CACHE_BYTES / 2 - first) / BLOCK) * BLOCK
}

/// Contents of a backing device that no volume ever had.
fn foreign(volume: usize, rng: &Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for block in 0..BLOCKS {
        let buf = forebay_block::Buf::zeroed(BLOCK as usize);
        let sector = block * BLOCK / SECTOR_BYTES as u64;
        stamp::fill(&buf, volume, sector, FOREIGN + rng.below(1 << 20));
        bytes.extend(buf.to_vec());
    }
    debug_assert!(matches!(
        identify(&bytes[..BLOCK as usize], 0),
        Found::Value(Value::Write { .. })
    ));
    bytes
}
