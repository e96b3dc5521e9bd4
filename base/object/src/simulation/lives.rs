//! Lives of one volume: sessions that end in crashes, one after the other.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::ErrorKind;
use forebay_io::rt;
use forebay_io::sim::Rng;

use super::run_seeds;
use super::session::{Client, World};
use super::store::Line;
use crate::fault::Faults;
use crate::format::seq_of;

/// Runs a few sessions. Returns the first violation.
pub(super) fn live(seed: u64, faults: Faults) -> Result<(), String> {
    let world = World::new(seed, faults);
    let sessions = 2 + Rng::labelled(seed, 3).below(4);
    for session in 0..sessions {
        let rng = Rng::labelled(seed, 100 + session);
        let world = Rc::clone(&world);
        let is_last = session + 1 == sessions;
        let shared = Rc::clone(&world);
        rt::block_on_simulated(
            rng.draw(),
            async move { use_once(&shared, rng, is_last).await },
        );
        if let Some(what) = world.failure.borrow_mut().take() {
            return Err(format!("seed {seed} session {session}: {what}"));
        }
    }
    Ok(())
}

/// Opens the volume, compares and uses it, and ends with a crash at any time, or closes it.
async fn use_once(world: &Rc<World>, rng: Rng, is_last: bool) {
    let line = Line::new(&world.shelf);
    if !is_last && rng.chance(1, 6) {
        // The process ends while it opens the volume.
        let limit = Duration::from_millis(rng.below(3000));
        rt::at_most(limit, world.serve(&line)).await;
        return;
    }
    if rng.chance(1, 4)
        && let Some(lost) = world.shelf.lose_object(&rng)
    {
        let name = lost.0.clone();
        let outcome = world.serve(&line).await;
        // A late creation may have restored it, or made a checkpoint that covers it.
        let is_covered = seq_of(&name).is_some_and(|seq| seq <= world.shelf.covered());
        let is_lost = world.shelf.restore_object(lost) && !is_covered;
        match outcome {
            Ok(_) if is_lost => world.note(Err(format!("served without {name}"))),
            // The process ends.
            Ok(_) => return,
            Err(error) if error.kind() == ErrorKind::Lost => {}
            Err(error) if !world.excuse("open", &error, false) => return,
            Err(_) => {}
        }
    }
    let volume = loop {
        match world.serve(&line).await {
            Ok(volume) => break volume,
            Err(error) if !world.excuse("open", &error, false) => return,
            Err(_) => {}
        }
    };
    let zones = vec![0, 1, 2];
    world.check_recovered(&volume, true).await;
    world.check_snapshots(&line).await;
    if is_last {
        return;
    }
    let running = Rc::new(std::cell::Cell::new(0));
    let ended = Rc::new(forebay_io::sync::WaitList::new());
    for zone in zones.clone() {
        let client = Client {
            world: Rc::clone(world),
            volume: Rc::clone(&volume),
            zones: zones.clone(),
            zone,
            may_be_fenced: false,
            rng: Rng::new(rng.draw()),
        };
        let count = 10 + rng.below(60);
        running.set(running.get() + 1);
        let (running, ended) = (Rc::clone(&running), Rc::clone(&ended));
        rt::spawn(async move {
            client.run(count).await;
            running.set(running.get() - 1);
            ended.wake_all();
        });
    }
    if rng.chance(1, 3) {
        let (line, cut) = (Rc::clone(&line), rng.below(8000));
        let begin = rng.below(2000);
        rt::spawn(async move {
            rt::sleep(Duration::from_millis(begin)).await;
            line.cut(true);
            rt::sleep(Duration::from_millis(cut)).await;
            line.cut(false);
        });
    }
    let end = Duration::from_millis(200 + rng.below(20_000));
    let all = rt::at_most(end, ended.until(|| running.get() == 0)).await;
    if all.is_some() && rng.chance(1, 2) {
        match volume.close().await {
            Ok(()) => world.model.borrow_mut().close(),
            Err(error) => {
                world.excuse("close", &error, false);
            }
        }
    }
}

#[test]
fn a_volume_survives_crashes() {
    run_seeds("lives of object volumes", |seed| {
        live(seed, Faults::default())
    });
}
