//! The io_uring engine.
//!
//! One `io_uring_enter` a turn submits everything that was queued and, if the reactor is idle,
//! waits for the first completion. With `DEFER_TASKRUN` completions appear only inside that call,
//! so that the ring is read without further system calls.

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use forebay_block::{Context, Error, ErrorKind, Result};
use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode};

use super::{FIRST_SPECIAL, FileStep, Parker, SocketStep, Target, Token, Wait};

const SQ_ENTRIES: u32 = 256;
const CQ_ENTRIES: u32 = 4096;
/// Files that may be registered; more are used unregistered.
const FILE_SLOTS: u32 = 64;
/// The wake-up by other threads, and requests whose own result is not needed.
const WAKE: Token = FIRST_SPECIAL;
const UNHEARD: Token = FIRST_SPECIAL + 1;

pub(crate) struct Ring {
    ring: IoUring,
    parker: Arc<Parker>,
    /// Results taken while making room for submissions.
    reaped: Vec<(Token, i32)>,
    /// Whether the poll of the wake-up eventfd is in the ring.
    armed: bool,
    free_slots: Vec<u32>,
}

impl Ring {
    pub(crate) fn new(parker: &Arc<Parker>) -> Result<Self> {
        let ring = build().context(|| {
            "io_uring_setup\n\
             help: the kernel may be old, or a container or the sysctl kernel.io_uring_disabled \
             may forbid it"
        })?;
        let params = ring.params();
        if !params.is_feature_ext_arg() || !params.is_feature_nodrop() {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "the io_uring of this kernel is too old: Linux 5.13 or later is required",
            ));
        }
        // Both only save the kernel look-ups; where they are refused nothing else changes.
        let registered = ring.submitter().register_files_sparse(FILE_SLOTS).is_ok();
        let _ = ring.submitter().register_ring_fd();
        let mut this = Self {
            ring,
            parker: Arc::clone(parker),
            reaped: Vec::with_capacity(256),
            armed: false,
            free_slots: if registered {
                (0..FILE_SLOTS).rev().collect()
            } else {
                Vec::new()
            },
        };
        this.warm_up();
        this.arm();
        Ok(this)
    }

    /// Has the kernel allocate the requests that it reuses from then on. Under memory pressure, an
    /// allocation waits until dirty pages are written. This ring may be the one that writes them.
    fn warm_up(&mut self) {
        for _ in 0..SQ_ENTRIES {
            self.push(&opcode::Nop::new().build().user_data(UNHEARD));
        }
        check(self.ring.submit());
        self.ring.completion().for_each(drop);
    }

    /// A multishot poll completes at each write to the eventfd, and needs no memory and no
    /// re-arming.
    fn arm(&mut self) {
        let events = u32::try_from(libc::POLLIN).expect("a small constant");
        let poll = opcode::PollAdd::new(Fd(self.parker.fd()), events).multi(true);
        self.push(&poll.build().user_data(WAKE));
        self.armed = true;
    }

    pub(crate) fn register(&mut self, fd: RawFd) -> Option<u32> {
        let slot = self.free_slots.pop()?;
        match self.ring.submitter().register_files_update(slot, &[fd]) {
            Ok(_) => Some(slot),
            Err(_) => {
                self.free_slots.push(slot);
                None
            }
        }
    }

    pub(crate) fn unregister(&mut self, slot: u32) {
        if self
            .ring
            .submitter()
            .register_files_update(slot, &[-1])
            .is_ok()
        {
            self.free_slots.push(slot);
        }
    }

    /// Registers buffers for [`Ring::push_fixed_read`]: the kernel then looks their pages up once.
    /// Returns false if it refuses, for the limit of locked memory perhaps.
    pub(crate) fn register_buffers(&mut self, buffers: &[libc::iovec]) -> bool {
        // SAFETY: the kernel writes to them only for reads, whose owner keeps the memory alive.
        unsafe { self.ring.submitter().register_buffers(buffers) }.is_ok()
    }

    /// Reads into the start of a registered buffer.
    pub(crate) fn push_fixed_read(
        &mut self,
        token: Token,
        fd: RawFd,
        (buffer, ptr, len): (u16, *mut u8, u32),
        offset: u64,
    ) {
        let read = opcode::ReadFixed::new(Fd(fd), ptr, len, buffer).offset(offset);
        self.push(&read.build().user_data(token));
    }

    pub(crate) fn push_file(&mut self, token: Token, step: &FileStep) {
        let (target, entry) = match *step {
            FileStep::Read {
                target,
                ptr,
                len,
                offset,
            } => {
                let read = opcode::Read::new(number(target), ptr, len).offset(offset);
                (target, read.build())
            }
            FileStep::Write {
                target,
                ptr,
                len,
                offset,
                dsync,
            } => {
                let flags = if dsync { libc::RWF_DSYNC } else { 0 };
                let write = opcode::Write::new(number(target), ptr, len)
                    .offset(offset)
                    .rw_flags(flags);
                (target, write.build())
            }
            FileStep::Sync { target } => {
                let sync = opcode::Fsync::new(number(target)).flags(FsyncFlags::DATASYNC);
                (target, sync.build())
            }
            FileStep::Allocate {
                target,
                mode,
                offset,
                len,
            } => {
                let allocate = opcode::Fallocate::new(number(target), len)
                    .offset(offset)
                    .mode(mode);
                (target, allocate.build())
            }
            FileStep::Discard { .. } => unreachable!("a worker thread discards"),
        };
        let flags = if target.slot.is_some() {
            Flags::FIXED_FILE
        } else {
            Flags::empty()
        };
        self.push(&entry.flags(flags).user_data(token));
    }

    pub(crate) fn push_socket(&mut self, token: Token, step: &SocketStep) {
        let entry = match *step {
            SocketStep::Recv {
                fd,
                ptr,
                len,
                flags,
            } => opcode::Recv::new(Fd(fd), ptr, len).flags(flags).build(),
            SocketStep::Send { fd, ptr, len } => opcode::Send::new(Fd(fd), ptr, len)
                .flags(libc::MSG_NOSIGNAL | libc::MSG_WAITALL)
                .build(),
            SocketStep::SendMessage { fd, message } => opcode::SendMsg::new(Fd(fd), message)
                .flags((libc::MSG_NOSIGNAL | libc::MSG_WAITALL).cast_unsigned())
                .build(),
            SocketStep::Accept { fd } => {
                opcode::Accept::new(Fd(fd), std::ptr::null_mut(), std::ptr::null_mut())
                    .flags(libc::SOCK_CLOEXEC)
                    .build()
            }
            SocketStep::Poll { fd } => {
                opcode::PollAdd::new(Fd(fd), libc::POLLIN.cast_unsigned().into()).build()
            }
            SocketStep::Connect { fd, address, len } => {
                opcode::Connect::new(Fd(fd), address, len).build()
            }
            SocketStep::Command {
                fd,
                number,
                argument,
            } => opcode::UringCmd16::new(Fd(fd), number)
                .cmd(argument)
                .build(),
        };
        self.push(&entry.user_data(token));
    }

    /// Asks the kernel to end an operation. Its result arrives as usual.
    pub(crate) fn cancel(&mut self, token: Token) {
        let cancel = opcode::AsyncCancel::new(token).build();
        self.push(&cancel.user_data(UNHEARD));
    }

    fn push(&mut self, entry: &Entry) {
        loop {
            // SAFETY: the operation keeps the memory of the entry alive until its result is
            // delivered; see `reactor::slab`.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            check(self.ring.submit());
            let mut reaped = std::mem::take(&mut self.reaped);
            self.reap(&mut reaped);
            self.reaped = reaped;
        }
    }

    pub(crate) fn turn(&mut self, wait: Wait, results: &mut Vec<(Token, i32)>) {
        if !self.armed {
            self.arm();
        }
        results.append(&mut self.reaped);
        self.reap(results);
        let wait = if results.is_empty() { wait } else { Wait::No };
        let entered = match wait {
            Wait::No => {
                let queue = self.ring.submission();
                if queue.is_empty() && !queue.taskrun() && !queue.cq_overflow() {
                    return;
                }
                drop(queue);
                self.ring.submit()
            }
            Wait::Until(None) => self.ring.submit_and_wait(1),
            Wait::Until(Some(timeout)) => {
                let timeout = Timespec::from(timeout);
                let args = SubmitArgs::new().timespec(&timeout);
                self.ring.submitter().submit_with_args(1, &args)
            }
        };
        check(entered);
        self.reap(results);
    }

    /// Returns whether a turn would deliver results, as far as the ring's memory says.
    pub(crate) fn has_results(&mut self) -> bool {
        let waiting = {
            let queue = self.ring.submission();
            queue.taskrun() || queue.cq_overflow()
        };
        waiting || !self.reaped.is_empty() || !self.ring.completion().is_empty()
    }

    fn reap(&mut self, results: &mut Vec<(Token, i32)>) {
        for completion in self.ring.completion() {
            match completion.user_data() {
                WAKE => self.armed = cqueue::more(completion.flags()),
                UNHEARD => (),
                token => results.push((token, completion.result())),
            }
        }
    }

    /// Takes the wake-up poll out, so that the kernel is done with this ring when it is closed.
    pub(crate) fn close(&mut self) {
        self.cancel(WAKE);
        let mut nothing = Vec::new();
        while self.armed {
            check(self.ring.submit_and_wait(1));
            self.reap(&mut nothing);
        }
    }
}

