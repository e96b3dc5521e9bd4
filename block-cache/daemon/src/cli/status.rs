//! `forebay status`: the status of the daemon.

use std::time::Duration;

use forebay_block::{Error, ErrorKind, Result};

use crate::control::client::{Client, Control};
use crate::control::protocol::{Reply, Request, line};
use crate::status::Status;
use crate::view;
use forebay_terminal::out;

/// Show the status of the daemon
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Refresh the output every second, until interrupted
    #[arg(long)]
    pub(super) watch: bool,
    /// Print it as JSON (with --watch: one object per line)
    #[arg(long)]
    pub(super) json: bool,
}

pub(super) fn run(arguments: &Arguments, control: &Control) -> Result<()> {
    let mut client = Client::connect(control)?;
    let mut before: Option<Status> = None;
    loop {
        let Reply::Status(status) = client.call(&Request::Status {}, |_| ())? else {
            let what = "the daemon's answer is no status\nhelp: use the version of the daemon";
            return Err(Error::new(ErrorKind::Disconnected, what));
        };
        if arguments.json {
            out::print(&String::from_utf8_lossy(&line(&status)))?;
        } else {
            let clear = if arguments.watch { "\x1b[H\x1b[2J" } else { "" };
            let text = render(&status, before.as_ref());
            out::print(&format!("{clear}{text}"))?;
        }
        if !arguments.watch {
            return Ok(());
        }
        before = Some(*status);
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Returns the status for a terminal. `before` is the status of a second ago, for rates.
fn render(status: &Status, before: Option<&Status>) -> String {
    let mut text = format!("Forebay {}\n", view::process(status));
    for line in view::reach(status) {
        text.push_str(&format!("  {line}\n"));
    }
    text.push_str(&match &status.cache {
        Some(cache) => format!("\nCache {}\n", cache.uuid),
        None => "\nCache\n".to_owned(),
    });
    for line in view::cache(status.cache.as_ref()) {
        text.push_str(&format!("  {line}\n"));
    }
    for (title, table) in [
        ("Volumes", view::volumes(status, before)),
        ("Devices", view::devices(status)),
    ] {
        text.push_str(&format!("\n{title}\n{}", table.render(2)));
    }
    for line in view::limits(status)
        .into_iter()
        .chain(view::transits(status))
        .chain(view::object_volumes(status))
        .chain(view::trouble(status))
    {
        text.push_str(&format!("  {line}\n"));
    }
    text
}

#[cfg(test)]
mod golden;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::example;

    #[test]
    fn the_table_shows_hits_latency_and_rates() {
        let status = example();
        let text = render(&status, None);
        for part in [
            "running for 61 s",
            "1 MiB of 1 GiB used",
            "90.0%",
            "bit-tree: 7 writes, 28 KiB; it takes 335 KiB of memory",
            "recovery: 10 of 40 blocks that may be dirty to be written back (1.5 s left); of 1 MiB \
             that were compared, the backing device had 512 KiB",
            "50 us / 1.5 ms",
            "transit cache \"fast\" (caiti): 8 KiB of 512 MiB used, 4 KiB not yet on the device; \
             blocks: 12 written",
            "object storage \"far\": 5 MiB in 9 objects, 4 MiB of it live; requests: 20 PUT, \
             0 GET, 0 LIST, 0 DELETE; 3 MiB up, 0 B down; about 12.34 a month",
            "VOLUME \"db\" MAY HAVE LOST DATA: a flush failed",
            "VOLUME \"db\" CONTINUES WITHOUT ITS CACHE",
            "volume \"db\": 5 requests timed out, 2 of them still in the device",
            "device \"ssd\": 2 errors, the last: write of 512 bytes",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let mut before = example();
        before.volumes[0].operations[0].count = 58;
        let text = render(&status, Some(&before));
        assert!(text.contains("reads/s") && text.contains("42"), "{text}");
    }
}
