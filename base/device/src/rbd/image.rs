//! An open image: calls of librbd that may block.

use std::ffi::c_int;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_block::{Error, ErrorKind, Result};

use super::Address;
use super::api::{self, Api, Handle};
use super::cluster::{Cluster, check, text, text_at, text_in};

/// Settings that must have this value for the image as well, since a pool and an image may have
/// others.
const ENFORCED: [(&str, &str); 2] = [("rbd_cache", "false"), ("rbd_plugins", "")];

/// Key of the lock holder's note in the image's metadata.
pub(super) const NOTE: &str = "forebay_holder";
const ENOENT: c_int = 2;
const ERANGE: c_int = 34;

/// A client that holds the exclusive lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// Address in the cluster, with a number that is new for each client.
    pub(super) address: String,
    /// Identifier of the client, if it has the image open.
    pub(super) client: Option<i64>,
}

/// An open image. It is closed when it is dropped, which may block.
pub(super) struct Image {
    name: String,
    image: Handle,
    /// Whether this client holds the exclusive lock, as far as it knows.
    locked: AtomicBool,
    /// Closed after the image.
    cluster: Cluster,
}

// SAFETY: librbd and librados may call with one handle from any thread, at the same time. The
// handles are dropped once.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

impl Drop for Image {
    fn drop(&mut self) {
        if self.locked.load(Ordering::Relaxed) {
            let _ = self.set_note(NOTE, None);
            // SAFETY: the image is open.
            unsafe { (self.api().rbd_lock_release)(self.image) };
        }
        // SAFETY: the image is open, and all requests have ended (see `open`).
        unsafe { (self.api().rbd_close)(self.image) };
    }
}

impl Image {
    /// Connects to the cluster and opens the image. A writable image has no lock yet.
    ///
    /// # Errors
    /// `NotFound` for a file, pool, image or snapshot that is missing. `Permission` if the key does
    /// not suffice. `TimedOut` without an answer. `Unsupported` for an image that cannot be locked
    /// or has a cache.
    pub(super) fn open(api: &'static Api, address: &Address) -> Result<Self> {
        let cluster = Cluster::connect(api, address)?;
        let name = text(&address.image)?;
        let snapshot = address.snapshot.as_deref().map(text).transpose()?;
        let snapshot = snapshot.as_ref().map_or(null(), |name| name.as_ptr());
        let mut image = null_mut();
        let is_snapshot = address.snapshot.is_some();
        let open = match is_snapshot {
            true => api.rbd_open_read_only,
            false => api.rbd_open,
        };
        // SAFETY: the pool is open, the texts end with a zero byte or are null, and the handle
        // lives through the call.
        let opened = unsafe { open(cluster.pool, name.as_ptr(), &raw mut image, snapshot) };
        check(opened, || {
            let help = "see `rbd ls`, and `rbd snap ls` for a snapshot";
            format!("opening the image\nhelp: {help}")
        })?;
        let this = Self {
            name: address.to_string(),
            image,
            locked: AtomicBool::new(false),
            cluster,
        };
        if !is_snapshot {
            this.check_features(address)?;
            this.check_settings(address)?;
        }
        Ok(this)
    }