fn number(target: Target) -> Fd {
    let slot = target.slot.and_then(|slot| RawFd::try_from(slot).ok());
    Fd(slot.unwrap_or(target.fd))
}

/// The kernel's refusals that pass: a signal, a timeout, a full completion queue, no memory now.
fn check(entered: io::Result<usize>) {
    if let Err(error) = entered {
        let errno = error.raw_os_error().unwrap_or(0);
        let passing = [libc::EINTR, libc::ETIME, libc::EBUSY, libc::EAGAIN];
        assert!(
            passing.contains(&errno),
            "io_uring_enter failed, and the reactor cannot continue: {error}"
        );
    }
}

/// The newest set of flags that the kernel takes.
fn build() -> io::Result<IoUring> {
    let base = || {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(CQ_ENTRIES).dontfork();
        builder
    };
    // Linux 6.1.
    let deferred = base()
        .setup_submit_all()
        .setup_single_issuer()
        .setup_coop_taskrun()
        .setup_defer_taskrun()
        .setup_taskrun_flag()
        .build(SQ_ENTRIES);
    if deferred.is_ok() {
        return deferred;
    }
    // Linux 5.19.
    let cooperative = base()
        .setup_coop_taskrun()
        .setup_taskrun_flag()
        .build(SQ_ENTRIES);
    if cooperative.is_ok() {
        return cooperative;
    }
    base().build(SQ_ENTRIES)
}
