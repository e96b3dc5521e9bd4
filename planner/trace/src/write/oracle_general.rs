//! libCacheSim's oracleGeneral. A record has the number of the next request for the same sector,
//! which needs a pass from the end to the start. So the records go to an unnamed temporary file
//! first. They are completed there in reverse order, and then copied.
//!
//! The memory of the second pass is 16 bytes, plus the overhead of a hash table, for each sector at
//! which a request starts.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Seek as _, SeekFrom, Write};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use forebay_block::{Context as _, Result};

use super::destination::with_remedy;
use super::{Encode, OneVolume, Written, is_data, sectors};
use crate::bytes::u64_at;
use crate::{Format, Request, Volumes};

const RECORD_BYTES: usize = 24;
const CHUNK_RECORDS: u64 = 1 << 15;

pub(super) struct OracleGeneral {
    spool: BufWriter<File>,
    /// Former path, for errors.
    path: PathBuf,
    records: u64,
    volume: OneVolume,
}

impl OracleGeneral {
    pub(super) fn new(scratch: &Path) -> Result<Self> {
        let path = scratch.join(format!(".forebay-oracle-general.{}", unique()));
        let what = || format!("cannot make a file for the second pass, {}", path.display());
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path);
        let file = file.context(what)?;
        // An unnamed file ends with the process in any case.
        std::fs::remove_file(&path).context(what)?;
        Ok(Self {
            spool: BufWriter::with_capacity(1 << 20, file),
            path,
            records: 0,
            volume: OneVolume::default(),
        })
    }
}

/// Returns a number that is unique for each file of each process.
fn unique() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{}.{number}", std::process::id())
}

impl Encode for OracleGeneral {
    fn encode(
        &mut self,
        requests: &[Request],
        volumes: &Volumes,
        _: &mut Vec<u8>,
        written: &mut Written,
    ) -> Result<()> {
        for request in requests {
            if !is_data(request, written) {
                continue;
            }
            self.volume.check(request, volumes, Format::OracleGeneral)?;
            let (first, number) = sectors(request, written);
            let time_s = u32::try_from(request.time_ns / 1_000_000_000).unwrap_or(u32::MAX);
            let len_bytes = u32::try_from(number * 512).unwrap_or(u32::MAX - 511);
            let mut record = [0; RECORD_BYTES];
            record[..4].copy_from_slice(&time_s.to_le_bytes());
            record[4..12].copy_from_slice(&first.to_le_bytes());
            record[12..16].copy_from_slice(&len_bytes.to_le_bytes());
            self.spool
                .write_all(&record)
                .map_err(|error| with_remedy(&self.path, error))
                .context(|| "cannot write the file for the second pass")?;
            self.records += 1;
            written.requests += 1;
        }
        Ok(())
    }

    fn end(&mut self, out: &mut dyn Write) -> Result<()> {
        let what = || "cannot use the file for the second pass";
        self.spool
            .flush()
            .map_err(|error| with_remedy(&self.path, error))
            .context(what)?;
        let file = self.spool.get_mut();
        let mut next: HashMap<u64, u64> = HashMap::new();
        let mut chunk = Vec::new();
        let mut end = self.records;
        while end > 0 {
            let begin = end.saturating_sub(CHUNK_RECORDS);
            let records = usize::try_from(end - begin).expect("a chunk is small");
            chunk.resize(records * RECORD_BYTES, 0);
            let at = begin * RECORD_BYTES as u64;
            file.read_exact_at(&mut chunk, at).context(what)?;
            for (index, record) in chunk.chunks_exact_mut(RECORD_BYTES).enumerate().rev() {
                // Requests are counted from one.
                let number = begin + index as u64 + 1;
                let later = next.insert(u64_at(record, 4), number);
                let later = later.map_or(-1, u64::cast_signed);
                record[16..].copy_from_slice(&later.to_le_bytes());
            }
            file.write_all_at(&chunk, at).context(what)?;
            end = begin;
        }
        file.seek(SeekFrom::Start(0)).context(what)?;
        std::io::copy(file, out).context(|| "cannot write the trace")?;
        Ok(())
    }
}
