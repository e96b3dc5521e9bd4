//! The map of a volume: which object has the data of which sectors.
//!
//! The volume is split into regions. A region is a sorted vector of extents, 10 bytes each. Clones
//! of a map share their regions until one changes. So a checkpoint takes a clone, which costs one
//! reference for each region, and writes it while the volume is in use.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Length of a region, sectors (2 MiB).
pub(crate) const REGION_SECTORS: u64 = 4096;

/// Neighbouring sectors whose data are neighbours in the payload of one object.
#[derive(
    FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, PartialEq, Eq,
)]
#[repr(C)]
pub(crate) struct Extent {
    /// First sector within the region.
    first: U16,
    sectors: U16,
    /// First sector within the payload.
    offset: U16,
    object: U32,
}

impl Extent {
    pub(crate) const fn first(self) -> u64 {
        self.first.get() as u64
    }

    pub(crate) const fn end(self) -> u64 {
        self.first() + self.sectors.get() as u64
    }

    pub(crate) const fn sectors(self) -> u32 {
        self.sectors.get() as u32
    }

    pub(crate) const fn place(self) -> Place {
        Place {
            object: self.object.get(),
            offset: self.offset.get() as u32,
        }
    }

    /// Returns the extent with another name of its object.
    pub(crate) fn with_object(self, object: u32) -> Self {
        Self {
            object: object.into(),
            ..self
        }
    }

    /// Creates an extent. `sectors` lie within a region.
    fn new(sectors: Range<u64>, place: Place) -> Self {
        let short = |value: u64| U16::from(u16::try_from(value).expect("within a region"));
        Self {
            first: short(sectors.start),
            sectors: short(sectors.end - sectors.start),
            offset: short(place.offset.into()),
            object: place.object.into(),
        }
    }

    /// Returns the part of it that lies in `sectors`.
    fn cut(self, sectors: Range<u64>) -> Self {
        let from = sectors.start.max(self.first());
        let to = sectors.end.min(self.end());
        Self::new(from..to, self.place().at(from - self.first()))
    }
}

/// Place of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Object, by its number in the table of objects.
    pub(crate) object: u32,
    /// Sector within its payload.
    pub(crate) offset: u32,
}

impl Place {
    /// Returns the place that is `sectors` further.
    pub(crate) fn at(self, sectors: u64) -> Self {
        let sectors = u32::try_from(sectors).expect("within a payload");
        Self {
            offset: self.offset + sectors,
            ..self
        }
    }
}

/// Part of a queried range with one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) sectors: Range<u64>,
    /// `None` if the sectors read as zeroes.
    pub(crate) place: Option<Place>,
}

/// The map.
#[derive(Clone, Debug, Default)]
pub(crate) struct Map {
    regions: BTreeMap<u64, Rc<Vec<Extent>>>,
    extents: u64,
    sectors: u64,
}

impl Map {
    /// Returns the number of extents.
    pub(crate) const fn extents(&self) -> u64 {
        self.extents
    }

    /// Returns the number of sectors that have data.
    pub(crate) const fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Returns the regions that have data, by index in ascending order.
    pub(crate) fn regions(&self) -> impl ExactSizeIterator<Item = (u64, &Rc<Vec<Extent>>)> {
        self.regions
            .iter()
            .map(|(index, extents)| (*index, extents))
    }

    /// Inserts a region that is not there. Its extents ascend and do not overlap.
    pub(crate) fn insert_region(&mut self, index: u64, extents: Vec<Extent>) {
        self.extents += extents.len() as u64;
        self.sectors += extents
            .iter()
            .map(|it| u64::from(it.sectors()))
            .sum::<u64>();
        self.regions.insert(index, Rc::new(extents));
    }

    /// Returns the length of each extent, sectors, with its object.
    pub(crate) fn live(&self) -> impl Iterator<Item = (u32, u32)> {
        let extents = self.regions.values().flat_map(|it| it.iter());
        extents.map(|it| (it.object.get(), it.sectors()))
    }

