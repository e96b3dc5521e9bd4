//! A cache device that vanishes in service, under a volume that goes on without it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use forebay_block::{Completion, DeviceInfo, Op, Request};
use forebay_io::sim::{FaultPlan, OpClass, Trouble};

use super::*;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 64;
const CLIENTS: u64 = 4;
/// What nobody writes stands for a block that is not of one write.
const TORN: u8 = 255;

type Written = Rc<RefCell<Vec<Range<u64>>>>;

/// Stands for the log of ranges.
struct Logged {
    inner: Rc<dyn BlockDevice>,
    written: Written,
}

impl BlockDevice for Logged {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        if !matches!(request.op, Op::Read | Op::Flush) {
            let range = request.offset..request.offset + request.len;
            self.written.borrow_mut().push(range);
        }
        self.inner.submit(request, done);
    }
}

/// Has the volume go on without the cache. Returns what is written so, and how often the epoch was raised.
fn agree(cache: &Cache) -> (Written, Rc<Cell<u32>>) {
    let (written, raised) = (Written::default(), Rc::<Cell<u32>>::default());
    let (log, count) = (Rc::clone(&written), Rc::clone(&raised));
    let begin = move |inner: Rc<dyn BlockDevice>| {
        let (written, raised) = (Rc::clone(&log), Rc::clone(&count));
        async move {
            rt::sleep(Duration::from_millis(3)).await;
            raised.set(raised.get() + 1);
            let logged: Rc<dyn BlockDevice> = Rc::new(Logged { inner, written });
            Ok(logged)
        }
    };
    cache.accept_divergence("v", begin).expect("agrees");
    (written, raised)
}

fn page(byte: u8) -> Buf {
    Buf::copied(&[byte; BLOCK as usize])
}

async fn first_byte(volume: &Rc<dyn BlockDevice>, block: u64) -> forebay_block::Result<u8> {
    let found = page(0);
    volume.read(block * BLOCK, found.clone()).await?;
    let found = found.to_vec();
    let is_whole = found.iter().all(|byte| *byte == found[0]);
    Ok(if is_whole { found[0] } else { TORN })
}

fn vanishes(disk: &SimDisk, nth: u64) {
    disk.set_faults(FaultPlan {
        from_nth: Some((nth, Trouble::Vanishes)),
        ..FaultPlan::default()
    });
}

/// The next process: the cache's device is there again, and the volume was written without it.
async fn reattached(
    disks: &[SimDisk],
    epoch: u64,
    written: &Written,
    discard_stale_dirty: bool,
) -> forebay_block::Result<Rc<dyn BlockDevice>> {
    disks[0].set_faults(FaultPlan::default());
    let devices = Devices {
        data: Rc::new(disks[0].clone()),
        metadata: None,
    };
    let (cache, _) = Cache::open(devices, CacheOptions::new([8; 16]))
        .await
        .expect("opens");
    let options = VolumeOptions {
        epoch,
        written_elsewhere: Some(written.borrow().clone()),
        discard_stale_dirty,
        ..VolumeOptions::new(Mode::WriteBack)
    };
    cache.attach("v", Rc::new(disks[1].clone()), options).await
}

