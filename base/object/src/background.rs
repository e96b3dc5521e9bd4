//! The background task of a volume: checkpoints and garbage collection.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::Result;
use forebay_io::rt;

use crate::checkpointer::checkpoint;
use crate::collector;
use crate::core::Core;
use crate::fault::Fault;
use crate::format::seq_of;

/// Pause after an error.
const PAUSE: Duration = Duration::from_secs(1);

/// Returns whether a checkpoint is due.
fn is_checkpoint_due(core: &Core) -> bool {
    let log = core.log.borrow();
    let limits = &core.limits;
    let length = limits.checkpoint_ratio * log.checkpoint_bytes;
    let bytes = limits.checkpoint_bytes.max(length);
    // A long map takes long to load, so that more headers do not matter.
    let objects = limits.checkpoint_objects + log.checkpoint_bytes / (256 << 10);
    let sums = log.chain.objects.sums();
    let is_due = log.since_bytes >= bytes || log.since_objects >= objects;
    // After a refusal, only a longer log is a reason for another attempt.
    let has_dead = sums.dead_bytes >= bytes && !log.is_too_long;
    log.stalled.is_none() && (is_due || has_dead)
}

/// Writes checkpoints and collects garbage until the volume is closed. Begins with objects that an
/// earlier writer has left.
pub(crate) async fn run(core: Rc<Core>) {
    let swept = sweep(&core).await;
    report(&swept);
    while !core.closing.get() && !core.has_failed() {
        let change = core.work.wait();
        let outcome = if is_checkpoint_due(&core) {
            checkpoint(&core).await
        } else if collector::is_due(&core) {
            collector::collect(&core).await
        } else {
            Ok(false)
        };
        report(&outcome);
        match outcome {
            Ok(true) => {}
            Ok(false) => change.await,
            Err(_) => {
                rt::at_most(PAUSE, core.work.until(|| core.closing.get())).await;
            }
        }
    }
}

fn report<T>(outcome: &Result<T>) {
    if let Err(error) = outcome {
        tracing::warn!("{}", error.report());
    }
}

/// Deletes objects that the checkpoint at open covers and that nothing names. A writer ended before
/// it had deleted them, or a late creation made one again.
async fn sweep(core: &Core) -> Result<()> {
    let Some(end) = core.log.borrow().checkpoint else {
        return Ok(());
    };
    for listed in core.link.list("log/").await? {
        if core.closing.get() || core.has_failed() {
            return Ok(());
        }
        let Some(seq) = seq_of(&listed.name).filter(|seq| *seq <= end) else {
            continue;
        };
        let is_garbage = {
            let log = core.log.borrow();
            let is_claim = log.chain.claims.binary_search(&seq).is_ok();
            let is_claim = is_claim && !core.faults.has(Fault::DeleteClaims);
            let is_pinned = log.chain.objects.find(seq).is_some();
            let deletes_pinned = core.faults.has(Fault::DeletePinned);
            let is_live = |it: &crate::objects::Object| it.live_sectors > 0 || !deletes_pinned;
            let is_named = is_pinned && log.chain.objects.find(seq).is_some_and(|it| is_live(it.1));
            !is_claim && !is_named
        };
        if is_garbage {
            core.link.delete(&listed.name).await?;
        }
    }
    Ok(())
}
