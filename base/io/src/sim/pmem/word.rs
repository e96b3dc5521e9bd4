//! Eight bytes that are stored, flushed and fenced.

/// A word's life since it was durable.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Word {
    /// The values that it had, oldest first.
    pub(super) values: Vec<u64>,
    /// For each strand, the number of values that it has flushed.
    flushed: Vec<(u32, usize)>,
}

impl Word {
    pub(super) fn flush(&mut self, strand: u32) {
        let reach = self.values.len();
        match self.flushed.iter_mut().find(|(other, _)| *other == strand) {
            Some((_, old)) => *old = reach,
            None => self.flushed.push((strand, reach)),
        }
    }

    /// The strand has fenced: the value that is durable now, if any more is.
    pub(super) fn fence(&mut self, strand: u32) -> Option<u64> {
        let index = self
            .flushed
            .iter()
            .position(|(other, _)| *other == strand)?;
        let (_, reach) = self.flushed.swap_remove(index);
        let durable = *self.values.get(reach.checked_sub(1)?)?;
        self.values.drain(..reach);
        for (_, other) in &mut self.flushed {
            *other = other.saturating_sub(reach);
        }
        Some(durable)
    }
}
