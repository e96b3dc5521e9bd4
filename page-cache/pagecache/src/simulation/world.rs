//! The schedule: possible events, and their effects.

use std::collections::{BTreeMap, VecDeque};

use forebay_block::Buf;
use forebay_io::sim::Rng;

use super::client::Client;
use super::model::Model;
use super::pace::Pace;
use super::publications::Publications;
use super::replicas::Replication;
use super::shelf::Shelf;
use super::summary::Summary;
use super::work::Work;
use super::{PAGE_BYTES, to_words};
use crate::directory::{self, Directory, Outbox, Placement};
use crate::fault::{Fault, Faults};
use crate::message::{NodeId, PageId, Place, ToDirectory, ToNode};
use crate::node::{self, Consistency, Effect, Node, Ticket};
use crate::protocol::{Packet, encode};
use crate::segment::Segment;

/// More steps than any terminating run takes.
const STEPS_MAX: u64 = 400_000;

/// A node with its links.
pub(super) struct Peer {
    pub(super) node: Node,
    pub(super) alive: bool,
    /// Whether it has a link to the current directory.
    pub(super) connected: bool,
    pub(super) up: VecDeque<Vec<u8>>,
    pub(super) down: VecDeque<Vec<u8>>,
}

/// One simulated life of a cluster.
pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) now: u64,
    pub(super) directory: Directory,
    pub(super) segment: Segment,
    pub(super) shelf: Shelf,
    pub(super) peers: Vec<Peer>,
    pub(super) work: Vec<Work>,
    /// Pages that the directory's host must write back.
    pub(super) rescues: Vec<(PageId, Place)>,
    pub(super) clients: BTreeMap<Ticket, Client>,
    pub(super) model: Model,
    pub(super) summary: Summary,
    pub(super) fault: Option<Fault>,
    /// Whether groups are locked by their word, and not only by the directory's locks.
    pub(super) by_words: bool,
    /// One store operation in this many fails; 0 for none.
    pub(super) store_fails: u64,
    pub(super) pace: Pace,
    pub(super) publications: Publications,
    next_ticket: Ticket,
    operations_left: u64,
    kills_left: u64,
    /// Dead nodes of which the directory has not been notified.
    undeclared: Vec<NodeId>,
    /// Speed of each link, of eight.
    speeds: Vec<u64>,
    pub(super) config: directory::Config,
    pub(super) configs: Vec<node::Config>,
    pub(super) epoch: u64,
    pub(super) crashes_left: u64,
    /// Nodes that are dead and forgotten: their numbers may be reused.
    pub(super) forgotten: Vec<NodeId>,
    prints: bool,
    /// The one step at which a node dies, if deaths are not drawn.
    kill_at: Option<u64>,
}

/// An event that may be next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Event {
    Up(usize),
    Down(usize),
    Work(usize),
    Client(Ticket),
    Begin(usize),
    Kill(usize),
    Declare(usize),
    /// A page that outlived its node is written back.
    Rescue(usize),
    /// The directory ends, and another is started.
    Crash,
    /// A node finds the new directory.
    Reconnect(usize),
    /// A new node takes the number of a forgotten one.
    Born(usize),
    /// A node begins a round of write-back.
    Round(usize),
    /// A node requests that all nodes publish the file.
    PublishAll(usize),
    /// The time limit of an operation ends.
    GiveUp(Ticket),
}

