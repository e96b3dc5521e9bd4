//! The requests and acknowledgements in order, and the contents that each sector may hold at a cut.

use std::collections::HashMap;

use forebay_tests::stamp::{SECTOR_BYTES, Version, ZEROES, read_stamp};

/// A moment: the number of an event. Moment zero is before the first.
pub(crate) type Moment = usize;
const NEVER: Moment = usize::MAX;

/// One event as a line of text. Requests are noted before they are sent, acknowledgements after
/// they were received. So the noted order is the real order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A write, or write-zeroes with version 0, is about to be sent.
    Write {
        id: u64,
        first: u64,
        sectors: u64,
        version: Version,
        fua: bool,
    },
    /// A discard is about to be sent: it may leave what was there.
    Discard { id: u64, first: u64, sectors: u64 },
    /// A FLUSH is about to be sent.
    Flush { id: u64 },
    /// The answer to `id` was received.
    Acknowledged { id: u64 },
    /// A mark is about to be put into the record.
    Marking { mark: u64 },
    /// It is there.
    Marked { mark: u64 },
}

impl Event {
    /// The line, with its newline.
    pub(crate) fn encode(self) -> String {
        match self {
            Self::Write {
                id,
                first,
                sectors,
                version,
                fua,
            } => format!("w {id} {first} {sectors} {version} {}\n", u8::from(fua)),
            Self::Discard { id, first, sectors } => format!("d {id} {first} {sectors}\n"),
            Self::Flush { id } => format!("f {id}\n"),
            Self::Acknowledged { id } => format!("a {id}\n"),
            Self::Marking { mark } => format!("m {mark}\n"),
            Self::Marked { mark } => format!("M {mark}\n"),
        }
    }

