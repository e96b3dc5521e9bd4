//! Targets of a replay: volumes of a configuration, opened in this process, or NBD exports.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice as _, Error, ErrorKind, Result};
use forebay_device::metered::Metered;
use forebay_device::nbd::{NbdDevice, Settings, Times, Uri};
use forebay_io::Engine as IoEngine;
use forebay_io::net::Address;
use forebay_io::rt;
use forebay_io::rt::meter::{self, Account, Spent};
use forebay_trace::replay::Target;
use tokio::sync::oneshot;

use crate::config::Config;
use crate::serve::{self, guard};
use crate::stack::{Stack, Wishes};
use crate::status::{DeviceStatus, Status};
use forebay_planner_cli::input::is_same_file;

/// Time after which requests to a server that is away fail. A replay measures the server, so it
/// does not wait for another one.
const PATIENCE: Duration = Duration::from_secs(1);

/// Targets before they are opened.
pub(super) enum ParsedTargets {
    Config(Box<Config>),
    Nbd(Vec<Uri>),
}

impl ParsedTargets {
    /// Parses the targets of a command line.
    ///
    /// # Errors
    /// The error of a configuration; `InvalidInput` for an invalid URI, or a mixture.
    pub(super) fn parse(texts: &[String]) -> Result<Self> {
        match texts {
            [config] if !config.contains("://") => {
                let config = Config::load(Path::new(config))?;
                guard::check(&config)?;
                config.check_machine(true, None)?;
                Ok(Self::Config(Box::new(config)))
            }
            _ if texts.iter().all(|text| text.contains("://")) => {
                let uris = texts.iter().map(|text| text.parse());
                let uris = uris.collect::<Result<Vec<Uri>>>()?;
                for (number, uri) in uris.iter().enumerate() {
                    if let Some(other) = uris[..number].iter().find(|o| is_same(o, uri)) {
                        // One would overwrite the writes of the other.
                        let what = format!(
                            "--on {other} and --on {uri} are or may be the same export: without a \
                             name, it is the server's default one\n\
                             help: give each export once, by its name"
                        );
                        return Err(Error::new(ErrorKind::InvalidInput, what));
                    }
                }
                Ok(Self::Nbd(uris))
            }
            _ => {
                let what = "--on names several configurations, or a configuration and NBD \
                            exports\n\
                            help: a trace is replayed on one configuration, or on NBD exports: \
                            give --on CONFIG once, or --on URI for each export";
                Err(Error::new(ErrorKind::InvalidInput, what))
            }
        }
    }

    /// Returns the I/O engine in the configuration.
    pub(super) fn io_engine(&self) -> Option<IoEngine> {
        match self {
            Self::Config(config) => Some(serve::io_engine(config)),
            Self::Nbd(_) => None,
        }
    }

    /// Opens the stack, or connects.
    ///
    /// # Errors
    /// As for `forebay serve`.
    pub(super) async fn open(self) -> Result<Opened> {
        match self {
            Self::Config(mut config) => {
                // Nothing is exported, so users of waiting devices must not continue after this.
                config.exports.clear();
                meter::start();
                let stack = engine(async move {
                    let stack = Stack::open(&config, &Wishes::default()).await?;
                    // The I/O of an opening is not the trace's.
                    match stack.ready().await {
                        Ok(()) => Ok(stack),
                        Err(error) => {
                            let _ = stack.close().await;
                            Err(error)
                        }
                    }
                });
                let stack = stack.await?;
                let (mut targets, mut read_only) = (Vec::new(), Vec::new());
                for volume in stack.volumes() {
                    read_only.push(volume.read_only());
                    targets.push(Target {
                        name: volume.name().to_owned(),
                        device: Metered::wrap(volume.open(), Account::Engine),
                    });
                }
                Ok(Opened {
                    targets,
                    read_only,
                    stack: Some(Rc::new(stack)),
                })
            }
            Self::Nbd(uris) => {
                let (mut targets, mut read_only) = (Vec::<Target>::new(), Vec::new());
                let times = Times {
                    patience: PATIENCE,
                    ..Times::default()
                };
                let settings = Settings {
                    times,
                    ..Settings::default()
                };
                for uri in uris {
                    let device = NbdDevice::connect_with(&uri, settings).await?;
                    let taken = targets.iter().any(|target| target.name == uri.export);
                    let name = match taken || uri.export.is_empty() {
                        true => device.info().name,
                        false => uri.export,
                    };
                    read_only.push(device.read_only());
                    targets.push(Target { name, device });
                }
                Ok(Opened {
                    targets,
                    read_only,
                    stack: None,
                })
            }
        }
    }
}

/// Whether two URIs lead to one export, or may.
fn is_same(one: &Uri, other: &Uri) -> bool {
    let server = match (&one.address, &other.address) {
        (Address::Unix(one), Address::Unix(other)) => one == other || is_same_file(one, other),
        (one, other) => one == other,
    };
    server && (one.export == other.export || one.export.is_empty() || other.export.is_empty())
}

/// Runs `work` as a task of the engine, with all tasks that it spawns.
async fn engine<T: 'static>(work: impl Future<Output = T> + 'static) -> T {
    let (sender, receiver) = oneshot::channel();
    meter::within(Account::Engine, || {
        rt::spawn(async move {
            let _ = sender.send(work.await);
        });
    });
    receiver.await.expect("a task runs to its end")
}

/// Open targets.
pub(super) struct Opened {
    pub(super) targets: Vec<Target>,
    /// Whether each of them is read-only.
    read_only: Vec<bool>,
    stack: Option<Rc<Stack>>,
}

/// Counters of the engine at one time.
pub(super) struct Look(Status);

/// Bytes and operations in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Way {
    pub(super) bytes: u64,
    pub(super) ios: u64,
}

