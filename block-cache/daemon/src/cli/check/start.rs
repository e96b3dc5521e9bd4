//! Foresees the refusals of a start, from the options of the start.

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::{Engine, Reactor};

use super::open::{look_at_backing, open_configured};
use super::{Inspected, inspect, place};
use crate::config::Config;
use crate::stack::{Wishes, refuse_all};

/// Adds the other decisions of a start to the refusal of a copy. Only with `--moved-cache` do they
/// become visible. Any other error is returned as it is.
pub(in crate::cli) fn with_decisions_after_move(
    error: Error,
    config: &Config,
    wishes: &Wishes,
) -> Error {
    if error.kind() != ErrorKind::Busy || wishes.moved_cache || !is_refused_copy(config) {
        return error;
    }
    let wishes = Wishes {
        moved_cache: true,
        ..wishes.clone()
    };
    let Ok(Inspected::At(found)) = look(config, &wishes) else {
        return error;
    };
    let problem = found.inspection.journal_problem;
    let all = std::iter::once(error.clone())
        .chain(found.refused)
        .chain(problem);
    refuse_all(all.collect()).err().unwrap_or(error)
}

/// Whether the devices of the cache do not open without `--moved-cache`, or are in use.
fn is_refused_copy(config: &Config) -> bool {
    if place(config).is_none() {
        return false;
    }
    let config = config.clone();
    let opening = async move { open_configured(&config, false, false).await.map(drop) };
    let opened = Reactor::new(Engine::Auto).and_then(|reactor| reactor.run(opening));
    opened.is_err_and(|error| error.kind() == ErrorKind::Busy)
}

/// Foresees the refusals of a start whose options cannot be taken back: `--adopt`,
/// `--discard-stale-dirty`, `--accept-journal-loss` and `--moved-cache`. Without this, a start that
/// is refused for one volume would have changed another one. Changes nothing.
///
/// # Errors
/// The refusals, as [`super::run`] reports them without these options.
pub(in crate::cli) fn refuse_start(config: &Config, wishes: &Wishes) -> Result<()> {
    if place(config).is_none() {
        return Ok(());
    }
    match look(config, wishes) {
        Ok(Inspected::At(found)) => {
            let problem = found.inspection.journal_problem.clone();
            refuse_all(found.refused.into_iter().chain(problem).collect())
        }
        Ok(Inspected::NotBefore(_)) => Ok(()),
        Err(error) => match error.kind() {
            ErrorKind::Busy | ErrorKind::InvalidInput | ErrorKind::NotFound => Err(error),
            // The start knows more, and refuses it before it decides on volumes.
            _ => Ok(()),
        },
    }
}

/// Inspects a cache of a configuration as the start with these options does. Changes nothing.
fn look(config: &Config, wishes: &Wishes) -> Result<Inspected> {
    let mut config = config.clone();
    config
        .volumes
        .retain(|volume| !wishes.without_cache.contains(&volume.name));
    let Some(place) = place(&config) else {
        let what = "the configuration names no cache that outlives the process";
        return Err(Error::new(ErrorKind::NotFound, what));
    };
    let backing = Reactor::new(Engine::Auto)?.run(look_at_backing(config, false))?;
    let found = inspect(place, backing, (false, false), wishes.clone());
    Reactor::new(Engine::Auto)?.run(found)
}
