//! Membership of the node: joining, leases, rejoining, leaving, and the end of the connection.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use forebay_block::{Error, ErrorKind, Result};

use super::locked::Locked;
use super::{Client, Link, State, not_in_time};
use crate::message::ToDirectory;
use crate::node::Counts;
use crate::store::Store;

/// Interval at which a leaving node repeats its request. Each request retries the pages that the
/// store refused.
const LEAVE_INTERVAL: Duration = Duration::from_millis(500);

impl<S: Store, L: Link> Client<S, L> {
    /// Reports this node's state to a directory that was restarted. I/O in progress continues.
    /// `connect` opens the link to it; nothing is sent before that.
    ///
    /// # Errors
    /// If the link is gone.
    pub fn rejoin(&self, connect: impl FnOnce(&L)) -> Result<()> {
        let mut state = self.lock_state();
        connect(&self.link);
        state.jobs.rejoin();
        let State { node, effects, .. } = &mut *state;
        node.rejoin(effects);
        self.act(&mut state)
    }

    /// Reports that this node lives, with its counters, unless the node is busy. `now` is the time
    /// since its start. Returns whether it reported. Lets continuations fail that have waited for
    /// longer than the limit.
    ///
    /// # Errors
    /// If the link is gone.
    pub fn say_alive(&self, now: Duration) -> Result<bool> {
        let Ok(state) = self.state.try_lock() else {
            return Ok(false);
        };
        let mut state = Locked::new(self, state);
        state.expire();
        state.node.set_time(now);
        let State { node, effects, .. } = &mut *state;
        node.request_replicas(effects);
        let dirty = state.node.dirty();
        let age = dirty
            .since
            .map_or(Duration::ZERO, |since| now.saturating_sub(since));
        let Counts {
            hits_local,
            hits_remote,
            misses,
            read_ahead,
            write_back_failures,
            lost_pages,
        } = state.node.counts();
        state.messages.push(ToDirectory::Alive {
            hits_local,
            hits_remote,
            misses,
            read_ahead,
        });
        state.messages.push(ToDirectory::Dirty {
            pages: dirty.pages as u64,
            oldest_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            write_back_failures,
            lost_pages,
        });
        self.act(&mut state).map(|()| true)
    }

    /// Waits until the node has joined, and returns how many of its frames the directory accepted.
    ///
    /// # Errors
    /// The refusal of the directory, or `TimedOut`.
    pub fn wait_joined(&self, patience: Duration) -> Result<u32> {
        let begin = Instant::now();
        let mut state = self.lock_state();
        loop {
            if let Some(error) = &state.broken {
                return Err(error.clone());
            }
            if let Some(frames) = state.node.share() {
                let node = &state.node;
                self.segment.set_relaxed(node.id(), node.is_relaxed());
                return Ok(frames.end - frames.start);
            }
            let left = patience.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return Err(not_in_time());
            }
            state = state.wait_timeout(&self.changed, left);
        }
    }

    /// Notes that the connection is gone: all operations fail with `why` from now on.
    pub fn disconnect(&self, why: Error) {
        self.lock_state().fail(why);
        self.changed.notify_all();
    }

    /// Moves all pages out of this node's memory, so that the node can leave without losing any.
    /// Retries pages that the store refuses.
    ///
    /// # Errors
    /// `TimedOut` if they have not left in this time, with the name of one of their files, or
    /// `Disconnected`.
    pub fn leave(&self, patience: Duration) -> Result<()> {
        let begin = Instant::now();
        let mut state = self.lock_state();
        let ticket = state.ticket();
        let State { node, effects, .. } = &mut *state;
        node.leave(ticket, effects);
        loop {
            self.act(&mut state)?;
            let left = patience.saturating_sub(begin.elapsed());
            match self.outcome(state, ticket, Some(left.min(LEAVE_INTERVAL))) {
                Err(error) if error.kind() != ErrorKind::TimedOut => return Err(error),
                Err(_) if left <= LEAVE_INTERVAL => return Err(self.left_behind()),
                Err(_) => {}
                Ok(_) => return Ok(()),
            }
            state = self.lock_state();
            let State { node, effects, .. } = &mut *state;
            node.repeat_leave(effects);
        }
    }

    /// Describes the pages that have not left this node's memory in time.
    fn left_behind(&self) -> Error {
        let share = self.lock_state().node.share();
        let unsaved = share.into_iter().flatten();
        let unsaved = unsaved.filter_map(|frame| self.segment.unsaved(frame));
        let mut files: BTreeMap<u64, usize> = BTreeMap::new();
        for (page, _) in unsaved {
            *files.entry(page.inode).or_default() += 1;
        }
        let Some((inode, pages)) = files.first_key_value() else {
            return not_in_time();
        };
        let others = match files.len() - 1 {
            0 => String::new(),
            others => format!(" and of {others} other files"),
        };
        let context = format!(
            "{pages} pages of {}{others} are not in the source\n\
             help: check that the source answers and has room; the log has its errors",
            self.store.name(*inode)
        );
        Error::new(ErrorKind::TimedOut, context)
    }

    /// Returns the error that all operations return, if the client is broken.
    pub fn broken(&self) -> Option<Error> {
        self.lock_state().broken.clone()
    }
}
