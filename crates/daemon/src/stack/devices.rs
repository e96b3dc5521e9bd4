//! From the configuration's devices to open ones.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, Context as _, Result};
use forebay_device::counted::{Counted, Counters};
use forebay_device::emulate::{EmulateDevice, Profile};
use forebay_device::file::{FileDevice, FileDeviceOptions};
use forebay_device::mem::MemDevice;

use crate::config::{Config, DeviceKind};

/// An open device and what is asked of it.
pub(super) struct Watched {
    pub(super) name: String,
    pub(super) role: &'static str,
    /// What it is, in words.
    pub(super) what: String,
    pub(super) device: Rc<dyn BlockDevice>,
    pub(super) counters: Rc<Counters>,
}

/// Opens the device called `name`, with all that lies under it, and counts what it is asked.
///
/// # Errors
/// What the device says, with the place in the configuration.
pub(super) fn open(config: &Config, name: &str, role: &'static str) -> Result<Watched> {
    let (device, what) = open_stack(config, name)?;
    let (device, counters) = Counted::new(device);
    Ok(Watched {
        name: name.to_owned(),
        role,
        what,
        device,
        counters,
    })
}

fn open_stack(config: &Config, name: &str) -> Result<(Rc<dyn BlockDevice>, String)> {
    let entry = config.device(name);
    match &entry.kind {
        DeviceKind::File { path, direct } => {
            let options = FileDeviceOptions {
                direct: *direct,
                exclusive: true,
                name: name.to_owned(),
                ..FileDeviceOptions::default()
            };
            let device = FileDevice::open(path, options)
                .context(|| format!("{}: device {name:?}", config.place(entry.line)))?;
            Ok((device, format!("file {}", path.display())))
        }
        DeviceKind::Mem { size_bytes, .. } => {
            Ok((MemDevice::new(name, *size_bytes), "memory".to_owned()))
        }
        DeviceKind::Emulate {
            on,
            read_latency,
            write_latency,
            flush_latency,
            bandwidth_bytes_per_s,
            queue_depth,
        } => {
            let (inner, what) = open_stack(config, on)?;
            let us = |time: &Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            let profile = Profile {
                read_latency_us: us(read_latency),
                write_latency_us: us(write_latency),
                flush_latency_us: us(flush_latency),
                bandwidth_bytes_per_s: bandwidth_bytes_per_s.unwrap_or(0),
                queue_depth: queue_depth.unwrap_or(0),
            };
            Ok((
                EmulateDevice::new(inner, profile),
                format!("{what}, {profile}"),
            ))
        }
    }
}
