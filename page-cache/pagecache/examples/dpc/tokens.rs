//! The tokens' server: who may read and who may write what, until another wants it. Nodes keep
//! their tokens until they are asked for them, so that using one again costs nothing.

use std::collections::HashMap;

/// What a token is for: a range of a file's pages, or (the last) its name and size.
pub(crate) type Key = (u64, u64);

/// The token of a file's name and size.
pub(crate) const ATTRIBUTES: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    readers: u32,
    writer: Option<usize>,
}

/// What a node has to give up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Revoke {
    pub(crate) node: usize,
    pub(crate) key: Key,
    /// It may go on reading.
    pub(crate) may_read: bool,
}

/// The server.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    held: HashMap<Key, Held>,
}

impl Tokens {
    /// Whether `node` may already do it.
    pub(crate) fn has(&self, node: usize, key: Key, write: bool) -> bool {
        self.held.get(&key).is_some_and(|held| {
            held.writer == Some(node) || (!write && held.readers & (1 << node) != 0)
        })
    }

    /// Gives `node` the token; who has to give up what for it.
    pub(crate) fn grant(&mut self, node: usize, key: Key, write: bool) -> Vec<Revoke> {
        let held = self.held.entry(key).or_default();
        let mut revokes = Vec::new();
        if let Some(writer) = held.writer.take_if(|writer| *writer != node) {
            revokes.push(Revoke {
                node: writer,
                key,
                may_read: !write,
            });
            held.readers |= 1 << writer;
        }
        if write {
            for reader in (0..32).filter(|reader| held.readers & (1 << reader) != 0) {
                let revoked = revokes.iter().any(|revoke| revoke.node == reader);
                if reader != node && !revoked {
                    revokes.push(Revoke {
                        node: reader,
                        key,
                        may_read: false,
                    });
                }
            }
            *held = Held {
                readers: 0,
                writer: Some(node),
            };
        } else if held.writer.is_none() {
            held.readers |= 1 << node;
        }
        revokes
    }

    /// A page that `from` had goes to `to`: both may read it.
    pub(crate) fn pass(&mut self, from: usize, to: usize, key: Key) {
        let held = self.held.entry(key).or_default();
        held.writer = None;
        held.readers |= 1 << from | 1 << to;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = (7, 0);

    #[test]
    fn many_read_or_one_writes() {
        let mut tokens = Tokens::default();
        assert_eq!(tokens.grant(0, KEY, false), []);
        assert_eq!(tokens.grant(1, KEY, false), []);
        assert!(tokens.has(0, KEY, false) && !tokens.has(0, KEY, true));
        let revoke = |node, may_read| Revoke {
            node,
            key: KEY,
            may_read,
        };
        assert_eq!(tokens.grant(1, KEY, true), [revoke(0, false)]);
        assert!(tokens.has(1, KEY, false) && tokens.has(1, KEY, true));
        assert!(!tokens.has(0, KEY, false));
        assert_eq!(tokens.grant(2, KEY, false), [revoke(1, true)]);
        assert!(tokens.has(1, KEY, false) && !tokens.has(1, KEY, true));
        assert_eq!(
            tokens.grant(0, KEY, true),
            [revoke(1, false), revoke(2, false)]
        );
        assert_eq!(tokens.grant(0, KEY, false), [], "a writer may read");
    }
}
