//! The stores, and the daemons with their volumes.

use std::path::Path;
use std::process::Command;

use serde::Serialize;

use super::backer::Backer;
use super::minio::Minio;
use super::{CACHE_BYTES, SET_BYTES};
use crate::bench::ceph::{self, Ceph};
use crate::bench::server::{Forebay, Scratch, Server};
use crate::bench::{Outcome, fio, require, run_for_output};
use crate::claims::Kind;

/// Delay of each request of the NBD server.
const DELAY: &str = "1ms";

/// A way to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Way {
    /// A volume without a cache.
    Uncached,
    Cached,
    /// Another project's volume in the same store, with a cache of the same size.
    Peer,
}

impl Way {
    pub(super) const ALL: [Self; 3] = [Self::Uncached, Self::Cached, Self::Peer];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Uncached => "no cache",
            Self::Cached => "cached",
            Self::Peer => "s3backer",
        }
    }
}

/// A store of backing devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Store {
    File,
    Nbd,
    Rbd,
    S3,
}

impl Store {
    /// Stores that are remote.
    pub(super) const REMOTE: [Self; 3] = [Self::Nbd, Self::Rbd, Self::S3];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Nbd => "nbd",
            Self::Rbd => "rbd",
            Self::S3 => "s3",
        }
    }

    /// Returns the origin of its figures.
    pub(super) const fn kind(self) -> Kind {
        match self {
            Self::Nbd => Kind::Emulated,
            Self::File | Self::Rbd | Self::S3 => Kind::Measured,
        }
    }

    /// Returns an error with the reason why it cannot run here, if any.
    pub(super) fn unavailable(self) -> Outcome<()> {
        match self {
            Self::File | Self::Nbd => Ok(()),
            Self::Rbd => ceph::unavailable(),
            Self::S3 => {
                require(&["minio"]).map_err(|missing| format!("{missing} (scripts/minio.sh)"))
            }
        }
    }
}

/// A store with two volumes, each of its own daemon: one with a cache, one without.
pub(super) struct Site {
    pub(super) store: Store,
    uncached: Forebay,
    cached: Forebay,
    peer: Option<Backer>,
    /// Servers of NBD, one for each volume.
    servers: Vec<Server>,
    _ceph: Option<Ceph>,
    _minio: Option<Minio>,
    // The last field, so that the directories are removed after the servers have ended.
    _scratch: Vec<Scratch>,
}

impl Site {
    /// Starts the store and its daemons on processor `cpu`, and writes both volumes once: a hole
    /// is read faster than data.
    pub(super) fn start(root: &Path, binary: &Path, store: Store, cpu: &str) -> Outcome<Self> {
        let scratch = |part: &str| Scratch::new(&format!("bench-remote-{}-{part}", store.name()));
        let places = [scratch("uncached")?, scratch("cached")?, scratch("store")?];
        let ceph = match store {
            Store::Rbd => Some(Ceph::start(root, &places[2], cpu)?),
            Store::File | Store::Nbd | Store::S3 => None,
        };
        let minio = match store {
            Store::S3 => Some(Minio::start(&places[2], cpu)?),
            Store::File | Store::Nbd | Store::Rbd => None,
        };
        let (mut servers, mut daemons) = (Vec::new(), Vec::new());
        for (place, image) in places[..2].iter().zip(["uncached", "cached"]) {
            let backing = match store {
                Store::File => {
                    place.file("disk", SET_BYTES)?;
                    "kind = \"file\"\npath = \"disk\"\ndirect = false".to_owned()
                }
                Store::Nbd => {
                    let server = nbdkit(place, cpu)?;
                    let uri = format!("nbd+unix:///?socket={}", server.socket().display());
                    servers.push(server);
                    format!("kind = \"nbd\"\nuri = \"{uri}\"")
                }
                Store::Rbd => {
                    let conf = &ceph.as_ref().expect("it runs").conf;
                    create_image(conf, image)?;
                    format!(
                        "kind = \"rbd\"\npool = \"rbd\"\nimage = \"{image}\"\nclient = \"admin\"\n\
                         conf = \"{}\"",
                        conf.display()
                    )
                }
                Store::S3 => minio.as_ref().expect("it runs").device(image),
            };
            let config = configuration(&backing, image == "cached");
            let daemon = Forebay::start(binary, place, &config, Some(cpu), &[])?;
            fio::fill(daemon.server.socket(), "v", SET_BYTES)?;
            daemons.push(daemon);
        }
        let cached = daemons.pop().expect("two of them");
        let uncached = daemons.pop().expect("two of them");
        // Dirty data of the first writes is not part of a load.
        cached.control(&["flush", "v"])?;
        let peer = match &minio {
            Some(minio) => Backer::start(minio, cpu)?,
            None => None,
        };
        if let Some(peer) = &peer {
            fio::fill(peer.socket(), "v", SET_BYTES)?;
        }
        Ok(Self {
            store,
            uncached,
            cached,
            peer,
            servers,
            _ceph: ceph,
            _minio: minio,
            _scratch: Vec::from(places),
        })
    }

    /// Returns the socket of the export of a volume, if there is such a volume.
    pub(super) fn socket_of(&self, way: Way) -> Option<&Path> {
        match way {
            Way::Uncached => Some(self.uncached.server.socket()),
            Way::Cached => Some(self.cached.server.socket()),
            Way::Peer => self.peer.as_ref().map(Backer::socket),
        }
    }

    /// Returns the socket of the NBD server under the volume without a cache, if it is one.
    pub(super) fn socket(&self) -> Option<&Path> {
        self.servers.first().map(Server::socket)
    }
}

/// Returns the configuration of a volume on a device with these keys.
fn configuration(backing: &str, cached: bool) -> String {
    let cache = format!(
        "[[device]]\nname = \"fast\"\nkind = \"mem\"\nsize = {}\nvolatile = true\n\n[cache]\n\
         data = \"fast\"\ndurability = \"flush\"\n\n",
        CACHE_BYTES
    );
    format!(
        "{}[[device]]\nname = \"slow\"\n{backing}\n\n[[volume]]\nname = \"v\"\n\
         backing = \"slow\"\n{}",
        if cached { &cache } else { "" },
        if cached { "mode = \"wb\"\n" } else { "" },
    )
}

fn nbdkit(place: &Scratch, cpu: &str) -> Outcome<Server> {
    let socket = place.path("store.sock");
    let mut server = Command::new("nbdkit");
    server.args(["--foreground", "--unix"]).arg(&socket);
    server.args(["--filter=delay", "memory", &SET_BYTES.to_string()]);
    server.args([format!("rdelay={DELAY}"), format!("wdelay={DELAY}")]);
    Server::start(&server, Some(cpu), socket, &place.path("nbdkit.log"))
}

fn create_image(conf: &Path, image: &str) -> Outcome<()> {
    let mut create = Command::new("rbd");
    create.arg("--conf").arg(conf).args(["create", "--size"]);
    create.arg(format!("{}M", SET_BYTES >> 20));
    create.arg(format!("rbd/{image}"));
    run_for_output(create).map(drop)
}
