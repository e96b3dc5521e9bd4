//! Programs on the nodes: reads, writes, views, flushes and closes, and files whose pages are
//! written together under a lock. Each operation has several steps, and any event may occur between
//! two.

mod group;

use super::model::{End, SyncStart};
use super::world::World;
use super::{PAGE_BYTES, PAGE_WORDS, Words, to_bytes, to_words};
use crate::message::{Access, PageId, Place};
use crate::node::{Acquired, Effect, Ticket, WroteWhole};
use crate::segment::Frame;

/// Number of pages of the file that is used page by page.
pub(super) const PAGES: u64 = 12;
const FILE: u64 = 1;
/// File whose pages are always written together.
pub(super) const GROUP: u64 = 2;
const GROUP_PAGES: u64 = 3;
const HALF: usize = PAGE_BYTES / 2;

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    /// Writes the first half of the page, or all of it.
    Write {
        len: usize,
    },
    WriteWhole,
    View {
        looks: u32,
    },
    Sync(Purpose),
    GroupRead,
    GroupWrite,
}

/// Purpose of the end of writes to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Close,
    Flush,
    /// A write-back that no program requested.
    WriteBack,
    /// No other node has pages alone any more.
    PublishAll,
}

/// Progress of an operation on its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begin,
    Found(Place),
    HalfRead { place: Place, sequence: u64 },
    HalfWritten(Place),
    Over,
}

/// An operation in progress.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) node: usize,
    /// Whether it waits for an effect of the node.
    pub(super) waiting: bool,
    /// Result from the node.
    pub(super) done: Option<bool>,
    ticket: Ticket,
    kind: Kind,
    page: PageId,
    stage: Stage,
    /// Step of its start, and the node's unpublished page at that time.
    begin: (u64, Option<(u64, Words)>),
    pub(super) sync: Option<SyncStart>,
    /// Whether a group's lock was requested.
    asked: bool,
    /// Whether it has the group's word.
    pub(super) alone: bool,
    bytes: [u8; PAGE_BYTES],
    /// Content of the pages of a group.
    seen: Vec<Words>,
}

impl Client {
    /// Draws an operation for a node.
    pub(super) fn draw(world: &World, node: usize, ticket: Ticket) -> Self {
        let kind = match world.rng.below(20) {
            0..=5 => Kind::Read,
            6..=8 => Kind::Write { len: HALF },
            9 => Kind::Write { len: PAGE_BYTES },
            10..=12 => Kind::WriteWhole,
            13..=14 => Kind::View {
                looks: u32::try_from(1 + world.rng.below(4)).expect("few"),
            },
            15 => Kind::Sync(Purpose::Flush),
            16 => Kind::Sync(Purpose::Close),
            17..=18 => Kind::GroupRead,
            _ => Kind::GroupWrite,
        };
        let group = matches!(kind, Kind::GroupRead | Kind::GroupWrite);
        // Often the next page, so that there are sequential readers.
        let index = match world.rng.below(3) {
            0 => ticket % PAGES,
            _ => world.rng.below(PAGES),
        };
        let page = match group {
            true => PageId {
                inode: GROUP,
                index: 0,
            },
            false => PageId { inode: FILE, index },
        };
        let inode = if world.rng.chance(1, 4) { GROUP } else { FILE };
        let page = match kind {
            Kind::Sync(_) => PageId { inode, ..page },
            _ => page,
        };
        Self::new(world, node, ticket, (kind, page))
    }

    /// Creates the write-back of a file that no program requested.
    pub(super) fn write_back(world: &World, node: usize, ticket: Ticket, inode: u64) -> Self {
        let kind = Kind::Sync(Purpose::WriteBack);
        Self::new(world, node, ticket, (kind, PageId { inode, index: 0 }))
    }

    /// Creates a request of a node that all nodes publish the file.
    pub(super) fn publish_all(world: &World, node: usize, ticket: Ticket) -> Self {
        let kind = Kind::Sync(Purpose::PublishAll);
        Self::new(
            world,
            node,
            ticket,
            (
                kind,
                PageId {
                    inode: FILE,
                    index: 0,
                },
            ),
        )
    }

    fn new(world: &World, node: usize, ticket: Ticket, (kind, page): (Kind, PageId)) -> Self {
        Self {
            node,
            waiting: false,
            done: None,
            ticket,
            kind,
            page,
            stage: Stage::Begin,
            begin: (
                world.now,
                world.model.private(world.peers[node].node.id(), page),
            ),
            sync: None,
            asked: false,
            alone: false,
            // Each operation writes unique data.
            bytes: to_bytes(&[ticket << 8 | 2; PAGE_WORDS]),
            seen: Vec::new(),
        }
    }

    /// Returns whether the operation may give up: it waits, and holds no lock.
    pub(super) fn may_give_up(&self) -> bool {
        self.waiting && !matches!(self.kind, Kind::GroupRead | Kind::GroupWrite)
    }