#[test]
fn a_volume_goes_on_without_a_cache_that_has_vanished_if_that_was_agreed_to() {
    for agreed in [false, true] {
        run(&world(1, 4 << 20, 512), async move |disks| {
            make(&disks, BLOCK as u32).await;
            let (cache, _) = open(&disks, Durability::Flush).await;
            let volume = attach(&cache, &disks, Mode::WriteBack).await;
            let (written, raised) = match agreed {
                true => agree(&cache),
                false => Default::default(),
            };
            // Clean, dirty, and not there.
            for block in 0..8 {
                volume.write(block * BLOCK, page(1)).await.expect("writes");
            }
            cache.write_back(None).await.expect("writes back");
            for block in 4..8 {
                volume.write(block * BLOCK, page(2)).await.expect("writes");
            }
            volume.flush().await.expect("flushes");
            vanishes(&disks[0], 1);
            // What is clean goes on, what is dirty is named.
            assert_eq!(first_byte(&volume, 0).await.expect("clean"), 1);
            let error = first_byte(&volume, 5).await.expect_err("dirty");
            let told = error.report();
            assert!(
                told.contains("volume v: 4096 bytes at 20480 are dirty"),
                "{told}"
            );
            let results = [0, 5, 20].map(|block| volume.write(block * BLOCK, page(3)));
            for (number, result) in results.into_iter().enumerate() {
                let result = result.await;
                // What is not there may go round a cache whose failure has not shown yet.
                assert_eq!(result.is_ok(), agreed || number == 2 && result.is_ok());
            }
            assert_eq!(cache.stats().volumes[0].diverged, agreed);
            if !agreed {
                assert!(volume.write(0, page(3)).await.is_err(), "refused");
                return;
            }
            assert_eq!(raised.get(), 1, "once");
            assert!(written.borrow().contains(&(0..BLOCK)));
            for block in [0, 5, 20] {
                assert_eq!(first_byte(&volume, block).await.expect("there"), 3);
            }
            assert_eq!(first_byte(&volume, 1).await.expect("clean"), 1);
            first_byte(&volume, 6).await.expect_err("dirty still");
            // A part of what is dirty would be mixed with what is older.
            let part = Buf::copied(&[4; 512]);
            let error = volume
                .write(6 * BLOCK, part.clone())
                .await
                .expect_err("a part");
            assert!(error.report().contains("512 bytes at 24576"), "{error:?}");
            volume
                .write(BLOCK, part)
                .await
                .expect("a part of what is clean");
            volume.write_zeroes(2 * BLOCK, BLOCK).await.expect("zeroes");
            assert_eq!(first_byte(&volume, 2).await.expect("there"), 0);
            volume.discard(3 * BLOCK, BLOCK).await.expect("discards");
            // Told once what the cache may have taken along.
            let error = volume.flush().await.expect_err("something is dirty");
            assert!(error.report().contains("may be gone"), "{error:?}");
            volume
                .flush()
                .await
                .expect("what was written since is there");
            assert_eq!(disks[1].peek(5 * BLOCK, 1), [3]);
            let epoch = cache.volume_epoch("v").expect("attached") + 1;
            let refused = reattached(&disks, epoch, &written, false).await;
            let refused = refused.err().expect("dirty data is older").report();
            assert!(refused.contains("older dirty data of"), "{refused}");
            let volume = reattached(&disks, epoch, &written, true)
                .await
                .expect("attaches");
            for (block, byte) in [(0, 3), (2, 0), (3, 1), (4, 2), (5, 3), (6, 2), (20, 3)] {
                assert_eq!(
                    first_byte(&volume, block).await.expect("reads"),
                    byte,
                    "{block}"
                );
            }
        });
    }
}

/// What a client knows of its blocks: the bytes that each may hold.
struct Client {
    volume: Rc<dyn BlockDevice>,
    number: u64,
    may_hold: Vec<BTreeSet<u8>>,
    wrong: Vec<String>,
}

impl Client {
    fn new(volume: &Rc<dyn BlockDevice>, number: u64) -> Self {
        Self {
            volume: Rc::clone(volume),
            number,
            may_hold: vec![BTreeSet::from([0]); (BLOCKS / CLIENTS) as usize],
            wrong: Vec::new(),
        }
    }

    const fn block(&self, own: usize) -> u64 {
        own as u64 * CLIENTS + self.number
    }

    async fn live(&mut self, rng: &Rng, steps: usize) {
        for _ in 0..steps {
            let own = rng.index(self.may_hold.len());
            let block = self.block(own);
            match rng.below(8) {
                0..=3 => {
                    let byte = 1 + rng.below(250) as u8;
                    match self.volume.write(block * BLOCK, page(byte)).await {
                        Ok(()) => self.may_hold[own] = BTreeSet::from([byte]),
                        Err(error) => {
                            self.may_hold[own].insert(byte);
                            self.wrong
                                .push(format!("write refused: {}", error.report()));
                        }
                    }
                }
                4 => {
                    let _ = self.volume.flush().await;
                }
                5 => rt::sleep(Duration::from_micros(rng.below(3000))).await,
                _ => {
                    // What is dirty on a device that is gone cannot be read.
                    if let Ok(byte) = first_byte(&self.volume, block).await {
                        if !self.may_hold[own].contains(&byte) {
                            let held = &self.may_hold[own];
                            self.wrong
                                .push(format!("block {block}: {byte}, not {held:?}"));
                        }
                        self.may_hold[own] = BTreeSet::from([byte]);
                    }
                }
            }
        }
    }
}

