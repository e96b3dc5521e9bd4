//! The commands of the driver and of its devices, as the server under test calls them.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use forebay_block::{Buf, ErrorKind, Result};
use forebay_wire::ublk::{INFO_BYTES, IO_BYTES, Info, Io, control, feature, io, state};

use super::super::super::driver::{Driver, Node, Port};
use super::super::super::export::NEEDED;
use super::{Device, Fake, Tag, UNFIT, blank};

impl Fake {
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
pub(in super::super) struct FakeNode(Fake, u32);

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

pub(in super::super) struct FakePort {
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

    fn copy_from_driver(&self, tag: u16, buf: &Buf) -> Result<()> {
        self.tag(tag, |tag| {
            let (_, data) = tag.request.as_ref().expect("the server has a request");
            buf.copy_from(0, &data[..buf.len()]);
        });
        Ok(())
    }

    fn copy_to_driver(&self, tag: u16, buf: &Buf) -> Result<()> {
        self.tag(tag, |tag| {
            let (_, data) = tag.request.as_mut().expect("the server has a request");
            *data = buf.to_vec();
        });
        Ok(())
    }
}
