//! Random lives of volumes over a simulated store, against a model disk.
//!
//! # Fault contract of the store
//!
//! - An operation takes effect at one moment between its call and its answer. Operations in flight
//!   take effect in any order.
//! - An operation may fail without an effect, or after its effect: the answer is lost.
//! - A creation or deletion that failed, or whose caller ended, may take effect at any later time.
//!   A creation that succeeded may be delivered once more at any later time.
//! - A creation has no effect if the object exists. Reads and lists show all effects before them.
//! - A line may be cut for a while: everything on it fails. It may be held: everything on it waits.
//!
//! `FOREBAY_SEED=n` replays one life.

mod faults;
mod lives;
mod model;
mod session;
mod store;
mod writers;

use forebay_testkit::rotation::{Lives, print_row};

/// Lives of each kind.
const LIVES: Lives = Lives {
    pinned: &[17, 46, 1_003_503, 1_005_560],
    gate: 1500,
    whole: 20_000,
    share: 10,
};

/// Runs lives of one kind. Panics at the first violation.
fn run_seeds(check: &str, run: impl Fn(u64) -> Result<(), String>) {
    let seeds = LIVES.seeds();
    for seed in &seeds {
        if let Err(what) = run(*seed) {
            panic!("{what}\nreplay with: FOREBAY_SEED={seed}");
        }
    }
    print_row(check, seeds.len() as u64, 0);
}
