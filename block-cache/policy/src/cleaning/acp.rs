//! `acp`: the least dirty data at any price. It always writes back as much at a time as possible,
//! regardless of waiting clients and of rewrites. It begins where most is dirty, which gives the
//! longest runs.

use super::{Turn, WIDEST};

pub(super) const fn turn() -> Turn {
    Turn {
        width: WIDEST,
        spare: false,
        fullest: true,
        only_wanted: false,
    }
}
