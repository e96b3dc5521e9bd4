//! Seats for the clients of a server. If all seats are taken, a new client gets that of the client
//! that was idle longest.
//!
//! So idle clients block no others, and use a bounded number of descriptors.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

/// The seats of a server.
#[derive(Clone, Debug)]
pub(super) struct Seats {
    most: usize,
    taken: Arc<Mutex<Vec<Arc<Occupant>>>>,
}

/// One client.
#[derive(Debug)]
struct Occupant {
    /// Time of its last answer; `None` while a request is being answered.
    idle_since: Mutex<Option<Instant>>,
    evicted: Notify,
}

/// A client's seat, returned on drop.
#[derive(Debug)]
pub(super) struct Seat {
    seats: Seats,
    occupant: Arc<Occupant>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seats {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            taken: Arc::default(),
        }
    }

    /// Takes a seat; if all are taken, that of the client that was idle longest. Returns `None` if
    /// all clients are being answered.
    pub(super) fn take(&self) -> Option<Seat> {
        let mut taken = lock(&self.taken);
        if taken.len() >= self.most {
            let idle = (0..taken.len()).filter_map(|at| {
                let since = *lock(&taken[at].idle_since);
                since.map(|since| (since, at))
            });
            let (_, longest) = idle.min()?;
            taken.remove(longest).evicted.notify_one();
        }
        let occupant = Arc::new(Occupant {
            idle_since: Mutex::new(Some(Instant::now())),
            evicted: Notify::new(),
        });
        taken.push(Arc::clone(&occupant));
        Some(Seat {
            seats: self.clone(),
            occupant,
        })
    }
}

impl Seat {
    /// Waits until another client has the seat.
    pub(super) async fn evicted(&self) {
        self.occupant.evicted.notified().await;
    }

    /// Marks the client as busy: it keeps its seat.
    pub(super) fn begin(&self) {
        *lock(&self.occupant.idle_since) = None;
    }

    /// Marks the client as idle.
    pub(super) fn end(&self) {
        *lock(&self.occupant.idle_since) = Some(Instant::now());
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        lock(&self.seats.taken).retain(|other| !Arc::ptr_eq(other, &self.occupant));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_evicted(seat: &Seat) -> bool {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime").block_on(async {
            tokio::select! {
                biased;
                () = seat.evicted() => true,
                () = std::future::ready(()) => false,
            }
        })
    }

    #[test]
    fn the_client_that_has_been_idle_longest_makes_room() {
        let seats = Seats::new(3);
        let taken: Vec<Seat> = (0..3).map(|_| seats.take().expect("room")).collect();
        // The first is busy, the second was active last.
        taken[0].begin();
        taken[1].begin();
        taken[1].end();
        let new = seats.take().expect("the third makes room");
        let evicted: Vec<bool> = taken.iter().map(is_evicted).collect();
        assert_eq!(evicted, [false, false, true]);
        taken[1].begin();
        new.begin();
        assert!(seats.take().is_none(), "all are at work");
        drop(new);
        assert!(seats.take().is_some(), "a seat was given back");
    }
}
