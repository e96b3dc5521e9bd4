//! Checks a configuration that a running daemon may serve.

use std::path::Path;

use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_cache::{BlockSizes, check_volume_size};
use forebay_io::{Engine, Reactor};

use super::open::{Backing, look_at_backing};
use crate::config::Config;
use crate::control::client::{Client, Control, Patience};
use crate::control::protocol::{Reply, Request};
use crate::serve::descriptors::Descriptors;
use crate::serve::guard;
use crate::stack::journal::warning_of_place;
use crate::stack::memory::Needs;
use crate::stack::{MEMORY_BLOCK_BYTES, place_of_path, place_of_volume};
use crate::state::StateDirectory;
use crate::status::Status;
use forebay_terminal::out;

/// Checks all that a configuration names, except the contents of its cache, as `forebay serve`
/// does. Returns the status of the daemon that answers on its control socket, if one does, and the
/// backing devices.
pub(super) fn check_config(
    config: &Config,
    patience: Patience,
) -> Result<(Option<Box<Status>>, Backing)> {
    let running = own_daemon(config, patience)?;
    match (check_with(config, running.as_deref()), running) {
        // A daemon that began to start meanwhile may hold the things that are in the way.
        (Err(error), None) => {
            let running = own_daemon(config, patience)?.ok_or(error)?;
            let backing = check_with(config, Some(&running))?;
            Ok((Some(running), backing))
        }
        (checked, running) => Ok((running, checked?)),
    }
}

/// Returns the status of the daemon on the control socket, if it is of this configuration. Any
/// other daemon blocks the start.
///
/// # Errors
/// `Busy` if the daemon of this configuration starts; `TimedOut` if a daemon does not answer.
pub(in crate::cli) fn own_daemon(
    config: &Config,
    patience: Patience,
) -> Result<Option<Box<Status>>> {
    match running(&config.server.control, patience) {
        // It listens before it opens anything, and answers when all is open.
        Err(error) if error.kind() == ErrorKind::TimedOut && holds_state(config) => {
            let control = config.server.control.display();
            Err(Error::with_source(
                ErrorKind::Busy,
                "",
                format!(
                    "the daemon of this configuration starts, or hangs: it does not answer on \
                     {control}\n    \
                     help: check waited for the engine to answer. Check again when the log says \
                     `ready`, or see whether the process is stopped"
                ),
            ))
        }
        found => Ok(found?.filter(|status| is_of(config, status))),
    }
}

/// Returns whether a process holds the state directory of a configuration.
fn holds_state(config: &Config) -> bool {
    let looked = StateDirectory::look(&config.server.state);
    looked.is_err_and(|error| error.kind() == ErrorKind::Busy)
}

/// Checks the same. `running` is the status of the daemon of this configuration, if one runs.
fn check_with(config: &Config, running: Option<&Status>) -> Result<Backing> {
    Descriptors::raise().check(config)?;
    guard::check(config)?;
    let listening = running.map(|status| &status.listening[..]);
    config.check_machine(true, listening)?;
    Needs::of(config, None).check()?;
    let mut backing =
        Reactor::new(Engine::Auto)?.run(look_at_backing(config.clone(), running.is_some()))?;
    if let (Some(_), Some(cache)) = (config.memory_cache(), &config.cache) {
        // The daemon formats it at its start.
        let sizes = cache.block_sizes.as_ref();
        let sizes = sizes.map_or(&[MEMORY_BLOCK_BYTES][..], |(sizes, _)| sizes);
        let sizes = BlockSizes::new(sizes).expect("checked when the configuration was read");
        for (number, info) in &backing.devices {
            let volume = &config.volumes[*number];
            check_volume_size(sizes, info.size_bytes)
                .context(|| place_of_volume(config, volume))?;
        }
    }
    backing.warnings.extend(warning_of_place(config));
    for warning in config.warnings.iter().chain(&backing.warnings) {
        out::note(&format!("warning: {warning}"));
    }
    Ok(backing)
}

/// Returns whether a daemon serves this configuration, or one that this will replace. Either the
/// file has the same path, or the state directory is the same.
fn is_of(config: &Config, status: &Status) -> bool {
    let is_same = |path: &Path, other: &str| {
        let found = |path: &Path| path.canonicalize().ok();
        place_of_path(path) == other
            || found(path).is_some_and(|path| Some(path) == found(Path::new(other)))
    };
    // Earlier versions do not report it.
    status.configuration.is_empty()
        || is_same(&config.path, &status.configuration)
        || is_same(&config.server.state, &status.state)
}

/// Returns the status of the daemon that answers on a control socket, if one does.
///
/// # Errors
/// `TimedOut` if a daemon does not answer.
fn running(control: &Path, patience: Patience) -> Result<Option<Box<Status>>> {
    let control = Control {
        path: control.to_path_buf(),
        patience,
    };
    let asked =
        Client::connect(&control).and_then(|mut client| client.call(&Request::Status {}, |_| ()));
    match asked {
        Ok(Reply::Status(status)) => Ok(Some(status)),
        Err(error) if error.kind() == ErrorKind::TimedOut => Err(error),
        _ => Ok(None),
    }
}
