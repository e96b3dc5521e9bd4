//! Checks of the state that is read when a cache is opened (the log, the superblock and the process
//! journal), for any content of media. Damage costs only the damaged data, and damaged data never
//! counts. The fuzzer and the tests share it.

#[path = "bytes.rs"]
mod bytes;

use std::collections::HashMap;

use forebay_block::Buf;
use forebay_metadata::Seed;
use forebay_metadata::journal::{JOURNAL_MIN_BYTES, Journal};
use forebay_metadata::log::{Log, LogGeometry};
use forebay_metadata::record::{
    BlockRecord, Body, KILL_SLOTS, MarkState, Position, RECORD_BYTES, encode,
};
use forebay_metadata::replay::{Elsewhere, FoundBlock, Replayed, replay, rewrite_last_batch};
use forebay_metadata::superblock::{PlanInput, Role, Superblock};

use bytes::{Bytes, now};

const UUID: [u8; 16] = [5; 16];
const BOOT: [u8; 16] = [6; 16];
const SLOTS: u32 = 24;
const RECORDS: u64 = 256;
/// Bits of a record that are turned over at most: its checksum detects these for certain, and
/// others only by chance.
const MOST_BITS: u8 = 3;

/// Where the bytes of an input are taken from; zeroes after the last.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// A number that is often about the end of something.
    fn number(&mut self) -> u64 {
        let (shift, add) = (self.byte() % 65, u64::from(self.byte()));
        let power = 1_u64.checked_shl(shift.into()).unwrap_or(0);
        power.wrapping_add(add).wrapping_sub(128)
    }
}

/// Damages a cache's files according to `input`, and reads them.
///
/// # Panics
/// If the replay reports data that was not written, or misses data that is not damaged.
pub(crate) fn any_input(input: &[u8]) {
    let mut script = Script(input);
    match script.byte() % 4 {
        0 => any_superblock(&mut script),
        1 => any_journal(&mut script),
        _ => any_log(&mut script),
    }
}

/// Numbers that make no sense are refused, though the checksum is right.
fn any_superblock(script: &mut Script<'_>) {
    let planned = Superblock::plan(PlanInput {
        data_bytes: 8 << 20,
        metadata_bytes: None,
        unit_bytes: 512 << (script.byte() % 4),
        block_size_bytes: 4096,
        classes: 1,
        region_shift: 6,
        dirty_tracking: Default::default(),
        checksums: script.byte() & 1 != 0,
        uuid: UUID,
    });
    let mut superblock = planned.expect("it has room");
    while !script.0.is_empty() {
        let number = script.number();
        match script.byte() % 12 {
            0 => superblock.incompat ^= number,
            1 => superblock.region_shift = number as u8,
            2 => superblock.block_size_bytes = number as u32,
            3 => superblock.classes = number as u8,
            4 => superblock.slots = number as u32,
            5 => superblock.data_offset = number,
            6 => superblock.log.offset = number,
            7 => superblock.log.records = number,
            8 => superblock.log.unit_bytes = number as u32,
            9 => superblock.tree_offset = number,
            10 => superblock.checksums_offset = number,
            _ => superblock.ro_compat ^= number,
        }
    }
    let device = Bytes::new(vec![0; 1 << 20]);
    now(superblock.write(&device, Role::Whole)).expect("nothing fails");
    if let Ok(read) = now(Superblock::read(&device)) {
        // The rest of the code counts with these.
        let log = read.log.records.checked_mul(RECORD_BYTES as u64);
        let end = log.and_then(|bytes| bytes.checked_add(read.log.offset));
        let data = u64::from(read.slots) * u64::from(read.block_size_bytes);
        let data = data.checked_add(read.data_offset);
        assert!(end.is_some() && data.is_some(), "{read:?}");
    }
}

