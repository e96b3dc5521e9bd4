//! The modelled runs, and the service times that they take from measured ones.

use std::path::Path;

use serde::Serialize;
use serde_json::Value;

use super::runs::{self, Model, Run, cell, modelled};
use super::{DEPTH, DEPTHS, STAGING, SYSTEMS};
use crate::bench::Outcome;
use crate::study::jobs::in_parallel;

/// Threads that send writes.
pub(super) const JOBS: [u64; 6] = [1, 2, 4, 8, 16, 32];
/// Caches, MiB.
pub(super) const CACHES_MIB: [u64; 6] = [64, 128, 256, 512, 1024, 2048];
/// Writes of a modelled run.
const WRITES: u64 = 300_000;

/// Service times, nanoseconds, each a median of measured runs.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Service {
    pub(super) client_ns: f64,
    pub(super) pmem_ns: f64,
    pub(super) btt_ns: f64,
    pub(super) job_ns: f64,
    /// Time for which an evicting thread polls for a job before it sleeps.
    pub(super) look_ns: f64,
    /// Time of the cache's thread to wake an evicting thread.
    pub(super) wake_ns: f64,
    /// Time from the wake-up until the evicting thread runs.
    pub(super) woken_ns: f64,
    /// By system: a write into a slot, and an eviction, on the cache's thread.
    pub(super) cached: Vec<(String, f64, f64)>,
}

impl Service {
    /// From the measured runs; `look_ns` is what the program says of a look.
    pub(super) fn of(all: &[Run], look_ns: f64) -> Self {
        let each = |system| 1e9 / cell(all, "service", system).median(|run| run.iops);
        let client_ns = each("null");
        let engine = |part, system| cell(all, part, system).median(|run| run.engine_ns);
        let alone = |part| cell(all, part, "workers").median(|run| run.p50_us * 1e3);
        let cached = SYSTEMS.into_iter().skip(2).map(|system| {
            // Caiti and its parts share their code. Half load measures it without waiting.
            let (filling, steady) = match system {
                "caiti" | "caiti-without-eviction" => ("caiti-without-eviction", "caiti"),
                "caiti-without-bypass" => ("caiti-without-eviction", system),
                _ => (system, system),
            };
            let place = engine("fill", filling);
            let evict = (engine("service", steady) - place).max(0.0);
            (system.to_owned(), place, evict)
        });
        Self {
            client_ns,
            pmem_ns: each("pmem") - client_ns,
            btt_ns: each("btt") - client_ns,
            job_ns: each("workers"),
            look_ns,
            // Requests that find the thread asleep, and requests that find it looking out.
            wake_ns: (engine("asleep", "workers") - engine("awake", "workers")).max(0.0),
            woken_ns: (alone("asleep") - alone("awake")).max(0.0),
            cached: cached.collect(),
        }
    }

    fn words(&self, system: &str) -> Vec<String> {
        let mut words = vec![
            format!("client-ns={}", self.client_ns),
            format!("pmem-ns={}", self.pmem_ns),
            format!("btt-ns={}", self.btt_ns),
            format!("job-ns={}", self.job_ns),
            format!("look-ns={}", self.look_ns),
            format!("wake-ns={}", self.wake_ns),
            format!("woken-ns={}", self.woken_ns),
        ];
        if let Some((_, place, evict)) = self.cached.iter().find(|(name, ..)| name == system) {
            words.extend([format!("place-ns={place}"), format!("evict-ns={evict}")]);
        }
        words
    }
}

/// One modelled run to be made.
struct Job {
    part: String,
    title: String,
    words: Vec<String>,
}

/// Returns the thread that evicts in the paper.
fn papers_way(system: &str) -> &'static str {
    match system {
        "pmbd-70" => "syncer",
        _ if STAGING.contains(&system) => "writer",
        _ => "pool",
    }
}

/// Runs all.
pub(super) fn run(
    program: &Path,
    service: &Service,
    declared: &Value,
    half: &str,
    quick: bool,
) -> Outcome<Vec<Model>> {
    let mut jobs = Vec::new();
    let mut add = |part: String, system: &str, load: String, more: &[String]| {
        let mut words = vec!["model".into(), system.into(), load, WRITES.to_string()];
        words.extend(service.words(system));
        words.extend_from_slice(more);
        let title = format!("model {part}: {system}");
        jobs.push(Job { part, title, words });
    };
    for system in SYSTEMS {
        add("two full".into(), system, format!("closed:{DEPTH}"), &[]);
        add("two half".into(), system, half.to_owned(), &[]);
        let cost = |name: &str| declared[name].as_u64().unwrap_or_default();
        let paper = |way: &str, stack: u64, jobs: u64, cache: u64| {
            [
                format!("cores={}", cost("cores")),
                format!("dimms={}", cost("dimms")),
                format!("medium={}", cost("file_mib")),
                format!("cache={cache}"),
                format!("stack={stack}"),
                format!("jobs={jobs}"),
                format!("evict={way}"),
            ]
        };
        let (way, stack, cache) = (papers_way(system), cost("stack_ns"), cost("cache_mib"));
        let load = format!("closed:{}", cost("depth"));
        add(
            "paper".into(),
            system,
            load.clone(),
            &paper(way, stack, 1, cache),
        );
        add(
            "pool".into(),
            system,
            load.clone(),
            &paper("pool", stack, 1, cache),
        );
        add("in process".into(), system, load, &paper(way, 0, 1, cache));
        for depth in DEPTHS.iter().filter(|_| !quick) {
            let part = format!("depth {depth}");
            add(
                part,
                system,
                format!("closed:{depth}"),
                &paper(way, stack, 1, cache),
            );
        }
        for jobs in JOBS.iter().filter(|_| !quick) {
            let part = format!("jobs {jobs}");
            add(
                part,
                system,
                format!("closed:{DEPTH}"),
                &paper(way, stack, *jobs, cache),
            );
        }
        let cached = !matches!(system, "pmem" | "btt");
        for mib in CACHES_MIB.iter().filter(|_| cached && !quick) {
            let part = format!("cache {mib}");
            add(
                part,
                system,
                format!("closed:{DEPTH}"),
                &paper(way, stack, 1, *mib),
            );
        }
    }
    let made = in_parallel(
        &jobs,
        |job| job.title.as_str(),
        |job| {
            let model: Outcome<Model> = runs::run(program, &job.words);
            model.map(|model| Model {
                part: job.part.clone(),
                ..model
            })
        },
    );
    made.into_iter().collect()
}

/// How many times as many writes Caiti takes as another.
pub(super) fn ahead(models: &[Model], part: &str, other: &str) -> f64 {
    let iops = |system| modelled(models, part, system).map_or(f64::NAN, |model| model.iops);
    iops("caiti") / iops(other)
}
