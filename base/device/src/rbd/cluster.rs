//! A connection to a cluster, and calls of librados and librbd.

use std::ffi::{CString, c_char, c_int};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr::null_mut;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use forebay_block::{Error, ErrorKind, Result};

use super::Address;
use super::api::{Api, Handle};

/// Settings of librbd for all images, with the reason in [`super`]. Some versions lack some names.
const SETTINGS: [(&str, &str); 9] = [
    ("rbd_cache", "false"),
    ("rbd_plugins", ""),
    ("rados_osd_op_timeout", "0"),
    ("rados_mon_op_timeout", "30"),
    ("client_mount_timeout", "30"),
    ("rbd_blocklist_on_break_lock", "true"),
    ("rbd_blacklist_on_break_lock", "true"),
    ("objecter_inflight_ops", "65536"),
    ("objecter_inflight_op_bytes", "2147483648"),
];
/// Number of clients of clusters that this process has, or is shutting down.
static OPEN: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

/// Waits until all images of this process are closed and their locks are free, for at most `limit`.
/// Returns whether they are closed. The close of an image may hang if its cluster is away. The
/// process must not run the destructors of librados before that (`_exit` runs none).
#[must_use]
pub fn wait_until_closed(limit: Duration) -> bool {
    let open = OPEN.0.lock().unwrap_or_else(PoisonError::into_inner);
    let waited = OPEN.1.wait_timeout_while(open, limit, |open| *open > 0);
    *waited.unwrap_or_else(PoisonError::into_inner).0 == 0
}

/// A connection to a cluster, with a pool. It is closed when it is dropped, which may block.
pub(super) struct Cluster {
    pub(super) api: &'static Api,
    pub(super) cluster: Handle,
    pub(super) pool: Handle,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: both handles are open or null, and nothing else uses them.
        unsafe {
            if !self.pool.is_null() {
                (self.api.rados_ioctx_destroy)(self.pool);
            }
            (self.api.rados_shutdown)(self.cluster);
        }
        *OPEN.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        OPEN.1.notify_all();
    }
}

impl Cluster {
    /// Connects, and opens the pool.
    pub(super) fn connect(api: &'static Api, address: &Address) -> Result<Self> {
        let conf = address.conf.display();
        let path = CString::new(address.conf.as_os_str().as_bytes()).map_err(|_| {
            let what = format!("{conf} has a zero byte");
            Error::new(ErrorKind::InvalidInput, what)
        })?;
        let user = format!("client.{}", address.client);
        let (name, mut cluster) = (text(&user)?, null_mut());
        // SAFETY: the texts end with a zero byte, and the handle lives through the call.
        let made =
            unsafe { (api.rados_create2)(&raw mut cluster, c"ceph".as_ptr(), name.as_ptr(), 0) };
        check(made, || format!("a Ceph client {user}"))?;
        *OPEN.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        let mut this = Self {
            api,
            cluster,
            pool: null_mut(),
        };
        // SAFETY: the handle is open, and the path ends with a zero byte.
        let read = unsafe { (api.rados_conf_read_file)(cluster, path.as_ptr()) };
        check(read, || {
            format!("{conf}: the cluster's configuration\nhelp: let `conf` name the file")
        })?;
        for (option, value) in SETTINGS {
            let (option, value) = (text(option)?, text(value)?);
            // SAFETY: the handle is open, and the texts end with a zero byte.
            unsafe { (api.rados_conf_set)(cluster, option.as_ptr(), value.as_ptr()) };
        }
        // SAFETY: the handle is open and not connected.
        let connected = unsafe { (api.rados_connect)(cluster) };
        check(connected, || {
            format!(
                "no connection to the cluster of {conf} as {user}\n\
                 help: see `ceph -c {conf} -n {user} status`, and the client's keyring"
            )
        })?;
        let pool = text(&address.pool)?;
        // SAFETY: the handle is connected, the text ends with a zero byte, and the handle of the
        // pool lives through the call.
        let found = unsafe { (api.rados_ioctx_create)(cluster, pool.as_ptr(), &raw mut this.pool) };
        check(found, || {
            format!("no pool {:?}\nhelp: see `ceph osd pool ls`", address.pool)
        })?;
        Ok(this)
    }
}

/// Returns the error of a call that ended with a negative error number.
pub(super) fn failure(number: i64, what: impl Into<String>) -> Error {
    let number = i32::try_from(-number).unwrap_or(5);
    Error::from(std::io::Error::from_raw_os_error(number)).context(what)
}

/// Returns the error of a call that ended with a negative number. `what` describes the call.
pub(super) fn check(result: c_int, what: impl FnOnce() -> String) -> Result<()> {
    match result {
        0.. => Ok(()),
        _ => Err(failure(result.into(), what())),
    }
}

/// Returns a text for a call.
pub(super) fn text(value: &str) -> Result<CString> {
    CString::new(value).map_err(|_| {
        let what = format!("{value:?} has a zero byte");
        Error::new(ErrorKind::InvalidInput, what)
    })
}

/// Returns the text in a buffer, up to its first zero byte.
pub(super) fn text_in(buf: &[u8]) -> String {
    let len = buf.iter().position(|byte| *byte == 0).unwrap_or(buf.len());
    String::from_utf8_lossy(&buf[..len]).into_owned()
}

/// Returns a text of librbd.
///
/// # Safety
/// It is null, or ends with a zero byte.
pub(super) unsafe fn text_at(at: *const c_char) -> String {
    match at.is_null() {
        true => String::new(),
        // SAFETY: the caller says so.
        false => unsafe { std::ffi::CStr::from_ptr(at) }
            .to_string_lossy()
            .into_owned(),
    }
}
