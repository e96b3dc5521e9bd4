//! Cells of the study, their results, and the claims about them.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::claims::{Claim, Kind};

/// The paper's workloads, over which means are taken.
pub(super) const PAPER: [&str; 5] = ["webserver", "fileserver", "points", "vectors", "weights"];
/// All workloads whose data all nodes share.
pub(super) const WORKLOADS: [&str; 7] = [
    "webserver",
    "fileserver",
    "points",
    "vectors",
    "weights",
    "varmail",
    "affinity",
];
/// Those among them that open files.
pub(super) const OPENING: [&str; 3] = ["webserver", "fileserver", "varmail"];
/// All that is compared.
pub(super) const SYSTEMS: [&str; 8] = [
    "one-node",
    "close-to-open",
    "page-tokens",
    "extent-tokens",
    "n-chance",
    "dpc-relaxed",
    STRONG_ONE,
    REPLICAS,
];
/// The distributed cache with one copy of each page, and with replicas.
pub(super) const STRONG_ONE: &str = "dpc-strong";
pub(super) const REPLICAS: &str = "dpc-replicas";
/// Those that promise what `dpc-strong` does.
const STRONG: [&str; 6] = [
    "one-node",
    "page-tokens",
    "extent-tokens",
    "n-chance",
    STRONG_ONE,
    REPLICAS,
];
/// Systems of most tables: the bound, the baseline of the claim at both grains, and ours.
pub(super) const FEW: [&str; 5] = [
    "one-node",
    "page-tokens",
    "extent-tokens",
    STRONG_ONE,
    REPLICAS,
];
/// Nodes of the claims.
pub(super) const NODES: u64 = 4;
/// Nodes of the tables.
pub(super) const NODE_COUNTS: [u64; 5] = [2, 4, 8, 16, 32];

/// A sweep of a mix of single pages: what is varied, its values, and the rest.
pub(super) struct Sweep {
    pub(super) name: &'static str,
    pub(super) values: &'static [f64],
}

/// Sizes of the shared set, in units of one node's memory, all read.
pub(super) const SIZES: Sweep = Sweep {
    name: "size",
    values: &[0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0],
};
/// Of a thousand operations, those on the shared set; the others are on each node's own.
pub(super) const SHARED: Sweep = Sweep {
    name: "shared",
    values: &[0.0, 250.0, 500.0, 750.0, 1000.0],
};
/// Of a thousand operations, those that write.
pub(super) const WRITES: Sweep = Sweep {
    name: "writes",
    values: &[0.0, 10.0, 50.0, 100.0, 200.0, 500.0],
};
/// Additional time of a page from another node's memory, in ns.
pub(super) const REMOTE: Sweep = Sweep {
    name: "remote_ns",
    values: &[0.0, 100.0, 200.0, 700.0, 1000.0],
};
/// A link's bytes a second.
pub(super) const LINK: Sweep = Sweep {
    name: "link_bytes_per_s",
    values: &[8e9, 24e9, 32e9, 64e9],
};
/// Messages cost nothing: the rest is the cost of one copy of each page on the links, with any
/// protocol.
pub(super) const FREE: Sweep = Sweep {
    name: "messages_free",
    values: &[1.0],
};
/// A message and its answer, ns.
pub(super) const ROUND_TRIP: Sweep = Sweep {
    name: "round_trip_ns",
    values: &[1000.0, 20_000.0, 100_000.0],
};
/// Whether files' names and sizes are a server's.
pub(super) const OPENS: Sweep = Sweep {
    name: "opens",
    values: &[1.0],
};

/// The cell that was asked for.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Job {
    pub(super) system: String,
    pub(super) workload: String,
    pub(super) nodes: u64,
    #[serde(default)]
    pub(super) sweep: String,
    #[serde(default)]
    pub(super) value: f64,
}

/// A cell, as the program prints it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Row {
    pub(super) job: Job,
    pub(super) operations: u64,
    pub(super) pages: u64,
    pub(super) hits_local: u64,
    pub(super) hits_remote: u64,
    pub(super) first_remote: u64,
    pub(super) store_read_bytes: u64,
    pub(super) store_write_bytes: u64,
    pub(super) packets: u64,
    pub(super) messages: u64,
    pub(super) invalidations: u64,
    pub(super) stale: u64,
    pub(super) copies_most: u64,
    pub(super) copies_mean: f64,
    pub(super) operation_ns: f64,
}

/// All cells.
pub(super) struct Cells(pub(super) Vec<Row>);

impl Cells {
    /// The cell of a job.
    pub(super) fn of(&self, job: &Value) -> Option<&Row> {
        let text = |name: &str| job[name].as_str().unwrap_or_default();
        self.find(
            text("workload"),
            text("system"),
            job["nodes"].as_u64().unwrap_or(0),
            text("sweep"),
            job["value"].as_f64().unwrap_or(0.0),
        )
    }

