//! `[[device]]`: a device that stores bytes.

mod keys;
mod object;
mod rbd;

use std::path::PathBuf;
use std::time::Duration;

use forebay_device::emulate::disk::DiskProfile;
use forebay_device::emulate::memory::MemoryProfile;
use forebay_device::nbd;
use forebay_device::nvme_tcp::Uri;
use forebay_device::rbd::Address;
use forebay_transit::Policy;
use toml::Spanned;

pub(super) use keys::{Kind, RawDevice};
pub use object::{Consumption, ObjectSettings, Prices};

use super::duration::{self, LATENCIES};
use super::problem::{Problems, Span};
use super::whole::{Count, Whole};
use forebay_terminal::size::Interval;

/// A named device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Name in the configuration.
    pub name: String,
    /// Kind of the device, with its settings.
    pub kind: DeviceKind,
    /// Line in the file.
    pub line: usize,
    /// Whether its path identifies it if its medium has no name (`identity = "path"`).
    pub known_by_path: bool,
}

/// The kinds of device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A regular file or a raw block device.
    File {
        /// Absolute path.
        path: PathBuf,
        /// Whether I/O bypasses the page cache (`O_DIRECT`).
        direct: bool,
    },
    /// A namespace of an NVMe/TCP target.
    NvmeTcp {
        /// Address, with the options of the connection.
        uri: Box<Uri>,
        /// File with this host's secret, if the target requires one; absolute path.
        secrets: Option<PathBuf>,
    },
    /// An export of an NBD server.
    Nbd {
        /// Address of the export.
        uri: Box<nbd::Uri>,
        /// Number of connections, where the server allows several.
        connections: u16,
    },
    /// An image of a Ceph cluster.
    Rbd(Box<Address>),
    /// A volume in object storage.
    Object(Box<ObjectSettings>),
    /// Memory of the process.
    Mem {
        /// Size, bytes.
        size_bytes: u64,
        /// Whether the user accepts that acknowledged writes are lost with the process.
        volatile: bool,
    },
    /// Byte-addressable media: a DAX character device, or a file that is mapped.
    Pmem {
        /// Absolute path.
        path: PathBuf,
    },
    /// A block translation table over byte-addressable media.
    Btt {
        /// Name of the device under it, of kind `pmem`.
        on: String,
    },
    /// A DRAM transit cache over another device.
    Transit {
        /// Name of the device under it.
        on: String,
        /// Capacity for data, bytes.
        capacity_bytes: u64,
        /// Policy of its slots.
        policy: Policy,
    },
    /// Byte-addressable media with the declared latencies and bandwidths of a memory.
    EmulatedMemory {
        /// Name of the device under it, of kind `pmem`.
        on: String,
        /// Declared latencies and bandwidths.
        profile: MemoryProfile,
    },
    /// Another device with the declared arm and platter of a disk.
    EmulatedDisk {
        /// Name of the device under it.
        on: String,
        /// Declared arm and platter.
        profile: DiskProfile,
    },
    /// Another device with declared latency and bandwidth.
    Emulate {
        /// Name of the device under it.
        on: String,
        /// Latency of each read.
        read_latency: Duration,
        /// Latency of each write.
        write_latency: Duration,
        /// Latency of each flush.
        flush_latency: Duration,
        /// Bandwidth of all operations, bytes per second; `None` for no limit.
        bandwidth_bytes_per_s: Option<u64>,
        /// Operations per second; `None` for no limit.
        iops: Option<u32>,
        /// Number of concurrent operations; `None` for no limit.
        queue_depth: Option<u32>,
    },
}

/// Default capacity of a transit cache, bytes.
const TRANSIT_BYTES: u64 = 512 << 20;

fn span<T>(value: Option<&Spanned<T>>) -> Option<Span> {
    value.map(Spanned::span)
}

impl RawDevice {
    /// Returns the kind.
    pub(super) fn kind(&self) -> Kind {
        *self.kind.get_ref()
    }

    /// Returns the name of the device under this one.
    pub(super) fn under(&self) -> Option<&Spanned<String>> {
        let layer = matches!(self.kind(), Kind::Btt | Kind::Transit | Kind::Emulate);
        self.on.as_ref().filter(|_| layer)
    }

