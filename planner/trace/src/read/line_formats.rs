//! Table of the text formats: each with the decoder of its lines.

use super::blkparse::Blkparse;
use super::fio::Fio;
use super::fiu::Fiu;
use super::lis::Lis;
use super::smartphone::Smartphone;
use super::ssdsim::Ssdsim;
use super::vscsi_csv::VscsiCsv;
use super::{LineFormat, alibaba, msr, spc, systor, tencent};
use crate::Format;

/// Returns the decoder of the lines of a text that begins with `head`. `None` for a binary format.
pub(super) fn line_format(format: Format, head: &[u8]) -> Option<Box<dyn LineFormat>> {
    Some(match format {
        Format::Msr => Box::new(msr::Msr),
        Format::Alibaba => Box::new(alibaba::Alibaba),
        Format::Tencent => Box::new(tencent::Tencent),
        Format::Systor => Box::new(systor::Systor),
        Format::Spc => Box::new(spc::Spc),
        Format::Ssdsim => Box::new(Ssdsim::NANOSECONDS),
        Format::Replayer => Box::new(Ssdsim::REPLAYER),
        Format::Flashsim => Box::new(Ssdsim::FLASHSIM),
        Format::VscsiCsv => Box::new(VscsiCsv::SECONDS),
        Format::VscsiCsvUs => Box::new(VscsiCsv::MICROSECONDS),
        Format::Lis => Box::new(Lis::default()),
        Format::Smartphone => Box::new(Smartphone),
        Format::Blkparse => Box::new(Blkparse::of(head)),
        Format::Fio => Box::new(Fio::default()),
        Format::Fiu => Box::new(Fiu),
        Format::Native | Format::Vscsi | Format::OracleGeneral | Format::BlockIds => return None,
    })
}
