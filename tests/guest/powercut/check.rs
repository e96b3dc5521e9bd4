//! Opens the cache on the image of each power cut, and compares it with the acknowledgements.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io::Read as _;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDeviceExt as _, Buf, Error, Result as BlockResult};
use forebay_cache::{Cache, CacheOptions, Devices, Durability, Mode, VolumeOptions};
use forebay_io::rt::block_on_simulated;
use forebay_tests::stamp::{SECTOR_BYTES, claimed_version, mix};

use crate::history::{History, Moment};
use crate::image::Window;
use crate::number;
use crate::record::{Entry, Kind, Record};
use crate::tally::Tally;

const VOLUME: &str = "v";
const READ_BYTES: usize = 1 << 20;
/// One in this number of cuts also writes everything back and reads the backing device alone.
const WRITE_BACK_SHARE: u64 = 8;
/// Failures that are printed in full.
const PRINTED: u64 = 5;
/// Cuts with planted losses, of each kind.
const PLANTED: usize = 24;

/// The configuration under test.
#[derive(Clone, Copy, Debug)]
struct Setup {
    mode: Mode,
    durability: Durability,
    cache_bytes: usize,
    volume_bytes: usize,
}

/// `powercut check`: see the top of `main.rs`.
pub(crate) fn run(arguments: &[&str]) -> Result<bool, String> {
    let [
        name,
        mode,
        durability,
        record,
        acknowledged,
        cache,
        volume,
        subsets,
    ] = *arguments
    else {
        return Err(
            "check NAME MODE DURABILITY RECORD@OFFSET ACKNOWLEDGED@OFFSET CACHE_BYTES \
             VOLUME_BYTES SUBSETS"
                .into(),
        );
    };
    let (record, record_at) = place(record)?;
    let (acknowledged, acknowledged_at) = place(acknowledged)?;
    let durability = match durability {
        "sync" => Durability::Sync,
        "flush" => Durability::Flush,
        other => return Err(format!("durability {other:?}")),
    };
    let history = History::parse(
        &text(acknowledged, acknowledged_at)?,
        durability == Durability::Sync,
    )?;
    let setup = Setup {
        mode: mode.parse().map_err(|error: Error| error.report())?,
        durability,
        cache_bytes: number(cache)? as usize,
        volume_bytes: number(volume)? as usize,
    };
    let record = Record::open(record, record_at)?;
    let mut cutter = Cutter::new(name, setup, &record, &history, number(subsets)?);
    cutter.run();
    let tally = &cutter.tally;
    let enough = tally.cut_points > 10 && history.acknowledged() > 10;
    let found = tally.planted.iter().any(|(_, found)| *found > 0);
    let holds = tally.violations == 0 && tally.unclear == 0 && enough && found;
    println!(
        "{name}: {} acknowledged writes, {tally}: {}",
        history.acknowledged(),
        if holds { "holds" } else { "FAILS" }
    );
    if std::env::var_os("FOREBAY_ROWS").is_some() {
        println!(
            "ROW {}",
            tally.row(name, mode, arguments[2], history.acknowledged(), holds)
        );
    }
    Ok(holds)
}

fn place(text: &str) -> Result<(&Path, u64), String> {
    let (path, offset) = text
        .split_once('@')
        .ok_or(format!("{text:?} is not FILE@OFFSET"))?;
    Ok((Path::new(path), number(offset)?))
}

/// Returns the text at an offset of a file, up to a zero byte.
fn text(path: &Path, offset: u64) -> Result<String, String> {
    let describe = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut file = std::fs::File::open(path).map_err(describe)?;
    std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(offset)).map_err(describe)?;
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let count = file.read(&mut buffer).map_err(describe)?;
        let end = buffer[..count].iter().position(|byte| *byte == 0);
        bytes.extend_from_slice(&buffer[..end.unwrap_or(count)]);
        if end.is_some() || count == 0 {
            break;
        }
    }
    String::from_utf8(bytes).map_err(|error| format!("{}: {error}", path.display()))
}

