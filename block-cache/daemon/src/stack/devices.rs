//! Opens the devices of a configuration.

use std::fs::Metadata;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_block::{BlockDevice, Context as _, Error, ErrorKind, Persistence, Result};
use forebay_btt::{Btt, BttDevice};
use forebay_device::counted::Counted;
use forebay_device::emulate::disk::EmulatedDisk;
use forebay_device::emulate::memory::{EmulatedPmem, Waiting};
use forebay_device::emulate::{EmulateDevice, Profile};
use forebay_device::faulted::Faulted;
use forebay_device::file::{FileDevice, FileDeviceOptions};
use forebay_device::mem::MemDevice;
use forebay_device::metered::Metered;
use forebay_device::pmem::{self, PmemDevice};
use forebay_io::file::Faults;
use forebay_io::pmem::{Pmem, PmemMapping};
use forebay_io::rt::meter::{self, Account};

use forebay_transit::Run;

use super::presence::Presence;
use super::remote::{remote, remote_of};
use super::stop::unless_stopped;
use super::table::{has_table, no_table};
use super::transit::{self, OpenTransit, Settings, Start};
use super::watched::Watched;
use crate::config::{Config, Device, DeviceKind};

/// Opens the device `name` with all layers under it, and counts its requests.
///
/// # Errors
/// The error of the device, with the place in the configuration.
pub(super) async fn open(
    config: &Config,
    name: &str,
    role: &'static str,
    start: &Start<'_>,
) -> Result<Watched> {
    start.stop.check()?;
    let remote = match remote_of(config, name) {
        Some(target) => unless_stopped(start.stop, target, remote(config, name)).await??,
        None => None,
    };
    let (remote, objects, failure) = match remote {
        Some(connected) => (Some(connected.device), connected.objects, connected.failure),
        None => (None, None, None),
    };
    let opening = start.stop.wait_for(format!("device {name:?} to be opened"));
    let Opened {
        mut device,
        what,
        faults,
        transits,
        ..
    } = open_stack(config, name, Purpose::Serve(start), remote)?;
    drop(opening);
    if !needs_no_slot_check(config, name) {
        let entry = config.device(name);
        let info = device.info();
        transit::refuse_if_left_in(start.state.path(), &info)
            .and_then(|()| transit::give_up_or_refuse(start, &info))
            .context(|| format!("{}: device {name:?}", config.place(entry.line)))?;
    }
    if meter::is_on() {
        device = Metered::wrap(device, Account::Device);
    }
    let (device, counters) = Counted::wrap(device);
    let leaf = config.stack(name).last().and_then(|leaf| match &leaf.kind {
        DeviceKind::File { path, .. } | DeviceKind::Pmem { path } => Some(path),
        _ => None,
    });
    Ok(Watched {
        presence: leaf.and_then(|path| Presence::of(path)),
        objects,
        failure,
        name: name.to_owned(),
        role,
        what,
        device,
        counters,
        faults,
        transits,
    })
}

/// Purpose of opening the devices of a stack.
#[derive(Clone, Copy)]
enum Purpose<'a> {
    /// To serve them, with the settings of the start.
    Serve(&'a Start<'a>),
    /// To inspect them. Data in transit caches stays there.
    Look {
        /// Whether damaged structures are going to be rewritten.
        mend: bool,
    },
}

/// Opens the device `name` for inspection and locks it. The layers are those of a daemon, without
/// transit caches, so that inspection finds each error that would stop a daemon. A file is written
/// or allocated only to `mend` its contents. Without `mend`, a table completes an interrupted write
/// in memory alone.
///
/// # Errors
/// As [`open`].
pub(crate) async fn open_to_look(
    config: &Config,
    name: &str,
    mend: bool,
) -> Result<Rc<dyn BlockDevice>> {
    let remote = remote(config, name).await?;
    let remote = remote.map(|connected| connected.device);
    Ok(open_stack(config, name, Purpose::Look { mend }, remote)?.device)
}

/// Whether slots over the medium of device `name` need no separate check. The open of a transit
/// cache checks them, and memory can have none.
pub(crate) fn needs_no_slot_check(config: &Config, name: &str) -> bool {
    let of = |entry: &Device| {
        matches!(
            entry.kind,
            DeviceKind::Transit { .. } | DeviceKind::Mem { .. }
        )
    };
    config.stack(name).into_iter().any(of)
}

/// A device while its layers are opened.
pub(super) struct Opened {
    pub(super) device: Rc<dyn BlockDevice>,
    /// Description of the device.
    pub(super) what: String,
    /// Faults of the file or the remote device at the bottom.
    faults: Rc<Faults>,
    /// Threads for its requests, if the requests are the work of a processor.
    pub(super) run: Option<Run>,
    transits: Vec<OpenTransit>,
}

