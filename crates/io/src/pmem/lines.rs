//! Lines that other hosts load and store, where no hardware keeps the processors' caches of hosts apart.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::{LINE_BYTES, Writeback};

/// Writes the lines of these words back and drops them from this processor's caches: what was stored before is in memory
/// then, and what is loaded afterwards comes from there. Returns the instruction; [`Writeback::None`] did nothing.
pub fn drop_lines(words: &[AtomicU64]) -> Writeback {
    static KIND: OnceLock<Writeback> = OnceLock::new();
    let kind = *KIND.get_or_init(Writeback::detect_dropping);
    if words.is_empty() {
        return kind;
    }
    // Stores come before, whatever they are to.
    fence(Ordering::SeqCst);
    let range = words.as_ptr_range();
    let line = usize::try_from(LINE_BYTES).expect("64");
    let mut at = range.start.cast::<u8>();
    at = at.wrapping_sub(at.addr() % line);
    while at < range.end.cast() {
        // SAFETY: each line holds one of the words, and so is mapped; the processor was asked for the instruction.
        unsafe { kind.line(at) };
        at = at.wrapping_add(line);
    }
    // Loads come after.
    fence(Ordering::SeqCst);
    kind
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// What reading all words takes at best.
    fn reading(words: &[AtomicU64], dropped: bool) -> u128 {
        let round = |_| {
            if dropped {
                drop_lines(words);
            }
            let begin = Instant::now();
            let sum: u64 = words.iter().map(|word| word.load(Ordering::Relaxed)).sum();
            assert_eq!(sum, 7 * words.len() as u64, "nothing is lost");
            begin.elapsed().as_nanos()
        };
        (0..200).map(round).min().expect("200 rounds")
    }

    #[test]
    fn what_is_dropped_is_the_same_and_not_in_the_cache() {
        drop_lines(&[]);
        let words: Vec<AtomicU64> = (0..8192).map(|_| AtomicU64::new(7)).collect();
        if drop_lines(&words[3..100]) == Writeback::None {
            println!("SKIPPED: this processor has no instruction that drops a line");
            return;
        }
        let (warm, cold) = (reading(&words, false), reading(&words, true));
        assert!(cold > warm, "{cold} ns after a drop, {warm} ns without");
    }
}
