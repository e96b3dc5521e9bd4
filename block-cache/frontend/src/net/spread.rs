//! Selection of the reactor for a new connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_io::rt::Remote;

/// Reactors that serve connections. A new connection is assigned to the reactor with the fewest,
/// and the first of equals.
#[derive(Debug)]
pub struct Spread {
    reactors: Vec<(Remote, AtomicUsize)>,
    /// Number of socket connections on all reactors.
    sockets: AtomicUsize,
    /// Maximum number of socket connections.
    most: AtomicUsize,
}

impl Spread {
    /// Spreads connections over `reactors`.
    ///
    /// # Panics
    /// If `reactors` is empty.
    #[must_use]
    pub fn new(reactors: impl IntoIterator<Item = Remote>) -> Self {
        let reactors: Vec<_> = reactors
            .into_iter()
            .map(|reactor| (reactor, AtomicUsize::new(0)))
            .collect();
        assert!(!reactors.is_empty(), "there must be a reactor");
        Self {
            reactors,
            sockets: AtomicUsize::new(0),
            most: AtomicUsize::new(usize::MAX),
        }
    }

    /// Limits the number of socket connections from now on. Each needs a descriptor.
    pub fn limit(&self, connections: usize) {
        self.most.store(connections, Ordering::Relaxed);
    }

    /// Admits a socket connection.
    ///
    /// # Errors
    /// The limit, if it is reached.
    pub(crate) fn admit(self: &Arc<Self>) -> Result<Admitted, usize> {
        let most = self.most.load(Ordering::Relaxed);
        let before = self.sockets.fetch_add(1, Ordering::Relaxed);
        let admitted = Admitted(Arc::clone(self));
        match before < most {
            true => Ok(admitted),
            false => Err(most),
        }
    }

    /// Returns the number of connections of each reactor, in the order given to [`Spread::new`].
    #[must_use]
    pub fn connections(&self) -> Vec<usize> {
        let counts = self.reactors.iter().map(|(_, count)| count);
        counts.map(|count| count.load(Ordering::Relaxed)).collect()
    }

    /// Selects the reactor for a new connection, which counts there until the place is dropped.
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

/// Admission of a socket connection.
pub(crate) struct Admitted(Arc<Spread>);

impl Drop for Admitted {
    fn drop(&mut self) {
        self.0.sockets.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Assignment of a connection to a reactor.
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
