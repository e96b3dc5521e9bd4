//! Reference models of the policies for tests: queues of keys with linear search, with the names of
//! the papers. The next key to leave a queue is in front.

use std::collections::VecDeque;

use forebay_policy::BlockKey;

use super::sketch::Sketch;

/// Result of a reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Hit,
    /// The key was inserted. If the cache was full, it evicted the victim.
    Miss {
        victim: Option<u64>,
    },
}

/// Cache of keys.
pub(super) trait Model {
    /// References a key, and inserts it on a miss.
    fn reference(&mut self, key: u64) -> Outcome;

    /// Removes a cached key, as a discard does. It leaves no ghost.
    fn remove(&mut self, key: u64);
}

/// Removes `key` from a queue. Returns whether the queue had it.
fn take(queue: &mut VecDeque<u64>, key: u64) -> bool {
    let at = queue.iter().position(|&other| other == key);
    at.and_then(|at| queue.remove(at)).is_some()
}

/// LRU and FIFO.
pub(super) struct Queue {
    pub(super) slots: usize,
    /// Whether a hit moves its key to the end: LRU.
    pub(super) moves: bool,
    pub(super) keys: VecDeque<u64>,
}

impl Model for Queue {
    fn reference(&mut self, key: u64) -> Outcome {
        if self.keys.contains(&key) {
            if self.moves {
                take(&mut self.keys, key);
                self.keys.push_back(key);
            }
            return Outcome::Hit;
        }
        let victim = (self.keys.len() == self.slots).then(|| self.keys.pop_front().unwrap());
        self.keys.push_back(key);
        Outcome::Miss { victim }
    }

    fn remove(&mut self, key: u64) {
        take(&mut self.keys, key);
    }
}

/// CLOCK as a queue in which used keys return to the end. This is equivalent as long as the new
/// block takes the place of the victim.
pub(super) struct SecondChance {
    pub(super) slots: usize,
    /// Keys, and whether each was used.
    pub(super) keys: VecDeque<(u64, bool)>,
}

impl Model for SecondChance {
    fn reference(&mut self, key: u64) -> Outcome {
        if let Some(entry) = self.keys.iter_mut().find(|entry| entry.0 == key) {
            entry.1 = true;
            return Outcome::Hit;
        }
        let mut victim = None;
        if self.keys.len() == self.slots {
            victim = loop {
                match self.keys.pop_front().unwrap() {
                    (key, true) => self.keys.push_back((key, false)),
                    (key, false) => break Some(key),
                }
            };
        }
        self.keys.push_back((key, false));
        Outcome::Miss { victim }
    }

    fn remove(&mut self, key: u64) {
        self.keys.retain(|entry| entry.0 != key);
    }
}

/// SIEVE (NSDI'24).
pub(super) struct Sieve {
    pub(super) slots: usize,
    /// Keys from the oldest on, and whether each was used.
    pub(super) keys: Vec<(u64, bool)>,
    /// Position of the hand in `keys`; at the length it starts over.
    pub(super) hand: usize,
}

impl Sieve {
    fn evict(&mut self) -> u64 {
        loop {
            if self.hand >= self.keys.len() {
                self.hand = 0;
            }
            if !self.keys[self.hand].1 {
                break;
            }
            self.keys[self.hand].1 = false;
            self.hand += 1;
        }
        let at_end = self.hand + 1 == self.keys.len();
        let (victim, _) = self.keys.remove(self.hand);
        if at_end {
            // Starts over, although a new block is about to be inserted after it.
            self.hand = 0;
        }
        victim
    }
}

impl Model for Sieve {
    fn reference(&mut self, key: u64) -> Outcome {
        if let Some(entry) = self.keys.iter_mut().find(|entry| entry.0 == key) {
            entry.1 = true;
            return Outcome::Hit;
        }
        let is_full = self.keys.len() == self.slots;
        let victim = is_full.then(|| self.evict());
        self.keys.push((key, false));
        Outcome::Miss { victim }
    }

    fn remove(&mut self, key: u64) {
        let at = self.keys.iter().position(|entry| entry.0 == key).unwrap();
        self.keys.remove(at);
        if at < self.hand {
            self.hand -= 1;
        } else if at == self.hand && at == self.keys.len() {
            self.hand = 0;
        }
    }
}

/// S3-FIFO (SOSP'23).
pub(super) struct S3Fifo {
    pub(super) slots: usize,
    /// Keys, and the number of their uses, at most three.
    pub(super) small: VecDeque<(u64, u8)>,
    /// The same of the main queue.
    pub(super) main: VecDeque<(u64, u8)>,
    pub(super) ghosts: VecDeque<u64>,
    /// Whether the cache was full once. Until then keys beyond the small queue's limit go to the
    /// main queue.
    pub(super) warm: bool,
}

impl S3Fifo {
    fn small_limit(&self) -> usize {
        (self.slots / 10).max(1)
    }

    fn evict(&mut self) -> Option<u64> {
        match self.small.len() >= self.small_limit() {
            true => self.evict_small().or_else(|| self.evict_main()),
            false => self.evict_main().or_else(|| self.evict_small()),
        }
    }

