//! The table of objects that have data.

use std::collections::HashMap;
use std::rc::Rc;

use bytes::Bytes;

use crate::format::SECTOR_BYTES;
use crate::format::log::Chunk;

/// State of the payload of an object.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// In the open batch.
    Open,
    /// In memory, until the object is in the store.
    Closed(Bytes),
    /// In the store: length of the header, bytes, and the chunks that follow it.
    Stored(u32, Rc<[Chunk]>),
    /// In the store, and mapped only by snapshots. Its chunks are not known.
    Pinned,
}

/// An object of the log that has data.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub(crate) seq: u64,
    pub(crate) content: Content,
    /// Length in the store, bytes. Until it is there, length of the payload.
    pub(crate) stored_bytes: u64,
    pub(crate) payload_sectors: u32,
    /// Mapped sectors.
    pub(crate) live_sectors: u32,
    /// Number of snapshots and checkpoints in creation that map it.
    pub(crate) pins: u32,
    /// Whether it is unmapped, and the last durable checkpoint does not map it either.
    pub(crate) is_dead_durably: bool,
}

impl Object {
    /// Creates an object without mapped sectors.
    pub(crate) const fn new(seq: u64, content: Content) -> Self {
        Self {
            seq,
            content,
            stored_bytes: 0,
            payload_sectors: 0,
            live_sectors: 0,
            pins: 0,
            is_dead_durably: false,
        }
    }

    /// Returns the part of its stored bytes that is mapped.
    pub(crate) fn live_bytes(&self) -> u64 {
        match self.payload_sectors {
            0 => 0,
            all => {
                let share = u128::from(self.live_sectors) * u128::from(self.stored_bytes);
                u64::try_from(share / u128::from(all)).unwrap_or(u64::MAX)
            }
        }
    }
}

/// Sums over all objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Bytes of mapped objects that no snapshot pins.
    pub(crate) stored_bytes: u64,
    /// Mapped part of them, bytes.
    pub(crate) live_bytes: u64,
    /// Bytes of pinned objects.
    pub(crate) pinned_bytes: u64,
    /// Mapped part of them, bytes.
    pub(crate) pinned_live_bytes: u64,
    /// Bytes of unmapped objects that the last checkpoint still maps. The next one frees them.
    pub(crate) dead_bytes: u64,
    /// Bytes of unmapped objects that no checkpoint maps, so that they may be deleted.
    pub(crate) free_bytes: u64,
    /// Number of mapped objects that no snapshot pins, and that are small.
    pub(crate) small: u64,
}

impl Sums {
    /// Adds an object with `sign` 1, removes it with -1.
    fn change(&mut self, object: &Object, small_bytes: u64, sign: i64) {
        let add = |sum: &mut u64, bytes: u64| {
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            *sum = sum.wrapping_add_signed(sign * bytes);
        };
        match (object.live_sectors, object.pins) {
            (_, 1..) => {
                add(&mut self.pinned_bytes, object.stored_bytes);
                add(&mut self.pinned_live_bytes, object.live_bytes());
            }
            (0, 0) if object.is_dead_durably => add(&mut self.free_bytes, object.stored_bytes),
            (0, 0) => add(&mut self.dead_bytes, object.stored_bytes),
            (1.., 0) => {
                add(&mut self.stored_bytes, object.stored_bytes);
                add(&mut self.live_bytes, object.live_bytes());
                add(&mut self.small, (object.stored_bytes < small_bytes).into());
            }
        }
    }
}

/// The table. An object has a number, by which the map names it.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    slots: Vec<Option<Object>>,
    free: Vec<u32>,
    by_seq: HashMap<u64, u32>,
    sums: Sums,
    /// Length below which an object is small, bytes.
    small_bytes: u64,
}

impl Objects {
    /// Returns a table without objects, in which those below `small_bytes` are small.
    pub(crate) fn new(small_bytes: u64) -> Self {
        Self {
            small_bytes,
            ..Self::default()
        }
    }

    /// Returns the sums over all objects.
    pub(crate) const fn sums(&self) -> Sums {
        self.sums
    }

    /// Returns the number of objects.
    pub(crate) fn len(&self) -> usize {
        self.by_seq.len()
    }

    /// Adds an object, and returns its number.
    pub(crate) fn add(&mut self, object: Object) -> u32 {
        self.sums.change(&object, self.small_bytes, 1);
        let number = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 objects")
        });
        self.by_seq.insert(object.seq, number);
        self.slots[number as usize] = Some(object);
        number
    }

    /// Removes an object that nothing maps, if it is there.
    pub(crate) fn remove(&mut self, seq: u64) {
        let Some(number) = self.by_seq.remove(&seq) else {
            return;
        };
        if let Some(object) = self.slots[number as usize].take() {
            debug_assert_eq!(object.live_sectors, 0, "an object is mapped");
            self.sums.change(&object, self.small_bytes, -1);
            self.free.push(number);
        }
    }

    /// Returns an object.
    ///
    /// # Panics
    /// If there is none of this number.
    pub(crate) fn get(&self, number: u32) -> &Object {
        let object = self.slots[number as usize].as_ref();
        object.expect("a mapped object is in the table")
    }

    /// Returns the object at place `seq` of the log, with its number; `None` if the table has none.
    pub(crate) fn find(&self, seq: u64) -> Option<(u32, &Object)> {
        let number = *self.by_seq.get(&seq)?;
        Some((number, self.get(number)))
    }

    /// Changes an object.
    ///
    /// # Panics
    /// As [`Objects::get`].
    pub(crate) fn change(&mut self, number: u32, change: impl FnOnce(&mut Object)) {
        let object = self.slots[number as usize].as_mut();
        let object = object.expect("a mapped object is in the table");
        self.sums.change(object, self.small_bytes, -1);
        change(object);
        self.sums.change(object, self.small_bytes, 1);
    }

    /// Returns all objects with their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &Object)> {
        let slots = self.slots.iter().enumerate();
        let number = |index| u32::try_from(index).expect("fewer than 2^32 objects");
        slots.filter_map(move |(index, object)| Some((number(index), object.as_ref()?)))
    }
}

/// Returns the length of sectors, bytes.
pub(crate) const fn bytes_of(sectors: u32) -> usize {
    sectors as usize * SECTOR_BYTES as usize
}
