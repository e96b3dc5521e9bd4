//! `forebay serve`: the daemon, in the foreground.

use std::path::{Path, PathBuf};

use forebay_block::Result;

use super::check;
use crate::config::Config;
use crate::stack::Wishes;
use crate::state::StateDirectory;

/// Serve the volumes of a configuration, in the foreground
///
/// SIGTERM and SIGINT end it cleanly; dirty data stays in the cache. The exit status is 0 after a
/// clean end, and 1 otherwise. FOREBAY_LOG sets the level of the log on standard error (info,
/// debug, warn; the syntax of tracing's filters).
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Configuration file
    pub(super) config: PathBuf,
    /// Serve this volume from its backing device, without the cache; may be given more than once.
    /// Written ranges are recorded, and dropped from the cache at the next attach
    #[arg(long, value_name = "VOLUME")]
    pub(super) without_cache: Vec<String>,
    /// Accept that this volume's cache and backing device belong together, despite the state
    /// directory; may be given more than once
    #[arg(long, value_name = "VOLUME")]
    pub(super) adopt: Vec<String>,
    /// Discard dirty data of this volume where the volume was written without the cache; may be
    /// given more than once
    #[arg(long, value_name = "VOLUME")]
    pub(super) discard_stale_dirty: Vec<String>,
    /// Open the cache although its process journal is gone: acknowledged writes may be lost
    #[arg(long)]
    pub(super) accept_journal_loss: bool,
    /// The cache was copied to the device in the configuration, which replaces the former one.
    /// Accept the former process journal, if the copy is as new as the journal
    #[arg(long)]
    pub(super) moved_cache: bool,
    /// If the cache's device fails in service, continue without the cache in wb and wo, too,
    /// instead of refusing writes. Such writes overwrite dirty data, which must be discarded by
    /// volume name at the next attach
    #[arg(long = "accept-divergence")]
    pub(super) allow_degraded: bool,
}

pub(super) fn run(arguments: &Arguments, control: Option<&Path>) -> Result<()> {
    let mut config = Config::load(&arguments.config)?;
    if let Some(control) = control {
        config.server.set_control(control)?;
    }
    let wishes = Wishes {
        without_cache: arguments.without_cache.clone(),
        adopt: arguments.adopt.clone(),
        discard_stale_dirty: arguments.discard_stale_dirty.clone(),
        accept_journal_loss: arguments.accept_journal_loss,
        moved_cache: arguments.moved_cache,
        allow_degraded: arguments.allow_degraded,
    };
    // A running daemon refuses the start before it decides on anything.
    if wishes.cannot_be_taken_back() && StateDirectory::look(&config.server.state).is_ok() {
        wishes.check(&config)?;
        check::refuse_start(&config, &wishes)?;
    }
    let served = crate::serve::run(config.clone(), &wishes);
    served.map_err(|error| check::with_decisions_after_move(error, &config, &wishes))
}
