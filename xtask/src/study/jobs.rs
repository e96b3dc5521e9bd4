//! Which traces there are, and their simulation, as many at a time as there are processors.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::simulation::{Origin, PERCENT, Trace};
use crate::bench::{Outcome, json_of, run_for_output};

/// Requests that the paper takes of a volume.
pub(super) const REQUESTS: u64 = 10_000_000;
const OTHER_SEED_REQUESTS: u64 = 1_000_000;
const QUICK_REQUESTS: u64 = 200_000;

/// The simulator.
pub(super) const PROGRAM: [&str; 4] = ["--package", "forebay-trace", "--example", "study"];

/// Titles of the traces that `cargo xtask study check` re-runs: those that are short.
pub(super) const SHORT: [&str; 5] = [
    "Tencent CBS, 50,000 requests",
    "smartphone, installing",
    "smartphone, calling",
    "SPC Financial1, excerpt",
    "MSR hm_0, excerpt",
];

/// Its blocks are a database's pages, where the format has sectors.
const OLTP: &str = "arc/OLTP.lis";

/// Traces beside the repository, and whether our constants were chosen on them.
const SHARED: [(&str, &str, Origin); 14] = [
    (
        "CloudPhysics, 2 h of a disk",
        "cloudphysics/cloudPhysicsIO.vscsi",
        Origin::Tuned,
    ),
    (
        "CloudPhysics w106, a week",
        "cloudphysics/w106.u32le.bin",
        Origin::Tuned,
    ),
    ("ARC OLTP, pages of 4 KiB", OLTP, Origin::Tuned),
    ("ARC P3", "arc/P3.lis", Origin::Tuned),
    ("ARC P6", "arc/P6.lis", Origin::Tuned),
    (
        "MSN-FS, 150,000 requests",
        "msps/MSN-FS.149999.replayer.trace",
        Origin::Tuned,
    ),
    (
        "Tencent CBS, 50,000 requests",
        "tencent/cbs.first50000.csv",
        Origin::Tuned,
    ),
    (
        "SPC WebSearch1, excerpt",
        "spc/WebSearch1.first24783.mqsim.trace",
        Origin::HeldOut,
    ),
    (
        "smartphone, installing",
        "smartphone/Installing_log181.txt",
        Origin::HeldOut,
    ),
    (
        "SPC Financial1, excerpt",
        "spc/Financial1.first10000.ssdsim.ascii",
        Origin::HeldOut,
    ),
    (
        "YCSB on RocksDB, excerpt",
        "ycsb/ycsb_rocksdb.first10000events.blkparse",
        Origin::HeldOut,
    ),
    (
        "smartphone, calling",
        "smartphone/calout_log147.txt",
        Origin::HeldOut,
    ),
    (
        "MSR hm_0, excerpt",
        "msr/hm_0.first1000.csv",
        Origin::HeldOut,
    ),
    (
        "SYSTOR '17, excerpt",
        "systor17/systor17-traces.first999.csv",
        Origin::HeldOut,
    ),
];

/// The paper's selection: set, volumes by the names in the paper.
const SELECTION: [(&str, &[&str]); 3] = [
    ("alibaba", &["vd2", "vd10", "vd49", "vd124", "vd740"]),
    (
        "msr",
        &[
            "prn_1", "proj_1", "proj_2", "src1_0", "src1_1", "usr_1", "usr_2",
        ],
    ),
    ("systor", &["LUN0", "LUN1", "LUN2", "LUN3", "LUN4", "LUN6"]),
];

/// A trace to simulate.
#[derive(Debug)]
pub(super) struct Job {
    title: String,
    set: &'static str,
    origin: Origin,
    job: Value,
}

/// All jobs, the long ones first; `requests` are those of each volume of the paper's selection.
pub(super) fn all(
    root: &Path,
    public: Option<&Path>,
    requests: u64,
    quick: bool,
) -> Outcome<Vec<Job>> {
    let mut jobs = Vec::new();
    match public {
        Some(folder) => {
            let mut files = Vec::new();
            collect(folder, 4, &mut files)?;
            files.sort();
            jobs.extend(selection(&files, requests)?);
        }
        None => {
            let requests = if quick { QUICK_REQUESTS } else { requests };
            jobs.extend(generated(requests, 1, Origin::TableTwo));
        }
    }
    jobs.extend(shared(root, quick));
    let requests = if quick {
        QUICK_REQUESTS / 2
    } else {
        OTHER_SEED_REQUESTS
    };
    jobs.extend(generated(requests, 2, Origin::OtherSeed));
    Ok(jobs)
}

