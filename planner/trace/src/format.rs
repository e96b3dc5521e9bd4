//! The supported trace formats.

use std::fmt;
use std::str::FromStr;

use forebay_block::{Error, ErrorKind};

/// A trace format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Format {
    /// Forebay's own: [`crate::native`].
    Native,
    /// MSR Cambridge (SNIA IOTTA 388).
    Msr,
    /// Alibaba Cloud block traces.
    Alibaba,
    /// Tencent Cloud Block Storage.
    Tencent,
    /// SYSTOR '17, enterprise virtual desktops.
    Systor,
    /// Storage Performance Council, in the variant of the UMass Trace Repository.
    Spc,
    /// SSDSim and MQSim: five columns, time in nanoseconds.
    Ssdsim,
    /// Replayer: the columns of SSDSim, time in milliseconds.
    Replayer,
    /// flashsim: milliseconds, sizes in pages of 4 KiB.
    Flashsim,
    /// VMware vscsiStats, binary, version 1 or 2 (CloudPhysics).
    Vscsi,
    /// vscsiStats as text, time in seconds.
    VscsiCsv,
    /// vscsiStats as text, time in microseconds.
    VscsiCsvUs,
    /// libCacheSim's oracleGeneral.
    OracleGeneral,
    /// ARC's `.lis`.
    Lis,
    /// Numbers of 16 KiB blocks, four bytes each, little-endian.
    BlockIds,
    /// Smartphone logs of eight columns.
    Smartphone,
    /// The default output of blkparse.
    Blkparse,
    /// fio's I/O log, version 2 or 3.
    Fio,
    /// FIU (SNIA IOTTA), with a checksum of each block's content.
    Fiu,
}

impl Format {
    /// All formats.
    pub const ALL: [Self; 19] = [
        Self::Native,
        Self::Msr,
        Self::Alibaba,
        Self::Tencent,
        Self::Systor,
        Self::Spc,
        Self::Ssdsim,
        Self::Replayer,
        Self::Flashsim,
        Self::Vscsi,
        Self::VscsiCsv,
        Self::VscsiCsvUs,
        Self::OracleGeneral,
        Self::Lis,
        Self::BlockIds,
        Self::Smartphone,
        Self::Blkparse,
        Self::Fio,
        Self::Fiu,
    ];

    /// Returns the name for `--format`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Msr => "msr",
            Self::Alibaba => "alibaba",
            Self::Tencent => "tencent",
            Self::Systor => "systor",
            Self::Spc => "spc",
            Self::Ssdsim => "ssdsim",
            Self::Replayer => "replayer",
            Self::Flashsim => "flashsim",
            Self::Vscsi => "vscsi",
            Self::VscsiCsv => "vscsi-csv",
            Self::VscsiCsvUs => "vscsi-csv-us",
            Self::OracleGeneral => "oracle-general",
            Self::Lis => "lis",
            Self::BlockIds => "block-ids",
            Self::Smartphone => "smartphone",
            Self::Blkparse => "blkparse",
            Self::Fio => "fio",
            Self::Fiu => "fiu",
        }
    }

    /// Returns the columns of a record, with units.
    #[must_use]
    pub const fn columns(self) -> &'static str {
        match self {
            Self::Native => "binary: time (ns), offset, length (bytes), volume, operation",
            Self::Msr => {
                "time (FILETIME, 100 ns), host, disk, Read|Write, offset (bytes), size (bytes), \
                 response (100 ns)"
            }
            Self::Alibaba => "device, R|W, offset (bytes), length (bytes), time (us)",
            Self::Tencent => "time (s), offset (sectors), size (sectors), 0 read | 1 write, volume",
            Self::Systor => "time (s), response (s), R|W, LUN, offset (bytes), size (bytes)",
            Self::Spc => "ASU, LBA (sectors), size (bytes), r|w, time (s)",
            Self::Ssdsim => "time (ns), device, LBA (sectors), size (sectors), 1 read | 0 write",
            Self::Replayer => "time (ms), device, LBA (sectors), size (sectors), 1 read | 0 write",
            Self::Flashsim => {
                "time (ms), device, LBA (sectors), size (4 KiB pages), 1 read | 0 write"
            }
            Self::Vscsi => {
                "binary: SCSI command, length (bytes), LBN (sectors), time (us); version 1 or 2"
            }
            Self::VscsiCsv => "version, time (s), SCSI command (hex), size (bytes), LBN (sectors)",
            Self::VscsiCsvUs => {
                "version, time (us), SCSI command (hex), size (bytes), LBN (sectors)"
            }
            Self::OracleGeneral => {
                "binary: time (s), id (sector), size (bytes), next access; all are reads"
            }
            Self::Lis => {
                "first block, blocks (512 bytes), ignored, request number; all are reads, no time"
            }
            Self::BlockIds => {
                "binary: block number (16 KiB), four bytes little-endian; all are reads, no time"
            }
            Self::Smartphone => {
                "LBA (sectors), sectors, bytes, flags (1 write), time (s), three more times"
            }
            Self::Blkparse => {
                "device, CPU, sequence, time (s), pid, action, RWBS, sector + sectors [process]; \
                 the events Q, or else I, D or C"
            }
            Self::Fiu => {
                "time (ns), pid, process, LBA (sectors), size (sectors), R|W, major, minor, MD5"
            }
            Self::Fio => "version 2: file, action, offset, length; version 3: time (us) first",
        }
    }

    /// Returns all names, for an error that lists them.
    pub(crate) fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let found = Self::ALL.into_iter().find(|format| format.name() == text);
        found.ok_or_else(|| {
            let said = format!(
                "{text:?} is not a trace format\nhelp: write one of {}",
                Self::names()
            );
            Error::new(ErrorKind::InvalidInput, said)
        })
    }
}
