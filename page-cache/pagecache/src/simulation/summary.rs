//! Counts of the runs, and a check that they covered all cases.

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) steps: u64,
    pub(super) packets: u64,
    pub(super) messages: u64,
    pub(super) operations: u64,
    pub(super) hits_local: u64,
    pub(super) hits_remote: u64,
    pub(super) read_ahead: u64,
    pub(super) fills: u64,
    pub(super) evictions: u64,
    pub(super) flushes_failed: u64,
    pub(super) deaths: u64,
    pub(super) losses: u64,
    pub(super) crashes: u64,
    pub(super) births: u64,
    pub(super) merges: u64,
    pub(super) retries: u64,
    /// Files that a round of write-back began to write back.
    pub(super) write_backs: u64,
    /// Stalls of the store.
    pub(super) stalls: u64,
    /// Operations whose time limit ended.
    pub(super) given_up: u64,
    /// Number of words that were waited for.
    pub(super) awaited: u64,
    /// Dirty pages that outlived their node.
    pub(super) rescues: u64,
    /// Number of these that the store refused until they were given up.
    pub(super) unrescued: u64,
    /// Number of these that a restarted directory reported again.
    pub(super) reported_after_restart: u64,
    /// Requests that all nodes publish a file.
    pub(super) publications: u64,
    /// Written pages into which no node stores without a lookup any more.
    pub(super) protections: u64,
    /// Granted replicas.
    pub(super) replicas: u64,
    /// Maximum number of readable copies of one page: in frames, and unpublished.
    pub(super) copies_peak: u64,
}

impl Summary {
    pub(super) fn add(&mut self, other: &Self) {
        let copies_peak = self.copies_peak.max(other.copies_peak);
        *self = Self {
            steps: self.steps + other.steps,
            packets: self.packets + other.packets,
            messages: self.messages + other.messages,
            operations: self.operations + other.operations,
            hits_local: self.hits_local + other.hits_local,
            hits_remote: self.hits_remote + other.hits_remote,
            read_ahead: self.read_ahead + other.read_ahead,
            fills: self.fills + other.fills,
            evictions: self.evictions + other.evictions,
            flushes_failed: self.flushes_failed + other.flushes_failed,
            deaths: self.deaths + other.deaths,
            losses: self.losses + other.losses,
            crashes: self.crashes + other.crashes,
            births: self.births + other.births,
            merges: self.merges + other.merges,
            retries: self.retries + other.retries,
            write_backs: self.write_backs + other.write_backs,
            stalls: self.stalls + other.stalls,
            given_up: self.given_up + other.given_up,
            awaited: self.awaited + other.awaited,
            rescues: self.rescues + other.rescues,
            unrescued: self.unrescued + other.unrescued,
            reported_after_restart: self.reported_after_restart + other.reported_after_restart,
            publications: self.publications + other.publications,
            protections: self.protections + other.protections,
            replicas: self.replicas + other.replicas,
            copies_peak,
        };
    }

    /// Checks that all cases occurred: a simulation proves nothing about a case that it never
    /// reaches.
    pub(super) fn expect_everything_happened(&self) {
        let rare = [
            self.hits_local,
            self.hits_remote,
            self.read_ahead,
            self.evictions,
            self.flushes_failed,
            self.deaths,
            self.losses,
            self.crashes,
            self.births,
            self.merges,
            self.retries,
            self.write_backs,
            self.stalls,
            self.given_up,
            self.awaited,
            self.rescues,
            self.unrescued,
            self.reported_after_restart,
            self.publications,
            self.protections,
            self.replicas,
        ];
        assert!(
            rare.iter().all(|count| *count > 0),
            "something never happened: {self:?}"
        );
    }
}