/// Results of a start after a power cut: the volume, and the backing device alone after everything
/// was written back.
struct Recovered {
    volume: Vec<u8>,
    backing: Option<Vec<u8>>,
}

fn recover(image: Vec<u8>, setup: Setup, seed: u64, write_back: bool) -> Result<Recovered, String> {
    let (volume, backing) = block_on_simulated(seed, async move {
        let image = Rc::new(RefCell::new(image));
        let cache_end = setup.cache_bytes;
        let backing = cache_end..cache_end + setup.volume_bytes;
        let devices = Devices {
            data: Window::new("cache", &image, 0..cache_end),
            metadata: None,
        };
        // A boot that differs from any real one, so that the process journal does not count.
        let options = CacheOptions {
            durability: setup.durability,
            commit_interval: Duration::from_secs(3600),
            ..CacheOptions::new([0xcc; 16])
        };
        let (cache, report) = Cache::open(devices, options).await?;
        if report.damaged_records + report.unreadable_units > 0 || !report.lost.is_empty() {
            let what = format!("an error without a failed device: {report:?}");
            return Err(Error::new(forebay_block::ErrorKind::Corrupt, what));
        }
        let device = Window::new("backing", &image, backing.clone());
        let attached = cache
            .attach(VOLUME, device, VolumeOptions::new(setup.mode))
            .await?;
        let mut volume = Vec::with_capacity(setup.volume_bytes);
        while volume.len() < setup.volume_bytes {
            let buf = Buf::scratch(READ_BYTES.min(setup.volume_bytes - volume.len()));
            attached.read(volume.len() as u64, buf.clone()).await?;
            volume.extend_from_slice(&buf.to_vec());
        }
        if !write_back {
            return Ok((volume, None));
        }
        drop(attached);
        cache.detach(VOLUME).await?;
        let alone = image.borrow()[backing].to_vec();
        BlockResult::Ok((volume, Some(alone)))
    })
    .map_err(|error| error.report())?;
    Ok(Recovered { volume, backing })
}

/// Reads through the record and cuts it.
struct Cutter<'a> {
    name: &'a str,
    setup: Setup,
    record: &'a Record,
    history: &'a History,
    subsets: u64,
    /// The medium after the entries so far.
    image: Vec<u8>,
    /// Sectors of recent FUA writes: since the FLUSH before the last one.
    fua: [HashSet<usize>; 2],
    /// The promises at the last mark so far. `None` before the first.
    floor: Option<Moment>,
    /// For each entry, the moment before which a cut there came.
    ceilings: Vec<Moment>,
    /// Whether the image differs from the last checked one.
    changed: bool,
    seed: u64,
    tally: Tally,
}

impl<'a> Cutter<'a> {
    fn new(
        name: &'a str,
        setup: Setup,
        record: &'a Record,
        history: &'a History,
        subsets: u64,
    ) -> Self {
        let mut ceiling = Moment::MAX;
        let mut ceilings: Vec<_> = (record.entries.iter().rev())
            .map(|entry| {
                if let Kind::Mark(mark) = entry.kind
                    && let Some((_, there)) = history.mark(mark)
                {
                    ceiling = ceiling.min(there);
                }
                ceiling
            })
            .collect();
        ceilings.reverse();
        Self {
            name,
            setup,
            record,
            history,
            subsets,
            image: vec![0; setup.cache_bytes + setup.volume_bytes],
            fua: [HashSet::new(), HashSet::new()],
            floor: None,
            ceilings,
            changed: false,
            seed: 1,
            tally: Tally::default(),
        }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.seed = mix(self.seed);
        self.seed % below
    }

