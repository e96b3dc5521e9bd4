//! Lines that other hosts load and store, where no hardware keeps the processors' caches of hosts
//! apart.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use super::{LINE_BYTES, Writeback};

/// Writes the lines of these words back and drops them from this processor's caches. Earlier stores
/// are in memory then, and later loads come from there. Returns the instruction;
/// [`Writeback::None`] did nothing.
pub fn drop_lines(words: &[AtomicU64]) -> Writeback {
    static KIND: OnceLock<Writeback> = OnceLock::new();
    let kind = *KIND.get_or_init(Writeback::detect_dropping);
    if words.is_empty() {
        return kind;
    }
    // Stores come before, whatever they are to.
    fence(Ordering::SeqCst);
    for line in lines(words) {
        // SAFETY: each line holds one of the words, and so is mapped; the processor was asked for
        // the instruction.
        unsafe { kind.line(line) };
    }
    // Loads come after.
    fence(Ordering::SeqCst);
    kind
}

/// Returns the address of each line that holds one of these words, in order.
fn lines(words: &[AtomicU64]) -> impl Iterator<Item = *const u8> {
    let line = usize::try_from(LINE_BYTES).expect("64");
    let range = words.as_ptr_range();
    let (first, end) = (range.start.cast::<u8>(), range.end.cast::<u8>());
    let first = first.wrapping_sub(first.addr() % line);
    (0..end.addr() - first.addr())
        .step_by(line)
        .map(move |offset| first.wrapping_add(offset))
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: usize = 8;

    fn words() -> Vec<AtomicU64> {
        (0..1024 * WORDS as u64).map(AtomicU64::new).collect()
    }

    #[test]
    fn each_line_that_holds_a_word_is_dropped_once() {
        let words = words();
        let line_of = |word: &AtomicU64| {
            let address = std::ptr::from_ref(word).addr();
            address - address % (WORDS * size_of::<u64>())
        };
        for range in [0..1, 3..4, 3..100, 5..8, 7..9, 8..16, 0..words.len()] {
            let words = &words[range.clone()];
            let mut expected: Vec<usize> = words.iter().map(line_of).collect();
            expected.dedup();
            let dropped: Vec<usize> = lines(words).map(<*const u8>::addr).collect();
            assert_eq!(dropped, expected, "{range:?}");
        }
    }

    #[test]
    fn dropped_lines_keep_their_words() {
        drop_lines(&[]);
        let words = words();
        let kind = drop_lines(&words);
        if kind == Writeback::None {
            println!("SKIPPED: this processor has no instruction that drops a line");
            return;
        }
        assert_ne!(
            kind,
            Writeback::Clwb,
            "it would leave the lines in the cache"
        );
        let loaded = words.iter().map(|word| word.load(Ordering::Relaxed));
        assert!(loaded.eq(0..words.len() as u64));
    }
}
