//! A namespace of an NVMe/TCP target as a device: the initiator's side of the protocol in [`forebay_wire::nvme_tcp`].
//!
//! One admin queue and one I/O queue, on the reactor that the device was connected on. Commands go out together, as many
//! as wait while the last send is under way; data of a write goes in its command's capsule where the target takes it
//! there, else when the target asks for it; data of a read is received into the reader's buffer.
//!
//! Where the target asks for it, each queue proves that this is the host that it says ([`Uri::secrets`]).
//!
//! **An association that is lost is made again**, until the device is dropped. It is lost when a connection breaks, when the
//! target breaks the protocol, or when it does not answer a command or a keep-alive within its time
//! ([`Times`]). What was not answered is sent again; what is asked meanwhile waits.
//!
//! - **No write lands late.** If a command that changes the namespace was not answered, the new association is made only
//!   when the target must have ended the old one: twice its keep-alive time after the loss. No other order has to be
//!   kept: commands in flight at once have none, and whoever wants one waits for the answer.
//! - **What was not flushed is sent again**, as a target with a volatile cache may have lost power: the device [keeps](kept)
//!   what was acknowledged since the last flush, and sends the newest of each place before anything else. Where it cannot (there
//!   was more than it keeps, or a write had failed), the first flush after the loss, or each one that waits, fails once and
//!   names the bytes: so a cache writes again what it has written back, and a client learns of it.
//! - **A target that stays away** for [`Times::patience`] is told to all that waits, and to what is asked then, as
//!   `Disconnected`; the device goes on trying.
//! - **A request that is on its way at five losses** in a row fails, as it may be the reason for them.
//! - **Another namespace** at the same place, one that has shrunk or offers less, is never written to. All that waits, and
//!   what is asked then, fails at once with an error that says so; the device goes on trying.
//!
//! Memory that a request gave is not touched after its answer: no answer is given, and nothing sent again, before the
//! tasks of the lost connection have ended.

mod again;
mod associate;
mod authenticate;
mod kept;
mod life;
mod queue;
mod receive;
mod send;
mod slots;
#[cfg(test)]
mod tests;
mod uri;

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use forebay_block::{
    BlockDevice, BlockDeviceExt as _, Completion, DeviceInfo, Error, Op, Request, Result,
};
use forebay_io::rt;
use forebay_io::sync::WaitList;

use crate::remote::Takes;
use again::Again;
use associate::{Offer, associate};
use kept::{Ended, Kept};
use send::Link;
use slots::{Asked, Slots};
pub use uri::Uri;

/// How long a target may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// To hear of this host before it ends the association, and to answer a keep-alive: 5 s.
    pub keep_alive: Duration,
    /// To answer a command, or to make an association: 30 s.
    pub answer: Duration,
    /// To come back before what waits fails: 60 s.
    pub patience: Duration,
    /// Before each attempt to connect again: 1 s.
    pub pause: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            keep_alive: Duration::from_secs(5),
            answer: Duration::from_secs(30),
            patience: Duration::from_secs(60),
            pause: Duration::from_secs(1),
        }
    }
}

/// A namespace, connected. It belongs to the reactor that it was connected on.
pub struct NvmeTcpDevice {
    shared: Rc<Open>,
    info: DeviceInfo,
}

/// What ends with its last device; the tasks do not keep it.
struct Open(Rc<Shared>);

impl std::ops::Deref for Open {
    type Target = Rc<Shared>;

