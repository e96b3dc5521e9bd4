//! Connects the devices of a configuration that are on another machine, or behind a server.

use std::path::Path;
use std::rc::Rc;

use forebay_block::{BlockDevice, Context as _, Error, ErrorKind, Result};
use forebay_device::nbd::{self, NbdDevice};
use forebay_device::nvme_tcp::{NvmeTcpDevice, Uri};
use forebay_device::rbd::{Access, RbdDevice};
use forebay_object::Verification;

use super::fence::Failure;
use super::object::{self, OpenObjects};
use crate::config::{Config, DeviceKind};
use crate::state::Record;

/// A remote device that is connected.
pub(crate) struct Connected {
    pub(crate) device: Rc<dyn BlockDevice>,
    /// The volume in object storage that it is.
    pub(super) objects: Option<OpenObjects>,
    /// Whether another machine has taken it over, if that is possible.
    pub(super) failure: Option<Failure>,
}

impl Connected {
    /// Returns the last writer of a volume in object storage that can be served.
    ///
    /// # Errors
    /// As [`forebay_object::ObjectVolume::last_writer`].
    pub(crate) async fn last_writer(&self) -> Result<Option<forebay_object::Id>> {
        match self.objects.as_ref().filter(|it| !it.is_snapshot) {
            Some(objects) => Ok(objects.volume.last_writer().await?.map(|it| it.id)),
            None => Ok(None),
        }
    }

    /// Reads all objects of a volume in object storage, and verifies their data. Returns `None` for
    /// another device.
    ///
    /// # Errors
    /// As [`OpenObjects::verify`].
    pub(crate) async fn verify(&self) -> Result<Option<Verification>> {
        match &self.objects {
            Some(objects) => Ok(Some(objects.verify().await?)),
            None => Ok(None),
        }
    }

    /// Refuses a volume in object storage that is older than this record of the volume `name`.
    ///
    /// # Errors
    /// As [`OpenObjects::refuse_older`].
    pub(crate) async fn refuse_older(&self, name: &str, record: Option<Record>) -> Result<()> {
        match self.objects.as_ref().filter(|it| !it.is_snapshot) {
            Some(objects) => objects.refuse_older(name, record).await,
            None => Ok(()),
        }
    }
}

/// Describes the peer at the bottom of `name`, if that is a remote device.
pub(super) fn remote_of(config: &Config, name: &str) -> Option<String> {
    match &config.stack(name).last()?.kind {
        DeviceKind::NvmeTcp { uri, .. } => Some(format!("NVMe/TCP target {uri}")),
        DeviceKind::Nbd { uri, .. } => Some(format!("NBD server {uri}")),
        DeviceKind::Rbd(address) => Some(format!("RBD image {address}")),
        DeviceKind::Object(volume) => Some(format!("objects in {volume}")),
        _ => None,
    }
}

/// Returns the device at the bottom of `name`, connected, if it is a remote one.
///
/// # Errors
/// As for [`connect`], with the place in the configuration.
pub(super) async fn remote(config: &Config, name: &str) -> Result<Option<Connected>> {
    let Some(leaf) = config.stack(name).pop() else {
        return Ok(None);
    };
    let place = || format!("{}: device {:?}", config.place(leaf.line), leaf.name);
    connect(&leaf.kind, Access::Serve).await.context(place)
}

/// Connects a remote device that accepts writes. Returns `None` for all other devices, and for a
/// look at a volume in object storage that a start creates. `access` is that to an RBD image and to
/// object storage.
///
/// # Errors
/// The error of the connection or of the file with secrets; `ReadOnly` if the device is read-only.
pub(crate) async fn connect(kind: &DeviceKind, access: Access) -> Result<Option<Connected>> {
    let mut failure: Option<Failure> = None;
    let (device, read_only): (Rc<dyn BlockDevice>, bool) = match kind {
        DeviceKind::NvmeTcp { uri, secrets } => {
            let device = connect_namespace(uri, secrets.as_deref()).await?;
            let read_only = device.read_only();
            (device, read_only)
        }
        DeviceKind::Nbd { uri, connections } => {
            let settings = nbd::Settings {
                connections: *connections,
                ..nbd::Settings::default()
            };
            let device = NbdDevice::connect_with(uri, settings).await?;
            let read_only = device.read_only();
            (device, read_only)
        }
        // Only read-only volumes may be on a snapshot, as the configuration was checked.
        DeviceKind::Rbd(address) => {
            let device = RbdDevice::open(address, access).await?;
            // The image is closed, and its lock released, when the device is dropped.
            let image = Rc::downgrade(&device);
            failure = Some(Rc::new(move || image.upgrade()?.failure()));
            (device, false)
        }
        // As for an image.
        DeviceKind::Object(settings) => {
            let opened = object::open(settings, access).await?;
            return Ok(opened.map(|objects| Connected {
                device: objects.volume.clone(),
                failure: Some(objects.failure()),
                objects: Some(objects),
            }));
        }
        _ => return Ok(None),
    };
    if read_only {
        let what = format!(
            "{} is read-only\n    help: make it writable there: every mode writes to its backing \
             device",
            device.info().name
        );
        return Err(Error::new(ErrorKind::ReadOnly, what));
    }
    Ok(Some(Connected {
        device,
        objects: None,
        failure,
    }))
}

/// Connects a namespace. `secrets` is the file with which this host authenticates, if there is one.
async fn connect_namespace(uri: &Uri, secrets: Option<&Path>) -> Result<Rc<NvmeTcpDevice>> {
    let mut uri = uri.clone();
    if let Some(path) = secrets {
        let found = crate::secrets::read(path)?.of(&uri.host).cloned();
        let missing = || {
            let what = format!(
                "{} has no line for {}, the name of this host at {uri}\n    help: add one, or name \
                 the host by ?host=NQN in the URI",
                path.display(),
                uri.host
            );
            Error::new(ErrorKind::NotFound, what)
        };
        uri.secrets = Some(found.ok_or_else(missing)?);
    }
    NvmeTcpDevice::connect(&uri).await
}
