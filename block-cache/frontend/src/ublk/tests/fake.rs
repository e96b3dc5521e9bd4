//! A driver without a kernel: devices, tags and states as in `drivers/block/ublk_drv.c` of Linux
//! 6.12, as far as a server can observe them. Actions that are not allowed there are errors here.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use forebay_block::{Buf, ErrorKind, Result};
use forebay_wire::ublk::{
    Descriptor, INFO_BYTES, IO_BYTES, Info, Io, PARAMS_BYTES, control, feature, io, state,
};

use super::super::driver::{Driver, Node, Port};
use super::super::export::NEEDED;

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

    fn carry_out(
        &self,
        number: u32,
        device: u32,
        argument: u64,
        data: &mut [u8],
        patience: Duration,
    ) -> Option<i32> {
        let mut state = self.lock();
        state.log.push(number);
        if let Some(result) = state.refused.get(&number) {
            return Some(*result);
        }
        if number == control::GET_FEATURES {
            data.copy_from_slice(&NEEDED.to_ne_bytes());
            return Some(0);
        }
        if number == control::ADD {
            if state.devices.contains_key(&device) {
                return Some(-libc::EEXIST);
            }
            let mut info = Info::decode(*data.first_chunk::<INFO_BYTES>().expect("whole"));
            assert_eq!(info.device, device);
            // A machine with two processors.
            info.queues = info.queues.min(2);
            info.server = -1;
            data.copy_from_slice(&info.encode());
            state.devices.insert(device, blank(info));
            return Some(0);
        }
        let Some(found) = state.devices.get_mut(&device) else {
            return Some(-libc::ENODEV);
        };
        let process = i32::try_from(argument).expect("a process");
        match number {
            control::GET_INFO => data.copy_from_slice(&found.info.encode()),
            control::SET_PARAMS => found.params = Some(*data.first_chunk().expect("whole")),
            control::GET_PARAMS => data.copy_from_slice(&found.params.expect("they were set")),
            control::START => {
                drop(state);
                self.wait(device, patience, |device| {
                    device.all(|tag| tag.active).then_some(())
                })?;
                let mut state = self.lock();
                let found = state.devices.get_mut(&device)?;
                (found.info.state, found.info.server) = (state::LIVE, process);
            }
            control::STOP => {
                drop(state);
                // The server answers its current requests first.
                self.wait(device, patience, |device| {
                    device.all(|tag| tag.request.is_none()).then_some(())
                })?;
                let mut state = self.lock();
                end(state.devices.get_mut(&device)?);
            }
            control::DELETE => {
                end(found);
                drop(state);
                self.wait(device, patience, |device| {
                    (device.open == 0 && !device.opened).then_some(())
                })?;
                self.lock().devices.remove(&device);
            }
            control::START_RECOVERY => {
                if found.info.features & feature::USER_RECOVERY == 0 {
                    return Some(-libc::EINVAL);
                }
                if found.open > 0 || found.info.state != state::QUIESCED {
                    return Some(-libc::EBUSY);
                }
                for tag in found.tags() {
                    (tag.active, tag.ended, tag.waker) = (false, None, None);
                }
                found.recovering = true;
            }
            control::END_RECOVERY => {
                assert!(found.recovering, "a recovery begins before it ends");
                drop(state);
                self.wait(device, patience, |device| {
                    device.all(|tag| tag.active).then_some(())
                })?;
                let mut state = self.lock();
                let found = state.devices.get_mut(&device)?;
                (found.info.state, found.info.server) = (state::LIVE, process);
                found.recovering = false;
                let reissue = found.info.features & feature::USER_RECOVERY_REISSUE != 0;
                for tag in found.tags().filter(|tag| tag.request.is_some()) {
                    if reissue {
                        tag.end(io::RESULT_OK);
                    } else {
                        (tag.request, tag.answer) = (None, Some((-libc::EIO, Vec::new())));
                    }
                }
            }
            other => panic!("a command {other:#x}"),
        }
        Some(0)
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

fn end(device: &mut Device) {
    device.info.state = state::DEAD;
    for tag in device.tags().filter(|tag| tag.active) {
        tag.end(io::RESULT_ABORT);
    }
}

impl Driver for Fake {
    type Node = FakeNode;
    type Claim = ();

    fn control(
        &self,
        number: u32,
        device: u32,
        argument: u64,
        mut data: Vec<u8>,
        patience: Duration,
    ) -> Result<(i32, Vec<u8>)> {
        let patience = patience.min(Duration::from_secs(2));
        let result = self.carry_out(number, device, argument, &mut data, patience);
        self.changed();
        Ok((result.ok_or(ErrorKind::TimedOut)?, data))
    }

    fn check_reactor() -> Result<()> {
        match UNFIT.get() {
            true => Err(ErrorKind::Unsupported.into()),
            false => Ok(()),
        }
    }

    fn open(&self, device: u32) -> Result<FakeNode> {
        let mut state = self.lock();
        let found = state.devices.get_mut(&device).ok_or(ErrorKind::NotFound)?;
        if found.open > 0 {
            return Err(ErrorKind::Busy.into());
        }
        found.open = 1;
        Ok(FakeNode(self.clone(), device))
    }

    fn claim(&self, device: u32) -> Result<Option<()>> {
        let state = self.lock();
        let found = state.devices.get(&device).ok_or(ErrorKind::NotFound)?;
        Ok((!found.claimed).then_some(()))
    }

    fn is_running(&self, process: i32) -> bool {
        self.lock().running.contains(&process)
    }
}

/// An open character device.
pub(super) struct FakeNode(Fake, u32);

impl Drop for FakeNode {
    fn drop(&mut self) {
        if let Some(device) = self.0.lock().devices.get_mut(&self.1) {
            device.open -= 1;
        }
        self.0.changed();
    }
}

impl Node for FakeNode {
    type Port = FakePort;

    fn duplicate(&self) -> Result<Self> {
        let mut state = self.0.lock();
        let device = state.devices.get_mut(&self.1).ok_or(ErrorKind::NotFound)?;
        device.open += 1;
        Ok(Self(self.0.clone(), self.1))
    }

    fn port(self, queue: u16, depth: u16) -> Result<FakePort> {
        let info = self.0.info(self.1).ok_or(ErrorKind::NotFound)?;
        assert!(queue < info.queues && depth == info.depth);
        Ok(FakePort { node: self, queue })
    }
}

pub(super) struct FakePort {
    node: FakeNode,
    queue: u16,
}

impl FakePort {
    fn tag<T>(&self, tag: u16, with: impl FnOnce(&mut Tag) -> T) -> T {
        let mut state = self.node.0.lock();
        let device = state.devices.get_mut(&self.node.1).expect("it is open");
        let done = with(&mut device.queues[usize::from(self.queue)][usize::from(tag)]);
        drop(state);
        self.node.0.changed();
        done
    }
}

impl Port for FakePort {
    async fn command(&self, number: u32, argument: [u8; IO_BYTES]) -> i32 {
        let argument = Io::decode(argument);
        assert_eq!(argument.queue, self.queue);
        {
            let mut state = self.node.0.lock();
            if let Some(result) = state.refuse_io.take() {
                state.refusals += 1;
                return result;
            }
        }
        let taken = self.tag(argument.tag, |tag| {
            if tag.active {
                return -libc::EBUSY;
            }
            match number {
                // The requests of a dead server are given to this one at the end of the recovery.
                io::FETCH => {}
                io::COMMIT_AND_FETCH => match tag.request.take() {
                    Some((_, data)) => tag.answer = Some((argument.result, data)),
                    None => return -libc::EINVAL,
                },
                other => panic!("a command {other:#x}"),
            }
            tag.active = true;
            0
        });
        if taken < 0 {
            return taken;
        }
        poll_fn(|cx| {
            self.tag(argument.tag, |tag| match tag.ended.take() {
                Some(result) => Poll::Ready(result),
                None => {
                    tag.waker = Some(cx.waker().clone());
                    Poll::Pending
                }
            })
        })
        .await
    }

    fn descriptor(&self, tag: u16) -> [u8; 24] {
        self.tag(tag, |tag| {
            let (descriptor, _) = tag.request.as_ref().expect("the server has a request");
            descriptor.encode()
        })
    }

    fn take(&self, tag: u16, buf: &Buf) -> Result<()> {
        self.tag(tag, |tag| {
            let (_, data) = tag.request.as_ref().expect("the server has a request");
            buf.copy_from(0, &data[..buf.len()]);
        });
        Ok(())
    }

    fn give(&self, tag: u16, buf: &Buf) -> Result<()> {
        self.tag(tag, |tag| {
            let (_, data) = tag.request.as_mut().expect("the server has a request");
            *data = buf.to_vec();
        });
        Ok(())
    }
}
