//! From media to a tree, and a tree onto new media.

use forebay_block::{BlockDevice, BlockDeviceExt, Buf, Error, ErrorKind, Result};

use super::sector::{TreeExtent, choose};
use super::{Adjust, Priced, Tree, TreeOptions};
use crate::{Seed, order};

/// Where the next copy of a unit goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnitState {
    /// The copy that counts.
    pub(super) copy: usize,
    /// The highest sequence that was used for the unit.
    pub(super) sequence: u64,
}

/// Findings of loading a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Units of the tree.
    pub units: u32,
    /// Units that were to be believed in neither copy, and read as all dirty.
    pub lost_units: u32,
    /// Units of which one copy was torn or damaged, and which the other one gave.
    pub repaired_units: u32,
    /// Copies that could not be read.
    pub unreadable_copies: u32,
}

impl LoadReport {
    fn of(extent: TreeExtent) -> Self {
        Self {
            units: extent.units(),
            ..Self::default()
        }
    }
}

/// A tree as media has it.
#[derive(Debug)]
pub struct Loaded<A = Priced> {
    /// The tree; nothing in it is marked yet but what media says.
    pub tree: Tree<A>,
    /// Findings of the load.
    pub report: LoadReport,
    pub(super) units: Vec<UnitState>,
}

/// Writes a tree in which nothing is dirty. `epoch` is higher each time that the tree is formatted
/// or loaded.
///
/// # Errors
/// The device's own; `InvalidInput` for an extent that is not one of whole units.
pub async fn format(
    device: &dyn BlockDevice,
    extent: TreeExtent,
    seed: Seed,
    epoch: u32,
) -> Result<()> {
    check(device, extent)?;
    let words = vec![0; extent.unit_words()];
    // The older copies first: a unit whose only whole copy is the older one reads as all dirty.
    for copy in 0..2 {
        let sequence = first_sequence(epoch) + copy as u64;
        let units = (0..extent.units()).map(|unit| {
            (
                extent.at(unit, copy),
                image(extent, seed, unit, sequence, &words),
            )
        });
        order::write_durably(device, units).await?;
    }
    Ok(())
}

/// Reads a tree and makes the result durable: after a failed flush, the device may show data that
/// is not durable. `epoch` is higher than at any earlier format or load. The adjuster is new.
///
/// # Errors
/// The device's own, when writing, or if it is shutting down. `InvalidInput` for an extent that is
/// not one of whole units. Never for unreadable units, which count as dirty.
pub async fn load<A: Adjust>(
    device: &dyn BlockDevice,
    extent: TreeExtent,
    seed: Seed,
    epoch: u32,
    options: TreeOptions,
    adjuster: A,
) -> Result<Loaded<A>> {
    check(device, extent)?;
    let mut report = LoadReport::of(extent);
    let (mut words, mut units) = (Vec::new(), Vec::new());
    // Units to write first, and units to write when those are durable.
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for unit in 0..extent.units() {
        let copies = read(device, extent, seed, unit, &mut report).await?;
        let sequences = copies
            .iter()
            .flat_map(|copy| copy.sequences.iter().flatten());
        let highest = sequences.copied().max().unwrap_or(0);
        let fresh = first_sequence(epoch).max(highest.saturating_add(1));
        if let Some(copy) = counting(&copies, &mut report) {
            // Byte for byte, so that tearing it changes nothing.
            first.push((extent.at(unit, copy), Buf::copied(&copies[copy].bytes)));
            words.extend(extent.words(&copies[copy].bytes));
            units.push(UnitState {
                copy,
                sequence: highest,
            });
            continue;
        }
        let all = vec![u64::MAX; extent.unit_words()];
        // A copy that is whole is written last: until then it may be all that is left.
        let last = usize::from(!copies[0].is_whole());
        for (copy, sequence, parts) in [
            (1 - last, fresh, &mut first),
            (last, fresh + 1, &mut second),
        ] {
            parts.push((
                extent.at(unit, copy),
                image(extent, seed, unit, sequence, &all),
            ));
        }
        words.extend(all);
        units.push(UnitState {
            copy: last,
            sequence: fresh + 1,
        });
    }
    for parts in [first, second] {
        if !parts.is_empty() {
            order::write_durably(device, parts).await?;
        }
    }
    for unit in &mut units {
        unit.sequence = unit.sequence.max(first_sequence(epoch));
    }
    Ok(Loaded {
        tree: Tree::restored(extent.shape, extent.unit_words(), options, adjuster, &words),
        report,
        units,
    })
}