    fn evict_small(&mut self) -> Option<u64> {
        while let Some((key, uses)) = self.small.pop_front() {
            if uses > 1 {
                self.main.push_back((key, 0));
            } else {
                self.ghosts.push_back(key);
                if self.ghosts.len() > self.slots - self.small_limit() {
                    self.ghosts.pop_front();
                }
                return Some(key);
            }
        }
        None
    }

    fn evict_main(&mut self) -> Option<u64> {
        while let Some((key, uses)) = self.main.pop_front() {
            if uses == 0 {
                return Some(key);
            }
            self.main.push_back((key, uses - 1));
        }
        None
    }
}

impl Model for S3Fifo {
    fn reference(&mut self, key: u64) -> Outcome {
        let mut cached = self.small.iter_mut().chain(&mut self.main);
        if let Some(entry) = cached.find(|entry| entry.0 == key) {
            entry.1 = (entry.1 + 1).min(3);
            return Outcome::Hit;
        }
        let ghost = take(&mut self.ghosts, key);
        let mut victim = None;
        if self.small.len() + self.main.len() == self.slots {
            self.warm = true;
            victim = self.evict();
        }
        let filling = !self.warm && self.small.len() >= self.small_limit();
        let queue = if ghost || filling {
            &mut self.main
        } else {
            &mut self.small
        };
        queue.push_back((key, 0));
        Outcome::Miss { victim }
    }

    fn remove(&mut self, key: u64) {
        self.small.retain(|entry| entry.0 != key);
        self.main.retain(|entry| entry.0 != key);
    }
}

/// ARC (FAST'03), with the names of its Figure 4.
#[derive(Default)]
pub(super) struct Arc {
    pub(super) slots: usize,
    /// Target length of `t1`.
    pub(super) p: f64,
    /// Cached keys that were referenced once.
    pub(super) t1: VecDeque<u64>,
    /// Cached keys that were referenced more than once.
    pub(super) t2: VecDeque<u64>,
    /// Ghosts of `t1`.
    pub(super) b1: VecDeque<u64>,
    /// Ghosts of `t2`.
    pub(super) b2: VecDeque<u64>,
}

impl Arc {
    /// REPLACE. `in_b2` is whether the missed key is a ghost of `t2`.
    fn replace(&mut self, in_b2: bool) -> Option<u64> {
        if self.t1.len() + self.t2.len() < self.slots {
            return None;
        }
        let t1 = self.t1.len() as f64;
        let first = (t1 >= 1.0 && (t1 > self.p || (in_b2 && t1 == self.p))) || self.t2.is_empty();
        let (list, ghosts) = if first {
            (&mut self.t1, &mut self.b1)
        } else {
            (&mut self.t2, &mut self.b2)
        };
        let victim = list.pop_front();
        ghosts.extend(victim);
        victim
    }
}

impl Model for Arc {
    fn reference(&mut self, key: u64) -> Outcome {
        let c = self.slots;
        // Case I.
        if take(&mut self.t1, key) || take(&mut self.t2, key) {
            self.t2.push_back(key);
            return Outcome::Hit;
        }
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        let victim;
        if self.b1.contains(&key) {
            // Case II.
            let delta = if b1 >= b2 { 1.0 } else { b2 / b1 };
            self.p = (self.p + delta).min(c as f64);
            victim = self.replace(false);
            take(&mut self.b1, key);
            self.t2.push_back(key);
        } else if self.b2.contains(&key) {
            // Case III.
            let delta = if b2 >= b1 { 1.0 } else { b1 / b2 };
            self.p = (self.p - delta).max(0.0);
            victim = self.replace(true);
            take(&mut self.b2, key);
            self.t2.push_back(key);
        } else {
            // Case IV.
            let l1 = self.t1.len() + self.b1.len();
            if l1 == c {
                if self.t1.len() < c {
                    self.b1.pop_front();
                    victim = self.replace(false);
                } else {
                    victim = self.t1.pop_front();
                }
            } else {
                if l1 + self.t2.len() + self.b2.len() == 2 * c {
                    self.b2.pop_front();
                }
                victim = self.replace(false);
            }
            self.t1.push_back(key);
        }
        Outcome::Miss { victim }
    }

    fn remove(&mut self, key: u64) {
        take(&mut self.t1, key);
        take(&mut self.t2, key);
    }
}

/// LIRS (SIGMETRICS'02).
#[derive(Default)]
pub(super) struct Lirs {
    pub(super) slots: usize,
    /// Whether the cache was full once.
    pub(super) warm: bool,
    /// Stack S. The bottom is in front.
    pub(super) stack: VecDeque<u64>,
    /// Queue Q: the cached keys that are not in `lir`.
    pub(super) queue: VecDeque<u64>,
    /// Cached keys with a low inter-reference recency.
    pub(super) lir: VecDeque<u64>,
    /// Keys in the stack that are not cached, in the order of their eviction.
    pub(super) ghosts: VecDeque<u64>,
}

