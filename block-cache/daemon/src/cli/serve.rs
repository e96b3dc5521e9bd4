//! `forebay serve`: the daemon, in the foreground.

use std::path::{Path, PathBuf};

use forebay_block::Result;

use crate::config::Config;
use crate::stack::Wishes;

/// Serve the volumes of a configuration, in the foreground
///
/// SIGTERM and SIGINT end it in an orderly way; dirty data stays in the cache. The exit status is 0
/// after an orderly end, and 1 otherwise. FOREBAY_LOG sets what is logged to standard error (info,
/// debug, warn; the syntax of tracing's filters).
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The configuration file
    pub(super) config: PathBuf,
    /// Serve this volume straight from its backing device; may be given more than once. What is
    /// written is remembered, and dropped from the cache at the next attach
    #[arg(long, value_name = "VOLUME")]
    pub(super) without_cache: Vec<String>,
    /// Take this volume's cache and backing device as belonging together, whatever the state
    /// directory says; may be given more than once
    #[arg(long, value_name = "VOLUME")]
    pub(super) adopt: Vec<String>,
    /// Give up dirty data of this volume where the volume was written without the cache since; may
    /// be given more than once
    #[arg(long, value_name = "VOLUME")]
    pub(super) discard_stale_dirty: Vec<String>,
    /// Open the cache although its process journal is gone: acknowledged writes may be lost
    #[arg(long)]
    pub(super) accept_journal_loss: bool,
    /// The cache was copied to the device in the configuration, which takes the place of the former
    /// one: the process journal that was left there counts here, if the copy is as new as it
    #[arg(long)]
    pub(super) moved_cache: bool,
    /// Should the cache's device fail in service, go on without the cache in wb and wo, too, in
    /// place of refusing writes. Writes take the place of dirty data, which has to be given up by
    /// name at the next attach
    #[arg(long)]
    pub(super) accept_divergence: bool,
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
        accept_divergence: arguments.accept_divergence,
    };
    crate::serve::run(config, &wishes)
}
