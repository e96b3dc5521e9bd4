//! Mains of the fuzz targets whose check lies beside a test.
//!
//! A crate's test keeps its check in a file of its own, `check.rs`, and runs it with drawn inputs.
//! A fuzz target runs the same file with the fuzzer's inputs.

/// Defines the main of a target that gives each input to `any_input(data)` of the check at `$path`.
///
/// `$path` is relative to `fuzz/fuzz_targets`.
#[macro_export]
macro_rules! target {
    ($path:literal) => {
        #[path = $path]
        mod check;

        ::libfuzzer_sys::fuzz_target!(|data: &[u8]| {
            check::any_input(data);
        });
    };
}

/// Defines the main of a target that reads each input as a trace.
///
/// `$format` is an `Option<Format>`; `None` lets the reader detect the format.
#[macro_export]
macro_rules! reader {
    ($format:expr) => {
        #[path = "../../planner/trace/tests/readers/check.rs"]
        mod check;

        ::libfuzzer_sys::fuzz_target!(|data: &[u8]| {
            #[allow(unused_imports, reason = "`None` names no format")]
            use ::forebay_trace::Format;
            check::any_input($format, data);
        });
    };
}