/// The journal of a process that died, damaged.
fn any_journal(script: &mut Script<'_>) {
    let memory = Buf::zeroed(JOURNAL_MIN_BYTES);
    let mut journal = Journal::create(memory.clone(), &UUID, &BOOT).expect("large enough");
    let mut written = Vec::new();
    for nth in 0..u64::from(script.byte()) {
        let block = block(nth as u32 % SLOTS, nth, nth);
        journal.append(nth, block);
        written.push((nth, block));
    }
    if script.byte() & 1 != 0 {
        journal.trim(u64::from(script.byte()).min(journal.head()));
    }
    let mut bits: HashMap<usize, u8> = HashMap::new();
    while !script.0.is_empty() {
        // Its head, or its entries.
        let at = match script.byte() % 4 {
            0 => usize::from(script.word() % 256),
            _ => 4096 + usize::from(script.word()) % (256 * RECORD_BYTES),
        };
        let bits = bits.entry(at / RECORD_BYTES).or_default();
        if *bits < MOST_BITS {
            *bits += 1;
            let mut byte = [0];
            memory.copy_to(at, &mut byte);
            memory.copy_from(at, &[byte[0] ^ 1 << (script.byte() % 8)]);
        }
    }
    if let Some(found) = Journal::recover(&memory, &UUID, &BOOT) {
        for entry in &found.entries {
            assert!(written.contains(entry), "{entry:?} was never written");
        }
    }
}

fn block(slot: u32, number: u64, draw: u64) -> BlockRecord {
    BlockRecord {
        volume: (draw % 3) as u16,
        class: 0,
        block: number,
        slot,
        valid: draw | 1,
        dirty: draw & 1,
        bad: 0,
        sums: 0,
    }
}

/// A log that was written by a script, and its content.
struct Written {
    geometry: LogGeometry,
    device: Bytes,
    /// All that was ever written, by number.
    records: Vec<Body>,
}

fn write_log(script: &mut Script<'_>) -> Written {
    let geometry = LogGeometry {
        offset: 0,
        records: RECORDS,
        // A line, or sectors.
        unit_bytes: [64, 512, 1024, 4096][usize::from(script.byte() % 4)],
    };
    let bytes = RECORDS as usize * RECORD_BYTES;
    let device = Bytes::new(vec![0; bytes]);
    let mut log = Log::new(geometry, Seed::new(&UUID), 0, 0);
    let mut records = Vec::new();
    let mut newest: HashMap<u32, u64> = HashMap::new();
    for _ in 0..script.byte() % 48 {
        let most = log.batch_records_max() - log.unit_records();
        let count = (u64::from(script.byte()) % 40 + 1).min(most);
        // Rounding up takes a unit, and the tail moves on only with the batch after this.
        if log.room() < count + 2 * log.unit_records() {
            break;
        }
        for _ in 0..count {
            let draw = u64::from(script.word());
            let slot = (draw % u64::from(SLOTS)) as u32;
            let body = match draw >> 13 {
                0 => {
                    let mut slots = [0; KILL_SLOTS];
                    slots[0] = slot;
                    Body::Kill { slots, count: 1 }
                }
                1 => Body::Mark {
                    volume: 1,
                    region: draw & 7,
                    state: MarkState::MaybeDirty,
                },
                2 if draw & 0x100 != 0 => Body::Close,
                2 => Body::Open {
                    boot_id: BOOT,
                    journal: false,
                },
                _ => Body::Block(block(slot, u64::from(slot), draw)),
            };
            let lsn = log.push(&body);
            if let Body::Block(_) | Body::Kill { .. } = body {
                newest.insert(slot, lsn);
            }
            records.push(body);
        }
        for extent in log.seal() {
            let at = extent.offset as usize;
            let part = &mut device.0.borrow_mut()[at..at + extent.buf.len()];
            extent.buf.copy_to(0, part);
        }
        records.resize(log.next() as usize, Body::Pad);
        log.committed();
        // A slot with a newer record, or a killed one, is dead. So that the ring can wrap, all of
        // the oldest records are.
        let counts = newest.values().copied().min().unwrap_or(0);
        let tail = counts.max(log.next().saturating_sub(RECORDS / 2));
        while log.oldest().is_some_and(|oldest| oldest < tail) {
            log.drop_oldest();
        }
        log.committed();
    }
    Written {
        geometry,
        device,
        records,
    }
}

impl Written {
    fn replay(&self) -> (Replayed, Vec<FoundBlock>) {
        let mut found = Vec::new();
        let tell = |some: &[FoundBlock]| found.extend_from_slice(some);
        let (device, seed) = (&self.device, Seed::new(&UUID));
        let replayed = now(replay(
            device,
            self.geometry,
            seed,
            SLOTS,
            Elsewhere::default(),
            tell,
        ));
        (replayed.expect("damage is no error"), found)
    }