    /// With the declared costs.
    pub(super) fn at(&self, workload: &str, system: &str, nodes: u64) -> Option<&Row> {
        self.find(workload, system, nodes, "", 0.0)
    }

    /// In a sweep, at four nodes.
    pub(super) fn swept(
        &self,
        workload: &str,
        system: &str,
        sweep: &str,
        value: f64,
    ) -> Option<&Row> {
        self.find(workload, system, NODES, sweep, value)
    }

    fn find(
        &self,
        workload: &str,
        system: &str,
        nodes: u64,
        sweep: &str,
        value: f64,
    ) -> Option<&Row> {
        self.0.iter().find(|row| {
            let job = &row.job;
            (&*job.workload, &*job.system, job.nodes) == (workload, system, nodes)
                && job.sweep == sweep
                && job.value.to_bits() == value.to_bits()
        })
    }
}

/// Returns the time of the better grain of tokens over that of the system `ours`. `find` returns a
/// system's cell.
pub(super) fn speedup<'a>(ours: &str, find: impl Fn(&str) -> Option<&'a Row>) -> Option<f64> {
    let time = |system| find(system).map(|row| row.operation_ns);
    let tokens = time("page-tokens")?.min(time("extent-tokens")?);
    Some(tokens / time(ours)?)
}

/// The geometric mean of the speedups for the paper's workloads.
pub(super) fn mean<'a>(ours: &str, find: impl Fn(&str, &str) -> Option<&'a Row>) -> Option<f64> {
    geometric(PAPER.map(|workload| speedup(ours, |system| find(workload, system))))
}

pub(super) fn geometric<const N: usize>(values: [Option<f64>; N]) -> Option<f64> {
    let mut sum = 0.0;
    for value in values {
        sum += value?.ln();
    }
    Some((sum / N as f64).exp())
}

/// Returns operations a second of ours on four nodes over those of one node of virtiofs, as the
/// paper compares.
pub(super) fn beside_virtiofs(cells: &Cells, workload: &str) -> Option<f64> {
    let virtiofs = cells.at(workload, "virtiofs", 1)?.operation_ns;
    let ours = cells.at(workload, STRONG_ONE, NODES)?.operation_ns;
    Some(virtiofs / ours * NODES as f64)
}

/// Every cell of the study, or of a look at it.
pub(super) fn jobs(quick: bool) -> Vec<Value> {
    let mut jobs = Vec::new();
    for workload in WORKLOADS {
        jobs.push(json!({"workload": workload, "system": "virtiofs", "nodes": 1}));
        for system in SYSTEMS {
            jobs.push(json!({"workload": workload, "system": system, "nodes": NODES}));
        }
        if quick {
            continue;
        }
        for system in FEW {
            for nodes in NODE_COUNTS.into_iter().filter(|nodes| *nodes != NODES) {
                jobs.push(json!({"workload": workload, "system": system, "nodes": nodes}));
            }
            for value in ROUND_TRIP.values {
                jobs.push(swept(workload, system, &ROUND_TRIP, *value));
            }
            if OPENING.contains(&workload) {
                let mut opens = swept(workload, system, &OPENS, 1.0);
                opens["opens"] = json!(true);
                jobs.push(opens);
            }
        }
        for sweep in [REMOTE, LINK, FREE] {
            for value in sweep.values {
                for system in [STRONG_ONE, REPLICAS] {
                    jobs.push(swept(workload, system, &sweep, *value));
                }
            }
        }
    }
    for sweep in [SIZES, SHARED, WRITES] {
        for value in sweep.values.iter().filter(|_| !quick) {
            for system in SYSTEMS {
                let mut job = swept("mix", system, &sweep, *value);
                if sweep.name != SIZES.name {
                    job["size"] = json!(2.0);
                }
                jobs.push(job);
            }
        }
    }
    for job in &mut jobs {
        let text = |name: &str| job[name].as_str().unwrap_or_default().to_owned();
        let title = format!("{} {} {}", text("workload"), text("system"), text("sweep"));
        job["title"] = json!(format!("{title} {} nodes", job["nodes"]));
    }
    // The long ones first.
    jobs.sort_by_key(|job| std::cmp::Reverse(job["nodes"].as_u64()));
    jobs
}

fn swept(workload: &str, system: &str, sweep: &Sweep, value: f64) -> Value {
    let mut job = json!({"workload": workload, "system": system, "nodes": NODES});
    job["sweep"] = json!(sweep.name);
    job["value"] = json!(value);
    // Sizes are fractions, all else is whole.
    job[sweep.name] = match sweep.name == SIZES.name {
        true => json!(value),
        false => json!(value as u64),
    };
    job
}