impl Lirs {
    fn lir_limit(&self) -> usize {
        self.slots - (self.slots / 100).max(1)
    }

    /// Removes keys from the bottom of the stack, up to the first one in `lir`.
    fn prune(&mut self) {
        while let Some(&bottom) = self.stack.front()
            && !self.lir.contains(&bottom)
        {
            self.stack.pop_front();
            take(&mut self.ghosts, bottom);
        }
    }

    /// Adds a key to `lir`. If `lir` is too long, its key at the bottom of the stack moves to the
    /// queue.
    fn make_lir(&mut self, key: u64) {
        take(&mut self.stack, key);
        self.stack.push_back(key);
        self.lir.push_back(key);
        if self.lir.len() > self.lir_limit() {
            let bottom = self.stack.pop_front().unwrap();
            take(&mut self.lir, bottom);
            self.queue.push_back(bottom);
        }
        self.prune();
    }

    fn evict(&mut self) -> Option<u64> {
        let Some(victim) = self.queue.pop_front() else {
            let bottom = self.stack.pop_front();
            take(&mut self.lir, bottom.unwrap());
            self.prune();
            return bottom;
        };
        if self.stack.contains(&victim) {
            self.ghosts.push_back(victim);
            if self.ghosts.len() > self.slots {
                let oldest = self.ghosts.pop_front().unwrap();
                take(&mut self.stack, oldest);
            }
        }
        Some(victim)
    }
}

impl Model for Lirs {
    fn reference(&mut self, key: u64) -> Outcome {
        if self.lir.contains(&key) {
            take(&mut self.stack, key);
            self.stack.push_back(key);
            self.prune();
            return Outcome::Hit;
        }
        if take(&mut self.queue, key) {
            if self.stack.contains(&key) {
                self.make_lir(key);
            } else {
                self.stack.push_back(key);
                self.queue.push_back(key);
                self.prune();
            }
            return Outcome::Hit;
        }
        let ghost = take(&mut self.ghosts, key);
        let mut victim = None;
        if self.lir.len() + self.queue.len() == self.slots {
            self.warm = true;
            victim = self.evict();
        }
        let full = if self.warm {
            self.lir_limit().div_ceil(2)
        } else {
            self.lir_limit()
        };
        if (ghost && self.stack.contains(&key)) || self.lir.len() < full {
            self.make_lir(key);
        } else {
            self.stack.push_back(key);
            self.queue.push_back(key);
            self.prune();
        }
        Outcome::Miss { victim }
    }

    fn remove(&mut self, key: u64) {
        take(&mut self.stack, key);
        take(&mut self.queue, key);
        take(&mut self.lir, key);
        self.prune();
    }
}

/// W-TinyLFU (ACM Transactions on Storage, 2017).
pub(super) struct WTinyLfu {
    pub(super) slots: usize,
    /// The real sketch, which has its own test.
    pub(super) sketch: Sketch,
    pub(super) window: VecDeque<u64>,
    pub(super) probation: VecDeque<u64>,
    pub(super) protected: VecDeque<u64>,
}

impl WTinyLfu {
    fn window_limit(&self) -> usize {
        (self.slots / 100).max(1)
    }

    fn protected_limit(&self) -> usize {
        (self.slots - self.window_limit()) * 4 / 5
    }

    /// Evicts from the main part, or compares the window's oldest key with the main part's.
    fn evict(&mut self) -> Option<u64> {
        let window_limit = self.window_limit();
        let main = if self.probation.is_empty() {
            &mut self.protected
        } else {
            &mut self.probation
        };
        if self.window.len() < window_limit {
            return main.pop_front();
        }
        let uses = |key: u64| self.sketch.estimate(BlockKey::new(0, key));
        let candidate = self.window.pop_front().unwrap();
        match main.front() {
            Some(&resident) if uses(candidate) > uses(resident) => {
                let victim = main.pop_front();
                self.probation.push_back(candidate);
                victim
            }
            _ => Some(candidate),
        }
    }
}

impl Model for WTinyLfu {
    fn reference(&mut self, key: u64) -> Outcome {
        let cached = self.window.len() + self.probation.len() + self.protected.len();
        let number = BlockKey::new(0, key);
        if take(&mut self.window, key) {
            self.sketch.increment(number);
            self.window.push_back(key);
            return Outcome::Hit;
        }
        if take(&mut self.protected, key) || take(&mut self.probation, key) {
            self.sketch.increment(number);
            self.protected.push_back(key);
            if self.protected.len() > self.protected_limit() {
                self.probation.extend(self.protected.pop_front());
            }
            return Outcome::Hit;
        }
        let is_full = cached == self.slots;
        let victim = is_full.then(|| self.evict()).flatten();
        self.sketch.increment(number);
        self.window.push_back(key);
        if self.window.len() > self.window_limit() {
            self.probation.extend(self.window.pop_front());
        }
        Outcome::Miss { victim }
    }

    fn remove(&mut self, key: u64) {
        take(&mut self.window, key);
        take(&mut self.probation, key);
        take(&mut self.protected, key);
    }
}
