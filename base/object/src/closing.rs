//! The end of a volume.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::rt;
use forebay_io::sync::Promise;

use crate::checkpointer::checkpoint;
use crate::core::Core;
use crate::writer::flushed;

/// Makes everything durable, and writes a checkpoint once the background task has `ended`. Gives
/// both up at the time `until`. A checkpoint that fails is only logged: it saves work alone.
///
/// # Errors
/// `Unreachable` with the amount of data that is lost, if the store does not answer. The error of
/// a volume that has failed.
pub(crate) async fn finish(core: &Rc<Core>, ended: Promise<()>, until: Duration) -> Result<()> {
    if core.writer.is_none() {
        return Ok(());
    }
    drain(core, until).await?;
    let checkpoint = async {
        ended.get().await;
        checkpoint(core).await
    };
    let left = until.saturating_sub(rt::now());
    match rt::at_most(left, checkpoint).await {
        // All data is durable.
        Some(Err(error)) if !core.has_failed() => {
            tracing::warn!(
                "no checkpoint, so the next open reads more of the log: {}",
                error.report()
            );
            Ok(())
        }
        Some(written) => written.map(|_| ()),
        None => {
            tracing::warn!(
                "object store {}: no checkpoint in time, so the next open reads more of the log",
                core.link.name()
            );
            Ok(())
        }
    }
}

/// Makes everything durable. A store that has not answered for the patience may answer in time.
async fn drain(core: &Rc<Core>, until: Duration) -> Result<()> {
    let left = || until.saturating_sub(rt::now());
    let mut warned = false;
    loop {
        match rt::at_most(left(), flushed(core)).await {
            Some(Err(error)) if error.kind() == ErrorKind::Unreachable && !core.has_failed() => {}
            Some(outcome) => return outcome,
            None => return Err(lost(core)),
        }
        if !std::mem::replace(&mut warned, true) {
            let log = core.log.borrow();
            tracing::warn!(
                "object store {} does not answer: waiting {} s for {} objects in progress",
                core.link.name(),
                left().as_secs(),
                log.batch.number - log.durable
            );
        }
        let answers = || core.log.borrow().stalled.is_none() || core.has_failed();
        if rt::at_most(left(), core.work.until(answers))
            .await
            .is_none()
        {
            return Err(lost(core));
        }
    }
}

/// Error of the data that the store does not have at the end.
fn lost(core: &Core) -> Error {
    let what = match core.unflushed_bytes() {
        0 => "unflushed discards MAY BE LOST; the store has all data".to_owned(),
        bytes => {
            format!("{bytes} unflushed bytes, and discards, ARE LOST unless a cache has them")
        }
    };
    let what = format!(
        "object store {}: {what}\n\
         help: see that the store answers, and start again; clients have to repeat what they had \
         not flushed",
        core.link.name(),
    );
    Error::new(ErrorKind::Unreachable, what)
}