/// Returns the claims.
pub(super) fn claims(cells: &Cells) -> Vec<Claim> {
    let beside_tokens = |ours| {
        let mean = mean(ours, |workload, system| cells.at(workload, system, NODES));
        mean.unwrap_or(f64::NAN)
    };
    let virtiofs = PAPER.map(|workload| beside_virtiofs(cells, workload));
    let most = virtiofs.iter().flatten().copied().fold(f64::NAN, f64::max);
    let modelled = |name: &str, paper: f64, ours: f64| Claim {
        name: format!("4 nodes/modelled {name}"),
        paper_or_peer: Some(paper),
        ours,
        unit: "times".into(),
        kind: Kind::Modelled,
        bar: format!("at least {paper}"),
        holds: ours >= paper,
    };
    let ours = |row: &&Row| row.job.system == STRONG_ONE;
    let copies = cells.0.iter().filter(ours).map(|row| row.copies_most);
    let copies = copies.max().unwrap_or(u64::MAX) as f64;
    let strong = |row: &&Row| STRONG.contains(&&*row.job.system);
    let stale: u64 = cells.0.iter().filter(strong).map(|row| row.stale).sum();
    vec![
        modelled(
            "time beside tokens, geometric mean of the paper's workloads",
            5.6,
            beside_tokens(STRONG_ONE),
        ),
        modelled(
            "time beside tokens, with replicas, the same mean",
            5.6,
            beside_tokens(REPLICAS),
        ),
        modelled(
            "operations/s beside one node of virtiofs, the same mean",
            5.6,
            geometric(virtiofs).unwrap_or(f64::NAN),
        ),
        modelled(
            "operations/s beside one node of virtiofs, at most",
            12.4,
            most,
        ),
        Claim {
            name: "copies of a page in all memory, at most, dpc-strong in every cell".into(),
            paper_or_peer: Some(1.0),
            ours: copies,
            unit: "copies".into(),
            kind: Kind::Counted,
            bar: "1".into(),
            holds: copies <= 1.0,
        },
        Claim {
            name: "reads of anything but the newest, all systems that promise it".into(),
            paper_or_peer: None,
            ours: stale as f64,
            unit: "reads".into(),
            kind: Kind::Counted,
            bar: "0".into(),
            holds: stale == 0,
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn row(workload: &str, system: &str, nodes: u64, operation_ns: f64) -> Row {
        Row {
            job: Job {
                system: system.into(),
                workload: workload.into(),
                nodes,
                sweep: String::new(),
                value: 0.0,
            },
            operations: 10,
            pages: 20,
            hits_local: 5,
            hits_remote: 10,
            first_remote: 1,
            store_read_bytes: 4096,
            store_write_bytes: 0,
            packets: 4,
            messages: 8,
            invalidations: 0,
            stale: 0,
            copies_most: 1,
            copies_mean: 1.0,
            operation_ns,
        }
    }

    fn cells() -> Cells {
        let mut rows = Vec::new();
        for workload in WORKLOADS {
            rows.push(row(workload, "page-tokens", NODES, 60.0));
            rows.push(row(workload, "extent-tokens", NODES, 80.0));
            rows.push(row(workload, STRONG_ONE, NODES, 10.0));
            rows.push(row(workload, REPLICAS, NODES, 10.0));
            rows.push(row(workload, "virtiofs", 1, 40.0));
        }
        Cells(rows)
    }

    #[test]
    fn claims_compare_with_the_better_token_granularity() {
        let mut cells = cells();
        let claims = claims(&cells);
        assert!(claims.iter().all(|claim| claim.holds), "{claims:?}");
        assert!((claims[0].ours - 6.0).abs() < 1e-9);
        assert_eq!(beside_virtiofs(&cells, "points"), Some(16.0));
        for row in cells
            .0
            .iter_mut()
            .filter(|row| row.job.workload == "points")
        {
            row.operation_ns = 60.0;
            row.stale = 1;
            row.copies_most = 2;
        }
        let claims = super::claims(&cells);
        let holds: Vec<bool> = claims.iter().map(|claim| claim.holds).collect();
        let by_virtiofs = [true, true];
        assert_eq!(
            holds,
            [&[false, false], &by_virtiofs[..], &[false, false]].concat()
        );
        assert!((claims[0].ours - 6_f64.powf(4.0 / 5.0)).abs() < 1e-9);
    }

    #[test]
    fn a_cell_that_is_missing_makes_no_claim() {
        let mut cells = cells();
        cells.0.retain(|row| row.job.workload != "vectors");
        let claims = claims(&cells);
        assert!(claims[0].ours.is_nan() && !claims[0].holds);
        let missing = |workload: &str| {
            let job = json!({"workload": workload, "system": "dpc-strong", "nodes": NODES});
            cells.of(&job).is_none()
        };
        assert!(missing("vectors") && !missing("points"));
    }

    #[test]
    fn no_cell_is_run_twice() {
        let mut jobs: Vec<String> = jobs(false).iter().map(Value::to_string).collect();
        let all = jobs.len();
        jobs.sort_unstable();
        jobs.dedup();
        assert_eq!(jobs.len(), all);
    }
}
