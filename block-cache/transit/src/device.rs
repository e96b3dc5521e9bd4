//! The cache as a block device.

use std::ops::Range;
use std::rc::Rc;

use forebay_block::{
    BlockDevice, Buf, Completion, Context, DeviceInfo, Identity, Op, Request, Result,
};
use forebay_io::rt;

use crate::core::{Core, Parts, Placed, Read};
use crate::evictions::Evictions;
use crate::fault::{Fault, Faults};
use crate::memory::{Expected, HEADER_BYTES, Memory};
use crate::owner::Owner;
use crate::parts::{Lap, Part};
use crate::policy::Policy;
use crate::slots::{SLOT_BYTES, Slots};
use crate::stats::TransitStats;

/// How a cache is opened.
#[derive(Clone, Debug)]
pub struct TransitOptions {
    /// Name of the device for the operator.
    pub name: String,
    /// Policy for the use of the slots.
    pub policy: Policy,
    /// Boot of the machine. Memory of another boot is never used.
    pub boot_id: [u8; 16],
    /// Evictions at a time, at most.
    pub evictions: usize,
    /// Whether a process of this boot used the memory and did not close the cache. Then the memory
    /// must hold the slots of that process, or acknowledged writes are lost.
    pub in_use: bool,
    /// Whether slots that no process can have left as they are, as those of damaged memory, are
    /// given up. Else they are an error, and the memory stays as it is.
    pub accept_damage: bool,
    /// The generation that counts, as a place outside the memory knows it. Slots of an earlier one
    /// are refused. Zero: unknown.
    pub generation: u64,
    /// The generation that this opening takes by [`Transit::take_generation`].
    pub next: u64,
    /// Whether what an earlier process left stays in its slots until [`Transit::allow_evictions`].
    /// The start may still refuse the device.
    pub hold_evictions: bool,
}

impl TransitOptions {
    /// With the default policy, and 32 evictions at a time.
    #[must_use]
    pub fn new(name: impl Into<String>, boot_id: [u8; 16]) -> Self {
        Self {
            name: name.into(),
            policy: Policy::default(),
            boot_id,
            evictions: 32,
            in_use: false,
            accept_damage: false,
            generation: 0,
            next: 0,
            hold_evictions: false,
        }
    }
}

impl TransitOptions {
    /// Returns the required properties of the memory of a cache over a device.
    fn expected(&self, device: &DeviceInfo) -> Expected {
        Expected {
            owner: Owner {
                device: match device.identity.is_known() {
                    true => device.identity,
                    false => Identity::of(hash(&self.name)),
                },
                device_bytes: device.size_bytes,
                boot_id: self.boot_id,
                block_bytes: device.logical_block_bytes,
            },
            blocks: device.size_bytes / u64::from(device.logical_block_bytes),
            in_use: self.in_use,
            accept_damage: self.accept_damage,
            generation: self.generation,
            next: self.next,
        }
    }
}

/// Says what [`Transit::open`] will of a memory over a device with this description, given a copy
/// of it, which may change.
///
/// # Errors
/// As [`Transit::open`].
pub fn look(device: &DeviceInfo, copy: Buf, options: &TransitOptions) -> Result<()> {
    let looked = Memory::open(copy, &options.expected(device));
    looked
        .map(|_| ())
        .context(|| format!("transit cache {}", options.name))
}

/// Findings of opening a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Acknowledged blocks that an earlier process left, and that the device did not have.
    pub blocks: u64,
    /// Whether a flush of the device had failed in that process. Its writes since the flush before
    /// may be lost.
    pub flush_had_failed: bool,
    /// Slots that were damaged, and are given up, in words.
    pub damaged: Vec<String>,
}

/// A DRAM transit cache over a device. It belongs to the reactor that it was opened on.
pub struct Transit {
    core: Rc<Core>,
    policy: Policy,
}

impl std::fmt::Debug for Transit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transit")
            .field("name", &self.core.info.name)
            .field("policy", &self.policy)
            .field("stats", &self.stats())
            .finish()
    }
}

impl Transit {
    /// Opens a cache over `device`, with as many slots as fit into `memory`. Evictions go to
    /// `evictor`. The evictor is the same device, or [`Workers`](crate::Workers) over it if its
    /// work is done by the processor. Data that an earlier process left in the memory is being
    /// evicted when this returns, unless [`TransitOptions::hold_evictions`] is set.
    ///
    /// Whether an acknowledged write outlives this process depends on `memory`.
    ///
    /// # Errors
    /// `InvalidInput` if the memory is too small, or holds slots of an earlier generation. `Busy`
    /// if it holds acknowledged writes of another device. `Lost` if it should hold some and does
    /// not. `Corrupt` if slots are damaged, unless damage is accepted.
    ///
    /// # Panics
    /// On a thread that runs no executor.
    pub fn open(
        device: Rc<dyn BlockDevice>,
        evictor: Rc<dyn BlockDevice>,
        memory: Buf,
        options: TransitOptions,
    ) -> Result<(Rc<Self>, Recovery)> {
        Self::open_with(device, evictor, memory, options, Faults::default())
    }

