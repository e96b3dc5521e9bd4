//! The functions of librbd over clusters in memory, which tests make and script.

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::Arc;

use super::cluster::{Client, Cluster, lock};
use super::requests::{completion, discard, free_completion, read, result, write, zero};
use crate::rbd::api::{Api, BLOCKLISTED, Handle, NOT_OWNER, Setting, Watcher};

const ENOENT: c_int = -2;
const EINVAL: c_int = -22;
const ERANGE: c_int = -34;

/// An open image of a client.
pub(super) struct Image {
    pub(super) client: Arc<Client>,
    pub(super) read_only: bool,
}

/// Returns a text that a caller passed.
fn text(at: *const c_char) -> String {
    // SAFETY: callers pass texts that end with a zero byte.
    unsafe { CStr::from_ptr(at) }
        .to_str()
        .expect("UTF-8")
        .to_owned()
}

fn copied(text: &str) -> *mut c_char {
    CString::new(text).expect("no zero byte").into_raw()
}

fn free(text: *mut c_char) {
    // SAFETY: each text was made by `copied`, and is freed once.
    drop(unsafe { CString::from_raw(text) });
}

/// Returns what a handle points to.
///
/// # Safety
/// It is a handle of this type, and open.
pub(super) unsafe fn at<'a, T>(handle: Handle) -> &'a T {
    // SAFETY: the caller says so.
    unsafe { &*handle.cast::<T>() }
}

pub(super) fn image<'a>(handle: Handle) -> &'a Image {
    // SAFETY: callers pass open images.
    unsafe { at(handle) }
}

pub(super) fn cluster(handle: Handle) -> Arc<Cluster> {
    image(handle).client.cluster()
}

unsafe extern "C" fn create(
    to: *mut Handle,
    _: *const c_char,
    name: *const c_char,
    _: u64,
) -> c_int {
    let client = Arc::new(Client::new(text(name)));
    // SAFETY: the caller passes a place for the handle.
    unsafe { *to = Arc::into_raw(client).cast_mut().cast() };
    0
}

unsafe extern "C" fn read_file(client: Handle, path: *const c_char) -> c_int {
    // SAFETY: the handle is a client.
    let client: &Client = unsafe { at(client) };
    if client.find(&text(path)) { 0 } else { ENOENT }
}

unsafe extern "C" fn set(client: Handle, name: *const c_char, value: *const c_char) -> c_int {
    // SAFETY: the handle is a client.
    let client: &Client = unsafe { at(client) };
    let (name, value) = (text(name), text(value));
    lock(&client.cluster().state).options.insert(name, value);
    0
}

unsafe extern "C" fn connect(client: Handle) -> c_int {
    // SAFETY: the handle is a client.
    let client: &Client = unsafe { at(client) };
    lock(&client.cluster().state).connects
}

unsafe extern "C" fn shutdown(client: Handle) {
    // SAFETY: the handle is a client, and is used no more.
    drop(unsafe { Arc::from_raw(client.cast::<Client>()) });
}

fn put(value: &str, to: *mut c_char, len: usize) -> c_int {
    assert!(value.len() < len, "there is room");
    // SAFETY: the caller's buffer has `len` bytes.
    unsafe {
        to.copy_from(value.as_ptr().cast(), value.len());
        *to.add(value.len()) = 0;
    }
    0
}

unsafe extern "C" fn fsid(_: Handle, to: *mut c_char, len: usize) -> c_int {
    put("5d3f", to, len)
}

unsafe extern "C" fn open_pool(client: Handle, name: *const c_char, to: *mut Handle) -> c_int {
    if text(name) != "vms" {
        return ENOENT;
    }
    // SAFETY: the caller passes a place for the handle, and the client outlives the pool.
    unsafe { *to = client };
    0
}

unsafe extern "C" fn close_pool(_: Handle) {}

unsafe extern "C" fn pool_id(_: Handle) -> i64 {
    3
}

fn open_image(
    pool: Handle,
    name: *const c_char,
    to: *mut Handle,
    snapshot: *const c_char,
    read_only: bool,
) -> c_int {
    if text(name) != "db" || (!snapshot.is_null() && text(snapshot) != "s") {
        return ENOENT;
    }
    // SAFETY: the pool is a client, which the count keeps.
    let client = unsafe {
        Arc::increment_strong_count(pool.cast::<Client>());
        Arc::from_raw(pool.cast::<Client>())
    };
    let cluster = client.cluster();
    let mut state = lock(&cluster.state);
    state.open += 1;
    if !read_only {
        state.watchers.push((client.address.clone(), client.id));
    }
    drop(state);
    let image = Box::new(Image { client, read_only });
    // SAFETY: the caller passes a place for the handle.
    unsafe { *to = Box::into_raw(image).cast() };
    0
}