    /// Maps `sectors` to the data that begins at `place`, or to zeroes if `place` is `None`. Calls
    /// `freed` with the object and the length, in sectors, of every part that was mapped before.
    pub(crate) fn replace(
        &mut self,
        sectors: Range<u64>,
        place: Option<Place>,
        mut freed: impl FnMut(u32, u32),
    ) {
        match place {
            Some(place) => {
                let mut at = sectors.start;
                while at < sectors.end {
                    let index = at / REGION_SECTORS;
                    let end = ((index + 1) * REGION_SECTORS).min(sectors.end);
                    let place = place.at(at - sectors.start);
                    self.replace_in(index, at..end, Some(place), &mut freed);
                    at = end;
                }
            }
            None => {
                // Only regions that exist have something to free.
                let last = sectors.end.div_ceil(REGION_SECTORS);
                let mut from = sectors.start / REGION_SECTORS;
                while let Some((&index, _)) = self.regions.range(from..last).next() {
                    let base = index * REGION_SECTORS;
                    let start = sectors.start.max(base);
                    let end = sectors.end.min(base + REGION_SECTORS);
                    self.replace_in(index, start..end, None, &mut freed);
                    from = index + 1;
                }
            }
        }
    }

    fn replace_in(
        &mut self,
        index: u64,
        sectors: Range<u64>,
        place: Option<Place>,
        freed: &mut impl FnMut(u32, u32),
    ) {
        let base = index * REGION_SECTORS;
        let sectors = sectors.start - base..sectors.end - base;
        let region = Rc::make_mut(self.regions.entry(index).or_default());
        let before = region.len() as u64;
        let mut from = region.partition_point(|it| it.end() <= sectors.start);
        let to = from + region[from..].partition_point(|it| it.first() < sectors.end);
        let mut parts = [None; 3];
        for old in &region[from..to] {
            let cut = old.cut(sectors.clone());
            freed(cut.object.get(), cut.sectors());
            self.sectors -= u64::from(cut.sectors());
            if old.first() < sectors.start {
                parts[0] = Some(old.cut(0..sectors.start));
            }
            if old.end() > sectors.end {
                parts[2] = Some(old.cut(sectors.end..REGION_SECTORS));
            }
        }
        if let Some(place) = place {
            self.sectors += sectors.end - sectors.start;
            let mut new = Extent::new(sectors.clone(), place);
            // A sequential stream is one extent.
            let left = parts[0].or_else(|| region.get(from.checked_sub(1)?).copied());
            if let Some(left) = left.filter(|left| continues(*left, new)) {
                new = Extent::new(left.first()..new.end(), left.place());
                if parts[0].take().is_none() {
                    from -= 1;
                }
            }
            parts[1] = Some(new);
        }
        region.splice(from..to, parts.into_iter().flatten());
        self.extents = self.extents + region.len() as u64 - before;
        if region.is_empty() {
            self.regions.remove(&index);
        }
    }

    /// Calls `visit` with the parts of `sectors` in ascending order. Neighbouring holes are one
    /// part.
    pub(crate) fn visit(&self, sectors: Range<u64>, mut visit: impl FnMut(Piece)) {
        self.visit_while(sectors, |piece| {
            visit(piece);
            true
        });
    }

    /// The same, as long as `visit` returns true.
    pub(crate) fn visit_while(&self, sectors: Range<u64>, mut visit: impl FnMut(Piece) -> bool) {
        let mut at = sectors.start;
        let last = sectors.end.div_ceil(REGION_SECTORS);
        let regions = self
            .regions
            .range(sectors.start / REGION_SECTORS..last.max(1));
        for (index, region) in regions {
            let base = index * REGION_SECTORS;
            let from = region.partition_point(|it| base + it.end() <= at);
            for extent in &region[from..] {
                let start = (base + extent.first()).max(at);
                let end = (base + extent.end()).min(sectors.end);
                if start >= sectors.end {
                    break;
                }
                let hole = Piece {
                    sectors: at..start,
                    place: None,
                };
                let data = Piece {
                    sectors: start..end,
                    place: Some(extent.place().at(start - base - extent.first())),
                };
                if (at < start && !visit(hole)) || !visit(data) {
                    return;
                }
                at = end;
            }
        }
        if at < sectors.end {
            visit(Piece {
                sectors: at..sectors.end,
                place: None,
            });
        }
    }

    /// Returns the parts of `sectors`.
    pub(crate) fn pieces(&self, sectors: Range<u64>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        self.visit(sectors, |piece| pieces.push(piece));
        pieces
    }
}

/// Returns whether `right` continues `left`, on the volume and in the payload.
fn continues(left: Extent, right: Extent) -> bool {
    left.end() == right.first()
        && left.object == right.object
        && left.offset.get().checked_add(left.sectors.get()) == Some(right.offset.get())
}

const _: () = assert!(size_of::<Extent>() == 10);

#[cfg(test)]
mod tests;