    fn deref(&self) -> &Rc<Shared> {
        &self.0
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// What the device shares with its tasks.
struct Shared {
    uri: Uri,
    /// The place as errors name it.
    name: String,
    times: Times,
    offer: Offer,
    slots: RefCell<Slots>,
    /// The connection that is up.
    link: RefCell<Option<Rc<Link>>>,
    /// Why there has been none for too long.
    away: RefCell<Option<Error>>,
    closed: Cell<bool>,
    closing: WaitList,
    /// What was acknowledged and a power loss might take back.
    kept: RefCell<Kept>,
    /// Changes without an answer that a power loss might take back, acknowledged or not.
    volatile: Cell<u64>,
    /// What may be gone with an association, as far as nobody was told.
    gone: RefCell<Vec<Range<u64>>>,
    /// Associations that were lost.
    losses: Cell<u64>,
    /// The one that is made, or made use of, after a loss.
    again: RefCell<Option<Again>>,
    /// Associations in a row that were lost while what was not flushed was sent again.
    again_lost: Cell<u8>,
}

impl NvmeTcpDevice {
    /// Connects to the namespace that `uri` names.
    ///
    /// # Errors
    /// `Disconnected` if nobody answers; `NotFound` if there is no such subsystem or namespace; `Permission` if this
    /// host may not, or one of both has not proved to be who it says; `Unsupported` for a namespace or a target that this is none for; `TimedOut`.
    ///
    /// # Panics
    /// On a thread that runs no reactor.
    pub async fn connect(uri: &Uri) -> Result<Rc<Self>> {
        Self::connect_within(uri, Times::default()).await
    }

    /// Like [`NvmeTcpDevice::connect`], with other times.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub async fn connect_within(uri: &Uri, times: Times) -> Result<Rc<Self>> {
        let made = life::in_time(uri, &times).await;
        let association = made.map_err(|error| {
            error.context(format!(
                "NVMe/TCP target {uri}: start it, or name another one"
            ))
        })?;
        let offer = association.offer;
        let block_bytes = 1 << offer.block_shift;
        let name = uri.to_string();
        let info = DeviceInfo {
            logical_block_bytes: block_bytes,
            physical_block_bytes: offer.preferred_bytes,
            // What a controller says of larger units holds for writes that are no longer than those alone.
            atomic_write_bytes: block_bytes,
            volatile_cache: offer.volatile_cache,
            discard: offer.deallocates,
            identity: offer.identity,
            ..DeviceInfo::new(name.clone(), offer.size_bytes)
        };
        let shared = Rc::new(Shared {
            uri: uri.clone(),
            name,
            times,
            offer,
            slots: RefCell::new(Slots::new(offer.depth)),
            link: RefCell::default(),
            away: RefCell::default(),
            closed: Cell::new(false),
            closing: WaitList::new(),
            kept: RefCell::new(Kept::new(offer.volatile_cache)),
            volatile: Cell::new(0),
            gone: RefCell::default(),
            losses: Cell::new(0),
            again: RefCell::default(),
            again_lost: Cell::new(0),
        });
        rt::spawn(life::live(Rc::clone(&shared), association));
        let device = Rc::new(Self {
            shared: Rc::new(Open(Rc::clone(&shared))),
            info,
        });
        // What a process before this one had acknowledged and not flushed is not kept here: of a target that lost it,
        // a later flush would say that nothing is missing. Its clients may live on.
        if offer.volatile_cache
            && let Err(error) = device.flush().await
        {
            shared.lose_unseen(&error);
        }
        Ok(device)
    }

    /// Whether the namespace takes no writes.
    #[must_use]
    pub fn read_only(&self) -> bool {
        self.shared.offer.read_only
    }

    /// How many associations were lost so far.
    #[must_use]
    pub fn losses(&self) -> u64 {
        self.shared.losses.get()
    }

    fn takes(&self) -> Takes {
        let offer = &self.shared.offer;
        let data_bytes = offer.max_bytes.into();
        Takes {
            read_only: offer.read_only,
            data_bytes,
            zeroes_bytes: match offer.write_zeroes {
                true => data_bytes,
                false => 0,
            },
        }
    }
}

impl BlockDevice for NvmeTcpDevice {
    fn info(&self) -> DeviceInfo {
        self.info.clone()
    }

    fn submit(&self, request: Request, done: Completion) {
        let again = || Self {
            shared: Rc::clone(&self.shared),
            info: self.info.clone(),
        };
        let whole = self.takes().whole(&self.info, request, done, again);
        if let Some((request, done)) = whole {
            self.shared.ask(request, done);
        }
    }
}

impl std::fmt::Debug for NvmeTcpDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NvmeTcpDevice")
            .field("target", &self.shared.name)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn ask(self: &Rc<Self>, request: Request, done: Completion) {
        let asked = Asked {
            request,
            done,
            before: self.kept.borrow().number(),
            again: false,
            sent_at: None,
            moved: 0,
            damaged: 0,
            losses: 0,
        };
        let refused = match (self.link.borrow().is_some(), &*self.away.borrow()) {
            (false, Some(why)) => Some(why.clone()),
            _ => None,
        };
        if let Some(why) = refused {
            return asked.done.complete(Err(why));
        }
        if asked.request.op == Op::Flush
            && let Some(told) = self.tell_gone()
        {
            return asked.done.complete(Err(told));
        }
        if self.offer.volatile_cache && asked.is_volatile() {
            self.volatile.set(self.volatile.get() + 1);
        }
        self.slots.borrow_mut().wait(asked);
        self.pump();
    }

    /// Sends what waits, as far as there are places.
    fn pump(self: &Rc<Self>) {
        let Some(link) = self.link.borrow().clone() else {
            return;
        };
        let now = rt::now();
        loop {
            let seated = self.slots.borrow_mut().seat(now);
            let Some(cid) = seated else { break };
            link.send_command(self, cid);
        }
    }

    /// A request has ended.
    fn ended(&self, asked: Asked, outcome: Result<()>) {
        if asked.again {
            return self.sent_again(&asked.request, outcome);
        }
        if self.offer.volatile_cache {
            let mut kept = self.kept.borrow_mut();
            let others = self.volatile.get() > 0 || !kept.is_empty();
            let volatile = asked.is_volatile();
            if volatile {
                self.volatile.set(self.volatile.get() - 1);
            }
            match &outcome {
                Ok(()) if asked.request.op == Op::Flush => kept.flushed(asked.before),
                Ok(()) if !volatile && !others => {}
                // Nothing of it got anywhere.
                Err(_) if asked.sent_at.is_none() => {}
                _ if asked.changes() => {
                    let range = asked.request.offset..asked.request.offset + asked.request.len;
                    let ended = match (outcome.is_err(), volatile) {
                        (true, _) => Ended::Failed,
                        (false, true) => Ended::Volatile,
                        (false, false) => Ended::Durable {
                            beside: self.slots.borrow().changes(&range),
                        },
                    };
                    kept.note(&asked.request, asked.before, ended, self.losses.get());
                }
                _ => {}
            }
        }
        asked.done.complete(outcome);
    }

    /// Ends all that waits, and the tasks.
    fn close(&self) {
        self.closed.set(true);
        self.closing.wake_all();
        if let Some(link) = self.link.borrow().as_ref() {
            link.changed.wake_all();
        }
    }
}
