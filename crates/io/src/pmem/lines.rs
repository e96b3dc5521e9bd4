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

    /// One lap over all lines, each of which names the next one, so that no processor fetches ahead; what it took in ns.
    fn lap(words: &[AtomicU64]) -> u128 {
        let begin = Instant::now();
        let mut at = 0;
        for _ in 0..LINES {
            at = usize::try_from(words[at * WORDS].load(Ordering::Relaxed))
                .expect("a line's number");
        }
        assert_eq!(at, 0, "nothing is lost");
        begin.elapsed().as_nanos()
    }

    const LINES: usize = 1024;
    const WORDS: usize = 8;

    #[test]
    fn what_is_dropped_is_the_same_and_not_in_the_cache() {
        drop_lines(&[]);
        let words: Vec<AtomicU64> = (0..LINES * WORDS).map(|_| AtomicU64::new(7)).collect();
        // 421 is odd and 1,024 a power of two: all lines are on one lap, none beside the one before.
        for line in 0..LINES {
            words[line * WORDS].store(((line + 421) % LINES) as u64, Ordering::Relaxed);
        }
        if drop_lines(&words[3..100]) == Writeback::None {
            println!("SKIPPED: this processor has no instruction that drops a line");
            return;
        }
        // The best of many, by turns: neither a busy machine nor a slower clock falls on one of them alone.
        let (mut warm, mut cold) = (u128::MAX, u128::MAX);
        for _ in 0..300 {
            drop_lines(&words);
            cold = cold.min(lap(&words));
            warm = warm.min(lap(&words));
        }
        assert!(cold > 2 * warm, "{cold} ns after a drop, {warm} ns without");
    }
}