    fn run(&mut self) {
        let record = self.record;
        let marks = record.entries.iter();
        let marks = marks.filter(|entry| matches!(entry.kind, Kind::Mark(_)));
        let every = (marks.count() / PLANTED).max(1);
        let (mut at, mut seen) = (0, 0);
        while at < record.entries.len() {
            let entry = record.entries[at];
            if entry.is_volatile() {
                let rest = &record.entries[at..];
                let len = rest.iter().take_while(|entry| entry.is_volatile()).count();
                self.check_exact(at);
                self.check_subsets(&rest[..len], at);
                let ceiling = self.ceilings[at + len];
                for entry in &rest[..len] {
                    let data = record.data(entry);
                    self.apply(entry, &data, ceiling);
                }
                at += len;
                continue;
            }
            self.tally.cut_points += u64::from(self.floor.is_some());
            match entry.kind {
                Kind::Fua => {
                    self.check_exact(at);
                    self.check_torn(&entry, at);
                    let data = record.data(&entry);
                    self.apply(&entry, &data, self.ceilings[at]);
                }
                Kind::Flush => {
                    self.fua.swap(0, 1);
                    self.fua[0].clear();
                }
                Kind::Mark(mark) => {
                    let moment = self.history.mark(mark).map_or(0, |(putting, _)| putting);
                    self.floor = self.floor.max(Some(moment));
                    seen += 1;
                    if seen % every == 0 {
                        self.plant(at);
                    }
                }
                Kind::Write | Kind::Discard | Kind::End => {}
            }
            at += 1;
        }
        self.check_exact(record.entries.len() - 1);
    }

    fn apply(&mut self, entry: &Entry, data: &[u8], ceiling: Moment) {
        self.changed = true;
        for (index, bytes) in data.chunks_exact(SECTOR_BYTES).enumerate() {
            let at = entry.offset + index * SECTOR_BYTES;
            let there = &mut self.image[at..at + SECTOR_BYTES];
            if entry.kind == Kind::Fua {
                self.fua[0].insert(at);
            } else if self.fua.iter().any(|recent| recent.contains(&at)) && *there != *bytes {
                // The plain write completed before or after the FUA write. The stamps decide, or
                // the history where a sector was zeroed.
                let sector = at.checked_sub(self.setup.cache_bytes);
                let sector = sector.map(|at| (at / SECTOR_BYTES) as u64);
                let zeroes = bytes.iter().all(|byte| *byte == 0);
                match (claimed_version(there), claimed_version(bytes), sector) {
                    (Some(fua), Some(plain), _) if plain < fua => continue,
                    (Some(_), Some(_), _) => {}
                    (Some(fua), None, Some(sector)) if zeroes => {
                        if !self.history.zeroed_after(sector, fua, ceiling) {
                            continue;
                        }
                    }
                    _ => self.tally.unclear += 1,
                }
            }
            there.copy_from_slice(bytes);
        }
    }

    /// Checks the medium exactly after the entries before `at`, unless that was done.
    fn check_exact(&mut self, at: usize) {
        if std::mem::take(&mut self.changed) && self.floor.is_some() {
            self.tally.images += 1;
            self.check(self.image.clone(), at, "exactly the record");
        }
    }

    /// Checks random parts of the writes that the next FLUSH covers, with some writes torn.
    fn check_subsets(&mut self, group: &[Entry], at: usize) {
        if self.floor.is_none() {
            return;
        }
        let before = self.image.clone();
        for _ in 0..self.subsets {
            self.tally.subsets += 1;
            let share = 1 + self.draw(3);
            for entry in group {
                let mut data = self.record.data(entry);
                match self.draw(8) {
                    0 => {
                        let torn = before[entry.offset..][..entry.len].to_vec();
                        self.tear(&mut data, &torn);
                    }
                    _ if self.draw(4) < share => {}
                    _ => continue,
                }
                self.apply(entry, &data, self.ceilings[at + group.len()]);
            }
            let image = std::mem::replace(&mut self.image, before.clone());
            // The cut is before the FLUSH after the group, and nothing promised depends on it.
            self.check(image, at + group.len(), "with part of the unflushed writes");
        }
        self.changed = false;
    }