    /// Checks the keys against the kind. Returns `None` if a required key is missing.
    pub(super) fn resolve(&self, problems: &mut Problems<'_>) -> Option<Device> {
        let name = self.name.get_ref();
        let kind = *self.kind.get_ref();
        super::check_name(problems, &self.name, "device");
        self.refuse_foreign_keys(problems);
        let mut missing = |key: &str, example: &str| {
            problems.add(
                &self.name.span(),
                format!("device {name:?} of kind {} has no `{key}`", kind.as_str()),
                format!("add {key} = {example}"),
            );
        };
        let kind = match kind {
            Kind::File => {
                let Some(path) = &self.path else {
                    missing("path", "\"/dev/...\" or the path of a file");
                    return None;
                };
                DeviceKind::File {
                    path: problems.base().join(path.get_ref()),
                    direct: self.direct.as_ref().is_none_or(|direct| *direct.get_ref()),
                }
            }
            Kind::NvmeTcp => {
                let Some(uri) = &self.uri else {
                    missing("uri", "\"nvme-tcp://HOST:PORT/NQN\"");
                    return None;
                };
                match uri.get_ref().parse() {
                    Ok(parsed) => DeviceKind::NvmeTcp {
                        uri: Box::new(parsed),
                        secrets: self
                            .secrets
                            .as_ref()
                            .map(|path| problems.base().join(path.get_ref())),
                    },
                    Err(error) => {
                        let error: forebay_block::Error = error;
                        let help = "write uri = \"nvme-tcp://HOST:PORT/NQN\"";
                        problems.add(&uri.span(), error.report(), help);
                        return None;
                    }
                }
            }
            Kind::Nbd => {
                let Some(uri) = &self.uri else {
                    missing("uri", "\"nbd://HOST:PORT/EXPORT\"");
                    return None;
                };
                let connections = self.connections.as_ref().and_then(|connections| {
                    let what = |number| format!("device {name:?} cannot have {number} connections");
                    Whole::check(connections, problems, what, "")
                });
                match uri.get_ref().parse::<nbd::Uri>() {
                    Ok(parsed) if parsed.is_relative() => {
                        let what = format!("device {name:?}: the socket is not an absolute path");
                        let help = "write the whole path: the device is known by its URI";
                        problems.add(&uri.span(), what, help);
                        return None;
                    }
                    Ok(parsed) => DeviceKind::Nbd {
                        uri: Box::new(parsed),
                        connections: connections
                            .map_or(1, |number| u16::try_from(number).expect("at most 16")),
                    },
                    Err(error) => {
                        let help = "write uri = \"nbd://HOST:PORT/EXPORT\"";
                        problems.add(&uri.span(), error.report(), help);
                        return None;
                    }
                }
            }
            Kind::Rbd => DeviceKind::Rbd(Box::new(self.resolve_image(problems)?)),
            Kind::Object => DeviceKind::Object(Box::new(self.resolve_object(problems)?)),
            Kind::Mem => {
                let Some(size) = &self.size else {
                    missing("size", "\"256M\" or another size");
                    return None;
                };
                if size.get_ref().0 == 0 || size.get_ref().0 % 4096 != 0 {
                    problems.add(
                        &size.span(),
                        format!("the size of device {name:?} is not a multiple of 4K above zero"),
                        "write a size such as \"256M\"",
                    );
                }
                DeviceKind::Mem {
                    size_bytes: size.get_ref().0,
                    volatile: self.volatile.as_ref().is_some_and(|v| *v.get_ref()),
                }
            }
            Kind::Pmem => {
                let Some(path) = &self.path else {
                    missing("path", "\"/dev/dax0.0\", or the path of a file");
                    return None;
                };
                DeviceKind::Pmem {
                    path: problems.base().join(path.get_ref()),
                }
            }
            Kind::Btt => {
                let Some(on) = &self.on else {
                    missing("on", "the name of a device of kind pmem");
                    return None;
                };
                DeviceKind::Btt {
                    on: on.get_ref().clone(),
                }
            }
            Kind::Transit => {
                let Some(on) = &self.on else {
                    missing("on", "the name of the device under it");
                    return None;
                };
                if let Some(capacity) = &self.capacity
                    && !(1 << 20..=1 << 40).contains(&capacity.get_ref().0)
                {
                    problems.add(
                        &capacity.span(),
                        format!("transit cache {name:?} has between 1M and 1T of memory"),
                        "write a size such as \"512M\", or leave `capacity` out",
                    );
                }
                let policy = self.policy.as_ref().map(|policy| {
                    let parsed = forebay_caiti::named(policy.get_ref());
                    parsed.unwrap_or_else(|error| {
                        let help = "leave `policy` out, or write \"caiti\"";
                        problems.add(&policy.span(), error.report(), help);
                        Policy::default()
                    })
                });
                DeviceKind::Transit {
                    on: on.get_ref().clone(),
                    capacity_bytes: (self.capacity.as_ref())
                        .map_or(TRANSIT_BYTES, |capacity| capacity.get_ref().0),
                    policy: policy.unwrap_or_default(),
                }
            }
            Kind::Emulate => {
                let Some(on) = &self.on else {
                    missing("on", "the name of the device under it");
                    return None;
                };
                if let Some(profile) = &self.profile {
                    return Some(Device {
                        name: name.clone(),
                        kind: self.with_profile(on.get_ref(), profile, problems)?,
                        line: problems.line(self.name.span().start),
                        known_by_path: false,
                    });
                }
                let queue_depth = self.queue_depth.as_ref().and_then(|depth| {
                    let what =
                        |depth| format!("device {name:?} cannot have a queue depth of {depth}");
                    let or = ", or leave `queue_depth` out where there is no limit";
                    Count::check(depth, problems, what, or)
                });
                let iops = self.iops.as_ref().and_then(|iops| {
                    let what = |iops| {
                        format!("device {name:?} cannot be limited to {iops} operations a second")
                    };
                    let or = ", or leave `iops` out where there is no limit";
                    Count::check(iops, problems, what, or)
                });
                let mut given = |own: &Option<Spanned<Interval>>, key: &str| {
                    let what = format!("device {name:?}: a `{key}`");
                    duration::check(&LATENCIES, own.as_ref(), &what, problems)
                };
                let latency = given(&self.latency, "latency").unwrap_or(Duration::ZERO);
                let read = given(&self.read_latency, "read_latency");
                let write = given(&self.write_latency, "write_latency");
                let flush = given(&self.flush_latency, "flush_latency");
                DeviceKind::Emulate {
                    on: on.get_ref().clone(),
                    read_latency: read.unwrap_or(latency),
                    write_latency: write.unwrap_or(latency),
                    flush_latency: flush.unwrap_or(latency),
                    bandwidth_bytes_per_s: self.bandwidth.as_ref().map(|b| b.get_ref().0),
                    iops,
                    queue_depth,
                }
            }
        };
        if let Some(identity) = (self.identity.as_ref()).filter(|it| *it.get_ref() != "path") {
            problems.add(
                &identity.span(),
                format!("{:?} is no identity of device {name:?}", identity.get_ref()),
                "write identity = \"path\" if the path always means this device, or leave \
                 `identity` out",
            );
        }
        Some(Device {
            name: name.clone(),
            kind,
            line: problems.line(self.name.span().start),
            known_by_path: self.identity.is_some(),
        })
    }

