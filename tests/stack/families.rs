//! The families of lives in the crash tests, and the part of each that one run takes.
//!
//! The gate takes a fixed core, with one representative of every mode and durability, and one slice
//! of the rest ([`Rotation`]). The nightly run takes everything.

use forebay_cache::{Durability, Mode};
use forebay_testkit::crash::Target;
use forebay_testkit::depth::Depth;
use forebay_testkit::rotation::{Lives, Rotation};

use super::CacheStack;
use super::setup::{CHANGING, CLEANED, LINES, ONLINE, SUMS, Setup, TREE, UNTRACKED};

const COMMAND: &str =
    "FOREBAY_SIM_TRACE=1 cargo test -p forebay-tests --test crash replay -- --nocapture";

/// The thoroughness of each sweep at each point.
pub(crate) const DEPTH: Depth = Depth {
    singles: 4,
    subsets: 2,
    deaths: 2,
    stride: 1,
    recoveries: false,
};

/// Returns the target of the crash tests.
pub(crate) fn target(setup: Setup) -> Target<CacheStack> {
    Target {
        stack: CacheStack::new(setup),
        plan: setup.plan(),
        lives: if setup.is_pressed() { 20 } else { 5 },
        failing: true,
        forks: false,
        label: setup.to_string(),
        command: COMMAND,
    }
}

/// Variants of the plain configuration that are cut off at each of their I/Os.
const SWEPT: [u64; 14] = [
    0,
    CHANGING,
    TREE | CHANGING,
    UNTRACKED | CHANGING,
    SUMS,
    SUMS | CHANGING,
    SUMS | TREE | CHANGING,
    CLEANED,
    TREE | CLEANED,
    ONLINE,
    ONLINE | CHANGING | CLEANED,
    LINES,
    LINES | SUMS | CHANGING,
    LINES | TREE | CHANGING,
];

/// Variants of the plain configuration in which each operation of each device fails, and whether
/// the volumes fit into the cache.
const FAILING: [(bool, u64); 8] = [
    (true, 0),
    (false, 0),
    (true, SUMS),
    (false, SUMS | CHANGING),
    (true, TREE),
    (true, CLEANED),
    (false, TREE | CHANGING),
    (false, LINES | SUMS | CHANGING),
];

const DURABILITIES: [Durability; 2] = [Durability::Sync, Durability::Flush];

/// Seed whose life finds `Fault::ClaimBehindFailure`.
pub(crate) const CLAIM_BEHIND_FAILURE: u64 = 4_294_997_391;

/// Random lives of the crash tests.
pub(crate) const RANDOM: Lives = Lives {
    // The second seed found a close that a running round logs. The third showed that zeroes behind
    // a discard may be those of a failed write.
    pinned: &[
        CLAIM_BEHIND_FAILURE,
        32_216_989_618_220,
        1_079_985,
        1_080_167,
        1_138_819,
    ],
    gate: 1500,
    whole: 5000,
    share: 1,
};

/// One configuration of a family of sweeps.
struct Member {
    setup: Setup,
    /// Whether the gate takes it in every rotation.
    is_core: bool,
}

/// The configurations of every sweep of crash points. The core has another variant for each mode
/// and durability.
fn swept() -> impl Iterator<Item = Member> {
    let pairs = (Mode::ALL.into_iter().enumerate())
        .flat_map(|mode| DURABILITIES.into_iter().enumerate().map(move |d| (mode, d)));
    pairs.flat_map(|((nth_mode, mode), (nth_durability, durability))| {
        let core = 2 * nth_mode + nth_durability;
        let sizes = [true, false].into_iter().enumerate();
        sizes.flat_map(move |(nth_size, fits)| {
            let variants = SWEPT.into_iter().enumerate();
            variants.map(move |(nth_variant, variant)| Member {
                setup: Setup {
                    mode,
                    durability,
                    fits,
                    variant,
                },
                is_core: nth_variant == core && nth_size == (nth_mode + nth_durability) % 2,
            })
        })
    })
}

/// The configurations of every sweep of failures.
fn failing() -> impl Iterator<Item = Member> {
    Mode::ALL
        .into_iter()
        .enumerate()
        .flat_map(|(nth_mode, mode)| {
            let durabilities = DURABILITIES.into_iter().enumerate();
            durabilities.flat_map(move |(nth_durability, durability)| {
                let core = (2 * nth_mode + nth_durability) % FAILING.len();
                let variants = FAILING.into_iter().enumerate();
                variants.map(move |(nth, (fits, variant))| Member {
                    setup: Setup {
                        mode,
                        durability,
                        fits,
                        variant,
                    },
                    is_core: nth == core,
                })
            })
        })
}

/// Returns the configurations of a family that `rotation` takes.
fn taken(family: impl Iterator<Item = Member>, rotation: Rotation) -> Vec<Setup> {
    (0..)
        .zip(family)
        .filter(|(index, member)| member.is_core || rotation.takes(*index))
        .map(|(_, member)| member.setup)
        .collect()
}

/// Returns the configurations that `rotation` cuts off at each of their I/Os.
pub(crate) fn sweeps(rotation: Rotation) -> Vec<Setup> {
    taken(swept(), rotation)
}

/// Returns the configurations in which `rotation` makes each operation fail.
pub(crate) fn failures(rotation: Rotation) -> Vec<Setup> {
    taken(failing(), rotation)
}

/// Returns the aimed lives that `rotation` takes, each with one seed: the first life of every aim,
/// and a slice of the others.
pub(crate) fn aims(rotation: Rotation) -> Vec<(Setup, u64)> {
    let aimed = (0..).map_while(Setup::aimed);
    let lives = aimed.flat_map(|setup| (1..=setup.aim_seeds()).map(move |seed| (setup, seed)));
    (0..)
        .zip(lives)
        .filter(|(index, (_, seed))| *seed == 1 || rotation.takes(*index))
        .map(|(_, life)| life)
        .collect()
}

/// Returns the configuration of the random life that `seed` draws.
pub(crate) fn random(seed: u64) -> Setup {
    let kind = seed / 4 % 32;
    match (kind, seed % 8 < 4) {
        (0, _) => Setup::large(seed),
        (1 | 18, _) => Setup::tiny(seed),
        (7 | 25, _) => Setup::measured(seed),
        (3 | 12 | 21 | 29, _) => Setup::ailing(seed),
        (_, true) => Setup::draw(seed),
        (_, false) => Setup::pressed(seed),
    }
}
