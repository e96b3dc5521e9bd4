//! State of a volume at a place in its log.

use std::collections::BTreeSet;
use std::ops::Range;

use forebay_block::Result;

use crate::fault::{Fault, Faults};
use crate::format::checkpoint::Tables;
use crate::format::log::{Header, Kind};
use crate::format::{Id, corrupt};
use crate::limits::Limits;
use crate::map::{Map, Place};
use crate::objects::{Content, Object, Objects};

/// State of a volume after an object of its log.
#[derive(Debug, Default)]
pub(crate) struct Chain {
    pub(crate) map: Map,
    pub(crate) objects: Objects,
    /// Place of the last object that has its effect here.
    pub(crate) seq: u64,
    /// Number of the writer. Objects of earlier writers that follow its claim are orphans.
    pub(crate) epoch: u64,
    /// Place of the writer's claim.
    pub(crate) claim: u64,
    pub(crate) claims: Vec<u64>,
    /// Identities of complete snapshots.
    pub(crate) snapshots: BTreeSet<Id>,
    pub(crate) size_bytes: u64,
    /// Length of the checkpoint that the state began with.
    pub(crate) checkpoint_bytes: u64,
    /// Bytes of the objects that were applied since the checkpoint.
    pub(crate) log_bytes: u64,
    pub(crate) faults: Faults,
}

impl Chain {
    /// Returns the state before the first object.
    pub(crate) fn empty(size_bytes: u64, limits: Limits) -> Self {
        Self {
            objects: Objects::new(limits.small_bytes),
            size_bytes,
            ..Self::default()
        }
    }

    /// Returns the state of a checkpoint.
    pub(crate) fn of(tables: Tables, map: Map, limits: Limits) -> Self {
        let mut objects = Objects::new(limits.small_bytes);
        let mut live = vec![0; tables.entries.len()];
        for (object, sectors) in map.live() {
            live[object as usize] += sectors;
        }
        // The objects get the numbers that the map uses, since the table is empty.
        for (entry, live_sectors) in tables.entries.into_iter().zip(live) {
            let content = Content::Stored(entry.header_bytes, entry.chunks.into());
            objects.add(Object {
                stored_bytes: entry.stored_bytes.into(),
                payload_sectors: entry.payload_sectors,
                live_sectors,
                ..Object::new(entry.seq, content)
            });
        }
        Self {
            map,
            objects,
            seq: tables.seq,
            epoch: tables.epoch,
            claim: tables.claim,
            claims: tables.claims,
            snapshots: tables.snapshots.into_iter().collect(),
            size_bytes: tables.size_bytes,
            checkpoint_bytes: 0,
            log_bytes: 0,
            faults: Faults::default(),
        }
    }

    /// Maps sectors to the data that begins at `place`, or to zeroes if `place` is `None`.
    pub(crate) fn replace(&mut self, sectors: Range<u64>, place: Option<Place>) {
        let objects = &mut self.objects;
        let len = u32::try_from(sectors.end - sectors.start);
        self.map.replace(sectors, place, |object, freed| {
            objects.change(object, |it| it.live_sectors -= freed);
        });
        if let Some(place) = place {
            let len = len.expect("shorter than a payload");
            objects.change(place.object, |it| it.live_sectors += len);
        }
    }

    /// Applies the next object.
    ///
    /// # Errors
    /// `Corrupt` if no writer could have created it here.
    pub(crate) fn apply(&mut self, header: &Header) -> Result<()> {
        if header.seq != self.seq + 1 {
            return Err(corrupt("it has another place in the log"));
        }
        let is_orphan = header.epoch < self.epoch && !self.faults.has(Fault::ReplayOrphans);
        match header.kind {
            _ if is_orphan => self.occupy(header),
            Kind::Claim => self.apply_claim(header)?,
            Kind::Barrier => self.occupy(header),
            Kind::Data => self.apply_data(header)?,
        }
        self.seq = header.seq;
        self.log_bytes += header.object_bytes();
        Ok(())
    }

    /// Adds an object without effect, so that it is deleted later.
    fn occupy(&mut self, header: &Header) {
        if header.kind != Kind::Claim {
            self.objects.add(Object {
                stored_bytes: header.object_bytes(),
                ..Object::new(header.seq, Content::Pinned)
            });
        }
    }

    fn apply_claim(&mut self, header: &Header) -> Result<()> {
        if header.epoch <= self.epoch {
            return Err(corrupt("two writers have one number"));
        }
        self.epoch = header.epoch;
        self.claim = header.seq;
        self.claims.push(header.seq);
        self.size_bytes = self.size_bytes.max(header.size_bytes);
        Ok(())
    }

    fn apply_data(&mut self, header: &Header) -> Result<()> {
        if self.faults.has(Fault::NoClaim) {
            self.epoch = header.epoch;
            self.size_bytes = header.size_bytes;
        }
        if header.epoch > self.epoch || header.size_bytes > self.size_bytes {
            return Err(corrupt("the claim of its writer is missing"));
        }
        let header_bytes = u32::try_from(header.bytes()).expect("a header is short");
        let content = Content::Stored(header_bytes, header.chunks.clone().into());
        let object = self.objects.add(Object {
            stored_bytes: header.object_bytes(),
            payload_sectors: header.payload_sectors,
            ..Object::new(header.seq, content)
        });
        let mut offset = 0;
        for record in &header.records {
            let sectors = record.first..record.first + u64::from(record.sectors);
            let place = record.is_data.then_some(Place { object, offset });
            self.replace(sectors, place);
            if record.is_data {
                offset += record.sectors;
            }
        }
        if header.snapshot != Id::default() {
            self.snapshots.insert(header.snapshot);
        }
        Ok(())
    }
}
