//! A client of a volume that continues without its cache.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, BlockDeviceExt as _, Buf, Request};
use forebay_io::rt;
use forebay_io::sim::{Rng, Stopper};
use forebay_io::sync::Promise;

use super::model::{Seen, byte_of};
use super::{BLOCK, BLOCKS, CLIENTS, STEPS};

/// One of several clients. Each has blocks of its own, next to the blocks of others.
pub(super) struct Client {
    pub(super) volume: Rc<dyn BlockDevice>,
    pub(super) number: u64,
    pub(super) seen: Rc<Seen>,
    pub(super) stopper: Stopper,
    /// Whether each acknowledgement promises durability.
    pub(super) sync: bool,
}

impl Client {
    fn blocks(&self) -> impl Iterator<Item = u64> + use<> {
        let number = self.number;
        (0..BLOCKS / CLIENTS).map(move |own| own * CLIENTS + number)
    }

    /// Changes a block to hold a byte, or zeroes.
    async fn write(&self, block: u64, byte: u8, fua: bool) {
        self.seen.change(block, |known| {
            known.now.insert(byte);
            known.later.insert(byte);
            known.changing = true;
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
        if let Err(error) = result {
            return self.seen.note(format!(
                "a write to block {block} fails: {}",
                error.report()
            ));
        }
        self.seen.change(block, |known| {
            known.now = BTreeSet::from([byte]);
            if fua || self.sync {
                known.later = BTreeSet::from([byte]);
            }
            known.changing = false;
        });
    }

    async fn flush(&self) {
        let covered: Vec<_> = (self.blocks())
            .map(|block| (block, self.seen.change(block, |known| known.now.clone())))
            .collect();
        if self.volume.flush().await.is_ok() && !self.stopper.is_stopped() {
            for (block, now) in covered {
                self.seen.change(block, |known| known.later = now);
            }
        }
    }

    /// Runs the steps of a life.
    pub(super) async fn live(&self, rng: &Rng) {
        for _ in 0..STEPS {
            let block = rng.below(BLOCKS / CLIENTS) * CLIENTS + self.number;
            let byte = 1 + rng.below(250) as u8;
            match rng.below(12) {
                0..=3 => self.write(block, byte, rng.chance(1, 8)).await,
                4 => self.write(block, 0, rng.chance(1, 8)).await,
                5 => self.flush().await,
                6 => rt::sleep(Duration::from_micros(rng.below(3000))).await,
                // A read of dirty data on a lost device fails.
                7..=8 => {
                    let found = byte_of(Rc::clone(&self.volume), block).await;
                    if let (Ok(found), false) = (found, self.stopper.is_stopped()) {
                        self.seen.read(block, found);
                    }
                }
                // A read beside a write returns old or new data, a later read the new data.
                _ => {
                    let before = self.seen.change(block, |known| known.now.clone());
                    let reading = Promise::new();
                    let (read, volume) = (reading.clone(), Rc::clone(&self.volume));
                    rt::spawn(async move { read.set(byte_of(volume, block).await) });
                    let byte = if rng.chance(1, 4) { 0 } else { byte };
                    self.write(block, byte, false).await;
                    if let Ok(found) = reading.get().await
                        && !before.contains(&found)
                        && found != byte
                    {
                        self.seen
                            .note(format!("block {block}: {found} beside a write"));
                    }
                }
            }
            if self.stopper.is_stopped() {
                return;
            }
        }
    }
}