    pub(super) const fn api(&self) -> &'static Api {
        self.cluster.api
    }

    /// Returns the handle for requests. It is open as long as the image.
    pub(super) const fn handle(&self) -> Handle {
        self.image
    }

    /// Refuses an image without an exclusive lock.
    fn check_features(&self, address: &Address) -> Result<()> {
        let mut features = 0;
        // SAFETY: the image is open, and the number lives through the call.
        let read = unsafe { (self.api().rbd_get_features)(self.image, &raw mut features) };
        check(read, || "reading its features".to_owned())?;
        if features & api::FEATURE_EXCLUSIVE_LOCK == 0 {
            let what = format!(
                "it has no exclusive lock, so that other clients could write to it\n\
                 help: rbd feature enable {}/{} exclusive-lock",
                address.pool, address.image
            );
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        Ok(())
    }

    /// Refuses an image whose own settings, or those of its pool, turn a cache of librbd on.
    fn check_settings(&self, address: &Address) -> Result<()> {
        for (name, value, source) in self.settings()? {
            let wanted = ENFORCED.iter().find(|(other, _)| *other == name);
            let Some((_, wanted)) = wanted.filter(|(_, wanted)| *wanted != value) else {
                continue;
            };
            let (pool, image) = (&address.pool, &address.image);
            let remove = match source {
                1 => format!("rbd config pool rm {pool} {name}"),
                _ => format!("rbd config image rm {pool}/{image} {name}"),
            };
            let what = format!(
                "it has {name} = {value:?}, and {wanted:?} is needed: librbd would acknowledge \
                 what no OSD has\nhelp: {remove}"
            );
            return Err(Error::new(ErrorKind::Unsupported, what));
        }
        Ok(())
    }

    /// Returns name, value and source of each setting of the image.
    fn settings(&self) -> Result<Vec<(String, String, c_int)>> {
        let mut room: c_int = 512;
        for _ in 0..4 {
            let mut found = Vec::with_capacity(usize::try_from(room).expect("a small number"));
            let mut count = room;
            // SAFETY: the image is open, and there is room for as many entries as `count` says.
            let read = unsafe {
                (self.api().rbd_config_image_list)(self.image, found.as_mut_ptr(), &raw mut count)
            };
            if read == -ERANGE {
                room = count.max(2 * room);
                continue;
            }
            check(read, || "reading its settings".to_owned())?;
            // SAFETY: the call has written so many entries.
            unsafe { found.set_len(usize::try_from(count).expect("a small number")) };
            let settings = found.iter().map(|setting: &api::Setting| {
                // SAFETY: texts of librbd.
                unsafe {
                    (
                        text_at(setting.name),
                        text_at(setting.value),
                        setting.source,
                    )
                }
            });
            let settings = settings.collect();
            // SAFETY: the entries are those of the call, and their texts are used no more.
            unsafe { (self.api().rbd_config_image_list_cleanup)(found.as_mut_ptr(), count) };
            return Ok(settings);
        }
        let what = "its settings changed during each attempt to read them\nhelp: open it once more";
        Err(Error::new(ErrorKind::Io, what))
    }

    /// Returns the size, bytes.
    pub(super) fn size_bytes(&self) -> Result<u64> {
        let mut size = 0;
        // SAFETY: the image is open, and the number lives through the call.
        let read = unsafe { (self.api().rbd_get_size)(self.image, &raw mut size) };
        check(read, || "reading its size".to_owned())?;
        Ok(size)
    }

    /// Returns cluster, pool, image and snapshot by their identifiers, which names do not change.
    pub(super) fn identifiers(&self, snapshot: Option<&str>) -> Result<String> {
        let (api, pool) = (self.api(), self.cluster.pool);
        let (mut cluster, mut image) = ([0_u8; 64], [0_u8; 128]);
        // SAFETY: the handles are open, and the buffers have the lengths passed.
        let (read, number, read_too) = unsafe {
            (
                (api.rados_cluster_fsid)(
                    self.cluster.cluster,
                    cluster.as_mut_ptr().cast(),
                    cluster.len(),
                ),
                (api.rados_ioctx_get_id)(pool),
                (api.rbd_get_id)(self.image, image.as_mut_ptr().cast(), image.len()),
            )
        };
        check(read, || "reading the cluster's identifier".to_owned())?;
        check(read_too, || {
            "reading its identifier: an image of format 1 has none\n\
             help: copy it to one of format 2 (`rbd migration`)"
                .to_owned()
        })?;
        let mut all = format!("{}/{number}/{}", text_in(&cluster), text_in(&image));
        if let Some(name) = snapshot {
            let (name, mut number) = (text(name)?, 0);
            // SAFETY: the image is open, the text ends with a zero byte, and the number lives
            // through the call.
            let read = unsafe { (api.rbd_snap_get_id)(self.image, name.as_ptr(), &raw mut number) };
            check(read, || "reading the snapshot's identifier".to_owned())?;
            all += &format!("@{number}");
        }
        Ok(all)
    }

    /// Returns the holder of the exclusive lock.
    pub(super) fn owner(&self) -> Result<Option<Owner>> {
        let (mut mode, mut owners, mut count) = (0, [null_mut(); 8], 8);
        // SAFETY: the image is open, and there is room for eight owners.
        let read = unsafe {
            (self.api().rbd_lock_get_owners)(
                self.image,
                &raw mut mode,
                owners.as_mut_ptr(),
                &raw mut count,
            )
        };
        if read == -ENOENT {
            return Ok(None);
        }
        check(read, || "reading who holds its lock".to_owned())?;
        // SAFETY: the call has written `count` texts, which are used no more after the second call.
        let address = unsafe {
            let first = owners.first().filter(|_| count > 0);
            let address = first.map(|first| text_at(*first));
            (self.api().rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count);
            address
        };
        let Some(address) = address.filter(|address| !address.is_empty()) else {
            return Ok(None);
        };
        let watchers = self.watchers()?;
        let client = watchers.iter().find(|(other, _)| *other == address);
        Ok(Some(Owner {
            client: client.map(|(_, client)| *client),
            address,
        }))
    }

    /// Returns address and identifier of each client that has the image open for writing.
    fn watchers(&self) -> Result<Vec<(String, i64)>> {
        const ROOM: usize = 256;
        let mut found: Vec<api::Watcher> = Vec::with_capacity(ROOM);
        let mut count = ROOM;
        // SAFETY: the image is open, and there is room for as many entries as `count` says.
        let read = unsafe {
            (self.api().rbd_watchers_list)(self.image, found.as_mut_ptr(), &raw mut count)
        };
        check(read, || "reading who has it open".to_owned())?;
        // SAFETY: the call has written so many entries.
        unsafe { found.set_len(count.min(ROOM)) };
        let watchers = found.iter().map(|watcher| {
            // SAFETY: a text of librbd.
            (unsafe { text_at(watcher.address) }, watcher.client)
        });
        let watchers = watchers.collect();
        // SAFETY: the entries are those of the call, and their texts are used no more.
        unsafe { (self.api().rbd_watchers_list_cleanup)(found.as_mut_ptr(), count) };
        Ok(watchers)
    }

    /// Acquires the exclusive lock, which no other client gets from this one by asking.
    ///
    /// # Errors
    /// `ReadOnly` if a live client keeps the lock.
    pub(super) fn acquire(&self) -> Result<()> {
        // SAFETY: the image is open.
        let acquired = unsafe { (self.api().rbd_lock_acquire)(self.image, api::EXCLUSIVE) };
        check(acquired, || "acquiring its exclusive lock".to_owned())?;
        self.locked.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Notes that another client has the lock, so that the close leaves it alone.
    pub(super) fn forget_lock(&self) {
        self.locked.store(false, Ordering::Relaxed);
    }

    /// Takes the lock from a client that has ended, and puts that client on the blocklist.
    pub(super) fn break_lock(&self, owner: &Owner) -> Result<()> {
        let address = text(&owner.address)?;
        // SAFETY: the image is open, and the text ends with a zero byte.
        let broken =
            unsafe { (self.api().rbd_lock_break)(self.image, api::EXCLUSIVE, address.as_ptr()) };
        check(broken, || format!("breaking the lock of {}", owner.address))
    }

    /// Returns whether this client still holds the lock, by a question to the cluster.
    pub(super) fn is_owner(&self) -> Result<bool> {
        let mut owner = 0;
        // SAFETY: the image is open, and the number lives through the call.
        let read = unsafe { (self.api().rbd_is_exclusive_lock_owner)(self.image, &raw mut owner) };
        if read == api::BLOCKLISTED {
            return Ok(false);
        }
        check(read, || "asking for its lock".to_owned())?;
        Ok(owner != 0)
    }

    /// Returns an entry of the image's metadata.
    pub(super) fn note(&self, key: &str) -> Option<String> {
        let (key, mut value) = (text(key).ok()?, [0_u8; 512]);
        let mut len = value.len();
        // SAFETY: the image is open, the text ends with a zero byte, and the buffer has the length
        // passed.
        let read = unsafe {
            let value = value.as_mut_ptr().cast();
            (self.api().rbd_metadata_get)(self.image, key.as_ptr(), value, &raw mut len)
        };
        (read == 0).then(|| text_in(&value))
    }

    /// Sets or removes an entry of the image's metadata.
    pub(super) fn set_note(&self, key: &str, value: Option<&str>) -> Result<()> {
        let key = text(key)?;
        let value = value.map(text).transpose()?;
        // SAFETY: the image is open, and the texts end with a zero byte.
        let written = unsafe {
            match &value {
                Some(value) => {
                    (self.api().rbd_metadata_set)(self.image, key.as_ptr(), value.as_ptr())
                }
                None => (self.api().rbd_metadata_remove)(self.image, key.as_ptr()),
            }
        };
        check(written, || "writing its metadata".to_owned())
    }

    /// Returns whether this librbd can write zeroes.
    pub(super) const fn has_zeroes(&self) -> bool {
        self.api().rbd_aio_write_zeroes.is_some()
    }

    /// Returns the name for messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}
