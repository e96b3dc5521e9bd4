//! The model disk: which values a sector may have.

use std::collections::BTreeMap;
use std::ops::Range;

use forebay_block::Buf;

/// Size of the simulated volumes, sectors: three regions of the map.
pub(super) const SECTORS: u64 = 3 * 4096;
/// Sectors that are used. Two zones lie across the border of two regions.
pub(super) const ZONES: [Range<u64>; 3] = [4016..4176, 8112..8272, 0..160];

/// A value that may not be there.
pub(super) type Verdict = Result<(), String>;

/// Values of one sector. 0 stands for zeroes.
#[derive(Clone, Debug)]
struct Sector {
    /// Values that may be there after a crash, oldest first.
    values: Vec<u64>,
    /// The write of each value, by its number.
    writes: Vec<usize>,
    /// Number of values that were removed from the front.
    removed: u64,
    /// Number of the last value that was acknowledged.
    acknowledged: u64,
}

impl Default for Sector {
    fn default() -> Self {
        Self {
            values: vec![0],
            writes: vec![0],
            removed: 0,
            acknowledged: 0,
        }
    }
}

impl Sector {
    fn last(&self) -> u64 {
        self.removed + self.values.len() as u64 - 1
    }

    /// Values that a read may return: the last one that was acknowledged, and later ones.
    fn readable(&self) -> &[u64] {
        let from = self.acknowledged.saturating_sub(self.removed) as usize;
        &self.values[from..]
    }

    /// Removes the values before `number`.
    fn settle(&mut self, number: u64) {
        let count = number.saturating_sub(self.removed) as usize;
        self.values.drain(..count);
        self.writes.drain(..count);
        self.removed += count as u64;
    }
}

/// The model.
#[derive(Debug)]
pub(super) struct Model {
    sectors: BTreeMap<u64, Sector>,
    next: u64,
    /// Times of submission and acknowledgement of all writes. Write 0 stands for what is durable.
    times: Vec<(u64, u64)>,
    clock: u64,
    /// All values that were written, for snapshots.
    journal: Vec<(u64, u64)>,
}

/// A write that was submitted.
pub(super) struct Written {
    write: usize,
    sectors: Range<u64>,
    numbers: Vec<u64>,
}

/// The acknowledged values of some zones when a flush or snapshot was submitted.
pub(super) struct Mark {
    numbers: Vec<(u64, u64)>,
    /// Values that a snapshot may have, from before it.
    values: BTreeMap<u64, Vec<u64>>,
    journal: usize,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            sectors: BTreeMap::new(),
            next: 0,
            times: vec![(0, 0)],
            clock: 0,
            journal: Vec::new(),
        }
    }
}

impl Model {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn sector(&mut self, sector: u64) -> &mut Sector {
        self.sectors.entry(sector).or_default()
    }

