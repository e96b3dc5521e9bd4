//! Conflicts between exports: addresses, subsystems and TLS.

use super::problem::Problems;
use super::{Config, DeviceKind, Listen, Nbd, NvmeTcp, Protocol};

/// Whether the kernel chooses the port.
fn any_port(listen: &Listen) -> bool {
    matches!(listen, Listen::Tcp(address) if address.port() == 0)
}

impl Config {
    /// Checks that exports of one subsystem have the same access rights.
    pub(super) fn check_subsystems(&self, problems: &mut Problems<'_>) {
        let mut seen: Vec<(&NvmeTcp, usize)> = Vec::new();
        for export in &self.exports {
            let Protocol::NvmeTcp(target) = &export.protocol else {
                continue;
            };
            let same = seen.iter().find(|(other, _)| other.nqn == target.nqn);
            if let Some((other, line)) = same
                && (&other.allow_hosts, &other.secrets) != (&target.allow_hosts, &target.secrets)
            {
                problems.add_at(
                    export.line,
                    format!(
                        "this export and the one in line {line} are one subsystem, {}, and do not \
                         allow the same hosts",
                        target.nqn
                    ),
                    "give both the same `allow_hosts` and `secrets`, or one of them another `nqn`",
                );
            }
            seen.push((target, export.line));
        }
    }

    /// Checks that no client that outlives the daemon is on object storage. Unflushed writes end
    /// with the daemon there, and a flush of such a client would succeed at the next one.
    pub(super) fn check_survivors(&self, problems: &mut Problems<'_>) {
        for export in &self.exports {
            let what = match &export.protocol {
                Protocol::VhostUserBlk(_) => "a virtual machine's disk",
                Protocol::Ublk(_) => "a block device",
                Protocol::Nbd(_) | Protocol::Fuse(_) | Protocol::NvmeTcp(_) => continue,
            };
            let mut volumes = self.volumes.iter();
            let volume = volumes.find(|volume| volume.name == export.volume);
            let Some(volume) = volume else { continue };
            let stack = self.stack(&volume.backing);
            let is_object = |kind: &DeviceKind| matches!(kind, DeviceKind::Object(_));
            if !volume.read_only && stack.iter().any(|device| is_object(&device.kind)) {
                problems.add_at(
                    export.line,
                    format!(
                        "{what} outlives the daemon, and unflushed writes of {:?} do not",
                        volume.name
                    ),
                    "a volume in object storage is exported by `nbd`, `nvme-tcp` or `fuse`",
                );
            }
        }
    }

    /// Checks for addresses that conflict.
    pub(super) fn check_addresses(&self, problems: &mut Problems<'_>) {
        let mut all: Vec<(Listen, &Protocol, usize)> = Vec::new();
        for export in &self.exports {
            let Some(listen) = export.protocol.listen() else {
                continue;
            };
            let of_kind = std::mem::discriminant(&export.protocol);
            let twin = all.iter().find(|(other, protocol, _)| {
                let one_server = std::mem::discriminant(*protocol) == of_kind;
                other.clashes_with(&listen)
                    || (*other == listen && !one_server && !any_port(&listen))
            });
            if let Some((other, _, line)) = twin {
                problems.add_at(
                    export.line,
                    format!(
                        "{listen} and {other} of the export in line {line} cannot both be \
                         listened on"
                    ),
                    "use another port; exports of one protocol may have the same address, too \
                     (their names tell them apart)",
                );
            }
            all.push((listen, &export.protocol, export.line));
        }
        let own = [
            (
                Listen::Tcp(self.server.metrics),
                self.server.metrics_line,
                "metrics",
            ),
            (
                Listen::Unix(self.server.control.clone()),
                self.server.control_line,
                "control",
            ),
        ];
        for (address, line, key) in own {
            let same = |other: &Listen| {
                (*other == address && !any_port(other)) || other.clashes_with(&address)
            };
            let Some((other, _, export)) = all.iter().find(|(other, ..)| same(other)) else {
                continue;
            };
            let (line, what) = match line {
                Some(line) => (
                    line,
                    format!("`{key}` is {address}, and so is the export in line {export}: {other}"),
                ),
                None => (
                    *export,
                    format!(
                        "the export's {other} is also `{key}` in [server], where {address} is the \
                         default"
                    ),
                ),
            };
            let help =
                format!("set `{key}` in [server] to another address, or give the export another");
            problems.add_at(line, what, help);
        }
    }

    /// Checks that exports of one address have the same TLS settings: TLS starts before a client
    /// selects an export.
    pub(super) fn check_tls(&self, problems: &mut Problems<'_>) {
        let mut seen: Vec<(&Nbd, usize)> = Vec::new();
        for export in &self.exports {
            let Protocol::Nbd(nbd) = &export.protocol else {
                continue;
            };
            let same = seen.iter().find(|(other, _)| other.listen == nbd.listen);
            if let Some((other, line)) = same
                && other.tls != nbd.tls
            {
                problems.add_at(
                    export.line,
                    format!(
                        "this export and the one in line {line} are at one address, {}, and differ \
                         in TLS: TLS begins before a client names an export",
                        nbd.listen
                    ),
                    "give both the same `tls`, `tls_certificate`, `tls_key` and `tls_client_ca`, \
                     or one of them another address",
                );
            }
            seen.push((nbd, export.line));
        }
    }
}
