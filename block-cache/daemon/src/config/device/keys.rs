//! The keys of `[[device]]`.

use std::path::PathBuf;

use forebay_device::nbd::MAX_CONNECTIONS;
use forebay_terminal::size::{Interval, Rate, Size};
use serde::Deserialize;
use toml::Spanned;

use crate::config::whole::{Count, Whole};

/// Kind of a device.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(in crate::config) enum Kind {
    File,
    #[serde(rename = "nvme-tcp")]
    NvmeTcp,
    Nbd,
    Rbd,
    Object,
    Mem,
    Pmem,
    Btt,
    Transit,
    Emulate,
}

impl Kind {
    /// Returns the name in the file.
    pub(in crate::config) const fn as_str(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::NvmeTcp => "nvme-tcp",
            Self::Nbd => "nbd",
            Self::Rbd => "rbd",
            Self::Object => "object",
            Self::Mem => "mem",
            Self::Pmem => "pmem",
            Self::Btt => "btt",
            Self::Transit => "transit",
            Self::Emulate => "emulate",
        }
    }

    /// Whether the device is at a server, which others may use too.
    pub(in crate::config) const fn is_remote(self) -> bool {
        matches!(self, Self::NvmeTcp | Self::Nbd | Self::Rbd | Self::Object)
    }
}

