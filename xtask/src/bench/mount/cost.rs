//! Cost of a read in the processes that take part.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::Value;

use crate::bench::Outcome;

/// Cost of a read in one process: time of a processor, and context switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Cost {
    pub(super) user_us: f64,
    pub(super) system_us: f64,
    pub(super) switches: f64,
}

impl Cost {
    /// Returns the costs of a process until now.
    pub(super) fn of_process(pid: u32) -> Outcome<Self> {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let read = |path: &Path| {
            let text = fs::read_to_string(path);
            text.map_err(|error| format!("{}: {error}", path.display()))
        };
        let mut cost = of_stat(&read(&process.join("stat"))?)?;
        let tasks = fs::read_dir(process.join("task"));
        for task in tasks.map_err(|error| error.to_string())?.flatten() {
            // A thread may end meanwhile.
            let status = fs::read_to_string(task.path().join("status"));
            cost.switches += status.map_or(0.0, |status| switches(&status));
        }
        Ok(cost)
    }

    /// Returns the cost of each of `reads` reads since `before`.
    pub(super) fn since(self, before: Self, reads: f64) -> Self {
        Self {
            user_us: (self.user_us - before.user_us) / reads,
            system_us: (self.system_us - before.system_us) / reads,
            switches: (self.switches - before.switches) / reads,
        }
    }

    /// Returns the cost of each of `reads` reads to fio, by its report of a job.
    pub(super) fn of_fio(job: &Value, reads: f64) -> Outcome<Self> {
        let number = |key: &str| {
            let value = job[key].as_f64();
            value.ok_or_else(|| format!("fio does not print {key}"))
        };
        // Per cent of the time of the job, which is in milliseconds.
        let percent_us = number("job_runtime")? * 1e3 / 100.0;
        Ok(Self {
            user_us: number("usr_cpu")? * percent_us / reads,
            system_us: number("sys_cpu")? * percent_us / reads,
            switches: number("ctx")? / reads,
        })
    }
}

/// Returns the times in the stat of proc(5), which has them in hundredths of a second.
fn of_stat(stat: &str) -> Outcome<Cost> {
    let fields = stat.rsplit_once(") ").map(|(_, fields)| fields);
    let mut fields = fields.unwrap_or_default().split(' ').skip(11);
    let mut next_us = || {
        let ticks = fields.next().and_then(|field| field.parse::<f64>().ok());
        let ticks = ticks.ok_or_else(|| format!("no times in {stat:?}"))?;
        Ok::<f64, String>(ticks * 1e4)
    };
    Ok(Cost {
        user_us: next_us()?,
        system_us: next_us()?,
        switches: 0.0,
    })
}

/// Returns the context switches in the status of proc(5).
fn switches(status: &str) -> f64 {
    let counts = status
        .lines()
        .filter_map(|line| line.split_once("_ctxt_switches:"));
    let counts = counts.filter_map(|(_, count)| count.trim().parse::<f64>().ok());
    counts.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_come_from_the_kernels_files() {
        let stat = "7 (a ) name) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 9 0 100";
        let cost = of_stat(stat).expect("it has times");
        assert_eq!((cost.user_us, cost.system_us), (2.5e6, 5e5));
        assert!(of_stat("7 (name) S 1").is_err());
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t40\nnonvoluntary_ctxt_switches:\t2\n";
        assert_eq!(switches(status), 42.0);
    }

    #[test]
    fn the_cost_of_fio_is_a_share_of_its_time() {
        let job = serde_json::json!({
            "job_runtime": 10_000, "usr_cpu": 5.0, "sys_cpu": 20.0, "ctx": 3000
        });
        let cost = Cost::of_fio(&job, 1000.0).expect("all is there");
        let expected = Cost {
            user_us: 500.0,
            system_us: 2000.0,
            switches: 3.0,
        };
        assert_eq!(cost, expected);
    }
}
