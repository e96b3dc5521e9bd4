//! Messages of a virtual machine's monitor: features, memory, and the locations of the queues.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, mpsc};

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::event;
use forebay_io::rt::Remote;
use forebay_wire::virtio_blk::feature;
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    BackendReqHandler, Error as Refusal, GpuBackend, VhostUserBackendReqHandlerMut,
    VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use virtio_queue::{Queue as Ring, QueueT as _};

use super::export::{Export, MAX_QUEUE_SIZE, QUEUES};
use super::inflight::{Inflight, Tracker};
use super::memory::Memory;
use super::next_id;
use super::queue::{self, Start};
use crate::net::{Place, Spread};

/// Wait of the monitor's thread for the end of a queue. Returns the next available entry.
type Wait = Box<dyn Fn(&mpsc::Receiver<u16>) -> Option<u16>>;

/// Serves a monitor until it disconnects, then ends its queues. Blocks.
pub(super) fn converse(socket: UnixStream, export: Arc<Export>, spread: Arc<Spread>) -> Result<()> {
    let wait = Box::new(|ended: &mpsc::Receiver<u16>| ended.recv().ok());
    let mut talk = MonitorConnection::new(socket, export, spread, wait);
    loop {
        if let Some(ended) = talk.receive() {
            return ended;
        }
    }
}

/// A conversation with a monitor.
pub struct MonitorConnection {
    monitor: Arc<Mutex<Monitor>>,
    handler: BackendReqHandler<Mutex<Monitor>>,
}

impl std::fmt::Debug for MonitorConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MonitorConnection").finish_non_exhaustive()
    }
}

impl MonitorConnection {
    #[expect(
        clippy::arc_with_non_send_sync,
        reason = "the handler's type wants an Arc; one thread has it"
    )]
    pub(super) fn new(
        socket: UnixStream,
        export: Arc<Export>,
        spread: Arc<Spread>,
        wait: Wait,
    ) -> Self {
        let monitor = Arc::new(Mutex::new(Monitor {
            export,
            spread,
            wait,
            features: 0,
            memory: None,
            inflight: None,
            wrong: None,
            queues: std::iter::repeat_with(Wanted::default)
                .take(QUEUES.into())
                .collect(),
        }));
        let handler = BackendReqHandler::from_stream(socket, Arc::clone(&monitor));
        Self { monitor, handler }
    }

    /// Processes the next message, and blocks for it if the socket does. Returns the result of the
    /// conversation if it and its queues have ended.
    pub fn receive(&mut self) -> Option<Result<()>> {
        let handled = self.handler.handle_request();
        let monitor = self.monitor.lock();
        let mut monitor = monitor.unwrap_or_else(PoisonError::into_inner);
        // A refused request ends the conversation: a monitor that continued would assume a state
        // that does not exist.
        let ended = match (monitor.wrong.take(), handled) {
            (Some(wrong), _) => Err(Error::new(ErrorKind::InvalidInput, wrong)),
            (None, Ok(())) => return None,
            (None, Err(Refusal::Disconnected | Refusal::PartialMessage)) => Ok(()),
            (None, Err(Refusal::SocketBroken(_))) => Ok(()),
            (None, Err(refusal)) => Err(Error::new(ErrorKind::InvalidInput, refusal.to_string())),
        };
        monitor.stop_all();
        Some(ended)
    }
}

/// A monitor and its settings.
struct Monitor {
    export: Arc<Export>,
    spread: Arc<Spread>,
    wait: Wait,
    /// Negotiated features.
    features: u64,
    memory: Option<Arc<Memory>>,
    /// List of requests in flight, if the monitor keeps one.
    inflight: Option<Arc<Inflight>>,
    /// Reason why its last message was refused.
    wrong: Option<String>,
    queues: Vec<Wanted>,
}

/// A queue with the monitor's settings. It runs when they are complete.
#[derive(Default)]
struct Wanted {
    size: u16,
    /// Addresses of descriptors, available and used entries in the monitor's address space.
    addresses: Option<[u64; 3]>,
    /// Next available entry, while the queue does not run.
    next: u16,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    enabled: bool,
    running: Option<Running>,
}

/// A queue on its reactor.
struct Running {
    id: u64,
    place: Place,
    ended: mpsc::Receiver<u16>,
}

impl Running {
    /// Ends the queue after its started requests. Returns the next available entry.
    fn stop(self, wait: &Wait) -> Option<u16> {
        let (reactor, id): (Remote, u64) = (self.place.reactor(), self.id);
        reactor.call(move || queue::stop(id));
        wait(&self.ended)
    }
}

type Answer<T = ()> = std::result::Result<T, Refusal>;

impl Monitor {
    fn refuse<T>(&mut self, what: impl Into<String>) -> Answer<T> {
        self.wrong = Some(what.into());
        Err(Refusal::InvalidParam)
    }

