//! `nop`: nothing on its own account. What the reclaimer needs is written back, and what somebody asks for
//! with `forebay flush`; a cache that is full of dirty data stays so, and writes that miss go round it.

use super::{Look, Turn, WIDEST};

pub(super) fn turn(look: &Look) -> Option<Turn> {
    look.wanted.then_some(Turn {
        width: WIDEST,
        spare: true,
        fullest: false,
        only_wanted: true,
    })
}
