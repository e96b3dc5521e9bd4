//! Packets of the directory, and the effects of the node: fills, write-backs, results and messages.

use forebay_block::Result;

use super::io::{Action, Job};
use super::{Client, Link, State};
use crate::message::{NodeId, ToDirectory, ToNode};
use crate::node::Effect;
use crate::protocol::{Packet, encode};
use crate::store::Store;

impl<S: Store, L: Link> Client<S, L> {
    /// Processes bytes received from the directory, and returns how many of them were whole
    /// packets. The reader of the connection calls this. It does not wait for the store.
    ///
    /// # Errors
    /// If the bytes are not valid packets, or contain messages that no correct directory sends, or
    /// the link is gone. All later operations fail.
    pub fn receive(&self, bytes: &[u8]) -> Result<usize> {
        let mut state = self.lock_state();
        let result = self.take_packets(&mut state, bytes);
        if let Err(error) = &result {
            state.fail(error.clone());
        }
        self.changed.notify_all();
        if state.node.flush_is_requested() {
            self.flush_requested.notify_all();
        }
        result
    }

    fn take_packets(&self, state: &mut State, bytes: &[u8]) -> Result<usize> {
        let mut taken = 0;
        while let Some(packet) = Packet::<ToNode>::decode(&bytes[taken..])? {
            for message in packet.messages() {
                let message = message?;
                state.node.receive(message, &mut state.effects)?;
            }
            taken += packet.size_bytes;
            self.act(state)?;
        }
        Ok(taken)
    }

    /// Executes the node's effects and their consequences, then sends one packet.
    pub(super) fn act(&self, state: &mut State) -> Result<()> {
        let id = state.node.id();
        let mut next = 0;
        while let Some(effect) = state.effects.get(next).copied() {
            next += 1;
            self.do_effect(state, id, effect);
        }
        state.effects.clear();
        if state.messages.is_empty() {
            return Ok(());
        }
        state.packet.clear();
        encode(id, &state.messages, &mut state.packet);
        let publishes = |message: &ToDirectory| matches!(message, ToDirectory::Publish { .. });
        let only_publishes = state.messages.iter().all(publishes);
        state.messages.clear();
        let sent = self.link.send(&state.packet);
        match &sent {
            Ok(()) if only_publishes => state.deferred.publishes = true,
            Ok(()) => state.deferred.sends = true,
            Err(error) => {
                state.fail(error.clone());
                self.changed.notify_all();
            }
        }
        sent
    }

    fn do_effect(&self, state: &mut State, id: NodeId, effect: Effect) {
        let slow = self.emulated;
        let State {
            node,
            effects,
            messages,
            jobs,
            deferred,
            ..
        } = state;
        match effect {
            Effect::Send(message) => messages.push(message),
            Effect::Fill { page, place } => {
                deferred.wake(jobs.push(Job::new(page, place, Action::Fill)));
            }
            Effect::FillUnpublished { page, place } => {
                let bytes = node.unpublished(page).expect("the node has just said so");
                self.segment.fill(page, place, id, bytes, false);
                node.filled(page, true, effects);
            }
            Effect::Merge { page, place } => {
                let bytes = node.unpublished(page).expect("the node has just said so");
                let merge = Action::Merge((&*bytes).into());
                deferred.wake(jobs.push(Job::new(page, place, merge)));
            }
            Effect::Copy { page, place, copy } => {
                let mut bytes = vec![0; self.segment.page_size_bytes()];
                let ok = self.segment.read(place, &mut bytes).is_ok();
                if ok {
                    slow.inspect(|emulated| emulated.spend(bytes.len()));
                    self.segment.fill(page, copy, id, &bytes, true);
                }
                node.copied(page, copy, ok, effects);
            }
            // A clean page needs no write-back: it is reported now, and evictions share packets.
            Effect::WriteBack { place, .. } if !self.segment.is_dirty(place) => {
                node.written_back(place, true, effects);
            }
            Effect::WriteBack { page, place } => {
                deferred.wake(jobs.push(Job::new(page, place, Action::WriteBack)));
            }
            Effect::Ready(ticket) => {
                state.resume(ticket, None);
            }
            Effect::Done { ticket, ok } => {
                if !state.resume(ticket, Some(ok)) {
                    self.changed.notify_all();
                }
            }
        }
    }
}
