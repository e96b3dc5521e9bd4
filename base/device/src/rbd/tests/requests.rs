//! Requests to an image of a cluster in memory.

use std::ffi::{c_char, c_int};
use std::ptr::null;
use std::sync::{Arc, MutexGuard};

use super::cluster::{Change, Client, Cluster, State, lock};
use super::fake::{at, cluster, image};
use crate::rbd::api::{BLOCKLISTED, Callback, Handle, NOT_OWNER, THICK};

/// A request that waits for its end.
pub(super) struct Job {
    cluster: Arc<Cluster>,
    client: Arc<Client>,
    pub(super) change: Change,
    offset: usize,
    len: usize,
    data: usize,
    completion: usize,
}

struct Completion {
    callback: Callback,
    argument: Handle,
    result: isize,
}

pub(super) unsafe extern "C" fn completion(
    argument: Handle,
    callback: Callback,
    to: *mut Handle,
) -> c_int {
    let completion = Box::new(Completion {
        callback,
        argument,
        result: 0,
    });
    // SAFETY: the caller passes a place for the handle.
    unsafe { *to = Box::into_raw(completion).cast() };
    0
}

pub(super) unsafe extern "C" fn result(handle: Handle) -> isize {
    // SAFETY: the handle is a completion.
    unsafe { at::<Completion>(handle) }.result
}

pub(super) unsafe extern "C" fn free_completion(handle: Handle) {
    // SAFETY: the handle is a completion, and is used no more.
    drop(unsafe { Box::from_raw(handle.cast::<Completion>()) });
}

fn start(
    handle: Handle,
    change: Change,
    (offset, len): (u64, usize),
    data: *const c_char,
    completion: Handle,
) -> c_int {
    let job = Job {
        cluster: cluster(handle),
        client: Arc::clone(&image(handle).client),
        change,
        offset: usize::try_from(offset).expect("small"),
        len,
        data: data.addr(),
        completion: completion.addr(),
    };
    let may_change = !image(handle).read_only || change == Change::None;
    assert!(may_change, "a change of a read-only image");
    data.expose_provenance();
    completion.expose_provenance();
    let cluster = Arc::clone(&job.cluster);
    cluster.start(job);
    0
}

pub(super) unsafe extern "C" fn read(
    h: Handle,
    at: u64,
    len: usize,
    to: *mut c_char,
    c: Handle,
) -> c_int {
    start(h, Change::None, (at, len), to, c)
}

pub(super) unsafe extern "C" fn write(
    h: Handle,
    at: u64,
    len: usize,
    d: *const c_char,
    c: Handle,
) -> c_int {
    start(h, Change::Data, (at, len), d, c)
}

pub(super) unsafe extern "C" fn discard(h: Handle, at: u64, len: u64, c: Handle) -> c_int {
    let len = usize::try_from(len).expect("small");
    start(h, Change::Discard, (at, len), null(), c)
}

pub(super) unsafe extern "C" fn zero(
    h: Handle,
    at: u64,
    len: usize,
    c: Handle,
    flags: c_int,
    _: c_int,
) -> c_int {
    let keeps_space = flags & THICK != 0;
    start(h, Change::Zeroes { keeps_space }, (at, len), null(), c)
}

impl Job {
    /// Carries the request out, unless its client may not, and reports its end. `failure` replaces
    /// the outcome if it is not zero.
    pub(super) fn end(self, failure: isize) {
        let cluster = Arc::clone(&self.cluster);
        let mut state = lock(&cluster.state);
        let own = &self.client.address;
        let result = match failure {
            0 if state.blocklist.contains(own) => BLOCKLISTED as isize,
            0 if self.change != Change::None && state.owner.as_ref() != Some(own) => {
                NOT_OWNER as isize
            }
            0 => self.carry_out(&mut state),
            failure => failure,
        };
        drop(state);
        let completion = std::ptr::with_exposed_provenance_mut::<Completion>(self.completion);
        // SAFETY: the completion is that of the request, which ends once.
        let (callback, argument) = unsafe {
            (*completion).result = result;
            ((*completion).callback, (*completion).argument)
        };
        // SAFETY: the caller of the request passed both.
        unsafe { callback(completion.cast(), argument) };
    }

    fn carry_out(&self, state: &mut MutexGuard<'_, State>) -> isize {
        let end = state.data.len().min(self.offset + self.len);
        let Some(range) = state.data.get_mut(self.offset..end) else {
            return -22;
        };
        let data = std::ptr::with_exposed_provenance_mut::<u8>(self.data);
        // SAFETY: the caller keeps the data until the end of the request.
        unsafe {
            match self.change {
                Change::None => data.copy_from(range.as_ptr(), range.len()),
                Change::Data => data.copy_to(range.as_mut_ptr(), range.len()),
                Change::Zeroes { .. } | Change::Discard => range.fill(0),
            }
        }
        match self.change {
            Change::None => range.len().cast_signed(),
            _ => 0,
        }
    }
}