    pub(crate) fn open_with(
        device: Rc<dyn BlockDevice>,
        evictor: Rc<dyn BlockDevice>,
        memory: Buf,
        options: TransitOptions,
        faults: Faults,
    ) -> Result<(Rc<Self>, Recovery)> {
        let device_info = device.info();
        let info = DeviceInfo {
            name: options.name.clone(),
            // Blocks go their ways one by one.
            atomic_write_bytes: (device_info.atomic_write_bytes)
                .min(device_info.logical_block_bytes),
            volatile_cache: true,
            fua: true,
            byte_addressable: false,
            ..device_info.clone()
        };
        let expected = options.expected(&device_info);
        let (memory, left) =
            Memory::open(memory, &expected).context(|| format!("transit cache {}", info.name))?;
        let recovery = Recovery {
            blocks: left.slots.len() as u64,
            flush_had_failed: left.poisoned,
            damaged: left.damaged,
        };
        let mut slots = Slots::new(memory.slots());
        let mut policy = options.policy.decider(memory.slots());
        let slot_bytes = SLOT_BYTES + HEADER_BYTES + policy.slot_bytes();
        slots.take_back(&left.slots);
        for found in &left.slots {
            policy.entered(found.slot, found.block);
        }
        let held = left.slots.iter().filter(|found| found.held);
        let held: Vec<u32> = held.map(|found| found.slot).collect();
        let core = Core::new(Parts {
            device,
            device_info,
            info,
            memory,
            slots,
            policy,
            evictions: Evictions::new(evictor, options.evictions),
            faults,
        });
        core.counters
            .add(|stats| stats.slot_bytes = slot_bytes as u64);
        match options.hold_evictions && !core.faults.has(Fault::EvictBeforeAllowed) {
            true => core.hold_evictions(held),
            false => core.write_all_left_held(held),
        }
        core.kick_all();
        let policy = options.policy;
        Ok((Rc::new(Self { core, policy }), recovery))
    }

    /// Takes the next generation, when that is noted outside the memory: before the first write.
    pub fn take_generation(&self) {
        self.core.memory.take_generation();
    }

    /// Lets evictions begin, where [`TransitOptions::hold_evictions`] made them wait.
    pub fn allow_evictions(&self) {
        self.core.allow_evictions();
    }

    /// Returns whether evictions wait for [`Transit::allow_evictions`].
    #[must_use]
    pub fn holds_evictions(&self) -> bool {
        self.core.hold.is_on()
    }

    /// Its policy.
    #[must_use]
    pub const fn policy(&self) -> Policy {
        self.policy
    }

    /// Returns the time of each part: its name, the number of runs, and nanoseconds. Empty without
    /// the feature `parts`.
    #[must_use]
    pub fn parts(&self) -> Vec<(&'static str, u64, u64)> {
        self.core.times.get()
    }

    /// Returns counters of past operations, and of the slots' present content.
    #[must_use]
    pub fn stats(&self) -> TransitStats {
        let slots = self.core.slots.borrow();
        TransitStats {
            slots: slots.len() as u64,
            used: slots.in_use() as u64,
            owed: slots.owed() as u64,
            ..self.core.counters.get()
        }
    }
}

/// Hashes a name (FNV-1a).
fn hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl BlockDevice for Transit {
    fn info(&self) -> DeviceInfo {
        DeviceInfo {
            size_bytes: self.core.device.info().size_bytes,
            ..self.core.info.clone()
        }
    }

    fn holes(&self, range: Range<u64>) -> Option<Vec<Range<u64>>> {
        let holes = self.core.device.holes(range)?;
        Some(self.core.without_slots(holes))
    }

    fn allocated_bytes(&self) -> Option<u64> {
        self.core.device.allocated_bytes()
    }

    fn submit(&self, request: Request, done: Completion) {
        let core = &self.core;
        if let Err(error) = core.check(&request) {
            let context = format!(
                "transit cache {}: {:?} of {} bytes at {}",
                core.info.name, request.op, request.len, request.offset
            );
            return done.complete(Err(error.context(context)));
        }
        core.requested();
        match request.op {
            Op::Read => {
                let lap = Lap::begin();
                let read = core.try_read(&request);
                match read {
                    Read::Done => return done.complete(Ok(())),
                    Read::Through => {
                        let lap = core.times.end(lap, Part::Metadata);
                        core.device.submit(request, done);
                        core.times.end(lap, Part::Through);
                        return;
                    }
                    Read::Slow => (),
                }
            }
            Op::Write { fua: false } => {
                let mut blocks = core.blocks(&request);
                while !blocks.is_empty() {
                    let part = core.part(&request, &(blocks.start..blocks.start + 1));
                    if core.place(blocks.start, &part, false) != Placed::Done {
                        break;
                    }
                    blocks.start += 1;
                    let lap = Lap::begin();
                    core.kick();
                    core.times.end(lap, Part::Queue);
                }
                if blocks.is_empty() {
                    return done.complete(Ok(()));
                }
                let core = Rc::clone(core);
                rt::spawn(async move {
                    let result = core.write(&request, blocks).await;
                    done.complete(result.context(|| format!("transit cache {}", core.info.name)));
                });
                return;
            }
            _ => (),
        }
        let core = Rc::clone(core);
        rt::spawn(async move { done.complete(core.serve(request).await) });
    }
}
