use super::modelled::Service;
use super::runs::{Model, Run};
use super::{DEPTH, Results, SYSTEMS, claims, page, plot};
use crate::pages::{CAITI, Header};

fn run(part: &str, system: &str, iops: f64, mean_us: f64) -> Run {
    Run {
        part: part.into(),
        system: system.into(),
        load: format!("closed:{DEPTH}"),
        emulated: "emulated: x".into(),
        waiting: "spin".into(),
        writes: 1_000_000,
        iops,
        mean_us,
        p99_us: mean_us * 3.0,
        p9999_us: mean_us * 10.0,
        bypassed: 250_000,
        slot_bytes: 52,
        engine_ns: if part == "fill" { 400.0 } else { 1000.0 },
        timeline: Some(vec![[3, 5, 1]]),
        ..Run::default()
    }
}

fn results() -> Results {
    let mut results = Results::default();
    for system in SYSTEMS {
        let slow = if system == "caiti" { 1.0 } else { 2.0 };
        for factor in [0.5, 1.0, 30.0] {
            results
                .measured
                .runs
                .push(run("half spin", system, 5.0, slow * factor));
            results
                .measured
                .runs
                .push(run("full spin", system, 10.0 / slow, slow * factor));
        }
        results.measured.runs.push(run("fill", system, 1e6, 1.0));
        results.measured.runs.push(run("service", system, 5e5, 1.0));
        for (part, iops, mean_us) in [
            ("two full", 10.0 / slow, 0.0),
            ("two half", 0.0, slow * 1.1),
            ("paper", 3.0 / slow, 0.0),
        ] {
            results.models.push(Model {
                part: part.into(),
                system: system.into(),
                iops,
                mean_us,
                ..Model::default()
            });
        }
    }
    results.measured.runs.push(run("service", "null", 1e7, 0.1));
    for (part, engine_ns, us) in [("awake", 100.0, 3.0), ("asleep", 2100.0, 8.0)] {
        results.measured.runs.push(Run {
            engine_ns,
            p50_us: us,
            ..run(part, "workers", 1e5, us)
        });
    }
    results.service = Service::of(&results.measured.runs, 20_000.0);
    results
}

fn failed(results: &Results) -> Vec<String> {
    let claims = claims::claims(results, &["spin"]);
    let failed = claims.into_iter().filter(|claim| !claim.holds);
    failed.map(|claim| claim.name).collect()
}

#[test]
fn claims_compare_medians_of_the_same_load() {
    let mut results = results();
    // Twice as fast as all: within a quarter of what the paper has over raw memory alone.
    let paper = ["btt", "pmbd", "lru", "co-active"]
        .map(|other| format!("model of 36 cores/writes beside {other}"));
    assert_eq!(failed(&results), paper);
    for run in results
        .measured
        .runs
        .iter_mut()
        .filter(|run| run.system == "lru")
    {
        run.iops = 100.0;
        run.p9999_us = 0.1;
    }
    let failed = failed(&results);
    for name in [
        "spin/half load/p99.99 beside the best staging policy",
        "spin/saturation/writes beside lru",
        "model of two cores/saturation, writes, beside measured/lru",
    ] {
        assert!(failed.contains(&name.to_owned()), "{name}: {failed:?}");
    }
    assert_eq!(failed.len(), paper.len() + 3, "{failed:?}");
}

#[test]
fn service_times_are_the_remainders_of_measured_times() {
    let service = results().service;
    assert!((service.client_ns - 100.0).abs() < 1e-6);
    assert!((service.btt_ns - 1900.0).abs() < 1e-6);
    assert!((service.wake_ns - 2000.0).abs() < 1e-6);
    assert!((service.woken_ns - 5000.0).abs() < 1e-6);
    let caiti = service.cached.iter().find(|(system, ..)| system == "caiti");
    assert_eq!(caiti, Some(&("caiti".to_owned(), 400.0, 600.0)));
}

#[test]
fn the_page_has_figures_with_their_spread() {
    let results = results();
    let header = Header {
        commit: "c".into(),
        date: "d".into(),
        machine: "m".into(),
        command: "x".into(),
        minutes: 1.0,
    };
    let claims = claims::claims(&results, &["spin"]);
    let text = CAITI
        .text(&page::grids(&header, &claims, &results))
        .unwrap();
    assert!(
        text.contains("| caiti | 5.00 (5.00 to 5.00) | 1.00 (0.50 to 30.00) |"),
        "{text}"
    );
    assert!(text.contains("| 25.0% | 0.0% | 3,000,000 |"), "{text}");
    assert!(plot::timelines(&results.measured.runs, "full spin").contains("M72 "));
}