    /// Returns the flush of a program that waits for its end.
    pub(super) fn flush(&self) -> Option<&SyncStart> {
        let is_flush = self.kind == Kind::Sync(Purpose::Flush);
        self.sync.as_ref().filter(|_| is_flush)
    }
}

impl World {
    pub(super) fn step_client(&mut self, ticket: Ticket) -> Result<(), String> {
        let mut client = self.clients.remove(&ticket).expect("it is there");
        self.go_on(&mut client)?;
        if client.stage != Stage::Over {
            // The client was not in the map during this step, so the node's effects for it were set
            // aside.
            self.clients.insert(ticket, client);
        }
        Ok(())
    }

    fn go_on(&mut self, client: &mut Client) -> Result<(), String> {
        match client.kind {
            Kind::Sync(purpose) => self.step_sync(client, purpose),
            Kind::GroupRead | Kind::GroupWrite => self.step_group(client),
            Kind::WriteWhole => {
                self.step_write_whole(client);
                Ok(())
            }
            Kind::Read => self.step_read(client),
            Kind::Write { len } => self.step_write(client, len),
            Kind::View { looks } => self.step_view(client, looks),
        }
    }

    /// Finds the page. Returns `None` if the client waits, works on an unpublished page or has
    /// ended.
    fn acquire(&mut self, client: &mut Client, access: Access) -> Option<Acquired> {
        if client.done.take() == Some(false) {
            client.stage = Stage::Over;
            return None;
        }
        let mut effects = Vec::new();
        let node = &mut self.peers[client.node].node;
        let acquired = match client.kind {
            Kind::Read | Kind::GroupRead => {
                node.request_replicas(&mut effects);
                node.acquire_copy(client.page, client.ticket, &mut effects)
            }
            _ => node.acquire(client.page, access, client.ticket, &mut effects),
        };
        if let Acquired::Mapped(place) = acquired {
            client.stage = Stage::Found(place);
            if access == Access::Write || matches!(client.kind, Kind::View { .. }) {
                node.pin(client.page);
            }
        }
        client.waiting = acquired == Acquired::Wait;
        self.apply(client.node, effects);
        (acquired != Acquired::Wait).then_some(acquired)
    }

    fn step_read(&mut self, client: &mut Client) -> Result<(), String> {
        match client.stage {
            Stage::Found(place) => match self.segment.look(place) {
                Frame::Steady(sequence) => {
                    self.segment.load(place.frame, 0, &mut client.bytes[..HALF]);
                    client.stage = Stage::HalfRead { place, sequence };
                }
                Frame::Stale => self.retry(client),
                Frame::Storing(_) => {}
            },
            Stage::HalfRead { place, sequence } => {
                self.segment
                    .load(place.frame, HALF, &mut client.bytes[HALF..]);
                if !self.segment.unchanged(place, sequence) {
                    self.retry(client);
                    return Ok(());
                }
                self.end_read(client)?;
            }
            _ => {
                if self.acquire(client, Access::Read) == Some(Acquired::Unpublished) {
                    let node = &mut self.peers[client.node].node;
                    let bytes = node
                        .unpublished(client.page)
                        .ok_or("it is not unpublished")?;
                    client.bytes.copy_from_slice(bytes);
                    self.end_read(client)?;
                }
            }
        }
        Ok(())
    }

    fn retry(&mut self, client: &mut Client) {
        self.summary.retries += 1;
        client.stage = Stage::Begin;
    }

    fn end_read(&mut self, client: &mut Client) -> Result<(), String> {
        let node = self.peers[client.node].node.id();
        let words = to_words(&client.bytes);
        client.stage = Stage::Over;
        client.seen.push(words);
        self.model
            .check_read(node, client.page, client.begin, &words)
    }

    fn step_write(&mut self, client: &mut Client, len: usize) -> Result<(), String> {
        let node = self.peers[client.node].node.id();
        match client.stage {
            Stage::Found(place) => match self.segment.lock(place, node) {
                Ok(()) => {
                    self.segment.store(place.frame, 0, &client.bytes[..len / 2]);
                    client.stage = Stage::HalfWritten(place);
                }
                Err(Frame::Stale) => {
                    return Err(format!(
                        "{} is gone though {node} has it pinned",
                        client.page
                    ));
                }
                Err(_) => {}
            },
            Stage::HalfWritten(place) => {
                self.segment
                    .store(place.frame, len / 2, &client.bytes[len / 2..len]);
                let mut bytes = [0; PAGE_BYTES];
                self.segment.load(place.frame, 0, &mut bytes);
                self.segment.unlock(place.frame);
                self.model
                    .commit(node, client.page, self.now, to_words(&bytes));
                let mut effects = Vec::new();
                let node = &mut self.peers[client.node].node;
                node.stored(client.page, place);
                node.unpin(client.page, &mut effects);
                client.stage = Stage::Over;
                self.apply(client.node, effects);
            }
            _ => {
                if self.acquire(client, Access::Write) == Some(Acquired::Unpublished) {
                    let unpublished = self.peers[client.node].node.unpublished(client.page);
                    let unpublished = unpublished.ok_or("it is not unpublished")?;
                    unpublished[..len].copy_from_slice(&client.bytes[..len]);
                    let words = to_words(unpublished);
                    self.model.set_private(node, client.page, words);
                    client.stage = Stage::Over;
                }
            }
        }
        Ok(())
    }

