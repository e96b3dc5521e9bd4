//! Properties of the trace readers that hold for every input. The seeded test beside this file and
//! the fuzz targets `trace_*` check them.

use std::io::Cursor;

use forebay_trace::read::{BATCH_REQUESTS, Counts};
use forebay_trace::{Format, MAX_VOLUMES, Op, OpenOptions, Request, Trace};

/// Result of an input.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) requests: Vec<Request>,
    pub(crate) volumes: Vec<String>,
    pub(crate) counts: Counts,
    pub(crate) error: Option<String>,
}

/// Reads `data` to its end or to the first error.
pub(crate) fn read(data: &[u8], options: &OpenOptions) -> Outcome {
    let mut outcome = Outcome {
        requests: Vec::new(),
        volumes: Vec::new(),
        counts: Counts::default(),
        error: None,
    };
    let mut trace = match Trace::from_reader("input", Cursor::new(data.to_vec()), options) {
        Ok(trace) => trace,
        Err(error) => {
            outcome.error = Some(error.report());
            return outcome;
        }
    };
    let mut batch = Vec::new();
    loop {
        match trace.fill(&mut batch) {
            Ok(true) => {}
            Ok(false) => break,
            Err(error) => {
                outcome.error = Some(error.report());
                break;
            }
        }
        assert!(
            (1..=BATCH_REQUESTS).contains(&batch.len()),
            "{}",
            batch.len()
        );
        outcome.requests.append(&mut batch);
    }
    assert!(batch.is_empty(), "nothing comes with the end");
    assert!(
        matches!(trace.fill(&mut batch), Ok(false)),
        "an end is an end"
    );
    outcome.volumes = trace.volumes().names().to_vec();
    outcome.counts = trace.counts();
    outcome
}

/// Reads `data` as `format`, or as the detected one, strictly and leniently. Returns the number of
/// requests.
pub(crate) fn any_input(format: Option<Format>, data: &[u8]) -> usize {
    let strict = read(
        data,
        &OpenOptions {
            format,
            ..OpenOptions::default()
        },
    );
    let lenient = read(
        data,
        &OpenOptions {
            format,
            skip_bad: true,
            sort_window: 3,
            ..OpenOptions::default()
        },
    );
    for outcome in [&strict, &lenient] {
        for request in &outcome.requests {
            sound(request, outcome);
        }
        assert!(outcome.volumes.len() <= MAX_VOLUMES);
    }
    assert!(
        lenient.requests.len() >= strict.requests.len(),
        "{strict:?} {lenient:?}"
    );
    if strict.error.is_none() {
        assert_eq!(strict.requests.len(), lenient.requests.len());
        assert_eq!((lenient.counts.bad, &lenient.error), (0, &None));
    }
    strict.requests.len()
}

fn sound(request: &Request, outcome: &Outcome) {
    assert!(
        (request.volume as usize) < outcome.volumes.len(),
        "{request:?}"
    );
    match request.op {
        Op::Flush => assert_eq!((request.offset_bytes, request.len_bytes), (0, 0)),
        _ => {
            assert!(request.len_bytes > 0, "{request:?}");
            let len_bytes = u64::from(request.len_bytes);
            assert!(
                request.offset_bytes.checked_add(len_bytes).is_some(),
                "{request:?}"
            );
        }
    }
}
