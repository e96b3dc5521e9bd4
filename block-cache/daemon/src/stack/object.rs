//! Volumes in object storage: opening, snapshots and statistics.

use std::rc::Rc;
use std::time::Duration;

use forebay_block::{BlockDevice, BlockDeviceExt as _, Context as _, Error, ErrorKind, Result};
use forebay_device::rbd::Access;
use forebay_io::rt;
use forebay_object::store::Store;
use forebay_object::stores::credentials::Credentials;
use forebay_object::stores::{self, Use};
use forebay_object::{Id, ObjectVolume, Options, Snapshot, Times, Verification, list_snapshots};
use forebay_terminal::size::{human_bytes, human_count};

use super::Stack;
use super::fence::Failure;
use crate::config::device::{Consumption, ObjectSettings, Prices};
use crate::state::Record;
use crate::status::ObjectStatus;

/// Time without an answer until a look fails.
const LOOK: Duration = Duration::from_secs(10);
/// Number of damaged objects that an error names.
const NAMED_OBJECTS: usize = 10;

/// A volume in object storage that is open.
#[derive(Clone)]
pub(super) struct OpenObjects {
    pub(super) volume: Rc<ObjectVolume>,
    store: Rc<dyn Store>,
    prices: Option<Prices>,
    opened_at: Duration,
    /// Whether it takes writes, once it is claimed.
    pub(super) is_served: bool,
    pub(super) is_snapshot: bool,
}

/// Opens the volume. One that is served is still to be claimed. Returns `None` for a look at one
/// that a start creates.
///
/// # Errors
/// The error of the file with credentials, of the store or of the volume.
pub(super) async fn open(settings: &ObjectSettings, access: Access) -> Result<Option<OpenObjects>> {
    let bucket = settings.address.bucket();
    let credentials = match (&settings.credentials, bucket) {
        (Some(path), Some(bucket)) => {
            let text = crate::secrets::read_private(path, "the credentials")?;
            let parsed = Credentials::parse(bucket.provider, &text);
            Some(parsed.context(|| format!("the credentials in {}", path.display()))?)
        }
        _ => None,
    };
    let is_look = access == Access::Look;
    let is_served = !is_look && settings.snapshot.is_none();
    let (purpose, access) = match is_served {
        true => (Use::Write, forebay_object::Access::Prepare),
        false => (Use::Read, forebay_object::Access::Look),
    };
    let store = stores::open(&settings.address, credentials.as_ref(), purpose).await?;
    let patience = match is_look {
        true => LOOK,
        false => Times::default().patience,
    };
    let options = Options {
        size_bytes: settings.size_bytes,
        snapshot: settings.snapshot.clone(),
        times: Times {
            patience,
            ..Times::default()
        },
        ..Options::new(access)
    };
    match ObjectVolume::open(Rc::clone(&store), options).await {
        Err(error)
            if error.kind() == ErrorKind::NotFound
                && !is_served
                && settings.snapshot.is_none()
                && settings.size_bytes.is_some() =>
        {
            Ok(None)
        }
        opened => Ok(Some(OpenObjects {
            volume: opened?,
            store,
            prices: settings.prices,
            opened_at: rt::now(),
            is_served,
            is_snapshot: settings.snapshot.is_some(),
        })),
    }
}

/// Refuses to create a volume in place of one that the state directory knows. `record` is that of
/// the volume `name`, which is served from it.
///
/// # Errors
/// `NotFound`.
pub(crate) fn refuse_new(
    name: &str,
    settings: &ObjectSettings,
    record: Option<Record>,
) -> Result<()> {
    match record.is_some_and(|record| record.writers.is_known()) {
        true => Err(empty(name, &settings.to_string())),
        false => Ok(()),
    }
}

/// Error of an empty folder whose volume the state directory knows.
fn empty(name: &str, folder: &str) -> Error {
    let what = format!(
        "{folder} is empty, and the volume was served from object storage before\n    \
         help: mount its file system, or correct `url`; for a new volume, remove {name}.epoch from \
         the state directory"
    );
    Error::new(ErrorKind::NotFound, what)
}

impl OpenObjects {
    /// Becomes the writer `id` of a volume that is served, and creates a new one.
    ///
    /// # Errors
    /// As [`ObjectVolume::claim`].
    pub(super) async fn claim(&self, id: Id) -> Result<()> {
        let is_new = self.volume.is_new();
        self.volume.claim(id).await?;
        if is_new {
            let info = self.volume.info();
            let size = human_bytes(info.size_bytes);
            tracing::info!("{}: a volume of {size} is created", info.name);
        }
        Ok(())
    }

    /// Returns how the volume fails for good.
    pub(super) fn failure(&self) -> Failure {
        let volume = Rc::downgrade(&self.volume);
        Rc::new(move || volume.upgrade()?.failure())
    }