unsafe extern "C" fn open(
    pool: Handle,
    name: *const c_char,
    to: *mut Handle,
    snapshot: *const c_char,
) -> c_int {
    open_image(pool, name, to, snapshot, false)
}

unsafe extern "C" fn open_read_only(
    pool: Handle,
    name: *const c_char,
    to: *mut Handle,
    snapshot: *const c_char,
) -> c_int {
    open_image(pool, name, to, snapshot, true)
}

unsafe extern "C" fn close(handle: Handle) -> c_int {
    // SAFETY: the handle is an image, and is used no more.
    let image = unsafe { Box::from_raw(handle.cast::<Image>()) };
    let cluster = image.client.cluster();
    let mut state = lock(&cluster.state);
    assert!(state.held.is_empty(), "closed with requests in flight");
    let own = &image.client.address;
    state.watchers.retain(|(address, _)| address != own);
    state.open -= 1;
    0
}

unsafe extern "C" fn size(handle: Handle, to: *mut u64) -> c_int {
    let cluster = cluster(handle);
    let state = lock(&cluster.state);
    let size_bytes = state.size_bytes.unwrap_or(state.data.len() as u64);
    // SAFETY: the caller passes a place for the number.
    unsafe { *to = size_bytes };
    0
}

unsafe extern "C" fn features(handle: Handle, to: *mut u64) -> c_int {
    // SAFETY: the caller passes a place for the number.
    unsafe { *to = lock(&cluster(handle).state).features };
    0
}

unsafe extern "C" fn image_id(handle: Handle, to: *mut c_char, len: usize) -> c_int {
    let id = lock(&cluster(handle).state).image.clone();
    put(&id, to, len)
}

unsafe extern "C" fn snapshot_id(_: Handle, _: *const c_char, to: *mut u64) -> c_int {
    // SAFETY: the caller passes a place for the number.
    unsafe { *to = 4 };
    0
}

unsafe extern "C" fn settings(handle: Handle, to: *mut Setting, count: *mut c_int) -> c_int {
    let settings = lock(&cluster(handle).state).settings.clone();
    for (index, (name, value, source)) in settings.iter().enumerate() {
        let (name, value, source) = (copied(name), copied(value), *source);
        // SAFETY: the caller's buffer has room for more entries than tests have.
        unsafe {
            to.add(index).write(Setting {
                name,
                value,
                source,
            });
        }
    }
    // SAFETY: the caller passes a place for the number.
    unsafe { *count = c_int::try_from(settings.len()).expect("a few") };
    0
}

unsafe extern "C" fn free_settings(settings: *mut Setting, count: c_int) {
    for index in 0..usize::try_from(count).expect("a few") {
        // SAFETY: the caller passes the entries of `settings`.
        let setting = unsafe { settings.add(index).read() };
        free(setting.name);
        free(setting.value);
    }
}

unsafe extern "C" fn is_owner(handle: Handle, to: *mut c_int) -> c_int {
    let (cluster, own) = (cluster(handle), &image(handle).client.address);
    let state = lock(&cluster.state);
    if state.blocklist.contains(own) {
        return BLOCKLISTED;
    }
    let is_owner = state.owner.as_ref() == Some(own);
    // SAFETY: the caller passes a place for the number.
    unsafe { *to = is_owner.into() };
    0
}

unsafe extern "C" fn acquire(handle: Handle, _: c_int) -> c_int {
    let (cluster, own) = (cluster(handle), &image(handle).client.address);
    let mut state = lock(&cluster.state);
    if let Some(other) = state.owner.take().filter(|other| other != own) {
        if state.watchers.iter().any(|(address, _)| *address == other) {
            state.owner = Some(other);
            return NOT_OWNER;
        }
        state.blocklist.insert(other);
    }
    state.owner = Some(own.clone());
    0
}

unsafe extern "C" fn release(handle: Handle) -> c_int {
    let (cluster, own) = (cluster(handle), &image(handle).client.address);
    lock(&cluster.state).owner.take_if(|owner| owner == own);
    0
}

