//! A load that reports each change once it is durable, and a check that compares the database with
//! the reports.

use std::collections::HashMap;
use std::io::Write as _;
use std::path::Path;

use forebay_tests::stamp::mix;

use crate::store;
use crate::{Outcome, number};

/// Number of keys. Changes cycle through them, so that most replace a value.
const KEYS: u64 = 1000;

fn key(operation: u64) -> Vec<u8> {
    format!("key-{}", operation % KEYS).into_bytes()
}

/// Returns the value of an operation. Its length and all of its bytes follow from its number.
fn value(seed: u64, operation: u64) -> Vec<u8> {
    let mut state = mix(seed ^ (operation << 24));
    let words = 4 + state % 512;
    let mut bytes = operation.to_le_bytes().to_vec();
    for _ in 0..words {
        state = mix(state);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes
}

/// Puts until `operations` are done or one fails, and prints a line for each that is done. A failed
/// put is no failure of this program, which is to be killed under load.
pub(crate) fn keep(words: &[&str]) -> Outcome<()> {
    let [kind, folder, seed, operations] = words else {
        return Err("keep takes four arguments".into());
    };
    let seed = number(seed, "SEED")?;
    let operations: u64 = number(operations, "OPERATIONS")?;
    let mut store = store::open(kind, Path::new(folder), true)?;
    let mut output = std::io::stdout().lock();
    for operation in 0..operations {
        if let Err(error) = store.put(&key(operation), &value(seed, operation)) {
            eprintln!("stopped before operation {operation}: {error}");
            break;
        }
        let written = writeln!(output, "{operation}").and_then(|()| output.flush());
        written.map_err(|error| format!("standard output: {error}"))?;
    }
    Ok(())
}

/// Compares the database with the number of acknowledged operations. Prints the number of wrong
/// keys. A right key holds its last acknowledged operation, or one that was in flight.
pub(crate) fn check(words: &[&str]) -> Outcome<()> {
    let [kind, folder, seed, acknowledged] = words else {
        return Err("check takes four arguments".into());
    };
    let seed = number(seed, "SEED")?;
    let acknowledged: u64 = number(acknowledged, "ACKNOWLEDGED")?;
    let mut last: HashMap<Vec<u8>, u64> = HashMap::new();
    for operation in acknowledged.saturating_sub(KEYS)..acknowledged {
        last.insert(key(operation), operation);
    }
    // A database that cannot be opened has lost everything.
    let mut store = match store::open(kind, Path::new(folder), true) {
        Ok(store) => store,
        Err(error) => {
            eprintln!("{error}");
            println!("{}", last.len());
            return Ok(());
        }
    };
    let mut wrong = 0;
    for (key_of, operation) in &last {
        let found = store.get(key_of).unwrap_or_else(|error| {
            eprintln!("{}: {error}", String::from_utf8_lossy(key_of));
            None
        });
        let under_way = key(acknowledged) == *key_of;
        let is = |operation| found.as_deref() == Some(value(seed, operation).as_slice());
        let right = is(*operation) || (under_way && is(acknowledged));
        wrong += u64::from(!right);
    }
    println!("{wrong}");
    Ok(())
}
