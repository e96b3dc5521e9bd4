//! A driver without a kernel: devices, tags and states as in `drivers/block/ublk_drv.c` of Linux
//! 6.12, as far as a server can observe them. Actions that are not allowed there are errors here.

mod driver;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::Waker;
use std::time::{Duration, Instant};

use forebay_wire::ublk::{Descriptor, Info, PARAMS_BYTES, feature, io, state};

/// Time after which a test counts as hung.
const HUNG: Duration = Duration::from_secs(20);

thread_local! {
    /// Whether the reactor of this thread cannot serve queues.
    pub(super) static UNFIT: Cell<bool> = const { Cell::new(false) };
}

/// A tag in the driver.
#[derive(Default)]
struct Tag {
    /// Whether a command waits for a request.
    active: bool,
    waker: Option<Waker>,
    /// Result of the command, not received yet.
    ended: Option<i32>,
    /// Request that the server executes, and its data.
    request: Option<(Descriptor, Vec<u8>)>,
    /// Result of the last request, and its data.
    answer: Option<(i32, Vec<u8>)>,
}

impl Tag {
    fn end(&mut self, result: i32) {
        self.active = false;
        self.ended = Some(result);
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

struct Device {
    info: Info,
    params: Option<[u8; PARAMS_BYTES]>,
    /// Number of open descriptors of the character device.
    open: usize,
    queues: Vec<Vec<Tag>>,
    claimed: bool,
    /// Whether a program has the block device open and keeps it open after its end.
    opened: bool,
    /// Whether a recovery has begun and not ended.
    recovering: bool,
}

impl Device {
    fn tags(&mut self) -> impl Iterator<Item = &mut Tag> {
        self.queues.iter_mut().flatten()
    }

    fn all(&mut self, mut is: impl FnMut(&Tag) -> bool) -> bool {
        self.tags().all(|tag| is(tag))
    }
}

#[derive(Default)]
struct State {
    devices: BTreeMap<u32, Device>,
    running: Vec<i32>,
    /// Control commands in order, and forced results for some of them.
    log: Vec<u32>,
    refused: BTreeMap<u32, i32>,
    /// Forced result of the next commands of queues.
    refuse_io: Option<i32>,
    refusals: usize,
}

/// The driver, and the actions of a test in the kernel's place.
#[derive(Clone, Default)]
pub(super) struct Fake(Arc<(Mutex<State>, Condvar)>);

impl Fake {
    pub(super) fn new() -> Self {
        let fake = Self::default();
        fake.lock().running.push(own());
        fake
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().expect("no test panics with it")
    }

    fn changed(&self) {
        self.0.1.notify_all();
    }

    /// Waits until `done` returns a value for a device. Returns `None` after `patience`.
    fn wait<T>(
        &self,
        device: u32,
        patience: Duration,
        mut done: impl FnMut(&mut Device) -> Option<T>,
    ) -> Option<T> {
        let begin = Instant::now();
        let mut state = self.lock();
        loop {
            if let Some(value) = done(state.devices.get_mut(&device)?) {
                return Some(value);
            }
            let left = patience.checked_sub(begin.elapsed())?;
            state = self
                .0
                .1
                .wait_timeout(state, left)
                .expect("no test panics with it")
                .0;
        }
    }

    /// Forces this result of a control command from now on.
    pub(super) fn refuse(&self, number: u32, result: i32) {
        self.lock().refused.insert(number, result);
    }

    /// Forces this result of the next queue command.
    pub(super) fn refuse_io(&self, result: i32) {
        self.lock().refuse_io = Some(result);
    }

    pub(super) fn refusals(&self) -> usize {
        self.lock().refusals
    }

    pub(super) fn log(&self) -> Vec<u32> {
        std::mem::take(&mut self.lock().log)
    }

    pub(super) fn info(&self, device: u32) -> Option<Info> {
        self.lock().devices.get(&device).map(|device| device.info)
    }

    pub(super) fn params(&self, device: u32) -> [u8; PARAMS_BYTES] {
        self.lock().devices[&device].params.expect("they were set")
    }

    pub(super) fn set_params(&self, device: u32, params: [u8; PARAMS_BYTES]) {
        self.lock()
            .devices
            .get_mut(&device)
            .expect("it is there")
            .params = Some(params);
    }

    pub(super) fn mount(&self, device: u32, mounted: bool) {
        self.lock()
            .devices
            .get_mut(&device)
            .expect("it is there")
            .claimed = mounted;
    }

    pub(super) fn keep_open(&self, device: u32) {
        let mut state = self.lock();
        state.devices.get_mut(&device).expect("it is there").opened = true;
    }

    /// Creates a device as another program would.
    pub(super) fn strange(&self, info: Info) {
        self.lock().running.push(info.server);
        self.lock().devices.insert(info.device, blank(info));
    }

    /// Marks a process as ended.
    pub(super) fn bury(&self, process: i32) {
        self.lock().running.retain(|other| *other != process);
    }

    /// Simulates the kernel after the server of a device has died and its rings are closed.
    pub(super) fn after_death(&self, number: u32) {
        self.wait(number, HUNG, |device| (device.open == 0).then_some(()))
            .expect("the reactors let go of it");
        let mut state = self.lock();
        let device = state.devices.get_mut(&number).expect("it is there");
        let recovers = device.info.features & feature::USER_RECOVERY != 0;
        device.info.state = if recovers {
            state::QUIESCED
        } else {
            state::DEAD
        };
        // Another process from now on.
        device.info.server = 1_000_000;
    }

    /// Submits a request to a tag, once it waits for one.
    pub(super) fn ask(&self, device: u32, queue: u16, tag: u16, request: Descriptor, data: &[u8]) {
        let given = self.wait(device, HUNG, |device| {
            let tag = &mut device.queues[usize::from(queue)][usize::from(tag)];
            (tag.active && tag.request.is_none()).then(|| {
                tag.request = Some((request, data.to_vec()));
                tag.answer = None;
                tag.end(io::RESULT_OK);
            })
        });
        given.expect("the tag fetches");
    }

    /// Returns the result of a tag's request and its data, or `None` after `patience`.
    pub(super) fn answer_within(
        &self,
        device: u32,
        queue: u16,
        tag: u16,
        patience: Duration,
    ) -> Option<(i32, Vec<u8>)> {
        self.wait(device, patience, |device| {
            let tag = &mut device.queues[usize::from(queue)][usize::from(tag)];
            tag.answer.take()
        })
    }

    pub(super) fn answer(&self, device: u32, queue: u16, tag: u16) -> (i32, Vec<u8>) {
        let answer = self.answer_within(device, queue, tag, HUNG);
        answer.expect("the request ends")
    }

    pub(super) fn call(
        &self,
        device: u32,
        queue: u16,
        tag: u16,
        request: Descriptor,
        data: &[u8],
    ) -> (i32, Vec<u8>) {
        self.ask(device, queue, tag, request, data);
        self.answer(device, queue, tag)
    }
}

pub(super) fn own() -> i32 {
    i32::try_from(std::process::id()).expect("a process")
}

fn blank(info: Info) -> Device {
    let queue = || {
        std::iter::repeat_with(Tag::default)
            .take(info.depth.into())
            .collect()
    };
    Device {
        info,
        params: None,
        open: 0,
        queues: std::iter::repeat_with(queue)
            .take(info.queues.into())
            .collect(),
        claimed: false,
        opened: false,
        recovering: false,
    }
}
