//! Checks of a pool and its source, before a directory takes them.

use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use forebay_block::{Context, Error, ErrorKind, Result};
use forebay_pagecache::directory::Placement;

use super::{Options, boot, process_of, rescue};
use crate::pool::{Nodes, Pool};

/// Fails if the pool is in its own source: programs would see it, and could write into its memory.
pub(super) fn check_apart(source: &Path, pool: &Path) -> Result<()> {
    let absolute = std::path::absolute(pool).context(|| format!("pool {}", pool.display()))?;
    let mut there = absolute.ancestors().filter_map(|at| at.canonicalize().ok());
    let inside = there.next().is_some_and(|there| there.starts_with(source));
    let contains = absolute
        .canonicalize()
        .is_ok_and(|pool| source.starts_with(pool));
    if inside || contains {
        let context = format!(
            "pool {}: one of it and the source {} contains the other\n\
             help: choose a directory on tmpfs elsewhere",
            pool.display(),
            source.display()
        );
        return Err(Error::new(ErrorKind::InvalidInput, context));
    }
    Ok(())
}

/// Returns whether the source is a block device or an image of one, and not a tree.
pub(super) fn check_source(source: &Path, options: &Options) -> Result<bool> {
    let metadata = std::fs::metadata(source).context(|| format!("source {}", source.display()))?;
    if metadata.is_dir() {
        return Ok(false);
    }
    let named = |what| format!("source {}: {what}", source.display());
    if !metadata.is_file() && !metadata.file_type().is_block_device() {
        let context = named("neither a directory nor a block device nor a file");
        return Err(Error::new(ErrorKind::InvalidInput, context));
    }
    if !options.mapped.is_empty() {
        let context = named("a device has no directories: mapped directories are for trees");
        return Err(Error::new(ErrorKind::InvalidInput, context));
    }
    if options.placement == Some(Placement::Pool) {
        let context = named(
            "pages of a device are with their nodes\n\
                             help: leave the placement \"node\"",
        );
        return Err(Error::new(ErrorKind::Unsupported, context));
    }
    Ok(true)
}

/// Returns the state of an earlier directory, with dead nodes marked, and whether this one
/// continues from it. If not, the old state is dropped.
pub(super) fn check_same(pool: &Pool, options: &Options, source: &Path) -> Result<(Nodes, bool)> {
    let mut before = pool.load()?.unwrap_or_default();
    if before.boot != boot()? {
        before.known.clear();
    }
    for known in &mut before.known {
        known.share.alive &= process_of(known)?.is_some() && !pool.has_left(known.session);
    }
    let same = before.pages == options.pages
        && before.source == source.display().to_string()
        && pool.has_frames(options.pages);
    if same {
        return Ok((before, true));
    }
    if let Some(alive) = before.known.iter().find(|known| known.share.alive) {
        return Err(Error::new(
            ErrorKind::Busy,
            format!(
                "pool {}: {} (process {}) runs there with {} pages of {}\n\
                 help: give the same capacity and source, or stop the nodes first",
                pool.path().display(),
                alive.share.node,
                alive.pid,
                before.pages,
                before.source
            ),
        ));
    }
    before.known.clear();
    rescue::check_nothing_left(pool, options, &before)?;
    Ok((before, false))
}
