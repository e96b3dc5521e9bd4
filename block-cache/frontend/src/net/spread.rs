//! Which reactor serves a new connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_io::rt::Remote;

/// The reactors that serve connections: a new one goes to the reactor that has the fewest, the
/// earliest of equals.
#[derive(Debug)]
pub struct Spread {
    reactors: Vec<(Remote, AtomicUsize)>,
    /// Connections of sockets on all reactors.
    sockets: AtomicUsize,
    /// Most of these.
    most: AtomicUsize,
}

impl Spread {
    /// Spreads connections over `reactors`.
    ///
    /// # Panics
    /// If there are none.
    #[must_use]
    pub fn new(reactors: impl IntoIterator<Item = Remote>) -> Self {
        let reactors: Vec<_> = reactors
            .into_iter()
            .map(|reactor| (reactor, AtomicUsize::new(0)))
            .collect();
        assert!(!reactors.is_empty(), "somebody must serve the connections");
        Self {
            reactors,
            sockets: AtomicUsize::new(0),
            most: AtomicUsize::new(usize::MAX),
        }
    }

    /// Serves at most so many connections of sockets at a time from now on: each takes a descriptor.
    pub fn limit(&self, connections: usize) {
        self.most.store(connections, Ordering::Relaxed);
    }

    /// Takes room for the connection of a socket.
    ///
    /// # Errors
    /// The most that there may be, if so many are served.
    pub(crate) fn admit(self: &Arc<Self>) -> Result<Admitted, usize> {
        let most = self.most.load(Ordering::Relaxed);
        let before = self.sockets.fetch_add(1, Ordering::Relaxed);
        let admitted = Admitted(Arc::clone(self));
        match before < most {
            true => Ok(admitted),
            false => Err(most),
        }
    }

    /// How many connections each reactor serves, in the order in which the reactors were given.
    #[must_use]
    pub fn connections(&self) -> Vec<usize> {
        let counts = self.reactors.iter().map(|(_, count)| count);
        counts.map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// Chooses the reactor for a new connection, which counts there for as long as the place lives.
    pub(crate) fn place(self: &Arc<Self>) -> Place {
        let counts = self.connections();
        let fewest = (0..counts.len()).min_by_key(|at| counts[*at]);
        let at = fewest.expect("there is one");
        self.reactors[at].1.fetch_add(1, Ordering::Relaxed);
        Place {
            spread: Arc::clone(self),
            at,
        }
    }
}

/// Room for the connection of a socket.
pub(crate) struct Admitted(Arc<Spread>);

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.sockets.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection's place on a reactor.
pub(crate) struct Place {
    spread: Arc<Spread>,
    at: usize,
}

impl Place {
    pub(crate) fn reactor(&self) -> Remote {
        self.spread.reactors[self.at].0.clone()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let (_, count) = &self.spread.reactors[self.at];
        count.fetch_sub(1, Ordering::Relaxed);
    }
}