impl World {
    pub(super) fn new(seed: u64, consistency: Consistency, fault: Option<Fault>) -> Self {
        let rng = Rng::new(seed);
        let nodes = u8::try_from(2 + rng.below(4)).expect("few");
        let replication = Replication::new(seed, fault);
        let frames = u32::try_from(2 + rng.below(5)).expect("few") + replication.frames();
        let unpublished_pages = u32::try_from(rng.below(4)).expect("few");
        let budget_pages = u32::from(nodes) * (frames + unpublished_pages);
        let free_high = u32::try_from(rng.below(4)).expect("few");
        let free_low = u32::try_from(rng.below(u64::from(free_high) + 1)).expect("few");
        // With this fault, frames would be reused before they are rescued.
        let outlive = rng.chance(1, 3) && fault != Some(Fault::ForgetMapped);
        let placement = match outlive {
            true => Placement::Pool,
            false => Placement::Node,
        };
        let config = directory::Config {
            budget_pages,
            free_low,
            free_high,
            placement,
        };
        let faults = Faults { planted: fault };
        let mut directory = Directory::new(config).expect("a possible configuration");
        directory.faults = faults;
        let all_frames = u32::from(nodes) * frames;
        let memory = Buf::zeroed(Segment::size_bytes(all_frames, PAGE_BYTES));
        let mut segment = Segment::new(memory, all_frames, PAGE_BYTES).expect("it fits");
        segment.faults = faults;
        let mut world = Self {
            now: 1,
            directory,
            segment,
            shelf: Shelf::default(),
            peers: Vec::new(),
            work: Vec::new(),
            rescues: Vec::new(),
            clients: BTreeMap::new(),
            model: Model::default(),
            summary: Summary::default(),
            fault,
            by_words: rng.chance(1, 2),
            store_fails: if matches!(
                fault,
                None | Some(
                    Fault::UnreportedLoss | Fault::GivenUpForgotten | Fault::CleanBeforeStored
                )
            ) && rng.chance(1, 4)
            {
                12
            } else {
                0
            },
            pace: Pace::new(seed, fault),
            publications: Publications::new(seed, fault),
            next_ticket: 1,
            operations_left: 60 + rng.below(140),
            kills_left: if rng.chance(2, 3) {
                rng.below(u64::from(nodes))
            } else {
                0
            },
            undeclared: Vec::new(),
            speeds: (0..2 * nodes).map(|_| 1 + rng.below(8)).collect(),
            config,
            configs: Vec::new(),
            epoch: 0,
            crashes_left: if rng.chance(1, 2) { rng.below(4) } else { 0 },
            forgotten: Vec::new(),
            prints: std::env::var_os("FOREBAY_STEPS").is_some(),
            kill_at: None,
            rng,
        };
        for number in 0..nodes {
            let config = node::Config {
                node: NodeId::new(number).expect("few"),
                consistency,
                frames,
                unpublished_pages,
                read_ahead_pages: world.rng.below(5),
                replicate_after: replication.draw(),
            };
            world.configs.push(config);
            let (peer, effects) = world.peer(config);
            world.peers.push(peer);
            world.apply(usize::from(number), effects);
        }
        world
    }

    /// Creates a short life in which one node dies before step `step`, and no other dies after it.
    pub(super) fn killed_at(seed: u64, consistency: Consistency, step: u64) -> Self {
        let mut world = Self::new(seed, consistency, None);
        (world.kills_left, world.crashes_left, world.operations_left) = (0, 0, 60);
        world.kill_at = Some(step);
        world
    }

    /// Runs until no event is left.
    pub(super) fn run(mut self) -> Result<Summary, String> {
        while let Some(event) = self.draw()? {
            self.now += 1;
            let at = self.now;
            if self.prints {
                println!("{at}: {}", self.describe(event));
            }
            self.step(event)
                .map_err(|wrong| format!("step {at}, {event:?}: {wrong}"))?;
            self.check()
                .map_err(|wrong| format!("after step {at}, {event:?}: {wrong}"))?;
            if self.now > STEPS_MAX {
                return Err(format!(
                    "no end after {STEPS_MAX} steps; {} operations wait",
                    self.clients.len()
                ));
            }
        }
        if let Some((ticket, client)) = self.clients.first_key_value() {
            return Err(format!(
                "nothing happens any more, but {ticket} waits: {client:?}"
            ));
        }
        let Self {
            model,
            shelf,
            directory,
            segment,
            ..
        } = &mut self;
        let resident = |page| {
            let (_, place) = directory.page(page)?;
            let mut bytes = [0; PAGE_BYTES];
            segment.load(place.frame, 0, &mut bytes);
            Some(to_words(&bytes))
        };
        model.check_end(|page| shelf.words(page), resident)?;
        self.summary.steps = self.now;
        self.summary.losses = self.model.losses;
        let counts = self.directory.counts();
        self.summary.fills += counts.filled;
        self.summary.evictions += counts.evicted;
        self.summary.protections += counts.protections;
        self.summary.replicas += counts.replicas;
        for peer in &self.peers {
            let counts = peer.node.counts();
            self.summary.hits_local += counts.hits_local;
            self.summary.hits_remote += counts.hits_remote;
            self.summary.read_ahead += counts.read_ahead;
        }
        Ok(self.summary)
    }

