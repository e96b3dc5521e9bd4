//! Token server: grants reading or writing of ranges until another node wants them. Nodes retain
//! their tokens until they are revoked, so that further uses cost nothing.

use std::collections::HashMap;

/// Object of a token: a range of a file's pages, or (the last) its name and size.
pub(crate) type Key = (u64, u64);

/// The token of a file's name and size.
pub(crate) const ATTRIBUTES: u64 = u64::MAX;

#[derive(Clone, Copy, Debug, Default)]
struct Held {
    readers: u32,
    writer: Option<usize>,
}

/// A revoked token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Revoke {
    pub(crate) node: usize,
    pub(crate) key: Key,
    /// Whether the node may go on reading.
    pub(crate) may_read: bool,
}

/// The server.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    held: HashMap<Key, Held>,
}

impl Tokens {
    /// Returns whether `node` has the token already.
    pub(crate) fn has(&self, node: usize, key: Key, write: bool) -> bool {
        self.held.get(&key).is_some_and(|held| {
            held.writer == Some(node) || (!write && held.readers & (1 << node) != 0)
        })
    }

    /// Grants `node` the token. Returns the tokens to revoke for it.
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

    /// Notes that `to` gets a page of `from`: both may read it.
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
