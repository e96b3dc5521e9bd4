//! Binary records of one size.

use forebay_block::Result;

use super::input::Input;
use super::{Bad, Counts, Place, Source};
use crate::{Request, Volumes};

/// Decoder of one record. All requests are of the file's only volume, number zero.
pub(super) trait Record: Send {
    /// Size of a record, bytes.
    const BYTES: usize;

    /// Decodes one record of [`Record::BYTES`]; `None` if it has no request of a trace.
    fn record(&mut self, bytes: &[u8]) -> Result<Option<Request>, Bad>;
}

pub(super) struct RecordReader<R> {
    input: Input,
    record: R,
    volumes: Volumes,
    counts: Counts,
    skip_bad: bool,
    number: u64,
}

impl<R: Record> RecordReader<R> {
    pub(super) fn new(input: Input, record: R, volumes: Volumes, skip_bad: bool) -> Self {
        Self {
            input,
            record,
            volumes,
            counts: Counts::default(),
            skip_bad,
            number: 0,
        }
    }

    fn records(&mut self, batch: &mut Vec<Request>, full: usize) -> Result<()> {
        let mut done = 0;
        let mut failed = None;
        let room = full - batch.len();
        for bytes in self.input.data().chunks_exact(R::BYTES).take(room) {
            done += 1;
            match self.record.record(bytes) {
                Ok(Some(request)) => batch.push(request),
                Ok(None) => self.counts.ignored += 1,
                Err(_) if self.skip_bad => self.counts.bad += 1,
                Err(bad) => {
                    let place = Place::Record {
                        number: self.number + done,
                        offset: self.input.offset() + (done - 1) * R::BYTES as u64,
                    };
                    failed = Some(bad.error(self.input.name(), place, bytes));
                    break;
                }
            }
        }
        self.number += done;
        self.input
            .consume(usize::try_from(done).expect("within the window") * R::BYTES);
        failed.map_or(Ok(()), Err)
    }
}

impl<R: Record> Source for RecordReader<R> {
    fn fill(&mut self, batch: &mut Vec<Request>, limit: usize) -> Result<bool> {
        let full = batch.len() + limit;
        loop {
            self.records(batch, full)?;
            if batch.len() >= full {
                return Ok(true);
            }
            if self.input.more()? || self.input.data().len() >= R::BYTES {
                continue;
            }
            let rest = self.input.data();
            if rest.is_empty() {
                return Ok(false);
            }
            if !self.skip_bad {
                let place = Place::Record {
                    number: self.number + 1,
                    offset: self.input.offset(),
                };
                return Err(Bad::CUT_OFF.error(self.input.name(), place, rest));
            }
            self.counts.bad += 1;
            let whole = rest.len();
            self.input.consume(whole);
            return Ok(false);
        }
    }

    fn volumes(&self) -> &Volumes {
        &self.volumes
    }

    fn counts(&self) -> Counts {
        self.counts
    }
}