    /// Whether it is byte-addressable: media, or media with the profile of a memory.
    pub(super) fn is_memory(&self) -> bool {
        let profile = self.profile.as_ref().map(Spanned::get_ref);
        self.kind() == Kind::Pmem
            || (self.kind() == Kind::Emulate
                && profile.is_some_and(|profile| DiskProfile::named(profile).is_none()))
    }

    /// Returns the kind of a device with a profile, which sets all other values.
    fn with_profile(
        &self,
        on: &str,
        profile: &Spanned<String>,
        problems: &mut Problems<'_>,
    ) -> Option<DeviceKind> {
        let others = [
            span(self.latency.as_ref()),
            span(self.read_latency.as_ref()),
            span(self.write_latency.as_ref()),
            span(self.flush_latency.as_ref()),
            span(self.bandwidth.as_ref()),
            span(self.iops.as_ref()),
            span(self.queue_depth.as_ref()),
        ];
        if let Some(other) = others.into_iter().flatten().next() {
            problems.add(
                &other,
                format!(
                    "device {:?} has the profile {:?}, which says all of its latencies and limits",
                    self.name.get_ref(),
                    profile.get_ref()
                ),
                "remove this, or remove `profile`",
            );
        }
        let on = on.to_owned();
        if let Some(profile) = DiskProfile::named(profile.get_ref()) {
            return Some(DeviceKind::EmulatedDisk { on, profile });
        }
        match profile.get_ref().parse() {
            Ok(profile) => Some(DeviceKind::EmulatedMemory { on, profile }),
            Err(error) => {
                let error: forebay_block::Error = error;
                let help = "write \"hdd\", or, over a pmem device, \"optane-dimm\" or \"cxl-dram\"";
                problems.add(&profile.span(), error.report(), help);
                None
            }
        }
    }

