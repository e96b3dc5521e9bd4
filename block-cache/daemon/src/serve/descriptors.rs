//! Limits on file descriptors: some are reserved for control and devices; connections share the
//! rest.

use std::collections::BTreeSet;

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::limits::{open_descriptors, raise_descriptor_limit};

use super::exports::Running;
use crate::config::{Config, DeviceKind, Protocol};
use crate::control::{http, server};
use crate::stack::memory::FEW_CONNECTIONS;
use forebay_terminal::size::human_count;

/// Descriptors reserved for devices that reconnect, files of the state directory and similar uses.
const SPARE: u64 = 16;
/// Of an RBD image: librbd's own, and connections to the first OSDs.
const IMAGE: u64 = 32;
/// Of a volume in object storage: connections or files of its requests in flight, and the runtime.
const OBJECTS: u64 = 32;
/// Descriptors that a virtual machine sends: its memory, and two events for each of its queues.
const MACHINE: u64 = 40;
/// Descriptors of a daemon without devices and exports. They are the standard streams, the control
/// plane with two sockets, the engine's reactor, the lock of the state directory and the process
/// journal.
const BASE: u64 = 17;
/// Descriptors of each further reactor: its ring, its wake-up event, and its end of a message
/// queue.
const REACTOR: u64 = 3;
/// Descriptors of a mount, or of a block device of this machine with its queues.
const LOCAL: u64 = 4;
/// Least number of clients of control, and of metrics.
const CLIENTS: u64 = 2;
/// Divisor of the limit for clients of control, and for those of metrics.
const PART: u64 = 16;

/// Limits on descriptors by use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptors {
    limit: u64,
    /// Number of clients of the control socket.
    pub(super) control: usize,
    /// Number of clients of metrics and the status page.
    pub(super) http: usize,
}

impl Descriptors {
    /// Raises the limit as far as this process may, and reserves the share of control.
    pub(crate) fn raise() -> Self {
        match raise_descriptor_limit() {
            Ok(limit) => Self::of(limit),
            Err(error) => {
                tracing::warn!("{}", error.report());
                Self::of(1024)
            }
        }
    }

    /// Checks that the limit suffices for all devices and exports of a configuration, and for one
    /// connection.
    ///
    /// # Errors
    /// `NoSpace` with the number that is needed.
    pub(crate) fn check(self, config: &Config) -> Result<()> {
        let needed = needed(config);
        if needed <= self.limit {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "{}: the configuration needs {needed} descriptors, and the process may open {}\n\
                 help: raise the limit (ulimit -Hn, LimitNOFILE=), or serve fewer volumes",
                config.path.display(),
                self.limit,
            ),
        ))
    }

    fn of(limit: u64) -> Self {
        let part = usize::try_from(limit / PART).unwrap_or(usize::MAX);
        Self {
            limit,
            control: part.clamp(2, server::CLIENTS),
            http: part.clamp(2, http::CLIENTS),
        }
    }

    /// Returns the number of connections, besides `open` and reserved descriptors.
    fn connections(self, open: u64, machines: u64) -> usize {
        // Each command holds its connection twice.
        let reserved = 2 * self.control as u64 + self.http as u64 + SPARE + machines * MACHINE;
        let left = self.limit.saturating_sub(open + reserved);
        // At least one, so that one client is served.
        usize::try_from(left).unwrap_or(usize::MAX).max(1)
    }

    /// Sets the limit on connections once everything is open. `memory` is the number of connections
    /// whose requests fit into memory, and the owner of that limit; `None` without such
    /// connections.
    pub(super) fn share(self, running: &Running, config: &Config, memory: Option<(u64, String)>) {
        let Some(reactors) = running.reactors() else {
            return;
        };
        let most = self.connections(open_descriptors(), machines(config));
        let mut admitted = most;
        if let Some((in_memory, limit)) = memory {
            if in_memory < FEW_CONNECTIONS {
                tracing::warn!(
                    "the memory suffices for the requests of {}\n    help: raise {limit}",
                    human_count(in_memory, "connection")
                );
            }
            // Connections of monitors do not count towards memory.
            let all = in_memory.saturating_add(machines(config));
            admitted = most.min(usize::try_from(all).unwrap_or(usize::MAX));
        }
        reactors.limit(admitted);
        match (most as u64) < FEW_CONNECTIONS {
            true => tracing::warn!(
                "the limit of {} descriptors leaves {most} for connections\n    \
                 help: raise it (ulimit -n, LimitNOFILE)",
                self.limit
            ),
            false => tracing::debug!("{most} descriptors are left for connections"),
        }
    }
}

/// Returns the number of virtual machines that may connect.
fn machines(config: &Config) -> u64 {
    let is_machine = |protocol: &Protocol| matches!(protocol, Protocol::VhostUserBlk(_));
    let exports = config.exports.iter();
    exports
        .filter(|export| is_machine(&export.protocol))
        .count() as u64
}

/// Returns the least number of descriptors for a configuration: one for each device and export,
/// [`SPARE`], and one connection.
fn needed(config: &Config) -> u64 {
    let opened = |kind: &DeviceKind| match kind {
        DeviceKind::File { .. } | DeviceKind::Pmem { .. } | DeviceKind::Transit { .. } => 1,
        // Its queues: one for administration and one for I/O.
        DeviceKind::NvmeTcp { .. } => 2,
        DeviceKind::Nbd { connections, .. } => (*connections).into(),
        DeviceKind::Rbd(_) => IMAGE,
        DeviceKind::Object(_) => OBJECTS,
        _ => 0,
    };
    let devices: u64 = (config.devices.iter())
        .map(|device| opened(&device.kind))
        .sum();
    let exports = config.exports.iter().map(|export| &export.protocol);
    let listening: BTreeSet<_> = (exports.clone().filter_map(Protocol::listen))
        .map(|listen| listen.to_string())
        .collect();
    let local = exports.filter(|protocol| protocol.is_local()).count() as u64;
    let reactors = config.server.reactors as u64 - 1;
    let clients = 3 * CLIENTS + 1;
    let serving = listening.len() as u64 + local * LOCAL;
    BASE + reactors * REACTOR + devices + serving + SPARE + clients
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_share_the_descriptors_that_control_and_devices_leave() {
        let small = Descriptors::of(64);
        assert_eq!((small.control, small.http), (4, 4));
        assert_eq!(small.connections(30, 0), 64 - 30 - 12 - 16);
        assert_eq!(small.connections(60, 0), 1);
        assert_eq!(small.connections(30, 1), 1);
        let large = Descriptors::of(1 << 20);
        assert_eq!((large.control, large.http), (64, 64));
        assert_eq!(large.connections(100, 2), (1 << 20) - 100 - 192 - 16 - 80);
        let unlimited = Descriptors::of(u64::MAX);
        assert!(unlimited.connections(100, 0) > 1 << 40);
    }
}
