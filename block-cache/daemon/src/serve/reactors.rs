//! The reactors that serve connections.

use std::sync::Arc;

use forebay_frontend::Spread;

use crate::status::ReactorStatus;

/// Reactors that serve connections.
#[derive(Clone)]
pub(super) struct Reactors {
    pub(super) names: Vec<String>,
    pub(super) spread: Arc<Spread>,
}

impl Reactors {
    /// Limits the number of concurrent connections.
    pub(super) fn limit(&self, connections: usize) {
        self.spread.limit(connections);
    }

    pub(super) fn status(&self) -> Vec<ReactorStatus> {
        let counts = self.spread.connections();
        let named = self.names.iter().zip(counts);
        named
            .map(|(name, connections)| ReactorStatus {
                name: name.clone(),
                connections,
            })
            .collect()
    }
}