    fn step_write_whole(&mut self, client: &mut Client) {
        if client.done.is_some() {
            // It is published; the model was notified at that time.
            client.stage = Stage::Over;
            return;
        }
        let mut effects = Vec::new();
        let node = &mut self.peers[client.node].node;
        match node.write_whole(client.page, &client.bytes, client.ticket, &mut effects) {
            WroteWhole::Unpublished => {
                let id = node.id();
                self.model
                    .set_private(id, client.page, to_words(&client.bytes));
                client.stage = Stage::Over;
            }
            WroteWhole::Publishing => client.waiting = true,
            WroteWhole::InPlace => client.kind = Kind::Write { len: PAGE_BYTES },
        }
        self.apply(client.node, effects);
    }

    fn step_view(&mut self, client: &mut Client, looks: u32) -> Result<(), String> {
        let Stage::Found(place) = client.stage else {
            if self.acquire(client, Access::Read) == Some(Acquired::Unpublished) {
                client.stage = Stage::Over;
            }
            return Ok(());
        };
        match self.segment.look(place) {
            Frame::Stale => return Err(format!("a view of {} shows another page", client.page)),
            Frame::Storing(_) => {}
            Frame::Steady(_) => {
                self.segment.load(place.frame, 0, &mut client.bytes);
                let words = to_words(&client.bytes);
                let newest = self.model.current(client.page);
                if words != newest {
                    return Err(format!(
                        "a view of {} shows {words:x?}, not {newest:x?}",
                        client.page
                    ));
                }
            }
        }
        client.kind = Kind::View {
            looks: looks.saturating_sub(1),
        };
        if looks <= 1 {
            let mut effects = Vec::new();
            self.peers[client.node]
                .node
                .unpin(client.page, &mut effects);
            client.stage = Stage::Over;
            self.apply(client.node, effects);
        }
        Ok(())
    }

    fn step_sync(&mut self, client: &mut Client, purpose: Purpose) -> Result<(), String> {
        let id = self.peers[client.node].node.id();
        if let Some(start) = client.sync.take() {
            client.stage = Stage::Over;
            let ok = client.done == Some(true);
            self.summary.flushes_failed += u64::from(!ok);
            if self.pages_survive() && !ok {
                return Err(format!(
                    "a {purpose:?} of {id} fails though pages outlive nodes"
                ));
            }
            let node = &mut self.peers[client.node].node;
            let inode = client.page.inode;
            let end = match ok {
                false => End::Failed,
                true if node.losses(inode) != node.reported_losses(inode) => End::Owes,
                true => End::Done,
            };
            let shelf = &self.shelf;
            return self
                .model
                .check_sync(id, &start, (purpose, end), |page| shelf.words(page));
        }
        let inode = client.page.inode;
        client.sync = Some(match purpose {
            Purpose::PublishAll => self.model.publication_start(id, inode),
            _ => self.model.sync_start(id, inode),
        });
        client.waiting = true;
        let mut effects = Vec::new();
        let node = &mut self.peers[client.node].node;
        match purpose {
            Purpose::Flush => node.fsync(inode, client.ticket, &mut effects),
            Purpose::WriteBack => node.write_back(inode, client.ticket, &mut effects),
            Purpose::PublishAll => node.publish_all(inode, client.ticket, &mut effects),
            Purpose::Close => {
                node.close(inode, client.ticket, &mut effects);
                node.open(inode, PAGES);
            }
        }
        // It may end at once.
        let over = |effect: &Effect| match effect {
            Effect::Done { ticket, ok } if *ticket == client.ticket => Some(*ok),
            _ => None,
        };
        if let Some(ok) = effects.iter().find_map(over) {
            (client.waiting, client.done) = (false, Some(ok));
            if let (Some(start), false) = (client.flush(), ok) {
                self.model.sync_failed(id, start);
            }
        }
        self.apply(client.node, effects);
        Ok(())
    }

    /// Ends the client of a dead node.
    pub(super) fn abandon_client(&mut self, client: &Client) {
        if let Stage::HalfWritten(place) = client.stage {
            self.tear(client.page, place);
        }
        if client.kind == Kind::GroupWrite {
            self.model.torn = true;
        }
    }
}