/// A table `[[device]]` as written; the kind decides which keys apply.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct RawDevice {
    /// Name of the device.
    ///
    /// - Type: name
    pub(in crate::config) name: Spanned<String>,
    /// Kind of the device.
    ///
    /// - Range: `file`, `nvme-tcp`, `nbd`, `rbd`, `object`, `mem`, `pmem`, `btt`, `transit`,
    ///   `emulate`
    pub(super) kind: Spanned<Kind>,
    /// The medium.
    ///
    /// - Of: `file`, `pmem`
    /// - Default: required
    /// - Range: one device each
    pub(super) path: Option<Spanned<PathBuf>>,
    /// Address of the device, with options.
    ///
    /// - Of: `nvme-tcp`, `nbd`
    /// - Type: text
    /// - Default: required
    /// - Range: one device each
    pub(super) uri: Option<Spanned<String>>,
    /// File with this machine's secret.
    ///
    /// - Of: `nvme-tcp`
    /// - Default: none
    /// - Range: mode 0600
    pub(super) secrets: Option<Spanned<PathBuf>>,
    /// Connections to the server, where it allows several.
    ///
    /// - Of: `nbd`
    /// - Default: `1`
    /// - Range: 1 to 16
    pub(super) connections: Option<Spanned<Whole<1, { MAX_CONNECTIONS as u32 }>>>,
    /// Pool of the image.
    ///
    /// - Of: `rbd`
    /// - Type: text
    /// - Default: required
    pub(super) pool: Option<Spanned<String>>,
    /// Image in the pool.
    ///
    /// - Of: `rbd`
    /// - Type: text
    /// - Default: required
    /// - Range: one device each
    pub(super) image: Option<Spanned<String>>,
    /// Snapshot of the image or volume; its volumes are read-only.
    ///
    /// - Of: `rbd`, `object`
    /// - Type: text
    /// - Default: none
    pub(in crate::config) snapshot: Option<Spanned<String>>,
    /// Name of this client in the cluster, without `client.`.
    ///
    /// - Of: `rbd`
    /// - Type: text
    /// - Default: `"admin"`
    pub(super) client: Option<Spanned<String>>,
    /// The cluster's configuration.
    ///
    /// - Of: `rbd`
    /// - Default: `"/etc/ceph/ceph.conf"`
    pub(super) conf: Option<Spanned<PathBuf>>,
    /// Folder of the objects: `s3://`, `gs://`, `az://`, `file://`, or a path.
    ///
    /// - Of: `object`
    /// - Type: text
    /// - Default: required
    /// - Range: one device each
    pub(super) url: Option<Spanned<String>>,
    /// URL of a server that is not the provider's own.
    ///
    /// - Of: `object`
    /// - Type: text
    /// - Default: the provider's
    /// - Range: `https`; `http` on this machine
    pub(super) endpoint: Option<Spanned<String>>,
    /// Region of an S3 bucket.
    ///
    /// - Of: `object`
    /// - Type: text
    /// - Default: `AWS_REGION`, or us-east-1
    pub(super) region: Option<Spanned<String>>,
    /// File with the credentials.
    ///
    /// - Of: `object`
    /// - Default: those of the environment
    /// - Range: mode 0600
    pub(super) credentials: Option<Spanned<PathBuf>>,
    /// Accepts an S3 `endpoint` on another machine with plain HTTP.
    ///
    /// - Of: `object`
    /// - Default: `false`
    pub(super) allow_http: Option<Spanned<bool>>,
    /// Prices for the estimate in the status.
    ///
    /// - Of: `object`
    /// - Type: text
    /// - Default: none
    /// - Range: see below
    pub(super) prices: Option<Spanned<String>>,
    /// `false` uses the page cache instead of `O_DIRECT`.
    ///
    /// - Of: `file`
    /// - Default: `true`
    pub(super) direct: Option<Spanned<bool>>,
    /// The path always means this device.
    ///
    /// - Of: `file`
    /// - Type: text
    /// - Default: none
    /// - Range: `path`
    pub(super) identity: Option<Spanned<String>>,
    /// Size of the device. Creates a volume in object storage, or extends it.
    ///
    /// - Of: `mem`, `object`
    /// - Default: required; that of the volume in object storage
    /// - Range: a multiple of 4K above zero
    pub(super) size: Option<Spanned<Size>>,
    /// Accepts `wb` and `wo` on a cache that ends with the process.
    ///
    /// - Of: `mem`
    /// - Default: `false`
    pub(super) volatile: Option<Spanned<bool>>,
    /// Device under it.
    ///
    /// - Of: `btt`, `transit`, `emulate`
    /// - Type: device name
    /// - Default: required
    pub(super) on: Option<Spanned<String>>,
    /// Memory for data, in `/dev/shm`.
    ///
    /// - Of: `transit`
    /// - Default: `"512M"`
    /// - Range: 1M to 1T
    pub(super) capacity: Option<Spanned<Size>>,
    /// Use of the slots.
    ///
    /// - Of: `transit`
    /// - Type: text
    /// - Default: `"caiti"`
    /// - Range: a policy of the transit cache
    pub(super) policy: Option<Spanned<String>>,
    /// All latencies and limits; excludes the keys below.
    ///
    /// - Of: `emulate`
    /// - Type: text
    /// - Default: none
    /// - Range: `hdd`, `optane-dimm`, `cxl-dram`
    pub(super) profile: Option<Spanned<String>>,
    /// Time of each read, write and flush.
    ///
    /// - Of: `emulate`
    /// - Default: `"0s"`
    /// - Range: at most 1h
    pub(super) latency: Option<Spanned<Interval>>,
    /// Time of each read.
    ///
    /// - Of: `emulate`
    /// - Default: `latency`
    /// - Range: at most 1h
    pub(super) read_latency: Option<Spanned<Interval>>,
    /// Time of each write.
    ///
    /// - Of: `emulate`
    /// - Default: `latency`
    /// - Range: at most 1h
    pub(super) write_latency: Option<Spanned<Interval>>,
    /// Time of each flush.
    ///
    /// - Of: `emulate`
    /// - Default: `latency`
    /// - Range: at most 1h
    pub(super) flush_latency: Option<Spanned<Interval>>,
    /// Bytes a second, shared by reads and writes.
    ///
    /// - Of: `emulate`
    /// - Default: no limit
    /// - Range: above zero
    pub(super) bandwidth: Option<Spanned<Rate>>,
    /// Operations a second, shared by reads and writes.
    ///
    /// - Of: `emulate`
    /// - Default: no limit
    /// - Range: 1 to 4294967295
    pub(super) iops: Option<Spanned<Count>>,
    /// Operations in progress at once.
    ///
    /// - Of: `emulate`
    /// - Default: no limit
    /// - Range: 1 to 4294967295
    pub(super) queue_depth: Option<Spanned<Count>>,
}
