//! Each ordering of the engine is taken out in turn, and random lives must find that it is missing. A
//! checker that cannot fail proves nothing.

use forebay_cache::Mode;
use forebay_cache::plant::{Fault, plant};

use super::{Setup, target};

/// Seeds within which a planted fault must be found. Most take a few; those that open a window of
/// microseconds take some thousand.
const SEEDS: u64 = 5000;

fn is_found(fault: Fault) {
    // Seeds of their own: those of the other tests were made to pass.
    for seed in 100_000..100_000 + SEEDS {
        let mut setup = Setup::draw(seed);
        // Where the ordering matters at all.
        match fault {
            Fault::ReuseBeforeDead => {
                setup.fits = false;
                setup.mode = Mode::WriteBack;
            }
            Fault::ClaimBeforeFlush => setup.mode = Mode::WriteThrough,
            _ => {}
        }
        plant(Some(fault));
        let outcome = target(setup).random(seed);
        plant(None);
        if let Err(failure) = outcome {
            let text = failure.to_string();
            eprintln!(
                "{fault:?}: found by seed {seed}: {}",
                text.lines().next().unwrap_or_default()
            );
            return;
        }
    }
    panic!("{fault:?} was planted, and {SEEDS} seeds did not find it");
}

macro_rules! found {
    ($($name:ident: $fault:ident;)*) => {
        $(#[test]
        fn $name() {
            is_found(Fault::$fault);
        })*
    };
}

found! {
    rule_1_record_before_data: RecordBeforeData;
    rule_2_reuse_before_dead: ReuseBeforeDead;
    rule_3_unmarked_overwrite: UnmarkedOverwrite;
    rule_4_clean_before_flush: CleanBeforeFlush;
    rule_4_forget_rewrite: ForgetRewrite;
    rule_5_unannounced_write: UnannouncedWrite;
    rule_5_claim_before_flush: ClaimBeforeFlush;
    rule_9_flush_half_way: FlushHalfWay;
    rule_9_forget_journal: ForgetJournal;
    rule_10_zero_before_drop: ZeroBeforeDrop;
}