/// Clients at work while the cache's device vanishes, or fails a flush, and what is read then and by the next process. Returns what is wrong, and whether
/// it diverged.
fn lives(seed: u64) -> (Vec<String>, bool) {
    let mut world = World::new(seed);
    world.add_disk(&DiskConfig::new("cache", 4 << 20));
    world.add_disk(&DiskConfig {
        latency_us: (500, 20_000),
        ..DiskConfig::new("backing", 1 << 20)
    });
    run(&world, async move |disks| {
        let rng = Rng::labelled(seed, 6);
        make(&disks, BLOCK as u32).await;
        let durability = match rng.chance(1, 4) {
            true => Durability::Sync,
            false => Durability::Flush,
        };
        let (cache, _) = open(&disks, durability).await;
        let mode = [Mode::WriteBack, Mode::WriteBack, Mode::WriteThrough][rng.index(3)];
        let volume = attach(&cache, &disks, mode).await;
        let (written, _) = agree(&cache);
        if rng.chance(1, 2) {
            cache.set_cleaning(Cleaning::Acp);
        }
        let begun: Vec<_> = (0..CLIENTS)
            .map(|number| Client::new(&volume, number))
            .collect();
        let live = |mut client: Client, steps: usize| {
            let rng = Rng::labelled(seed * CLIENTS + client.number, steps as u64);
            async move {
                client.live(&rng, steps).await;
                Rc::new(client)
            }
        };
        match rng.chance(1, 2) {
            true => vanishes(&disks[0], 1 + rng.below(300)),
            // What it holds can be read on.
            false => disks[0].set_faults(FaultPlan {
                fail_nth: Some((OpClass::Flush, 1 + rng.below(20))),
                ..FaultPlan::default()
            }),
        }
        let lived = begun.into_iter().map(|client| live(client, 150)).collect();
        let clients = crate::engine::Engine::join(lived).await;
        let mut wrong: Vec<_> = (clients.iter())
            .flat_map(|client| client.wrong.clone())
            .collect();
        let diverged = cache.stats().volumes[0].diverged;
        // What was still on its way to the backing device has arrived.
        rt::sleep(Duration::from_secs(1)).await;
        let epoch = cache.volume_epoch("v").expect("attached") + u64::from(diverged);
        let next = reattached(&disks, epoch, &written, true)
            .await
            .expect("attaches");
        for client in &clients {
            for (own, may_hold) in client.may_hold.iter().enumerate() {
                let at = client.block(own) * BLOCK;
                // What the cache alone had was not flushed, in part.
                let is_logged = written.borrow().iter().any(|range| range.contains(&at));
                let byte = first_byte(&next, client.block(own)).await.expect("reads");
                if is_logged && !may_hold.contains(&byte) {
                    wrong.push(format!(
                        "later, block {}: {byte}, not {may_hold:?}",
                        at / BLOCK
                    ));
                }
            }
        }
        (wrong, diverged)
    })
}

#[test]
fn what_is_written_past_a_vanished_cache_stays_written() {
    let mut diverged = 0;
    for seed in 0..300 {
        let (wrong, has_diverged) = lives(seed);
        assert!(wrong.is_empty(), "seed {seed}: {wrong:?}");
        diverged += u32::from(has_diverged);
    }
    assert!(diverged > 200, "only {diverged} lives diverged");
    for fault in [
        plant::Fault::ServeDiverged,
        plant::Fault::DivergeBesideCleaner,
    ] {
        plant::plant(Some(fault));
        let found = (0..300).any(|seed| !lives(seed).0.is_empty());
        plant::plant(None);
        assert!(found, "{fault:?} is found");
    }
}