    fn queue(&mut self, index: u32) -> Answer<&mut Wanted> {
        let found = self.queues.get_mut(index as usize);
        found.ok_or(Refusal::InvalidParam)
    }

    fn stop(&mut self, index: u32) -> Answer {
        if let Some(running) = self.queue(index)?.running.take()
            && let Some(next) = running.stop(&self.wait)
        {
            self.queue(index)?.next = next;
        }
        Ok(())
    }

    fn stop_all(&mut self) {
        for index in 0..u32::from(QUEUES) {
            // Every index is valid.
            let _ = self.stop(index);
        }
    }

    /// Changes a queue, which is stopped meanwhile.
    fn change(&mut self, index: u32, change: impl FnOnce(&mut Wanted)) -> Answer {
        self.stop(index)?;
        change(self.queue(index)?);
        self.start(index)
    }

    /// Starts all queues whose settings are complete.
    fn start_all(&mut self) -> Answer {
        (0..u32::from(QUEUES)).try_for_each(|index| self.start(index))
    }

    /// Starts a queue if its settings are complete.
    fn start(&mut self, index: u32) -> Answer {
        let (features, export) = (self.features, Arc::clone(&self.export));
        let (memory, inflight) = (self.memory.clone(), self.inflight.clone());
        let queue = self.queue(index)?;
        let (true, None) = (queue.enabled, &queue.running) else {
            return Ok(());
        };
        let (Some(kick), Some(addresses), Some(memory)) = (&queue.kick, queue.addresses, memory)
        else {
            return Ok(());
        };
        let ring = ring(queue.size, addresses, queue.next, features, &memory);
        let copies = (
            kick.try_clone(),
            queue.call.as_ref().map(OwnedFd::try_clone).transpose(),
        );
        let (Some(mut ring), (Ok(kick), Ok(call))) = (ring, copies) else {
            return self.refuse(format!("queue {index} does not lie in the guest's memory"));
        };
        let tracker = match inflight.map(|inflight| track(&inflight, index, &mut ring)) {
            Some(Err(wrong)) => return self.refuse(wrong),
            Some(Ok(tracker)) => Some(tracker),
            None => None,
        };
        let (send_end, ended) = mpsc::channel();
        let id = next_id();
        let start = Start {
            id,
            export,
            memory,
            ring,
            tracker,
            kick,
            call,
            flushes: features & feature::FLUSH != 0,
            ended: send_end,
        };
        let place = self.spread.place();
        place.reactor().call(move || queue::start(start));
        self.queue(index)?.running = Some(Running { id, place, ended });
        Ok(())
    }
}

/// Returns a ring in the guest's memory, or `None` if it lies elsewhere.
fn ring(size: u16, addresses: [u64; 3], next: u16, features: u64, memory: &Memory) -> Option<Ring> {
    let [descriptors, available, used] = addresses.map(|user| memory.guest_address(user));
    let mut ring = Ring::new(MAX_QUEUE_SIZE).ok()?;
    ring.try_set_size(size).ok()?;
    ring.try_set_desc_table_address(descriptors?).ok()?;
    ring.try_set_avail_ring_address(available?).ok()?;
    ring.try_set_used_ring_address(used?).ok()?;
    ring.set_event_idx(features & feature::RING_EVENT_IDX != 0);
    ring.set_next_avail(next);
    ring.set_ready(true);
    if !ring.is_valid(memory.ram()) {
        return None;
    }
    let used = ring.used_idx(memory.ram(), Ordering::Acquire).ok()?;
    ring.set_next_used(used.0);
    Some(ring)
}

/// Returns the tracker of a queue's requests in flight, and the heads to execute again. The ring
/// continues after them: each taken entry is answered or in flight.
fn track(
    inflight: &Arc<Inflight>,
    index: u32,
    ring: &mut Ring,
) -> std::result::Result<(Tracker, Vec<u16>), String> {
    let index = u16::try_from(index).map_err(|error| error.to_string())?;
    let used = ring.next_used();
    let (tracker, heads) = Tracker::of(inflight, index, (ring.size(), used))?;
    // A queue has no more heads than entries, which are at most 1,024. Monitors use different bases
    // for a ring that was in use, so the list decides.
    if let Some(heads) = &heads {
        ring.set_next_avail(used.wrapping_add(heads.len() as u16));
    }
    Ok((tracker, heads.unwrap_or_default()))
}

/// Refuses an unsupported message.
fn unsupported<T>() -> Answer<T> {
    Err(Refusal::InvalidOperation("it is not offered"))
}

impl VhostUserBackendReqHandlerMut for Monitor {
    fn set_owner(&mut self) -> Answer {
        Ok(())
    }

