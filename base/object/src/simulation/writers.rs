//! Several writers of one volume: one is held, and a successor takes the volume.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Error, ErrorKind};
use forebay_io::rt;
use forebay_io::sim::Rng;
use forebay_io::sync::WaitList;

use super::run_seeds;
use super::session::{Client, World};
use super::store::Line;
use crate::fault::Faults;

/// Runs two or three writers, each with its own zone. Returns the first violation.
pub(super) fn contend(seed: u64, faults: Faults) -> Result<(), String> {
    let world = World::new(seed, faults);
    let rng = Rng::labelled(seed, 5);
    let shared = Rc::clone(&world);
    rt::block_on_simulated(rng.draw(), async move { run(&shared, &rng).await });
    match world.failure.borrow_mut().take() {
        Some(what) => Err(format!("seed {seed}: {what}")),
        None => Ok(()),
    }
}

async fn run(world: &Rc<World>, rng: &Rng) {
    let ended = Rc::new(WaitList::new());
    let running = Rc::new(std::cell::Cell::new(0));
    let fenced = Rc::new(std::cell::Cell::new(0));
    let writers = 2 + rng.index(2);
    let mut lines = Vec::new();
    for zone in 0..writers {
        let line = Line::new(&world.shelf);
        lines.push(Rc::clone(&line));
        let writer = Writer {
            world: Rc::clone(world),
            line,
            zone,
            rng: Rng::new(rng.draw()),
        };
        running.set(running.get() + 1);
        let (running, ended) = (Rc::clone(&running), Rc::clone(&ended));
        let fenced = Rc::clone(&fenced);
        rt::spawn(async move {
            fenced.set(fenced.get() + usize::from(writer.run().await));
            running.set(running.get() - 1);
            ended.wake_all();
        });
        rt::sleep(Duration::from_millis(rng.below(4000))).await;
        // The line of the last writer is never held.
        if zone + 1 < writers {
            lines[zone].hold(true);
            if rng.chance(1, 2) {
                let line = Rc::clone(&lines[zone]);
                let pause = Duration::from_millis(rng.below(6000));
                rt::spawn(async move {
                    rt::sleep(pause).await;
                    line.hold(false);
                });
            }
        }
    }
    rt::sleep(Duration::from_millis(rng.below(6000))).await;
    for line in &lines {
        line.hold(false);
    }
    ended.until(|| running.get() == 0).await;
    if fenced.get() == writers {
        world.note(Err("the last writer is fenced".to_owned()));
    }
    if world.has_failed() {
        return;
    }
    let line = Line::new(&world.shelf);
    match world.serve(&line).await {
        Ok(volume) => {
            world.check_recovered(&volume, false).await;
            world.check_snapshots(&line).await;
        }
        Err(error) => {
            world.excuse("last open", &error, false);
        }
    }
}

struct Writer {
    world: Rc<World>,
    line: Rc<Line>,
    zone: usize,
    rng: Rng,
}

impl Writer {
    /// Opens the volume and uses it. Returns whether another writer has taken it.
    async fn run(&self) -> bool {
        let is_fenced = |error: &Error| error.kind() == ErrorKind::Busy;
        let volume = loop {
            match self.world.serve(&self.line).await {
                Ok(volume) => break volume,
                Err(error) if !self.world.excuse("open", &error, true) => {
                    return is_fenced(&error);
                }
                Err(_) => {}
            }
        };
        let client = Client {
            world: Rc::clone(&self.world),
            volume: Rc::clone(&volume),
            zones: vec![self.zone],
            zone: self.zone,
            may_be_fenced: true,
            rng: Rng::new(self.rng.draw()),
        };
        client.run(20 + self.rng.below(100)).await;
        let outcome = match self.rng.chance(1, 2) {
            true => volume.close().await,
            false => client.flush().await,
        };
        if let Err(error) = &outcome {
            self.world.excuse("end", error, true);
        }
        outcome.is_err_and(|error| is_fenced(&error))
    }
}

#[test]
fn a_stale_writer_is_fenced() {
    run_seeds("writers of object volumes", |seed| {
        contend(seed, Faults::default())
    });
}

#[test]
fn no_write_of_a_stale_writer_is_flushed() {
    for seed in 0..300 {
        let world = World::new(seed, Faults::default());
        let shared = Rc::clone(&world);
        rt::block_on_simulated(seed, async move {
            let (old, new) = (Line::new(&shared.shelf), Line::new(&shared.shelf));
            let Ok(volume) = shared.serve(&old).await else {
                return;
            };
            let client = |zone, volume| Client {
                world: Rc::clone(&shared),
                volume,
                zones: vec![zone],
                zone,
                may_be_fenced: true,
                rng: Rng::labelled(seed, zone as u64),
            };
            let stale = client(0, volume);
            stale.run(40).await;
            let Ok(volume) = shared.serve(&new).await else {
                return;
            };
            client(1, volume).run(60).await;
            let outcome = match stale.write().await {
                Ok(()) => stale.flush().await,
                failed => failed,
            };
            let kind = outcome.expect_err("a stale writer flushed").kind();
            assert!(
                matches!(kind, ErrorKind::Busy | ErrorKind::Unreachable),
                "{kind:?}"
            );
        });
        assert_eq!(*world.failure.borrow(), None, "seed {seed}");
    }
}