    fn decode(line: &str) -> Option<Self> {
        let (kind, rest) = line.split_once(' ')?;
        let numbers: Result<Vec<u64>, _> = rest.split(' ').map(str::parse).collect();
        let numbers = numbers.ok()?;
        Some(match (kind, numbers.as_slice()) {
            ("w", &[id, first, sectors, version, fua]) => Self::Write {
                id,
                first,
                sectors,
                version,
                fua: fua == 1,
            },
            ("d", &[id, first, sectors]) => Self::Discard { id, first, sectors },
            ("f", &[id]) => Self::Flush { id },
            ("a", &[id]) => Self::Acknowledged { id },
            ("m", &[mark]) => Self::Marking { mark },
            ("M", &[mark]) => Self::Marked { mark },
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct Write {
    version: Version,
    sent: Moment,
    acknowledged: Moment,
    /// The moment from which its loss breaks a promise.
    durable: Moment,
    /// Whether it may keep the old contents.
    discard: bool,
}

const NEVER_WRITTEN: Write = Write {
    version: ZEROES,
    sent: 0,
    acknowledged: 0,
    durable: NEVER,
    discard: true,
};

/// A sector with contents that it may not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mismatch {
    pub(crate) sector: u64,
    /// Version found there. `None` if the bytes are no stamp at all (torn or foreign).
    pub(crate) found: Option<Version>,
    pub(crate) allowed: Vec<Version>,
}

/// The history, in a form that can judge contents.
#[derive(Debug, Default)]
pub(crate) struct History {
    writes: Vec<Write>,
    /// The writes to each sector, in the order in which they were sent.
    sectors: HashMap<u64, Vec<usize>>,
    /// For each mark, the moments before and after it was written.
    marks: HashMap<u64, (Moment, Moment)>,
}

impl History {
    /// Reads the lines. With `sync`, an acknowledgement promises durability. Otherwise FUA and
    /// flushes do.
    pub(crate) fn parse(text: &str, sync: bool) -> Result<Self, String> {
        let mut history = Self::default();
        // Requests that wait for their acknowledgement: writes by index, flushes with the writes
        // that they cover.
        let (mut writing, mut flushing) = (HashMap::new(), HashMap::new());
        let mut acknowledged: Vec<usize> = Vec::new();
        let mut covered = 0;
        for (now, line) in (1..).zip(text.lines()) {
            let event = Event::decode(line).ok_or_else(|| format!("line {now}: {line:?}"))?;
            match event {
                Event::Write {
                    id,
                    first,
                    sectors,
                    version,
                    fua,
                } => {
                    writing.insert(id, (history.writes.len(), fua || sync));
                    history.send(first..first + sectors, version, now, false);
                }
                Event::Discard { id, first, sectors } => {
                    writing.insert(id, (history.writes.len(), false));
                    history.send(first..first + sectors, ZEROES, now, true);
                }
                Event::Flush { id } => {
                    flushing.insert(id, acknowledged.len());
                }
                Event::Acknowledged { id } => {
                    if let Some((index, durable)) = writing.remove(&id) {
                        history.writes[index].acknowledged = now;
                        if durable {
                            history.writes[index].durable = now;
                        }
                        acknowledged.push(index);
                    } else {
                        let unknown = || format!("line {now}: {line:?} answers no request");
                        let upto = flushing.remove(&id).ok_or_else(unknown)?;
                        for &index in acknowledged.get(covered..upto).unwrap_or_default() {
                            let write = &mut history.writes[index];
                            write.durable = write.durable.min(now);
                        }
                        covered = covered.max(upto);
                    }
                }
                Event::Marking { mark } => {
                    history.marks.insert(mark, (now, NEVER));
                }
                Event::Marked { mark } => {
                    let unknown = || format!("line {now}: {line:?} has no beginning");
                    history.marks.get_mut(&mark).ok_or_else(unknown)?.1 = now;
                }
            }
        }
        Ok(history)
    }

    fn send(
        &mut self,
        sectors: std::ops::Range<u64>,
        version: Version,
        sent: Moment,
        discard: bool,
    ) {
        for sector in sectors {
            self.sectors
                .entry(sector)
                .or_default()
                .push(self.writes.len());
        }
        self.writes.push(Write {
            version,
            sent,
            acknowledged: NEVER,
            durable: NEVER,
            discard,
        });
    }

    /// Number of acknowledged writes.
    pub(crate) fn acknowledged(&self) -> usize {
        let done = self.writes.iter().filter(|w| w.acknowledged != NEVER);
        done.count()
    }

    /// Returns the moments before and after the mark was written into the record.
    pub(crate) fn mark(&self, mark: u64) -> Option<(Moment, Moment)> {
        self.marks.get(&mark).copied()
    }

    /// Whether a sector was zeroed, in a request sent before `ceiling`, after the write of that
    /// version was over.
    pub(crate) fn zeroed_after(&self, sector: u64, version: Version, ceiling: Moment) -> bool {
        let writes = self.sectors.get(&sector).map_or(&[][..], Vec::as_slice);
        let writes = writes.iter().map(|&index| self.writes[index]);
        let over = writes.clone().find(|w| w.version == version);
        over.is_some_and(|over| {
            let mut zeroed = writes.filter(|w| w.version == ZEROES && w.sent < ceiling);
            zeroed.any(|w| w.sent > over.acknowledged)
        })
    }

    /// Returns the mismatches in a volume after a power cut between the moments `floor` and
    /// `ceiling`. Everything promised at `floor` must be there or be superseded. Nothing sent after
    /// `ceiling` may be there.
    pub(crate) fn judge(&self, volume: &[u8], floor: Moment, ceiling: Moment) -> Vec<Mismatch> {
        let sectors = (0..).zip(volume.chunks_exact(SECTOR_BYTES));
        let wrong = sectors.filter_map(|(sector, bytes)| {
            let found = read_stamp(bytes, sector);
            let allowed = self.allowed(sector, floor, ceiling);
            let fits = found.is_some_and(|version| allowed.contains(&version));
            (!fits).then_some(Mismatch {
                sector,
                found,
                allowed,
            })
        });
        wrong.collect()
    }

    fn allowed(&self, sector: u64, floor: Moment, ceiling: Moment) -> Vec<Version> {
        let writes = self.sectors.get(&sector).map_or(&[][..], Vec::as_slice);
        let writes = writes.iter().map(|&index| self.writes[index]);
        // A version is no longer visible if it was over before the newest promised version was
        // sent.
        let promised = writes.clone().filter(|w| w.durable < floor && !w.discard);
        let newest = promised.map(|w| w.sent).max().unwrap_or(0);
        let possible = writes.filter(|w| w.sent < ceiling);
        std::iter::once(NEVER_WRITTEN)
            .chain(possible)
            .filter(|w| w.acknowledged >= newest)
            .map(|w| w.version)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_tests::stamp::stamp;

    fn contents(versions: &[Version]) -> Vec<u8> {
        let mut bytes = vec![0; versions.len() * SECTOR_BYTES];
        for ((sector, version), bytes) in (0..)
            .zip(versions)
            .zip(bytes.chunks_exact_mut(SECTOR_BYTES))
        {
            if *version != ZEROES {
                stamp(bytes, sector, *version);
            }
        }
        bytes
    }

    fn wrong(history: &History, mark: u64, versions: &[Version]) -> Vec<u64> {
        let (floor, _) = history.mark(mark).expect("a mark");
        let found = history.judge(&contents(versions), floor, NEVER);
        found.iter().map(|mismatch| mismatch.sector).collect()
    }

    const TEXT: &str = "w 1 0 2 11 0\na 1\nm 1\nM 1\nf 2\nw 3 1 1 12 0\na 3\na 2\nm 2\nM 2\n";

    #[test]
    fn an_acknowledgement_promises_nothing_before_a_flush_that_came_after_it() {
        let history = History::parse(TEXT, false).expect("lines");
        assert_eq!(wrong(&history, 1, &[0, 0]), [0; 0]);
        assert_eq!(wrong(&history, 1, &[11, 12]), [0; 0]);
        assert_eq!(wrong(&history, 2, &[11, 12]), [0; 0]);
        // The second write was acknowledged after the flush was sent.
        assert_eq!(wrong(&history, 2, &[11, 11]), [0; 0]);
        assert_eq!(wrong(&history, 2, &[0, 11]), [0]);
        assert_eq!(wrong(&history, 2, &[11, 0]), [1]);
    }

    #[test]
    fn with_sync_every_acknowledgement_promises() {
        let history = History::parse(TEXT, true).expect("lines");
        assert_eq!(wrong(&history, 1, &[0, 11]), [0]);
        assert_eq!(wrong(&history, 2, &[11, 11]), [1]);
        assert_eq!(wrong(&history, 2, &[11, 12]), [0; 0]);
    }

    #[test]
    fn fua_promises_its_own_range_and_discard_promises_nothing() {
        let text = "w 1 0 1 11 0\na 1\nw 2 1 1 12 1\na 2\nd 3 1 1\na 3\nm 1\nM 1\n";
        let history = History::parse(text, false).expect("lines");
        assert_eq!(wrong(&history, 1, &[0, 12]), [0; 0]);
        assert_eq!(wrong(&history, 1, &[0, 0]), [0; 0], "discarded");
        let history = History::parse(&text.replace("d 3 1 1\na 3\n", ""), false).expect("lines");
        assert_eq!(wrong(&history, 1, &[0, 0]), [1]);
    }

    #[test]
    fn the_future_and_foreign_bytes_are_found() {
        let history = History::parse(TEXT, false).expect("lines");
        let (floor, ceiling) = history.mark(1).expect("a mark");
        let found = history.judge(&contents(&[11, 12]), floor, ceiling);
        assert_eq!(found[0].found, Some(12));
        let mut torn = contents(&[11, 11]);
        torn[300] ^= 1;
        assert_eq!(history.judge(&torn, floor, ceiling)[0].found, None);
    }

    #[test]
    fn zeroing_differs_from_the_write_that_it_overtook() {
        let text = "w 1 0 1 11 0\na 1\nw 2 0 1 0 0\na 2\nw 3 0 1 12 0\na 3\n";
        let history = History::parse(text, false).expect("lines");
        assert!(history.zeroed_after(0, 11, NEVER));
        assert!(!history.zeroed_after(0, 11, 3), "not sent yet");
        assert!(!history.zeroed_after(0, 12, NEVER));
        assert!(!history.zeroed_after(1, 11, NEVER));
    }

    #[test]
    fn events_survive_their_lines() {
        let events = [
            Event::Write {
                id: 1,
                first: 2,
                sectors: 3,
                version: 4,
                fua: true,
            },
            Event::Discard {
                id: 5,
                first: 6,
                sectors: 7,
            },
            Event::Flush { id: 8 },
            Event::Acknowledged { id: 9 },
            Event::Marking { mark: 10 },
            Event::Marked { mark: 11 },
        ];
        for event in events {
            assert_eq!(Event::decode(event.encode().trim_end()), Some(event));
        }
        assert!(History::parse("a 1\n", false).is_err());
        assert!(History::parse("x 1\n", false).is_err());
    }
}
