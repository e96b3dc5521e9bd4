//! The replacement policies beside those of libCacheSim (the Python package, version 0.3.5).
//!
//! Both implement the same papers. They get the same references and the same capacities. One table
//! has the misses of both.
//!
//! All but LIRS must miss on the same references as theirs do, to the last one. Where the package
//! cannot be installed the test is skipped and says so.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_policy::BlockKey;
use forebay_testkit::traces::{self, skipped};
use forebay_trace::policies::{BlockSet, Policy};

const PACKAGE: &str = "libcachesim==0.3.5";
/// Points of miss ratio that LIRS may differ by.
const LIRS_POINTS: f64 = 0.05;
/// Why it does. With both rules as theirs are, the paper's algorithm has their number of misses.
const LIRS_NOTE: &str = "lirs: when a HIR block is hit that is not on the stack, theirs makes the \
    lowest LIR block HIR; and it \
    bounds the stack to twice as many blocks as are cached, ours the evicted ones on it to once";

/// A folder for what this test makes, in the target folder.
fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libcachesim");
    fs::create_dir_all(&folder).expect("the target folder can be written to");
    folder
}

/// The virtual environment's interpreter, with the package. None, with a printed reason, if it
/// cannot be had.
fn python() -> Option<PathBuf> {
    let environment = folder().join("venv");
    let python = environment.join("bin/python3");
    let succeeds = |program: &Path, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output();
        output
            .map_err(|error| error.to_string())
            .and_then(|output| {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                output.status.success().then_some(()).ok_or(said)
            })
    };
    if succeeds(&python, &["-c", "import libcachesim"]).is_ok() {
        return Some(python);
    }
    let made = environment
        .to_str()
        .ok_or_else(|| "the path is not UTF-8".to_owned());
    let installed = made
        .and_then(|path| succeeds(Path::new("python3"), &["-m", "venv", path]))
        .and_then(|()| {
            succeeds(
                &python,
                &["-m", "pip", "install", "--quiet", "--timeout=20", PACKAGE],
            )
        });
    match installed {
        Ok(()) => Some(python),
        Err(reason) => {
            let last = reason.trim().lines().last().unwrap_or_default();
            skipped(&format!("{PACKAGE} cannot be installed: {last}"));
            None
        }
    }
}

/// Writes references as libCacheSim reads them: time, object, size, next use.
fn write(path: &Path, references: &[u64]) -> std::io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    for (time, block) in references.iter().enumerate() {
        out.write_all(&(time as u32).to_le_bytes())?;
        out.write_all(&(block + 1).to_le_bytes())?;
        out.write_all(&1_u32.to_le_bytes())?;
        out.write_all(&(-1_i64).to_le_bytes())?;
    }
    out.flush()
}

fn their_misses(
    python: &Path,
    file: &Path,
    references: usize,
    capacities: &[usize],
) -> HashMap<(Policy, usize), u64> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/libcachesim/run.py");
    let output = Command::new(python)
        .arg(script)
        .arg(file)
        .arg(references.to_string())
        .args(capacities.iter().map(usize::to_string))
        .output()
        .expect("the interpreter starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    let text = String::from_utf8(output.stdout).expect("text");
    let line = |line: &str| {
        let [name, capacity, misses] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line:?} is no result");
        };
        let policy: Policy = name.parse().expect("a policy of ours");
        let capacity: usize = capacity.parse().expect("a capacity");
        ((policy, capacity), misses.parse().expect("a number"))
    };
    text.lines().map(line).collect()
}

fn our_misses(policy: Policy, capacity: usize, references: &[u64]) -> u64 {
    let mut cache = BlockSet::new(capacity, policy.build(capacity));
    let misses = references
        .iter()
        .filter(|block| !cache.reference(BlockKey::new(0, **block)));
    misses.count() as u64
}

/// Prints the table of one trace. Returns the values that are out of bounds.
fn compare(python: &Path, name: &str, references: &[u64], capacities: &[usize]) -> Vec<String> {
    let file = folder().join(format!("{name}.oracleGeneral"));
    write(&file, references).expect("the trace can be written");
    let theirs = their_misses(python, &file, references.len(), capacities);
    fs::remove_file(&file).expect("it was made here");
    let ratio = |misses: u64| misses as f64 * 100.0 / references.len() as f64;
    println!("\n{name}: {} references", references.len());
    println!(
        "{:<8} {:>9} {:>9} {:>11} {:>8}",
        "policy", "blocks", "ours %", "libCacheSim", "points"
    );
    let mut wrong = Vec::new();
    for &policy in Policy::ALL {
        for &capacity in capacities {
            let Some(&misses) = theirs.get(&(policy, capacity)) else {
                // Its W-TinyLFU hashes into another sketch; the naive model is the oracle there.
                assert_eq!(policy, Policy::WTinyLfu, "every other policy is compared");
                continue;
            };
            let own = our_misses(policy, capacity, references);
            let points = ratio(own) - ratio(misses);
            println!(
                "{policy:<8} {capacity:>9} {:>9.3} {:>11.3} {points:>+8.3}",
                ratio(own),
                ratio(misses),
            );
            let right = match policy {
                Policy::Lirs => points.abs() <= LIRS_POINTS,
                _ => own == misses,
            };
            if !right {
                wrong.push(format!(
                    "{policy} on {name}, {capacity} blocks: {own} misses, theirs {misses}"
                ));
            }
        }
    }
    wrong
}

#[test]
fn misses_are_those_of_libcachesim() {
    let Some(python) = python() else {
        return;
    };
    let made = traces::zipf_and_scans(1_000_000, 11);
    let mut wrong = compare(&python, "zipf-and-scans", &made, &[1_000, 5_000, 20_000]);
    for (name, references, capacities) in [
        (
            "cloudphysics",
            traces::cloudphysics(),
            [20_000, 80_000, 160_000],
        ),
        ("arc-P3", traces::arc("P3"), [5_000, 20_000, 60_000]),
        ("w106", traces::w106(), [10_000, 50_000, 150_000]),
    ] {
        if let Some(references) = references {
            wrong.extend(compare(&python, name, &references, &capacities));
        }
    }
    println!("{LIRS_NOTE}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}