fn generated(requests: u64, seed: u64, origin: Origin) -> Vec<Job> {
    let volumes = SELECTION.iter().flat_map(|(set, names)| {
        let names = names.iter().enumerate();
        names.map(move |(number, name)| (*set, number, *name))
    });
    let job = |(set, number, name): (&'static str, usize, &str)| {
        // The preset calls its six units LUN1 to LUN6.
        let name = match set {
            "systor" => format!("LUN{}", number + 1),
            _ => name.to_owned(),
        };
        let preset = json!({
            "preset": set, "volume": number, "requests": requests, "seed": seed,
        });
        Job {
            title: format!("{set} {name}, generated"),
            set,
            origin,
            job: json!({"generated": preset, "percents": [PERCENT], "few": true}),
        }
    };
    volumes.map(job).collect()
}

/// Where the traces beside the repository are, if they are there.
pub(super) fn shared_folder(root: &Path) -> Option<PathBuf> {
    let named = std::env::var_os("FOREBAY_TRACES").map(PathBuf::from);
    let beside = || Some(root.parent()?.join("shared/traces"));
    named.or_else(beside).filter(|folder| folder.is_dir())
}

/// The traces beside the repository, if they are there.
fn shared(root: &Path, quick: bool) -> Vec<Job> {
    let Some(folder) = shared_folder(root) else {
        println!("SKIPPED: real traces: there is no ../shared/traces (or $FOREBAY_TRACES)");
        return Vec::new();
    };
    let mut jobs = Vec::new();
    for (title, path, origin) in SHARED {
        let file = folder.join(format!("{path}.zst"));
        if !file.is_file() {
            println!("SKIPPED: {title}: there is no {}", file.display());
            continue;
        }
        let mut job = json!({"files": [file], "percents": [PERCENT, 5, 20]});
        if quick {
            job["limit"] = json!(QUICK_REQUESTS);
        }
        if path == OLTP {
            job["scale"] = json!(8);
        }
        jobs.push(Job {
            title: title.to_owned(),
            set: "shared",
            origin,
            job,
        });
    }
    jobs
}

/// Jobs of the traces in [`SHORT`].
pub(super) fn short(root: &Path) -> Vec<Job> {
    let mut jobs = shared(root, false);
    jobs.retain(|job| SHORT.contains(&job.title.as_str()));
    jobs
}

/// All files below a folder.
fn collect(folder: &Path, depth: u32, files: &mut Vec<PathBuf>) -> Outcome<()> {
    let failed = |error| format!("{}: {error}", folder.display());
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_file() {
            files.push(path);
        } else if depth > 0 && path.is_dir() {
            collect(&path, depth - 1, files)?;
        }
    }
    Ok(())
}

/// Returns the paper's selection among these files: the first requests of each volume.
///
/// The files have their published names. MSR has `prn_1.csv.gz`. SYSTOR has a file for each hour
/// and LUN, as `2016022207-LUN0.csv.gz`. Alibaba has one `io_traces.csv`, or a file for each
/// volume, as `2.csv`.
fn selection(files: &[PathBuf], requests: u64) -> Outcome<Vec<Job>> {
    let stem = |path: &PathBuf| {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        let plain = [".gz", ".xz", ".zst", ".bz2"]
            .iter()
            .find_map(|end| name.strip_suffix(end));
        let stem = plain.unwrap_or(&name).strip_suffix(".csv")?.to_owned();
        Some(stem)
    };
    let matching = |wanted: &dyn Fn(&str) -> bool| -> Vec<&PathBuf> {
        let found = files.iter();
        found
            .filter(|path| stem(path).is_some_and(|stem| wanted(&stem)))
            .collect()
    };
    let mut jobs = Vec::new();
    for (set, names) in SELECTION {
        for name in names {
            let lower = name.to_ascii_lowercase();
            let mut job = json!({"percents": [PERCENT], "limit": requests, "few": true});
            let found = match set {
                "msr" => matching(&|stem| stem == lower),
                "systor" => {
                    let hour = |stem: &str| stem.split_once('-').map(|(hour, _)| hour.to_owned());
                    let mut found = matching(&|stem| stem.ends_with(&format!("-{lower}")));
                    found.sort_by_key(|path| stem(path).and_then(|stem| hour(&stem)));
                    found
                }
                _ => {
                    let number = lower.trim_start_matches("vd");
                    let alone = matching(&|stem| stem == number || stem == lower);
                    if alone.is_empty() {
                        job["volume"] = json!(number);
                        matching(&|stem| stem == "io_traces")
                    } else {
                        alone
                    }
                }
            };
            if found.is_empty() {
                println!("SKIPPED: {set} {name}: no file of its usual name");
                continue;
            }
            job["files"] = json!(found);
            jobs.push(Job {
                title: format!("{set} {name}"),
                set,
                origin: Origin::Public,
                job,
            });
        }
    }
    if jobs.is_empty() {
        return Err("none of the public traces is in the folder that --traces names".into());
    }
    Ok(jobs)
}