    /// Returns a value for a write.
    pub(super) fn value(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn write(&mut self, sectors: Range<u64>, value: u64) -> Written {
        let mut numbers = Vec::new();
        let write = self.times.len();
        let now = self.tick();
        self.times.push((now, u64::MAX));
        for at in sectors.clone() {
            self.journal.push((at, value));
            let sector = self.sector(at);
            sector.values.push(value);
            sector.writes.push(write);
            numbers.push(sector.last());
        }
        Written {
            write,
            sectors,
            numbers,
        }
    }

    pub(super) fn acknowledge(&mut self, written: &Written, is_durable: bool) {
        self.times[written.write].1 = self.tick();
        for (at, number) in written.sectors.clone().zip(&written.numbers) {
            let sector = self.sector(at);
            sector.acknowledged = sector.acknowledged.max(*number);
            if is_durable {
                sector.settle(*number);
            }
        }
    }

    pub(super) fn mark(&mut self, zones: &[usize]) -> Mark {
        let mut mark = Mark {
            numbers: Vec::new(),
            values: BTreeMap::new(),
            journal: self.journal.len(),
        };
        for at in zones.iter().flat_map(|zone| ZONES[*zone].clone()) {
            let sector = self.sector(at);
            mark.numbers.push((at, sector.acknowledged));
            mark.values.insert(at, sector.readable().to_vec());
        }
        mark
    }

    pub(super) fn flushed(&mut self, mark: &Mark) {
        for (at, number) in &mark.numbers {
            self.sector(*at).settle(*number);
        }
    }

    /// Makes all acknowledged values durable.
    pub(super) fn close(&mut self) {
        for sector in self.sectors.values_mut() {
            sector.settle(sector.acknowledged);
        }
    }

    /// Checks data that were read from `first` by their writer.
    pub(super) fn check_read(&mut self, first: u64, data: &Buf) -> Verdict {
        for (at, value) in (first..).zip(decode(first, data)?) {
            let sector = self.sector(at);
            if !sector.readable().contains(&value) {
                return Err(format!("sector {at} has {value}, not of {sector:?}"));
            }
        }
        Ok(())
    }

    /// Checks data of whole zones that were read after a crash, by their first sector. From now on
    /// the sectors have these values. If writes are `ordered`, the volume has all that were
    /// acknowledged before a write that it has was submitted.
    pub(super) fn check_recovered(&mut self, zones: &[(u64, Buf)], ordered: bool) -> Verdict {
        let mut found = Vec::new();
        let mut newest = 0;
        for (first, data) in zones {
            for (at, value) in (*first..).zip(decode(*first, data)?) {
                let sector = self.sector(at).clone();
                let Some(oldest) = sector.values.iter().position(|it| *it == value) else {
                    return Err(format!("sector {at} has {value} after a crash: {sector:?}"));
                };
                newest = newest.max(self.times[sector.writes[oldest]].0);
                found.push((at, value));
            }
        }
        for (at, value) in found {
            let sector = self.sector(at).clone();
            let later = sector
                .values
                .iter()
                .rev()
                .position(|it| *it == value)
                .unwrap_or(0);
            let mut lost = sector.writes.iter().rev().take(later);
            let lost = lost.find(|write| self.times[**write].1 < newest);
            if let Some(write) = lost.filter(|_| ordered) {
                let what = format!("sector {at} has {value}, without write {write}: {sector:?}");
                return Err(format!("{what}, but later writes are there"));
            }
            let recovered = Sector {
                values: vec![value],
                ..Sector::default()
            };
            self.sectors.insert(at, recovered);
        }
        Ok(())
    }

    /// Returns the values that a snapshot may have, which began with `mark`.
    pub(super) fn allowed(&self, mark: Mark) -> BTreeMap<u64, Vec<u64>> {
        let mut allowed = mark.values;
        for (at, value) in &self.journal[mark.journal..] {
            if let Some(values) = allowed.get_mut(at) {
                values.push(*value);
            }
        }
        allowed
    }
}

/// Returns the data of a write.
pub(super) fn encode(sectors: Range<u64>, value: u64) -> Buf {
    let buf = Buf::zeroed(((sectors.end - sectors.start) * 512) as usize);
    if value == 0 {
        return buf;
    }
    let mut data = Vec::with_capacity(buf.len());
    for at in sectors {
        let mut word = value;
        for _ in 0..32 {
            data.extend_from_slice(&value.to_le_bytes());
            data.extend_from_slice(&at.to_le_bytes());
            // Data of some values do not compress.
            if value.is_multiple_of(3) {
                word = word
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(at);
                let end = data.len();
                data[end - 8..].copy_from_slice(&word.to_le_bytes());
            }
        }
    }
    buf.copy_from(0, &data);
    buf
}

/// Returns the values of the sectors of data.
pub(super) fn decode(first: u64, data: &Buf) -> Result<Vec<u64>, String> {
    let bytes = data.to_vec();
    let mut values = Vec::new();
    for (at, sector) in (first..).zip(bytes.chunks(512)) {
        let value = u64::from_le_bytes(sector[..8].try_into().expect("eight bytes"));
        if encode(at..at + 1, value).to_vec() != sector {
            return Err(format!(
                "sector {at} has parts of several values, or of another sector"
            ));
        }
        values.push(value);
    }
    Ok(values)
}