    /// Checks an FUA write in flight: some of its sectors.
    fn check_torn(&mut self, entry: &Entry, at: usize) {
        if self.floor.is_none() || entry.len <= SECTOR_BYTES {
            return;
        }
        self.tally.torn += 1;
        let mut data = self.record.data(entry);
        let mut image = self.image.clone();
        let there = image[entry.offset..][..entry.len].to_vec();
        self.tear(&mut data, &there);
        image[entry.offset..][..entry.len].copy_from_slice(&data);
        self.check(image, at, "with an FUA write torn");
    }

    /// Restores the old contents of a random half of the sectors.
    fn tear(&mut self, data: &mut [u8], there: &[u8]) {
        let sectors = data.chunks_exact_mut(SECTOR_BYTES);
        for (new, old) in sectors.zip(there.chunks_exact(SECTOR_BYTES)) {
            if self.draw(2) == 0 {
                new.copy_from_slice(old);
            }
        }
    }

    /// Cuts at a mark, without something that it relies on: the last FUA write, or the writes that
    /// the FLUSH before it covered. The check must find such losses. Some do not matter, since
    /// cached data may also lie on the backing device.
    fn plant(&mut self, at: usize) {
        let entries = &self.record.entries[..at];
        let fua = entries.iter().rposition(|entry| entry.kind == Kind::Fua);
        // A FLUSH before the last FUA write covered the data that its record may name.
        let flushed = &entries[..fua.unwrap_or(0)];
        let last = flushed.iter().rposition(Entry::is_volatile);
        let first = last.map(|last| {
            let before = entries[..last]
                .iter()
                .rposition(|entry| !entry.is_volatile());
            before.map_or(0, |before| before + 1)
        });
        let lost = [
            fua.map(|index| index..index + 1),
            first.zip(last).map(|(first, last)| first..last + 1),
        ];
        for (kind, lost) in lost.into_iter().enumerate() {
            let Some(lost) = lost else { continue };
            let mut image = vec![0; self.image.len()];
            for (index, entry) in entries.iter().enumerate() {
                if !lost.contains(&index) && entry.len > 0 {
                    image[entry.offset..][..entry.len].copy_from_slice(&self.record.data(entry));
                }
            }
            let found = !self.judge(image, at, false).is_empty();
            self.tally.planted[kind].0 += 1;
            self.tally.planted[kind].1 += u64::from(found);
        }
    }

    fn check(&mut self, image: Vec<u8>, at: usize, what: &str) {
        let write_back = self.draw(WRITE_BACK_SHARE) == 0;
        self.tally.written_back += u64::from(write_back);
        let wrong = self.judge(image, at, write_back);
        self.tally.violations += u64::from(!wrong.is_empty());
        if !wrong.is_empty() && self.tally.violations <= PRINTED {
            eprintln!(
                "{}: VIOLATION, power cut before entry {at} of the record ({:?}), {what}: {}",
                self.name,
                self.record.entries[at],
                wrong.join("; ")
            );
        }
    }

    /// Returns the violations on this medium, in words.
    fn judge(&mut self, image: Vec<u8>, at: usize, write_back: bool) -> Vec<String> {
        let (Some(floor), ceiling) = (self.floor, self.ceilings[at]) else {
            return Vec::new();
        };
        let seed = self.draw(u64::MAX);
        let recovered = match recover(image, self.setup, seed, write_back) {
            Ok(recovered) => recovered,
            Err(error) => return vec![error],
        };
        let mut wrong = Vec::new();
        let whole = Some(("the volume", &recovered.volume));
        let alone = recovered
            .backing
            .as_ref()
            .map(|b| ("the backing device alone", b));
        for (what, contents) in whole.into_iter().chain(alone) {
            let mismatches = self.history.judge(contents, floor, ceiling);
            if !mismatches.is_empty() {
                let some = &mismatches[..mismatches.len().min(4)];
                wrong.push(format!(
                    "{what}: {} sectors are wrong, such as {some:?}",
                    mismatches.len()
                ));
            }
        }
        wrong
    }
}