impl Opened {
    fn new(device: Rc<dyn BlockDevice>, what: String) -> Self {
        Self {
            device,
            what,
            faults: Rc::default(),
            run: None,
            transits: Vec::new(),
        }
    }
}

fn open_stack(
    config: &Config,
    name: &str,
    purpose: Purpose<'_>,
    remote: Option<Rc<dyn BlockDevice>>,
) -> Result<Opened> {
    let entry = config.device(name);
    match &entry.kind {
        DeviceKind::NvmeTcp { .. }
        | DeviceKind::Nbd { .. }
        | DeviceKind::Rbd(_)
        | DeviceKind::Object(_) => {
            let device = remote.expect("what is another machine's was connected before");
            let what = device.info().name;
            let (device, faults) = Faulted::wrap(device);
            Ok(Opened {
                faults,
                ..Opened::new(device, what)
            })
        }
        DeviceKind::File { path, direct } => {
            let options = FileDeviceOptions {
                read_only: matches!(purpose, Purpose::Look { mend: false }),
                direct: *direct,
                exclusive: true,
                // An inspection finds the programs that a start would conflict with.
                locks_as_writer: true,
                name: name.to_owned(),
                known_by_path: entry.known_by_path,
                stop: match purpose {
                    Purpose::Serve(start) => Some(start.stop.clone()),
                    Purpose::Look { .. } => None,
                },
                ..FileDeviceOptions::default()
            };
            let (device, faults) = FileDevice::open_watched(path, options)
                .context(|| format!("{}: device {name:?}", config.place(entry.line)))?;
            Ok(Opened {
                faults,
                ..Opened::new(device, format!("file {}", path.display()))
            })
        }
        DeviceKind::Mem { size_bytes, .. } => {
            let device = MemDevice::new(name, *size_bytes);
            Ok(Opened::new(device, "memory".to_owned()))
        }
        DeviceKind::Pmem { .. } => {
            let (device, what) = open_memory(config, name, purpose)?;
            Ok(Opened::new(device, what))
        }
        DeviceKind::EmulatedMemory { .. } => {
            let (device, what) = open_emulated_memory(config, name, purpose)?;
            Ok(Opened::new(device, what))
        }
        DeviceKind::Btt { on } => {
            let place = || format!("{}: device {name:?}", config.place(entry.line));
            let path = config.file_of(on);
            if matches!(config.device(on).kind, DeviceKind::EmulatedMemory { .. }) {
                let (memory, what) = open_emulated_memory(config, on, purpose)?;
                return open_table(&memory, &what, name, path).context(place);
            }
            let (memory, what) = open_memory(config, on, purpose)?;
            open_table(&memory, &what, name, path).context(place)
        }
        DeviceKind::Transit {
            on,
            capacity_bytes,
            policy,
        } => {
            let under = open_stack(config, on, purpose, remote)?;
            let Purpose::Serve(start) = purpose else {
                return Ok(under);
            };
            let settings = Settings {
                name,
                capacity_bytes: *capacity_bytes,
                policy: *policy,
                in_memory: matches!(
                    config.stack(name).last().map(|leaf| &leaf.kind),
                    Some(DeviceKind::Mem { .. })
                ),
            };
            let cache = transit::open(&settings, &under.device, under.run.as_ref(), start)
                .context(|| format!("{}: device {name:?}", config.place(entry.line)))?;
            let mut transits = under.transits;
            let device = cache.device();
            transits.push(cache);
            Ok(Opened {
                device,
                what: format!("{policy} transit cache over {}", under.what),
                faults: under.faults,
                run: None,
                transits,
            })
        }
        DeviceKind::EmulatedDisk { on, profile } => {
            let under = open_stack(config, on, purpose, remote)?;
            Ok(Opened {
                device: EmulatedDisk::wrap(under.device, *profile),
                what: format!("{}, {profile}", under.what),
                run: None,
                ..under
            })
        }
        DeviceKind::Emulate {
            on,
            read_latency,
            write_latency,
            flush_latency,
            bandwidth_bytes_per_s,
            iops,
            queue_depth,
        } => {
            let under = open_stack(config, on, purpose, remote)?;
            let us = |time: &Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            let profile = Profile {
                read_latency_us: us(read_latency),
                write_latency_us: us(write_latency),
                flush_latency_us: us(flush_latency),
                bandwidth_bytes_per_s: bandwidth_bytes_per_s.unwrap_or(0),
                iops: iops.unwrap_or(0),
                queue_depth: queue_depth.unwrap_or(0),
            };
            Ok(Opened {
                device: EmulateDevice::wrap(under.device, profile),
                what: format!("{}, {profile}", under.what),
                run: None,
                ..under
            })
        }
    }
}