    fn reset_owner(&mut self) -> Answer {
        self.stop_all();
        Ok(())
    }

    fn reset_device(&mut self) -> Answer {
        unsupported()
    }

    fn get_features(&mut self) -> Answer<u64> {
        Ok(self.export.features())
    }

    fn set_features(&mut self, features: u64) -> Answer {
        if features & !self.export.features() != 0 {
            return self.refuse(format!("features {features:#x} were not offered"));
        }
        self.stop_all();
        self.features = features;
        // Without the protocol features, queues are always enabled.
        if features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0 {
            self.queues
                .iter_mut()
                .for_each(|queue| queue.enabled = true);
        }
        self.start_all()
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Answer<Option<Vec<VhostUserMemoryRegionBase>>> {
        match Memory::map(regions, files) {
            Ok(memory) => {
                self.stop_all();
                self.memory = Some(Arc::new(memory));
                self.start_all().map(|()| None)
            }
            Err(wrong) => self.refuse(format!("its memory: {wrong}")),
        }
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Answer {
        let size = u16::try_from(num).ok();
        let size = size.filter(|size| size.is_power_of_two() && *size <= MAX_QUEUE_SIZE);
        let Some(size) = size else {
            return self.refuse(format!(
                "a queue of {num} entries; the limit is {MAX_QUEUE_SIZE}"
            ));
        };
        self.change(index, |queue| queue.size = size)
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptors: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Answer {
        if !flags.is_empty() {
            return unsupported();
        }
        self.change(index, |queue| {
            queue.addresses = Some([descriptors, available, used])
        })
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Answer {
        let Ok(next) = u16::try_from(base) else {
            return self.refuse(format!("a queue that begins at {base}"));
        };
        self.change(index, |queue| queue.next = next)
    }

    fn get_vring_base(&mut self, index: u32) -> Answer<VhostUserVringState> {
        self.stop(index)?;
        let queue = self.queue(index)?;
        // The queue runs again after the next kick descriptor.
        queue.kick = None;
        queue.call = None;
        Ok(VhostUserVringState::new(index, queue.next.into()))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Answer {
        if fd.is_none() {
            return self.refuse("a queue that is to be polled");
        }
        self.change(index.into(), |queue| queue.kick = fd.map(OwnedFd::from))
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Answer {
        let call = fd.map(OwnedFd::from);
        if let Some(Err(error)) = call.as_ref().map(event::never_block) {
            return self.refuse(error.report());
        }
        self.change(index.into(), |queue| queue.call = call)
    }

    fn set_vring_err(&mut self, index: u8, _fd: Option<File>) -> Answer {
        self.queue(index.into()).map(|_| ())
    }

    fn get_protocol_features(&mut self) -> Answer<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD)
    }

    fn set_protocol_features(&mut self, _features: u64) -> Answer {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Answer<u64> {
        Ok(QUEUES.into())
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Answer {
        if self.queue(index)?.enabled == enable {
            return Ok(());
        }
        self.change(index, |queue| queue.enabled = enable)
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Answer<Vec<u8>> {
        Ok(self.export.config(offset as usize, size as usize))
    }

    fn set_config(&mut self, _offset: u32, _buf: &[u8], _flags: VhostUserConfigFlags) -> Answer {
        unsupported()
    }

    fn set_gpu_socket(&mut self, _gpu: GpuBackend) -> Answer {
        unsupported()
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Answer<File> {
        unsupported()
    }

    fn get_inflight_fd(&mut self, asked: &VhostUserInflight) -> Answer<(VhostUserInflight, File)> {
        let made = Inflight::make(asked, &self.export.succession);
        made.or_else(|wrong| self.refuse(wrong))
    }

    fn set_inflight_fd(&mut self, description: &VhostUserInflight, file: File) -> Answer {
        match Inflight::adopt(description, file, &self.export.succession) {
            Ok(inflight) => {
                self.stop_all();
                self.inflight = Some(Arc::new(inflight));
                self.start_all()
            }
            Err(wrong) => self.refuse(wrong),
        }
    }

    fn get_max_mem_slots(&mut self) -> Answer<u64> {
        unsupported()
    }

    fn add_mem_region(
        &mut self,
        _region: &VhostUserSingleMemoryRegion,
        _fd: File,
        _postcopy: Option<bool>,
    ) -> Answer<Option<VhostUserMemoryRegionBase>> {
        unsupported()
    }

    fn remove_mem_region(&mut self, _region: &VhostUserSingleMemoryRegion) -> Answer {
        unsupported()
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Answer<Option<File>> {
        unsupported()
    }

    fn check_device_state(&mut self) -> Answer {
        unsupported()
    }

    fn get_shmem_config(&mut self) -> Answer<VhostUserShMemConfig> {
        unsupported()
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Answer {
        unsupported()
    }
}