    fn events(&self) -> Vec<Event> {
        let mut events = Vec::with_capacity(32);
        for (index, peer) in self.peers.iter().enumerate() {
            if !peer.up.is_empty() {
                events.push(Event::Up(index));
            }
            if peer.alive && !peer.down.is_empty() {
                events.push(Event::Down(index));
            }
            if peer.alive && !peer.connected {
                events.push(Event::Reconnect(index));
            }
            let busy = self
                .clients
                .values()
                .filter(|client| client.node == index)
                .count();
            if peer.alive && self.operations_left > 0 && busy < 3 {
                events.push(Event::Begin(index));
            }
        }
        let works = self.work.iter().enumerate();
        let works = works.filter(|(_, work)| self.may_execute(work));
        events.extend(works.map(|(index, _)| Event::Work(index)));
        let ready = self.clients.iter().filter(|(_, client)| !client.waiting);
        events.extend(ready.map(|(ticket, _)| Event::Client(*ticket)));
        events.extend((0..self.undeclared.len()).map(Event::Declare));
        if !self.is_stalled() {
            events.extend((0..self.rescues.len()).map(Event::Rescue));
        }
        if self.operations_left > 0 {
            events.extend((0..self.forgotten.len()).map(Event::Born));
        }
        events
    }

    fn draw(&mut self) -> Result<Option<Event>, String> {
        let living: Vec<usize> = (0..self.peers.len())
            .filter(|index| self.peers[*index].alive)
            .collect();
        if self.kill_at == Some(self.now) {
            let number = usize::try_from(self.now).expect("few steps") % living.len();
            return Ok(Some(Event::Kill(living[number])));
        }
        if self.kills_left > 0 && living.len() > 1 && self.rng.chance(1, 300) {
            self.kills_left -= 1;
            return Ok(Some(Event::Kill(living[self.rng.index(living.len())])));
        }
        if self.crashes_left > 0 && self.rng.chance(1, 300) {
            self.crashes_left -= 1;
            return Ok(Some(Event::Crash));
        }
        let drawn = self.draw_pace(&living);
        if let Some(event) = drawn.or_else(|| self.draw_publication(&living)) {
            return Ok(Some(event));
        }
        let mut events = self.events();
        if events.is_empty() && self.end_stall() {
            events = self.events();
        }
        if events.is_empty() {
            return Ok(None);
        }
        for _ in 0..1000 {
            let event = events[self.rng.index(events.len())];
            let speed = match event {
                Event::Up(index) => self.speeds[2 * index],
                Event::Down(index) => self.speeds[2 * index + 1],
                Event::Declare(_) | Event::Reconnect(_) | Event::Born(_) => 1,
                Event::Begin(_) | Event::Rescue(_) => 2,
                // Some programs are stopped for a long time, at any step.
                Event::Client(ticket) if ticket % 4 == 0 => 1,
                Event::Work(index) if self.work[index].is_former() => 1,
                _ => 6,
            };
            if self.rng.chance(speed, 8) {
                return Ok(Some(event));
            }
        }
        Err("no event can be drawn".into())
    }

