//! The load: one program that is all hosts, and the daemon's resources during it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::Value;

use crate::bench::others::{Processors, children_s, used_s};
use crate::bench::{Outcome, json_of};

/// Time between two samples of the daemon's memory.
const LOOK: Duration = Duration::from_millis(20);
/// First part of the load, which is counted separately, seconds.
pub(super) const FIRST_S: f64 = 1.0;
/// Time beyond that of the load, for connections and for the last answers.
const PATIENCE: Duration = Duration::from_secs(120);

/// The actions of a host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Host {
    /// `read`, `write` or `fill`.
    pub(super) load: &'static str,
    pub(super) depth: u32,
    pub(super) bytes: u32,
}

/// Answers to a host, in requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    pub(super) first: u64,
    pub(super) then: u64,
}

/// Shares of a processor in use, percent.
#[derive(Clone, Copy, Debug, Serialize)]
pub(in crate::bench) struct Busy {
    pub(super) server_percent: f64,
    pub(super) load_percent: f64,
    pub(super) others_percent: f64,
}

#[derive(Debug)]
pub(super) struct Ran {
    pub(super) answered: Vec<Answered>,
    pub(super) losses: u64,
    /// Peak memory of the daemon.
    pub(super) resident_bytes: u64,
    pub(super) busy: Busy,
}

/// Returns the resident memory of a process.
pub(super) fn resident_bytes(pid: u32) -> Outcome<u64> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path);
    let text = text.map_err(|error| format!("{path}: {error}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kilobytes = kilobytes.and_then(|number| number.parse::<u64>().ok());
    let kilobytes = kilobytes.ok_or_else(|| format!("{path} has no VmRSS"))?;
    Ok(kilobytes << 10)
}

/// Runs hosts for `seconds` after the first part.
pub(super) fn drive(
    program: &Path,
    server: u32,
    hosts: &[Host],
    uris: &[String],
    seconds: u32,
    stall_ms: u32,
) -> Outcome<Ran> {
    let mut command = Command::new(program);
    command.args([seconds.to_string(), stall_ms.to_string()]);
    for (host, uri) in hosts.iter().zip(uris) {
        let Host { load, depth, bytes } = host;
        command.arg(format!("{load},{depth},{bytes},{},{uri}", super::SET_MIB));
    }
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let processors = Processors::sample(server);
    let (begin, server_s, load_s) = (Instant::now(), used_s(server), children_s());
    let child = command.spawn();
    let mut child = child.map_err(|error| format!("cannot start the load: {error}"))?;
    let mut most = 0;
    let limit = PATIENCE + Duration::from_secs(seconds.into());
    // It prints little, and only at its end.
    while child
        .try_wait()
        .map_err(|error| error.to_string())?
        .is_none()
    {
        most = most.max(resident_bytes(server)?);
        if begin.elapsed() > limit {
            let _ = child.kill();
        }
        std::thread::sleep(LOOK);
    }
    let elapsed_s = begin.elapsed().as_secs_f64();
    let output = child
        .wait_with_output()
        .map_err(|error| error.to_string())?;
    let busy = Busy {
        server_percent: (used_s(server) - server_s) / elapsed_s * 100.0,
        load_percent: (children_s() - load_s) / elapsed_s * 100.0,
        others_percent: processors.others_percent(server),
    };
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "the load failed ({}): {}",
            output.status,
            error.trim()
        ));
    }
    let said = json_of(&String::from_utf8_lossy(&output.stdout))?;
    let ran = parse(&said).filter(|(answered, _)| answered.len() == hosts.len());
    let (answered, losses) = ran.ok_or_else(|| format!("the load prints no counts: {said}"))?;
    Ok(Ran {
        answered,
        losses,
        resident_bytes: most,
        busy,
    })
}

fn parse(said: &Value) -> Option<(Vec<Answered>, u64)> {
    let answered = said.get("answered")?.as_array()?.iter().map(|pair| {
        Some(Answered {
            first: pair.get(0)?.as_u64()?,
            then: pair.get(1)?.as_u64()?,
        })
    });
    let answered = answered.collect::<Option<Vec<_>>>()?;
    let agreed = said.get("first_s")?.as_f64()? == FIRST_S;
    agreed.then_some((answered, said.get("losses")?.as_u64()?))
}
