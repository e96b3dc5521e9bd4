//! Inputs of the model. The study measures service times on its machine. Costs that no machine here
//! can show are declared with their source, and were fixed before the model's first run.

/// Time that a write spends before it reaches the device (system call, file system, block layer),
/// in nanoseconds, from the paper. It is 54.0% of a write's time (section 5.2, Figure 7), which is
/// 4.41 us for Caiti with 512 MB (Table 1).
pub(crate) const STACK_NS: u64 = 2_381;
/// The paper's processor: "36-core Intel Xeon Gold 6240" (section 5, Setup).
pub(crate) const CORES: usize = 36;
/// Number of modules of the paper's memory: 768 GB (section 5, Setup), taken as six of 128 GB,
/// since a socket has six channels. Each has the profile's bandwidth. Blocks of 4 KiB are
/// interleaved, so that one write goes to one module (Yang et al., FAST '20, section 2.1:
/// interleaving of 4 KiB).
pub(crate) const DIMMS: usize = 6;
/// Cache of the paper's runs, MiB (section 5, Setup), and the file that is written, MiB (section
/// 5.1).
pub(crate) const CACHE_MIB: u64 = 512;
pub(crate) const FILE_MIB: u64 = 64 << 10;
/// Writes under way where the paper compares throughput (section 5.1).
pub(crate) const DEPTH: usize = 128;

/// Declared costs as JSON.
pub(crate) fn declared() -> serde_json::Value {
    serde_json::json!({
        "stack_ns": STACK_NS,
        "cores": CORES,
        "dimms": DIMMS,
        "cache_mib": CACHE_MIB,
        "file_mib": FILE_MIB,
        "depth": DEPTH,
    })
}

/// Service times, nanoseconds, measured by `caiti run`; the study says which run gives which.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Service {
    /// Time of the client and the executor for a write, without the device, in nanoseconds.
    pub(crate) client_ns: u64,
    /// A write to raw memory, alone.
    pub(crate) pmem_ns: u64,
    /// A write to the table, alone, by the thread that sends it.
    pub(crate) btt_ns: u64,
    /// The same by a thread that evicts, with all that it does for a job.
    pub(crate) job_ns: u64,
    /// A write into a slot, by the cache's thread.
    pub(crate) place_ns: u64,
    /// Time of the cache's thread for an eviction (choice, handover, end), and for a write that
    /// waits, in nanoseconds.
    pub(crate) evict_ns: u64,
    /// How long a thread that evicts looks out for the next job before it sleeps.
    pub(crate) look_ns: u64,
    /// Time to wake it, for the thread that hands a job over, in nanoseconds.
    pub(crate) wake_ns: u64,
    /// and how long after that call began it is there.
    pub(crate) woken_ns: u64,
}

impl Service {
    /// Sets one by its name.
    pub(crate) fn set(&mut self, key: &str, value: f64) -> Result<(), String> {
        let field = match key {
            "client-ns" => &mut self.client_ns,
            "pmem-ns" => &mut self.pmem_ns,
            "btt-ns" => &mut self.btt_ns,
            "job-ns" => &mut self.job_ns,
            "place-ns" => &mut self.place_ns,
            "evict-ns" => &mut self.evict_ns,
            "look-ns" => &mut self.look_ns,
            "wake-ns" => &mut self.wake_ns,
            "woken-ns" => &mut self.woken_ns,
            _ => return Err(format!("there is no key {key:?}")),
        };
        *field = value.max(0.0) as u64;
        Ok(())
    }
}