/// Opens the block translation table `name` on a byte-addressable memory at `path`.
fn open_table<P: Pmem + 'static>(
    memory: &PmemDevice<P>,
    what: &str,
    name: &str,
    path: Option<&Path>,
) -> Result<Opened> {
    let on = &memory.info().name;
    let table = Btt::open(memory.memory()).map_err(|error| match (error.kind(), path) {
        (ErrorKind::NotFound, Some(path)) => no_table(on, path),
        _ => error.context(format!("the table on device {on:?}")),
    })?;
    let device = Arc::new(BttDevice::new(Arc::new(table), name, &memory.info()));
    let run = Arc::clone(&device);
    Ok(Opened {
        run: Some(Arc::new(move |request| run.run(request))),
        ..Opened::new(
            Rc::new(device),
            format!("block translation table on {what}"),
        )
    })
}

/// Opens the byte-addressable device `name`, with its configured latencies and bandwidths.
fn open_emulated_memory(
    config: &Config,
    name: &str,
    purpose: Purpose<'_>,
) -> Result<(Rc<PmemDevice<EmulatedPmem<PmemMapping>>>, String)> {
    let DeviceKind::EmulatedMemory { on, profile } = &config.device(name).kind else {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("device {name:?} is not emulated memory"),
        ));
    };
    let (under, what) = open_memory(config, on, purpose)?;
    let memory = EmulatedPmem::new(under.memory(), *profile, Waiting::Spin);
    let device = PmemDevice::emulated(Arc::new(memory), name, &under.info(), profile.to_string());
    Ok((Rc::new(device), format!("{what}, {profile}")))
}

/// Returns the byte-addressable device `name` and its description.
fn open_memory(
    config: &Config,
    name: &str,
    purpose: Purpose<'_>,
) -> Result<(Rc<PmemDevice<PmemMapping>>, String)> {
    let entry = config.device(name);
    let DeviceKind::Pmem { path } = &entry.kind else {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("device {name:?} is not byte-addressable\n    help: name one of kind pmem"),
        ));
    };
    let opened = match purpose {
        Purpose::Look { mend: false } => PmemDevice::open_to_look(path, name),
        _ => PmemDevice::open(path, name),
    };
    let device = opened.context(|| format!("{}: device {name:?}", config.place(entry.line)))?;
    let what = format!("{}, {}", path.display(), pmem::describe(&device.memory()));
    if device.info().persistence != Persistence::Media {
        tracing::warn!("device {name:?} ({what}): what it holds does not survive a power loss");
    }
    Ok((device, what))
}

/// Opens the device at `path`, as [`open_under`], unless a transit cache over it still holds data.
///
/// # Errors
/// `Busy` if one does.
pub(crate) fn open_path(path: &Path, options: FileDeviceOptions) -> Result<Rc<dyn BlockDevice>> {
    let device = open_under(path, options)?;
    transit::refuse_if_left(&device.info()).context(|| path.display().to_string())?;
    Ok(device)
}

/// Opens the device at `path`, through its block translation table if it has one. A table may have
/// to complete an interrupted write. It does so in memory alone if the options forbid writes.
fn open_under(path: &Path, options: FileDeviceOptions) -> Result<Rc<dyn BlockDevice>> {
    if !has_table(path) {
        return FileDevice::open(path, options);
    }
    let memory = match options.read_only {
        true => PmemDevice::open_to_look(path, &options.name)?,
        false => PmemDevice::open(path, &options.name)?,
    };
    let info = memory.info();
    let table = Btt::open(memory.memory())
        .context(|| format!("the block translation table on {}", path.display()))?;
    Ok(Rc::new(BttDevice::new(
        Arc::new(table),
        info.name.clone(),
        &info,
    )))
}

/// Describes the unusable end of a volume's file, with the remedy. `None` if the size is a multiple
/// of the block size.
pub(crate) fn odd_end(config: &Config, name: &str, device: &dyn BlockDevice) -> Option<String> {
    let leaf = *config.stack(name).last()?;
    let DeviceKind::File { path, .. } = &leaf.kind else {
        return None;
    };
    let file = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
    let info = device.info();
    let left = file.len().checked_sub(info.size_bytes)?;
    let block = u64::from(info.logical_block_bytes);
    (left > 0).then(|| {
        format!(
            "{}: device {:?}: the last {left} of the {} bytes of {} CANNOT BE USED: its size is \
             not a multiple of its {block}-byte blocks\n    \
             help: make it one with `truncate -s {} {}`",
            config.place(leaf.line),
            leaf.name,
            file.len(),
            path.display(),
            file.len().next_multiple_of(block),
            path.display(),
        )
    })
}