/// Work of the engine during a replay.
#[derive(Clone, Debug, Default)]
pub(super) struct EngineReport {
    pub(super) read_hits: u64,
    pub(super) read_misses: u64,
    pub(super) write_hits: u64,
    pub(super) write_misses: u64,
    pub(super) read_from_core: Way,
    pub(super) write_to_core: Way,
    pub(super) read_from_cache: Way,
    pub(super) write_to_cache: Way,
    /// Metadata among the bytes written to the cache.
    pub(super) metadata_bytes: u64,
    /// Dirty data at the end, bytes.
    pub(super) dirty_bytes: u64,
    /// Memory of the map at the end, bytes.
    pub(super) memory_bytes: u64,
    /// Descriptions of devices with emulated speed.
    pub(super) emulated: Vec<String>,
    pub(super) spent: Spent,
    /// Time of the engine's code per request.
    pub(super) processing: Duration,
}

impl Opened {
    /// Checks that the used targets support the requests of a trace. `writes` says whether it may
    /// write.
    ///
    /// # Errors
    /// `InvalidInput` for a target without bytes; `ReadOnly` for one that cannot be written.
    pub(super) fn check(&self, used: impl Fn(&Target) -> bool, writes: bool) -> Result<()> {
        for (target, read_only) in self.targets.iter().zip(&self.read_only) {
            let name = &target.name;
            if !used(target) {
                continue;
            }
            if target.device.info().size_bytes == 0 {
                let what = format!(
                    "{name} has a size of zero\n\
                     help: replay on a volume that has room, or make it larger"
                );
                return Err(Error::new(ErrorKind::InvalidInput, what));
            }
            if writes && *read_only {
                let what = format!(
                    "{name} is read-only, and --destroy-data would write to it\n\
                     help: give --skip-writes to leave writes out, or replay on a volume that can \
                     be written"
                );
                return Err(Error::new(ErrorKind::ReadOnly, what));
            }
        }
        Ok(())
    }

    /// Reads the counters before a replay; `None` over NBD.
    pub(super) fn look(&self) -> Option<Look> {
        let stack = self.stack.as_ref()?;
        let look = Look(stack.status());
        meter::reset();
        Some(look)
    }

    /// Returns the work of the engine since then.
    pub(super) fn since(&self, begin: &Look, requests: u64) -> EngineReport {
        let spent = meter::spent();
        let Some(stack) = &self.stack else {
            return EngineReport::default();
        };
        let end = stack.status();
        let volumes = |status: &Status, count: fn(&crate::status::VolumeStatus) -> u64| {
            status.volumes.iter().map(count).sum::<u64>()
        };
        let counted = |count| volumes(&end, count) - volumes(&begin.0, count);
        let devices = |status: &Status, core: bool, ways: fn(&DeviceStatus) -> Way| {
            let of_role = status
                .devices
                .iter()
                .filter(|d| (d.role == "backing") == core);
            of_role.map(ways).fold(Way::default(), |sum, way| Way {
                bytes: sum.bytes + way.bytes,
                ios: sum.ios + way.ios,
            })
        };
        let way = |core, ways| {
            let (before, after) = (devices(&begin.0, core, ways), devices(&end, core, ways));
            Way {
                bytes: after.bytes - before.bytes,
                ios: after.ios - before.ios,
            }
        };
        let read = |device: &DeviceStatus| Way {
            bytes: device.read_bytes,
            ios: device.reads,
        };
        let write = |device: &DeviceStatus| Way {
            bytes: device.write_bytes,
            ios: device.writes,
        };
        let cache = |status: &Status, count: fn(&crate::status::CacheStatus) -> u64| {
            status.cache.as_ref().map_or(0, count)
        };
        let written = |status: &Status| cache(status, |cache| cache.metadata_written_bytes);
        let emulated = end
            .devices
            .iter()
            .filter(|device| device.what.contains("emulated"));
        EngineReport {
            read_hits: counted(|volume| volume.read_hits),
            read_misses: counted(|volume| volume.read_misses),
            write_hits: counted(|volume| volume.write_hits),
            write_misses: counted(|volume| volume.write_misses),
            read_from_core: way(true, read),
            write_to_core: way(true, write),
            read_from_cache: way(false, read),
            write_to_cache: way(false, write),
            metadata_bytes: written(&end) - written(&begin.0),
            dirty_bytes: cache(&end, |cache| cache.dirty_bytes),
            memory_bytes: cache(&end, |cache| cache.memory_bytes),
            emulated: emulated
                .map(|d| format!("device {:?} is {}", d.name, d.what))
                .collect(),
            spent,
            processing: spent.engine.div_f64(requests.max(1) as f64),
        }
    }

    /// Closes the stack, as at the end of `forebay serve`.
    ///
    /// # Errors
    /// The error of the close; no acknowledged write is lost then.
    pub(super) async fn close(self) -> Result<()> {
        drop(self.targets);
        match self.stack {
            Some(stack) => engine(async move { stack.close().await }).await,
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_device::mem::MemDevice;

    use super::*;

    #[test]
    fn a_target_without_bytes_is_refused_where_it_is_used() {
        let target = |name: &str, size_bytes| Target {
            name: name.into(),
            device: MemDevice::new(name, size_bytes),
        };
        let opened = Opened {
            targets: vec![target("db", 4096), target("none", 0)],
            read_only: vec![true, false],
            stack: None,
        };
        let refused = opened.check(|_| true, false).expect_err("it has no room");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        assert!(refused.report().contains("none has a size of zero"));
        let db = |target: &Target| target.name == "db";
        opened.check(db, false).expect("it is only read");
        let refused = opened.check(db, true).expect_err("it is read-only");
        assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    }
}
