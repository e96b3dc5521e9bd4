//! A client of a volume whose cache fails.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf, Request};
use forebay_cache::{Cache, Mode};
use forebay_io::rt;
use forebay_io::sim::{Rng, Stopper};

use super::model::{BLOCK, BLOCKS, CLIENTS, Seen, byte_of};

const STEPS: u64 = 80;

/// One of several clients. Each has blocks of its own, next to the blocks of others.
pub(super) struct Client {
    pub(super) cache: Cache,
    pub(super) volume: Rc<dyn BlockDevice>,
    pub(super) number: u64,
    pub(super) seen: Rc<Seen>,
    pub(super) stopper: Stopper,
    pub(super) sync: bool,
    /// Whether it changes the mode of the volume.
    pub(super) changes_mode: bool,
}

impl Client {
    pub(super) async fn write(&self, block: u64, byte: u8, fua: bool) {
        // A write may run in any mode that the volume has from its beginning to its end.
        let changes = self.seen.dirty_modes.get();
        let makes_dirty =
            || self.seen.mode.get().makes_dirty() || self.seen.dirty_modes.get() != changes;
        self.seen.change(block, |known| {
            known.now.insert(byte);
            known.later.insert(byte);
            known.changing = true;
            known.maybe_dirty |= makes_dirty();
        });
        let request = match byte {
            0 => Request::write_zeroes(block * BLOCK, BLOCK, fua, false),
            _ => {
                let page = Buf::copied(&[byte; BLOCK as usize]);
                Request::write(block * BLOCK, page, fua)
            }
        };
        let result = self.volume.start(request).await;
        if self.stopper.is_stopped() {
            return;
        }
        self.seen
            .change(block, |known| known.maybe_dirty |= makes_dirty());
        match result {
            Ok(()) => self.seen.change(block, |known| {
                known.now = BTreeSet::from([byte]);
                if fua || self.sync {
                    known.later = BTreeSet::from([byte]);
                }
                known.changing = false;
            }),
            Err(error) if self.seen.allows(Some(block), &error) => {}
            Err(error) => {
                let report = error.report();
                self.seen
                    .note(format!("block {block} is refused: {report}"));
            }
        }
    }

    pub(super) async fn flush(&self) {
        let own = (0..BLOCKS / CLIENTS).map(|own| own * CLIENTS + self.number);
        let covered: Vec<_> = own
            .map(|block| (block, self.seen.change(block, |known| known.now.clone())))
            .collect();
        let result = self.volume.flush().await;
        if self.stopper.is_stopped() {
            return;
        }
        match result {
            Ok(()) => {
                for (block, now) in covered {
                    self.seen.change(block, |known| known.later = now);
                }
            }
            Err(error) if self.seen.allows(None, &error) => {}
            Err(error) => self.seen.note(format!("a flush fails: {}", error.report())),
        }
    }

    pub(super) async fn live(&self, rng: &Rng) {
        for _ in 0..STEPS {
            let block = rng.below(BLOCKS / CLIENTS) * CLIENTS + self.number;
            let byte = 1 + rng.below(250) as u8;
            match rng.below(24) {
                0..=9 => self.write(block, byte, rng.chance(1, 8)).await,
                10 => self.write(block, 0, rng.chance(1, 8)).await,
                11..=12 => self.flush().await,
                13 => rt::sleep(Duration::from_micros(rng.below(3000))).await,
                14 if self.changes_mode => {
                    let mode = Mode::ALL[rng.index(Mode::ALL.len())];
                    if self.cache.set_mode("v", mode).is_ok() {
                        self.seen.set_mode(mode);
                    }
                }
                15 if self.changes_mode && rng.chance(1, 4) => {
                    let _ = self.cache.write_back(Some("v")).await;
                }
                16 => {
                    // A discard may keep the old contents, or zero them.
                    self.seen.change(block, |known| {
                        known.now.insert(0);
                        known.later.insert(0);
                    });
                    let _ = self.volume.discard(block * BLOCK, BLOCK).await;
                }
                _ => {
                    let found = byte_of(&self.volume, block).await;
                    if !self.stopper.is_stopped() {
                        self.seen.read("in service", block, found);
                    }
                }
            }
            if self.stopper.is_stopped() {
                return;
            }
        }
    }
}
