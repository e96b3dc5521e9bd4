//! Results of the check of one setup.

use std::fmt;

/// Counts of one setup.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) cut_points: u64,
    pub(crate) images: u64,
    pub(crate) subsets: u64,
    pub(crate) torn: u64,
    pub(crate) written_back: u64,
    pub(crate) violations: u64,
    /// Images with planted losses, and the number of those found: a lost FUA write, lost writes
    /// before a FLUSH.
    pub(crate) planted: [(u64, u64); 2],
    /// Sectors whose last write is not clear from the record.
    pub(crate) unclear: u64,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [(fua, fua_found), (flush, flush_found)] = self.planted;
        write!(
            f,
            "{} cut points ({} different images, {} written back), {} random subsets, {} torn FUA \
             writes, {} violations; planted: {fua_found} of {fua} lost FUA writes and \
             {flush_found} of {flush} lost flushes found",
            self.cut_points,
            self.images,
            self.written_back,
            self.subsets,
            self.torn,
            self.violations,
        )?;
        if self.unclear > 0 {
            write!(f, "; {} sectors are unclear", self.unclear)?;
        }
        Ok(())
    }
}

impl Tally {
    /// Returns one JSON object.
    pub(crate) fn row(
        &self,
        name: &str,
        mode: &str,
        durability: &str,
        writes: usize,
        holds: bool,
    ) -> String {
        let [(fua, fua_found), (flush, flush_found)] = self.planted;
        let numbers = [
            ("acknowledged_writes", writes as u64),
            ("cut_points", self.cut_points),
            ("images", self.images),
            ("written_back", self.written_back),
            ("subsets", self.subsets),
            ("torn", self.torn),
            ("violations", self.violations),
            ("planted_fua", fua),
            ("planted_fua_found", fua_found),
            ("planted_flush", flush),
            ("planted_flush_found", flush_found),
            ("unclear_sectors", self.unclear),
        ];
        let numbers: Vec<_> = numbers
            .iter()
            .map(|(key, value)| format!("\"{key}\":{value}"))
            .collect();
        format!(
            "{{\"check\":\"{name}\",\"mode\":\"{mode}\",\"durability\":\"{durability}\",{},\
             \"holds\":{holds}}}",
            numbers.join(",")
        )
    }
}
