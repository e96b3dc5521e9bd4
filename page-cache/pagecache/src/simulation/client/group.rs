//! Files whose pages are written together under a lock.

use super::{Client, GROUP, GROUP_PAGES, Kind, PAGE_BYTES, Stage, Words, World};
use crate::message::LockRange;

impl World {
    /// Uses all pages of the group, one after the other, under one lock. It is the directory's, or
    /// the group's word, with the directory's lock when two nodes meet.
    pub(super) fn step_group(&mut self, client: &mut Client) -> Result<(), String> {
        let write = client.kind == Kind::GroupWrite;
        let word = self.segment.alone_word(GROUP);
        let id = self.peers[client.node].node.id();
        if self.by_words && !client.asked && !client.alone && self.segment.take_alone(word, id) {
            client.alone = true;
            return Ok(());
        }
        if !client.asked && !client.alone {
            client.asked = true;
            let range = LockRange {
                inode: GROUP,
                start: 0,
                end: GROUP_PAGES,
                exclusive: write || self.by_words,
            };
            client.waiting = true;
            let mut effects = Vec::new();
            self.peers[client.node]
                .node
                .lock(range, client.ticket, &mut effects);
            self.apply(client.node, effects);
            return Ok(());
        }
        if self.by_words && !client.alone {
            client.alone = self.segment.take_awaited(word, id);
            self.summary.awaited += u64::from(client.alone);
            return Ok(());
        }
        if client.stage == Stage::Begin {
            // The lock is held. A failed fill shows at the next attempt.
            client.done = None;
            client.begin.0 = self.now;
        }
        if write {
            self.step_write(client, PAGE_BYTES)?;
        } else {
            self.step_read(client)?;
        }
        if client.stage != Stage::Over {
            return Ok(());
        }
        client.page.index += 1;
        if client.page.index < GROUP_PAGES {
            client.stage = Stage::Begin;
            return Ok(());
        }
        if write {
            self.model.torn = false;
        } else if !self.model.torn
            && client
                .seen
                .iter()
                .any(|words| words[..] != group(&client.seen))
        {
            return Err(format!(
                "pages written under one lock differ: {:x?}",
                client.seen
            ));
        }
        if client.alone {
            self.segment.leave_alone(word);
        }
        let mut effects = Vec::new();
        if client.asked {
            let node = &mut self.peers[client.node].node;
            node.unlock(client.ticket, &mut effects);
        }
        self.apply(client.node, effects);
        Ok(())
    }
}

/// Returns the common content of all pages of a group, if nothing interfered.
fn group(seen: &[Words]) -> Words {
    seen.first().copied().unwrap_or_default()
}