unsafe extern "C" fn break_lock(handle: Handle, _: c_int, owner: *const c_char) -> c_int {
    cluster(handle).break_lock(&text(owner));
    0
}

unsafe extern "C" fn owners(
    handle: Handle,
    _: *mut c_int,
    to: *mut *mut c_char,
    count: *mut usize,
) -> c_int {
    if image(handle).read_only {
        return EINVAL;
    }
    let owner = lock(&cluster(handle).state).owner.clone();
    let Some(owner) = owner else { return ENOENT };
    // SAFETY: the caller passes places for the texts, and one for their number.
    unsafe { (*to, *count) = (copied(&owner), 1) };
    0
}

unsafe extern "C" fn free_owners(owners: *mut *mut c_char, count: usize) {
    for index in 0..count {
        // SAFETY: the caller passes the texts of `owners`.
        free(unsafe { *owners.add(index) });
    }
}

unsafe extern "C" fn watchers(handle: Handle, to: *mut Watcher, count: *mut usize) -> c_int {
    let watchers = lock(&cluster(handle).state).watchers.clone();
    for (index, (address, client)) in watchers.iter().enumerate() {
        let (address, client) = (copied(address), *client);
        // SAFETY: the caller's buffer has room for more entries than tests have.
        unsafe {
            to.add(index).write(Watcher {
                address,
                client,
                cookie: 1,
            });
        }
    }
    // SAFETY: the caller passes a place for the number.
    unsafe { *count = watchers.len() };
    0
}

unsafe extern "C" fn free_watchers(watchers: *mut Watcher, count: usize) {
    for index in 0..count {
        // SAFETY: the caller passes the entries of `watchers`.
        free(unsafe { watchers.add(index).read() }.address);
    }
}

unsafe extern "C" fn note(
    handle: Handle,
    key: *const c_char,
    to: *mut c_char,
    len: *mut usize,
) -> c_int {
    let value = lock(&cluster(handle).state).notes.get(&text(key)).cloned();
    match value {
        // SAFETY: the caller passes the length of its buffer.
        Some(value) if value.len() < unsafe { *len } => put(&value, to, value.len() + 1),
        Some(_) => ERANGE,
        None => ENOENT,
    }
}

unsafe extern "C" fn set_note(handle: Handle, key: *const c_char, value: *const c_char) -> c_int {
    let (key, value) = (text(key), text(value));
    lock(&cluster(handle).state).notes.insert(key, value);
    0
}

unsafe extern "C" fn remove_note(handle: Handle, key: *const c_char) -> c_int {
    lock(&cluster(handle).state).notes.remove(&text(key));
    0
}

/// Returns the functions of a librbd over clusters in memory.
pub(super) fn api(has_zeroes: bool) -> &'static Api {
    Box::leak(Box::new(Api {
        rados_create2: create,
        rados_conf_read_file: read_file,
        rados_conf_set: set,
        rados_connect: connect,
        rados_shutdown: shutdown,
        rados_cluster_fsid: fsid,
        rados_ioctx_create: open_pool,
        rados_ioctx_destroy: close_pool,
        rados_ioctx_get_id: pool_id,
        rbd_open: open,
        rbd_open_read_only: open_read_only,
        rbd_close: close,
        rbd_get_size: size,
        rbd_get_features: features,
        rbd_get_id: image_id,
        rbd_snap_get_id: snapshot_id,
        rbd_config_image_list: settings,
        rbd_config_image_list_cleanup: free_settings,
        rbd_is_exclusive_lock_owner: is_owner,
        rbd_lock_acquire: acquire,
        rbd_lock_release: release,
        rbd_lock_break: break_lock,
        rbd_lock_get_owners: owners,
        rbd_lock_get_owners_cleanup: free_owners,
        rbd_watchers_list: watchers,
        rbd_watchers_list_cleanup: free_watchers,
        rbd_metadata_get: note,
        rbd_metadata_set: set_note,
        rbd_metadata_remove: remove_note,
        rbd_aio_create_completion: completion,
        rbd_aio_get_return_value: result,
        rbd_aio_release: free_completion,
        rbd_aio_read: read,
        rbd_aio_write: write,
        rbd_aio_discard: discard,
        rbd_aio_write_zeroes: has_zeroes.then_some(zero),
    }))
}
