//! `forebay status`: what the daemon does.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Result};

use crate::config::size::{human_bytes, human_duration};
use crate::control::client::Client;
use crate::control::protocol::{Reply, Request};
use crate::control::status::{CacheStatus, Latency, Status, percent};
use crate::table::Table;

/// Show what the daemon does.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Show it anew every second, until interrupted
    #[arg(long)]
    pub(super) watch: bool,
    /// Print it as JSON (with --watch: one object a line)
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(arguments: &Arguments, control: &Path) -> Result<()> {
    let mut client = Client::connect(control)?;
    let mut before: Option<Status> = None;
    loop {
        let Reply::Status(status) = client.call(&Request::Status {}, |_| ())? else {
            let what = "the daemon's answer is no status; is it of another version?";
            return Err(Error::new(ErrorKind::Disconnected, what));
        };
        if arguments.json {
            let line = crate::control::protocol::line(&status);
            print!("{}", String::from_utf8_lossy(&line));
        } else {
            let clear = if arguments.watch { "\x1b[H\x1b[2J" } else { "" };
            print!("{clear}{}", render(&status, before.as_ref()));
        }
        if !arguments.watch {
            return Ok(());
        }
        before = Some(*status);
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// The status for a terminal; with the one of a second ago, rates are shown too.
fn render(status: &Status, before: Option<&Status>) -> String {
    let mut text = String::new();
    let state = match status.shutting_down {
        true => "shutting down",
        false => "running",
    };
    let _ = writeln!(
        text,
        "Forebay {}, process {}, {state} for {}, I/O by {}",
        status.version,
        status.pid,
        human_duration(Duration::from_secs(status.uptime_s)),
        status.io_engine,
    );
    for place in &status.listening {
        let _ = writeln!(text, "  {place}");
    }
    match &status.cache {
        Some(cache) => render_cache(&mut text, cache),
        None => {
            text.push_str("\nNo cache: volumes are served straight from their backing devices.\n")
        }
    }
    text.push_str("\nVolumes\n");
    text.push_str(&volumes(status, before).render(2));
    text.push_str("\nDevices\n");
    text.push_str(&devices(status).render(2));
    text
}

fn render_cache(text: &mut String, cache: &CacheStatus) {
    let share = |bytes| percent(bytes, cache.capacity_bytes).unwrap_or(0.0);
    let _ = write!(
        text,
        "\nCache {}\n  {} of {} used ({:.0}%), {} dirty ({:.0}%, limit {}%), blocks of {}, durability {}\n  \
         {} evictions, {} written back, {} commits ({} us each), {} errors\n  start: {} ({} ms)\n",
        cache.uuid,
        human_bytes(cache.used_bytes),
        human_bytes(cache.capacity_bytes),
        share(cache.used_bytes),
        human_bytes(cache.dirty_bytes),
        share(cache.dirty_bytes),
        cache.dirty_limit_percent,
        human_bytes(cache.block_size_bytes),
        cache.durability,
        cache.evictions,
        human_bytes(cache.cleaned_bytes),
        cache.commits,
        cache.commit_us(),
        cache.errors(),
        cache.recovery,
        cache.recovery_ms,
    );
    if let Some(failure) = &cache.failure {
        let _ = writeln!(text, "  THE CACHE TAKES NO MORE WRITES: {failure}");
    }
}

/// `p50 / p99`, or a dash where nothing was measured.
fn latency(latency: &Latency) -> String {
    if latency.count == 0 {
        return "-".into();
    }
    let time = |us: f64| human_duration(Duration::from_secs_f64(us / 1e6));
    format!("{} / {}", time(latency.p50_us), time(latency.p99_us))
}

fn volumes(status: &Status, before: Option<&Status>) -> Table {
    let mut titles = vec![
        "name",
        "mode",
        ">size",
        ">cached",
        ">dirty",
        ">hits",
        ">read",
        ">written",
        ">read p50/p99",
        ">write p50/p99",
        ">errors",
    ];
    if before.is_some() {
        titles.extend([">reads/s", ">writes/s"]);
    }
    let mut table = Table::new(&titles);
    for volume in &status.volumes {
        let (read, write) = (volume.operation("read"), volume.operation("write"));
        let hits = volume.read_hit_percent();
        let errors: u64 = volume
            .operations
            .iter()
            .map(|operation| operation.errors)
            .sum();
        let mut row = vec![
            volume.name.clone(),
            volume.mode_text(),
            human_bytes(volume.size_bytes),
            human_bytes(volume.cached_bytes),
            human_bytes(volume.dirty_bytes),
            hits.map_or_else(|| "-".into(), |percent| format!("{percent:.1}%")),
            human_bytes(read.bytes),
            human_bytes(write.bytes),
            latency(&read.latency),
            latency(&write.latency),
            errors.to_string(),
        ];
        if let Some(before) = before {
            let former = before.volumes.iter().find(|v| v.name == volume.name);
            let count = |kind| former.map_or(0, |former| former.operation(kind).count);
            row.push(read.count.saturating_sub(count("read")).to_string());
            row.push(write.count.saturating_sub(count("write")).to_string());
        }
        table.row(row);
    }
    table
}

fn devices(status: &Status) -> Table {
    let titles = [
        "name",
        "role",
        "what",
        ">size",
        ">read",
        ">written",
        ">flushes",
        ">FUA writes",
    ];
    let mut table = Table::new(&titles);
    for device in &status.devices {
        table.row(vec![
            device.name.clone(),
            device.role.clone(),
            device.what.clone(),
            human_bytes(device.size_bytes),
            human_bytes(device.read_bytes),
            human_bytes(device.write_bytes),
            device.flushes.to_string(),
            device.fua_writes.to_string(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::status::example;

    #[test]
    fn the_table_shows_hits_latency_and_rates() {
        let status = example();
        let text = render(&status, None);
        for part in [
            "running for 61 s",
            "1 MiB of 1 GiB used",
            "90.0%",
            "50 us / 1.5 ms",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let mut before = example();
        before.volumes[0].operations[0].count = 58;
        let text = render(&status, Some(&before));
        assert!(text.contains("reads/s") && text.contains("42"), "{text}");
    }
}
