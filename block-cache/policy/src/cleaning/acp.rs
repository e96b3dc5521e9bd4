//! `acp`: the least dirty data at any price. Always, as much at a time as goes, whoever waits for it and
//! whoever writes to it again; where most is dirty first, which makes the longest runs.

use super::{Turn, WIDEST};

pub(super) const fn turn() -> Turn {
    Turn {
        width: WIDEST,
        spare: false,
        fullest: true,
        only_wanted: false,
    }
}