/// Reads a tree as [`load`] would, and changes nothing: for a look at what is not in use.
///
/// # Errors
/// `InvalidInput` for an extent that is not one of whole units; `ShuttingDown` from the device.
pub async fn look(
    device: &dyn BlockDevice,
    extent: TreeExtent,
    seed: Seed,
) -> Result<(Tree, LoadReport)> {
    check(device, extent)?;
    let mut report = LoadReport::of(extent);
    let mut words = Vec::new();
    for unit in 0..extent.units() {
        let copies = read(device, extent, seed, unit, &mut report).await?;
        match counting(&copies, &mut report) {
            Some(copy) => words.extend(extent.words(&copies[copy].bytes)),
            None => words.extend(vec![u64::MAX; extent.unit_words()]),
        }
    }
    let (options, adjuster) = (TreeOptions::default(), Priced::new(extent.shape));
    let tree = Tree::restored(extent.shape, extent.unit_words(), options, adjuster, &words);
    Ok((tree, report))
}

/// The units of a tree that was just formatted.
pub(super) fn formatted(extent: TreeExtent, epoch: u32) -> Vec<UnitState> {
    let unit = UnitState {
        copy: 1,
        sequence: first_sequence(epoch) + 1,
    };
    vec![unit; extent.units() as usize]
}

/// Returns the first sequence of an epoch. Sequences of different epochs differ. So a write of an
/// earlier process that this one did not see is never taken for a part of this process's writes.
fn first_sequence(epoch: u32) -> u64 {
    u64::from(epoch) << 32 | 1
}

fn check(device: &dyn BlockDevice, extent: TreeExtent) -> Result<()> {
    let info = device.info();
    let unit = extent.unit_bytes;
    let whole = unit.is_power_of_two()
        && unit >= info.logical_block_bytes.max(512)
        && extent.offset.is_multiple_of(u64::from(unit));
    if !whole || extent.offset + extent.bytes() > info.size_bytes {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "{}: a bit-tree of {} bytes at byte {} does not fit the device of {} bytes (units \
                 of {unit} bytes, at least {})\n\
                 help: put the cache's former device back, or a copy of it on one like that",
                info.name,
                extent.bytes(),
                extent.offset,
                info.size_bytes,
                info.logical_block_bytes.max(512),
            ),
        ));
    }
    Ok(())
}

pub(super) fn image(
    extent: TreeExtent,
    seed: Seed,
    unit: u32,
    sequence: u64,
    words: &[u64],
) -> Buf {
    let mut bytes = vec![0; extent.unit_bytes as usize];
    extent.encode(&mut bytes, seed, unit, sequence, words);
    Buf::copied(&bytes)
}

struct Copy {
    bytes: Vec<u8>,
    sequences: Vec<Option<u64>>,
}

impl Copy {
    fn is_whole(&self) -> bool {
        self.sequences[0].is_some() && self.sequences.iter().all(|one| *one == self.sequences[0])
    }
}

/// Returns the copy of a unit that counts, if either can be trusted, and updates the report.
fn counting(copies: &[Copy; 2], report: &mut LoadReport) -> Option<usize> {
    let chosen = choose([&copies[0].sequences, &copies[1].sequences]);
    match chosen {
        Some(copy) => report.repaired_units += u32::from(!copies[1 - copy].is_whole()),
        None => report.lost_units += 1,
    }
    chosen
}

/// Both copies of a unit.
async fn read(
    device: &dyn BlockDevice,
    extent: TreeExtent,
    seed: Seed,
    unit: u32,
    report: &mut LoadReport,
) -> Result<[Copy; 2]> {
    Ok([
        read_copy(device, extent, seed, unit, 0, report).await?,
        read_copy(device, extent, seed, unit, 1, report).await?,
    ])
}

async fn read_copy(
    device: &dyn BlockDevice,
    extent: TreeExtent,
    seed: Seed,
    unit: u32,
    copy: usize,
    report: &mut LoadReport,
) -> Result<Copy> {
    let buf = Buf::scratch(extent.unit_bytes as usize);
    match device.read(extent.at(unit, copy), buf.clone()).await {
        Ok(()) => {
            let bytes = buf.to_vec();
            let sequences = extent.sequences(&bytes, seed, unit);
            Ok(Copy { bytes, sequences })
        }
        Err(error) if error.kind() == ErrorKind::ShuttingDown => Err(error),
        Err(_) => {
            report.unreadable_copies += 1;
            Ok(Copy {
                bytes: Vec::new(),
                sequences: vec![None; extent.unit_sectors()],
            })
        }
    }
}
