//! The crashes and failures that the drivers try and draw.

use std::ops::Range;

use forebay_io::sim::{FaultPlan, Keep, OpClass, Rng, Spell, Trouble};

use crate::depth::Depth;
use crate::machine::{Crash, Machine};
use crate::stack::Stack;

/// Returns the crashes to try at one point.
pub(crate) fn choices<S: Stack>(machine: &Machine<S>, depth: Depth, seed: u64) -> Vec<Crash> {
    let rng = Rng::labelled(seed, 3);
    let unflushed = machine.world.unflushed();
    let disks = machine.world.disks().len() + machine.world.memories().len();
    let mut keeps = vec![Keep::None];
    if unflushed > 0 {
        keeps.push(Keep::All);
        keeps.extend((0..depth.subsets).map(|_| Keep::Random(rng.draw())));
        if disks > 1 {
            keeps.extend((0..disks).map(Keep::Disk));
        }
    }
    if unflushed > 1 {
        let mut singles: Vec<usize> = (0..unflushed).collect();
        while singles.len() > depth.singles {
            singles.swap_remove(rng.index(singles.len()));
        }
        singles.sort_unstable();
        keeps.extend(singles.iter().map(|&one| Keep::Only(one)));
        keeps.extend(singles.iter().map(|&one| Keep::AllBut(one)));
    }
    let deaths = (0..depth.deaths).map(|_| Crash::Process(rng.draw()));
    keeps.into_iter().map(Crash::Power).chain(deaths).collect()
}

/// Durations of a device's stall, microseconds: shorter and longer than the clients' timeout.
const STALLS_US: [u64; 3] = [1_000_000, 100_000_000, 400_000_000];

/// Makes one operation of a device fail in the next life, or has it stall or vanish. Returns the
/// device, and the most important kind of operation that may have failed.
pub(crate) fn draw_failure<S: Stack>(machine: &Machine<S>, rng: &Rng) -> (usize, OpClass) {
    machine.model().set_hiding(machine.hides_failed_writes());
    let disks = machine.world.disks();
    let disk = rng.index(disks.len());
    if rng.chance(1, 3) {
        let (trouble, class) = match rng.chance(1, 2) {
            true => (Trouble::Vanishes, OpClass::Flush),
            false => (Trouble::Stalls(STALLS_US[rng.index(3)]), OpClass::Read),
        };
        let nth = 1 + rng.below([4, 30, 200][rng.index(3)]);
        disks[disk].set_faults(FaultPlan {
            from_nth: Some((nth, trouble)),
            ..FaultPlan::default()
        });
        return (disk, class);
    }
    let class = match rng.below(4) {
        0 => OpClass::Write,
        1 => OpClass::Read,
        _ => OpClass::Flush,
    };
    disks[disk].set_faults(FaultPlan {
        fail_nth: Some((class, 1 + rng.below([4, 30][rng.index(2)]))),
        ..FaultPlan::default()
    });
    (disk, class)
}

/// Makes the writes of a device fail for a while in the next life. Returns as [`draw_failure`], a
/// write where flushes do not fail.
pub(crate) fn draw_spell<S: Stack>(
    machine: &Machine<S>,
    ailing: Range<usize>,
    rng: &Rng,
) -> (usize, OpClass) {
    let disk = ailing.start + rng.index(ailing.len());
    let from = 1 + rng.below([4, 30, 100][rng.index(3)]);
    let flushes = rng.chance(1, 4);
    machine.world.disks()[disk].set_faults(FaultPlan {
        spell: Some(Spell {
            changes: from..from + 1 + rng.below([2, 10, 40][rng.index(3)]),
            flushes,
        }),
        ..FaultPlan::default()
    });
    machine.model().set_spell(true);
    let class = if flushes {
        OpClass::Flush
    } else {
        OpClass::Write
    };
    (disk, class)
}

pub(crate) fn draw_crash<S: Stack>(machine: &Machine<S>, rng: &Rng) -> Crash {
    if rng.chance(2, 5) {
        return Crash::Process(rng.draw());
    }
    let unflushed = machine.world.unflushed();
    let disks = machine.world.disks().len() + machine.world.memories().len();
    Crash::Power(match rng.below(8) {
        0 | 1 => Keep::None,
        2 => Keep::All,
        3 => Keep::Disk(rng.index(disks)),
        4 if unflushed > 0 => Keep::Only(rng.index(unflushed)),
        5 if unflushed > 0 => Keep::AllBut(rng.index(unflushed)),
        _ => Keep::Random(rng.draw()),
    })
}
