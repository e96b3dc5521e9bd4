//! Commands on the media of a machine.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use forebay::{Engine, Reactor};
use forebay_cache::{Devices, FormatOptions};
use forebay_device::file::{FileDevice, FileDeviceOptions};
use forebay_io::sim::Rng;

use crate::event::Event;
use crate::world::Machine;

/// Formats the cache device.
pub(crate) fn format(machine: &Machine) {
    let mut paths = (machine.cache_media().iter()).map(|medium| machine.path(medium));
    let (data, metadata) = (paths.next().expect("one at least"), paths.next());
    let options = FormatOptions {
        checksums: machine.setup.checksums,
        ..FormatOptions::new(machine.setup.block_bytes as u32, machine.uuid)
    };
    let reactor = Reactor::new(Engine::Threads).expect("a reactor");
    reactor.run(async move {
        let open = |path| -> std::rc::Rc<dyn forebay_block::BlockDevice> {
            let file = FileDeviceOptions {
                exclusive: true,
                ..FileDeviceOptions::default()
            };
            FileDevice::open(path, file).expect("the cache file opens")
        };
        let devices = Devices {
            data: open(data),
            metadata: metadata.map(open),
        };
        let formatted = forebay_cache::format(&devices, &options).await;
        formatted.expect("formatted");
    });
}

/// Runs a command that people run on a copy of a cache device. The original must not change.
///
/// # Errors
/// Returns a change of the original's media.
pub(crate) fn try_on_copies(machine: &Machine, event: Event, rng: &Rng) -> Result<(), String> {
    let Some(program) = std::env::var_os("FOREBAY_BIN") else {
        return Ok(());
    };
    if event == Event::CacheCopied {
        return Ok(());
    }
    let copies: Vec<_> = (machine.cache_media().iter())
        .map(|medium| {
            let copy = machine.folder().join(format!("copy-of-{medium}"));
            fs::copy(machine.path(medium), &copy).expect("a copy");
            copy
        })
        .collect();
    let before = machine.snapshot();
    let words: &[&str] = [
        &["check", "--cache"][..],
        &["check", "--repair", "--cache"],
        &["check", "--data", "--cache"],
        &["format", "--force", "--discard-dirty", "--cache"],
    ][rng.index(4)];
    let mut command = Command::new(program);
    command
        .args(words)
        .arg(&copies[0])
        .current_dir(machine.folder());
    if let Some(metadata) = copies.get(1) {
        command.arg("--metadata").arg(metadata);
    }
    let output = command.stdin(Stdio::null()).output().expect("it runs");
    let after = machine.snapshot();
    copies.iter().for_each(|copy| remove(copy));
    for medium in crate::world::MEDIA {
        if !before.is_same(&after, medium) {
            return Err(format!(
                "forebay {words:?} of a copy changed {medium}: {}{}",
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr)
            ));
        }
    }
    Ok(())
}

fn remove(path: &Path) {
    fs::remove_file(path).expect("our own file");
}