    /// Refuses a volume that lacks the last claim of this state directory: the folder is an older
    /// copy, or another one. `name` and `record` are those of the volume that is served from it.
    ///
    /// # Errors
    /// `Lost`, or `NotFound` for an empty folder. The error of the store.
    pub(super) async fn refuse_older(&self, name: &str, record: Option<Record>) -> Result<()> {
        let Some(record) = record.filter(|record| record.writers.is_known()) else {
            return Ok(());
        };
        let info = self.volume.info();
        if self.volume.is_new() {
            return Err(empty(name, &info.name));
        }
        let is_same = record.backing.is_same_as(info.identity);
        if !is_same || record.writers.is_full() {
            return Ok(());
        }
        let is_known = |writer| record.writers.has(writer);
        if self.volume.has_writer(is_known).await? {
            return Ok(());
        }
        let what = format!(
            "{} is older than the last writes of this daemon: DATA IS LOST\n    \
             help: restore the newest copy of the folder; to serve this one, remove {name}.epoch \
             from the state directory",
            info.name
        );
        Err(Error::new(ErrorKind::Lost, what))
    }

    /// Reads all objects, and verifies their data. Returns the result.
    ///
    /// # Errors
    /// `Lost` if an object is missing or damaged. The error of the store.
    pub(super) async fn verify(&self) -> Result<Verification> {
        let mut found = self.volume.verify().await?;
        let damaged = found.damage.len();
        if damaged == 0 {
            return Ok(found);
        }
        found.damage.truncate(NAMED_OBJECTS);
        let named: Vec<_> = found.damage.iter().map(|error| error.to_string()).collect();
        let more = match damaged - named.len() {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        let what = format!(
            "{}: DATA IS LOST: {} missing or damaged\n    \
             help: restore them from a version or a copy of the folder: {}{more}",
            self.volume.info().name,
            human_count(damaged as u64, "object"),
            named.join("; "),
        );
        Err(Error::new(ErrorKind::Lost, what))
    }

    /// Returns statistics of the device `name`, which it is.
    pub(super) fn status(&self, name: &str) -> ObjectStatus {
        let usage = self.volume.usage();
        let seconds = (rt::now() - self.opened_at).as_secs();
        let consumption = Consumption {
            puts: usage.creations + usage.lists,
            gets: usage.reads,
            stored_bytes: usage.stored_bytes,
            downloaded_bytes: usage.downloaded_bytes,
            seconds,
        };
        ObjectStatus {
            name: name.to_owned(),
            creations: usage.creations,
            reads: usage.reads,
            lists: usage.lists,
            deletions: usage.deletions,
            failures: usage.failures,
            uploaded_bytes: usage.uploaded_bytes,
            downloaded_bytes: usage.downloaded_bytes,
            live_bytes: usage.live_bytes,
            stored_bytes: usage.stored_bytes,
            mapped_bytes: usage.mapped_bytes,
            objects: usage.objects,
            has_prices: self.prices.is_some(),
            monthly_cents: (self.prices).map_or(0, |prices| prices.monthly_cents(&consumption)),
        }
    }
}

impl Stack {
    /// Returns the volume in object storage under a volume, and the device over it.
    ///
    /// # Errors
    /// `NotFound` for an unknown volume, `Unsupported` for one on another kind of device.
    fn objects_of(&self, name: &str) -> Result<(OpenObjects, Rc<dyn BlockDevice>)> {
        let served = self.served(name)?;
        let devices = self.devices.borrow();
        let mut devices = devices
            .iter()
            .filter(|watched| watched.name == served.backing);
        let found = devices
            .find_map(|watched| Some((watched.objects.clone()?, Rc::clone(&watched.device))));
        found.ok_or_else(|| {
            let what = format!(
                "volume {name:?} is not in object storage: Forebay makes no snapshots of device \
                 {:?}\nhelp: make them with the tools of that device, after `forebay flush {name}`",
                served.backing
            );
            Error::new(ErrorKind::Unsupported, what)
        })
    }

    /// Writes the dirty data of a volume back, and makes a snapshot of its backing device, which is
    /// in object storage. Returns a description of the result.
    ///
    /// # Errors
    /// `NotFound` for an unknown volume, `Unsupported` for one on another kind of device, `Busy` if
    /// there is a snapshot of this name. An error of the cache or the store.
    pub async fn snapshot(&self, volume: &str, name: &str) -> Result<String> {
        let (objects, device) = self.objects_of(volume)?;
        self.write_back(Some(volume)).await?;
        // Layers over it, such as a transit cache, have data too.
        device.flush().await?;
        objects.volume.snapshot(name).await?;
        Ok(format!("volume {volume:?} has the snapshot {name}"))
    }

    /// Deletes a snapshot of a volume in object storage. Returns a description of the result.
    ///
    /// # Errors
    /// `NotFound` for an unknown volume or snapshot, `Unsupported` for a volume on another kind of
    /// device. An error of the store.
    pub async fn delete_snapshot(&self, volume: &str, name: &str) -> Result<String> {
        let (objects, _) = self.objects_of(volume)?;
        objects.volume.delete_snapshot(name).await?;
        Ok(format!("volume {volume:?} has the snapshot {name} no more"))
    }

    /// Returns the snapshots of a volume in object storage, by name in ascending order.
    ///
    /// # Errors
    /// `NotFound` for an unknown volume, `Unsupported` for one on another kind of device. An error
    /// of the store.
    pub async fn snapshots(&self, volume: &str) -> Result<Vec<Snapshot>> {
        let (objects, _) = self.objects_of(volume)?;
        list_snapshots(&*objects.store).await
    }
}
