//! Steps of a run, for the analysis of a failure: `FOREBAY_STEPS=1` with the seed prints them.

use super::world::{Event, World};
use crate::message::{ToDirectory, ToNode};
use crate::protocol::{Message, Packet};

impl World {
    pub(super) fn describe(&self, event: Event) -> String {
        match event {
            Event::Up(index) => format!(
                "{event:?}: {}",
                messages::<ToDirectory>(&self.peers[index].up[0])
            ),
            Event::Down(index) => format!(
                "{event:?}: {}",
                messages::<ToNode>(&self.peers[index].down[0])
            ),
            Event::Work(index) => format!("{:?}", self.work[index]),
            Event::Client(ticket) => format!("{event:?}: {:?}", self.clients[&ticket]),
            Event::Begin(_)
            | Event::Kill(_)
            | Event::Declare(_)
            | Event::Rescue(_)
            | Event::Crash
            | Event::Reconnect(_)
            | Event::Born(_)
            | Event::Round(_)
            | Event::PublishAll(_)
            | Event::GiveUp(_) => format!("{event:?}"),
        }
    }
}

fn messages<M: Message + std::fmt::Debug>(bytes: &[u8]) -> String {
    match Packet::<M>::decode(bytes) {
        Ok(Some(packet)) => format!("{:?}", packet.messages().flatten().collect::<Vec<M>>()),
        other => format!("{other:?}"),
    }
}
