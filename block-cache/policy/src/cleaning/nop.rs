//! `nop`: no write-back on its own. It writes back only blocks that the reclaimer needs, and those
//! of `forebay flush`. A cache that is full of dirty data stays full, and writes that miss bypass
//! it.

use super::{PolicyInput, Turn, WIDEST};

pub(super) fn turn(input: &PolicyInput) -> Option<Turn> {
    input.wanted.then_some(Turn {
        width: WIDEST,
        spare: true,
        fullest: false,
        only_wanted: true,
    })
}