    /// Checks that found records were written exactly so, and that all records were found that are
    /// neither damaged nor past the present end.
    fn judge(&self, replayed: &Replayed, found: &[FoundBlock], damaged: impl Fn(u64) -> bool) {
        let mut slots: HashMap<u32, u64> = HashMap::new();
        for FoundBlock { block, lsn } in found {
            let lsn = lsn.expect("no journal told it");
            let written = self.records.get(lsn as usize);
            assert_eq!(written, Some(&Body::Block(*block)), "record {lsn}");
            assert!(slots.insert(block.slot, lsn).is_none(), "told twice");
        }
        for slot in 0..SLOTS {
            let (next, tail) = (replayed.next.min(self.records.len() as u64), replayed.tail);
            // The newest of it, of those that are read.
            let newest = (tail..next).rev().find(|lsn| {
                let of_slot = match self.records[*lsn as usize] {
                    Body::Block(block) => block.slot == slot,
                    Body::Kill { slots, .. } => slots[0] == slot,
                    _ => false,
                };
                of_slot && !damaged(*lsn)
            });
            let expected =
                newest.filter(|lsn| matches!(self.records[*lsn as usize], Body::Block(_)));
            assert_eq!(slots.get(&slot), expected.as_ref(), "of slot {slot}");
        }
    }
}

fn any_log(script: &mut Script<'_>) {
    let written = write_log(script);
    let unit = written.geometry.unit_bytes as usize;
    let before = written.device.0.borrow().clone();
    // By the record's position; a unit that is gone is 255.
    let mut damage: HashMap<u64, u8> = HashMap::new();
    while !script.0.is_empty() {
        let position = u64::from(script.word()) % RECORDS;
        let at = position as usize * RECORD_BYTES;
        let mut bytes = written.device.0.borrow_mut();
        match script.byte() % 8 {
            0 => {
                let begin = at - at % unit;
                bytes[begin..begin + unit].fill(script.byte());
                let positions =
                    (begin / RECORD_BYTES) as u64..((begin + unit) / RECORD_BYTES) as u64;
                damage.extend(positions.map(|position| (position, u8::MAX)));
            }
            1 => {
                // Another position's record, as it is.
                let from = usize::from(script.byte()) % RECORDS as usize * RECORD_BYTES;
                if from != at {
                    bytes.copy_within(from..from + RECORD_BYTES, at);
                    damage.insert(position, u8::MAX);
                }
            }
            _ => {
                let bits = damage.entry(position).or_default();
                if *bits < MOST_BITS {
                    *bits += 1;
                    bytes[at + usize::from(script.byte()) % RECORD_BYTES] ^=
                        1 << (script.byte() % 8);
                }
            }
        }
    }
    // A bit that was flipped twice is right.
    let after = written.device.0.borrow().clone();
    let damaged = |lsn: u64| {
        let at = (lsn % RECORDS) as usize * RECORD_BYTES;
        before[at..at + RECORD_BYTES] != after[at..at + RECORD_BYTES]
    };
    let (replayed, found) = written.replay();
    if damage.is_empty() {
        assert_eq!(
            (replayed.damaged_records, replayed.next),
            (0, written.records.len() as u64)
        );
    }
    written.judge(&replayed, &found, damaged);
    // The repaired log is whole, and has the same content.
    let (device, seed) = (&written.device, Seed::new(&UUID));
    now(rewrite_last_batch(
        device,
        written.geometry,
        seed,
        &replayed,
    ))
    .expect("nothing fails");
    let (second, same) = written.replay();
    assert!(second.torn_units.is_empty(), "{second:?}");
    assert_eq!(
        (second.next, second.tail, same),
        (replayed.next, replayed.tail, found)
    );
}

/// A record that counts as sound and was never written: the checker must find it.
#[allow(dead_code, reason = "the fuzz target plants nothing")]
pub(crate) fn forged() {
    let written = write_log(&mut Script(&[1, 1, 10, 0xff, 0xff]));
    let mut record = [0; RECORD_BYTES];
    let position = Position {
        lsn: 3,
        tail: 0,
        units_back: 0,
    };
    let body = Body::Block(block(7, 7, 9));
    encode(&mut record, Seed::new(&UUID), position, &body);
    written.device.0.borrow_mut()[3 * RECORD_BYTES..4 * RECORD_BYTES].copy_from_slice(&record);
    let (replayed, found) = written.replay();
    written.judge(&replayed, &found, |_| false);
}