    fn step(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Up(index) => {
                let bytes = self.peers[index].up.pop_front().expect("it was there");
                let packet =
                    Packet::<ToDirectory>::decode(&bytes).map_err(|error| error.to_string())?;
                let packet = packet.ok_or("half a packet")?;
                let mut out = Outbox::default();
                for message in packet.messages() {
                    let message = message.map_err(|error| error.to_string())?;
                    let taken = self.directory.receive(packet.node, message, &mut out);
                    taken.map_err(|error| error.report())?;
                }
                self.deliver(out)?;
            }
            Event::Down(index) => {
                let bytes = self.peers[index].down.pop_front().expect("it was there");
                let packet = Packet::<ToNode>::decode(&bytes).map_err(|error| error.to_string())?;
                let packet = packet.ok_or("half a packet")?;
                let mut effects = Vec::new();
                for message in packet.messages() {
                    let message = message.map_err(|error| error.to_string())?;
                    let taken = self.peers[index].node.receive(message, &mut effects);
                    taken.map_err(|error| error.report())?;
                }
                self.apply(index, effects);
            }
            Event::Work(index) => self.step_work(index)?,
            Event::Client(ticket) => self.step_client(ticket)?,
            Event::Begin(index) => {
                self.operations_left -= 1;
                self.summary.operations += 1;
                let ticket = self.ticket();
                let client = Client::draw(self, index, ticket);
                self.clients.insert(ticket, client);
            }
            Event::Kill(index) => self.kill(index),
            Event::Declare(index) => {
                let node = self.undeclared.swap_remove(index);
                self.peers[node.index()].up.clear();
                self.segment.end_stores(node);
                let mut out = Outbox::default();
                self.directory
                    .died(node, &|frame| self.segment.unsaved(frame), &mut out);
                self.deliver(out)?;
            }
            Event::Rescue(index) => self.rescue(index)?,
            Event::Crash => self.crash(),
            Event::Reconnect(index) => self.reconnect(index),
            Event::Born(index) => self.born(index),
            Event::Round(index) => self.begin_round(index),
            Event::PublishAll(index) => self.begin_publication(index),
            Event::GiveUp(ticket) => self.give_up(ticket),
        }
        Ok(())
    }

    /// Returns the number of a new operation.
    pub(super) fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        self.next_ticket - 1
    }

    /// Sends the directory's messages: one packet for each receiving node.
    pub(super) fn deliver(&mut self, mut out: Outbox) -> Result<(), String> {
        self.go_on_if_all_are_there(&mut out);
        if let Some((node, error)) = out.refused.first() {
            return Err(format!("{node}, late: {}", error.report()));
        }
        let survive = self.pages_survive();
        for page in out.take_lost(&self.segment) {
            if survive && self.shelf.words(page) != self.model.current(page) {
                return Err(format!("{page} is lost though pages outlive nodes"));
            }
            self.model.name_lost(page);
        }
        for frame in out.discarded {
            self.segment.discard(frame);
        }
        for share in out.forgotten {
            for frame in share.first_frame..share.first_frame + share.frames {
                self.segment.forget_given_up(frame);
            }
            self.forgotten.push(share.node);
        }
        self.rescues.extend(out.rescues);
        for (index, peer) in self.peers.iter_mut().enumerate() {
            let node = NodeId::new(u8::try_from(index).expect("few")).expect("few");
            let to = |(to, message): &(NodeId, ToNode)| (*to == node).then_some(*message);
            let messages: Vec<ToNode> = out.messages.iter().filter_map(to).collect();
            if peer.alive && peer.connected && !messages.is_empty() {
                let mut bytes = Vec::new();
                encode(node, &messages, &mut bytes);
                self.summary.packets += 1;
                self.summary.messages += messages.len() as u64;
                peer.down.push_back(bytes);
            }
        }
        Ok(())
    }

    /// Executes a node's effects.
    pub(super) fn apply(&mut self, index: usize, effects: Vec<Effect>) {
        let mut messages = Vec::new();
        for effect in effects {
            match effect {
                Effect::Send(message) => messages.push(message),
                Effect::Ready(ticket) => {
                    if let Some(client) = self.clients.get_mut(&ticket) {
                        client.waiting = false;
                    }
                }
                Effect::Done { ticket, ok } => {
                    if let Some(client) = self.clients.get_mut(&ticket) {
                        (client.waiting, client.done) = (false, Some(ok));
                        if let (Some(start), false) = (client.flush(), ok) {
                            self.model.sync_failed(self.peers[index].node.id(), start);
                        }
                    }
                }
                Effect::Copy { page, place, copy } => self.copy_replica(index, page, place, copy),
                other => {
                    if let (Effect::Fill { page, place }, Some(Fault::PublishUnfilled)) =
                        (other, self.fault)
                    {
                        self.segment.open(page, place, self.peers[index].node.id());
                        self.segment.unlock(place.frame);
                    }
                    self.work.extend(Work::new(index, other));
                }
            }
        }
        let peer = &mut self.peers[index];
        if peer.connected && !messages.is_empty() {
            let mut bytes = Vec::new();
            encode(peer.node.id(), &messages, &mut bytes);
            self.summary.packets += 1;
            self.summary.messages += messages.len() as u64;
            peer.up.push_back(bytes);
        }
    }

    fn kill(&mut self, index: usize) {
        self.summary.deaths += 1;
        let node = self.peers[index].node.id();
        self.peers[index].alive = false;
        self.peers[index].down.clear();
        let dying: Vec<Work> = self
            .work
            .extract_if(.., |work| work.node == index)
            .collect();
        for work in dying {
            self.abandon_work(&work);
        }
        let clients: Vec<Ticket> = self.clients.keys().copied().collect();
        for ticket in clients {
            if self.clients[&ticket].node == index {
                let client = self.clients.remove(&ticket).expect("it is there");
                self.abandon_client(&client);
            }
        }
        self.model.died(node);
        self.undeclared.push(node);
    }
}