/// Simulates them; in the order of the jobs.
pub(super) fn run(program: &Path, jobs: Vec<Job>) -> Outcome<Vec<Trace>> {
    let traces = in_parallel(&jobs, |job| &job.title, |job| simulate(program, job));
    traces.into_iter().collect()
}

/// Does all jobs, as many at a time as there are processors; in their order.
pub(super) fn in_parallel<J: Sync, T: Send>(
    jobs: &[J],
    title: impl Fn(&J) -> &str + Sync,
    work: impl Fn(&J) -> T + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::new());
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(nth) else { break };
                    eprintln!("{} of {}: {}", nth + 1, jobs.len(), title(job));
                    let outcome = work(job);
                    done.lock()
                        .unwrap_or_else(|poisoned| poisoned.into_inner())
                        .push((nth, outcome));
                }
            });
        }
    });
    let mut done = done
        .into_inner()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    done.sort_by_key(|(nth, _)| *nth);
    done.into_iter().map(|(_, outcome)| outcome).collect()
}

fn simulate(program: &Path, job: &Job) -> Outcome<Trace> {
    let mut command = Command::new(program);
    command.arg(job.job.to_string());
    let printed = run_for_output(command)?;
    let result = serde_json::from_value(json_of(&printed)?);
    Ok(Trace {
        title: job.title.clone(),
        set: job.set,
        origin: job.origin,
        result: result.map_err(|error| format!("{}: {error}", job.title))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn titles(names: &[&str]) -> Vec<(String, Value)> {
        let files: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
        let jobs = selection(&files, 5).expect("some are there");
        jobs.into_iter().map(|job| (job.title, job.job)).collect()
    }

    #[test]
    fn public_traces_are_known_by_their_usual_names() {
        let found = titles(&[
            "a/MSR-Cambridge/usr_1.csv.gz",
            "a/MSR-Cambridge/usr_10.csv.gz",
            "b/2016022208-LUN4.csv.gz",
            "a/2016022207-LUN4.csv.gz",
            "io_traces.csv.zst",
            "10.csv",
        ]);
        let names: Vec<&str> = found.iter().map(|(title, _)| title.as_str()).collect();
        let expected = [
            "alibaba vd2",
            "alibaba vd10",
            "alibaba vd49",
            "alibaba vd124",
            "alibaba vd740",
            "msr usr_1",
            "systor LUN4",
        ];
        assert_eq!(names, expected);
        assert_eq!(found[0].1["volume"], "2");
        assert_eq!(found[1].1["volume"], Value::Null);
        assert_eq!(found[1].1["files"], json!(["10.csv"]));
        assert_eq!(found[5].1["files"], json!(["a/MSR-Cambridge/usr_1.csv.gz"]));
        let hours = ["a/2016022207-LUN4.csv.gz", "b/2016022208-LUN4.csv.gz"];
        assert_eq!(found[6].1["files"], json!(hours));
        assert_eq!(found[6].1["limit"], 5);
    }

    #[test]
    fn a_folder_without_any_is_refused() {
        assert!(selection(&[PathBuf::from("notes.csv")], 5).is_err());
    }

    #[test]
    fn titles_of_generated_jobs_end_with_generated() {
        for job in generated(5, 1, Origin::TableTwo) {
            assert!(job.title.ends_with(", generated"), "{}", job.title);
        }
    }
}