    fn refuse_foreign_keys(&self, problems: &mut Problems<'_>) {
        const OBJECT: &[Kind] = &[Kind::Object];
        const EMULATE: &[Kind] = &[Kind::Emulate];
        const TRANSIT: &[Kind] = &[Kind::Transit];
        const LAYERS: &[Kind] = &[Kind::Emulate, Kind::Btt, Kind::Transit];
        let keys: [(&str, Option<Span>, &[Kind]); 30] = [
            ("path", span(self.path.as_ref()), &[Kind::File, Kind::Pmem]),
            ("uri", span(self.uri.as_ref()), &[Kind::NvmeTcp, Kind::Nbd]),
            ("connections", span(self.connections.as_ref()), &[Kind::Nbd]),
            ("pool", span(self.pool.as_ref()), &[Kind::Rbd]),
            ("image", span(self.image.as_ref()), &[Kind::Rbd]),
            (
                "snapshot",
                span(self.snapshot.as_ref()),
                &[Kind::Rbd, Kind::Object],
            ),
            ("client", span(self.client.as_ref()), &[Kind::Rbd]),
            ("conf", span(self.conf.as_ref()), &[Kind::Rbd]),
            ("url", span(self.url.as_ref()), OBJECT),
            ("endpoint", span(self.endpoint.as_ref()), OBJECT),
            ("region", span(self.region.as_ref()), OBJECT),
            ("credentials", span(self.credentials.as_ref()), OBJECT),
            ("allow_http", span(self.allow_http.as_ref()), OBJECT),
            ("prices", span(self.prices.as_ref()), OBJECT),
            ("secrets", span(self.secrets.as_ref()), &[Kind::NvmeTcp]),
            ("direct", span(self.direct.as_ref()), &[Kind::File]),
            ("identity", span(self.identity.as_ref()), &[Kind::File]),
            ("size", span(self.size.as_ref()), &[Kind::Mem, Kind::Object]),
            ("volatile", span(self.volatile.as_ref()), &[Kind::Mem]),
            ("on", span(self.on.as_ref()), LAYERS),
            ("capacity", span(self.capacity.as_ref()), TRANSIT),
            ("policy", span(self.policy.as_ref()), TRANSIT),
            ("profile", span(self.profile.as_ref()), EMULATE),
            ("latency", span(self.latency.as_ref()), EMULATE),
            ("read_latency", span(self.read_latency.as_ref()), EMULATE),
            ("write_latency", span(self.write_latency.as_ref()), EMULATE),
            ("flush_latency", span(self.flush_latency.as_ref()), EMULATE),
            ("bandwidth", span(self.bandwidth.as_ref()), EMULATE),
            ("iops", span(self.iops.as_ref()), EMULATE),
            ("queue_depth", span(self.queue_depth.as_ref()), EMULATE),
        ];
        let kind = *self.kind.get_ref();
        for (key, span, of) in keys {
            let Some(span) = span.filter(|_| !of.contains(&kind)) else {
                continue;
            };
            let of: Vec<_> = of
                .iter()
                .map(|kind| format!("{:?}", kind.as_str()))
                .collect();
            problems.add(
                &span,
                format!(
                    "`{key}` means nothing to device {:?} of kind {}",
                    self.name.get_ref(),
                    kind.as_str()
                ),
                format!("remove it; it belongs to kind = {}", of.join(" or ")),
            );
        }
    }
}
