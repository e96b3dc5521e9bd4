//! The possible contents of one sector: its versions and their known order.
//!
//! Version `v` is *known before* `w` if `v` ended before `w` was submitted, or if a read that began
//! after `v` had ended returned `w`. A version cannot be read if it is known before one that must
//! have taken effect. For a read, those are the acknowledged and the already read versions. For
//! power loss, they are the promised ones. Everything else follows from this.

use crate::stamp::Content;

/// Knowledge of a version's effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Submitted, not ended: it may take effect at any time.
    InFlight,
    /// It took effect.
    Certain,
    /// It took effect by the time it ended, or never will. Such are a discard, a write in flight at
    /// process death, and an unpromised write at power loss.
    Maybe,
    /// As `Maybe`, but its client got an error. Even if read, it may vanish with the process.
    Failed,
    /// As `Failed`, on a device that shows a failed write until power loss, even after a flush.
    Shown,
}

/// Effect of one write, write-zeroes or discard on the sector.
#[derive(Clone, Debug)]
struct Version {
    number: u64,
    content: Content,
    submitted: u64,
    ended: u64,
    state: State,
    /// Time at which a read first returned it.
    read_at: u64,
    /// The read may have found the same content of a write that failed in a spell. No FLUSH
    /// promises that write, so the read does not show that this version took effect.
    mistakable: bool,
    promised: bool,
    /// It failed, and power loss may show it although reads did not ([`super::Model::set_hiding`]).
    surfaces: bool,
    /// Reads showed another version, so only power loss may still show this one.
    hidden: bool,
    /// Numbers of versions that a read has shown to be later.
    later: Vec<u64>,
    /// Time at which a read showed zeroes of several possible sources in its place. No later read
    /// of this process shows it.
    superseded_at: u64,
}

/// End of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// It took effect.
    Done,
    /// A discard: it took effect or never will.
    Discarded,
    /// It failed.
    Failed,
    /// It failed in a spell.
    FailedInSpell,
    /// It failed on a stack whose memory may hide it until power loss.
    FailedHidden,
}

/// Time of an event that has not happened.
const NEVER: u64 = u64::MAX;

/// The versions of one sector.
#[derive(Clone, Debug)]
pub(super) struct History {
    versions: Vec<Version>,
    damage: Option<Damage>,
}

/// Metadata of the sector was lost. Any version up to then may be read.
#[derive(Clone, Copy, Debug)]
struct Damage {
    /// Number of the last version at that time.
    up_to: u64,
    /// Time at which a read first showed the version. A read in flight at that time may have found
    /// an earlier one.
    shown_at: u64,
    /// Whether a flush has made the version durable.
    promised: bool,
}

impl Content {
    const fn number(self) -> u64 {
        match self {
            Self::Zero => 0,
            Self::Write(number) => number,
        }
    }
}

impl Version {
    fn known_before(&self, other: &Self) -> bool {
        self.ended < other.submitted || self.later.contains(&other.number)
    }
}

impl History {
    /// Creates the history of a sector of a new volume: durable zeroes.
    pub(super) fn new() -> Self {
        Self {
            versions: vec![Version {
                number: 0,
                content: Content::Zero,
                submitted: 0,
                ended: 0,
                state: State::Certain,
                read_at: NEVER,
                mistakable: false,
                promised: true,
                surfaces: false,
                hidden: false,
                later: Vec::new(),
                superseded_at: NEVER,
            }],
            damage: None,
        }
    }

    pub(super) const fn is_settled(&self) -> bool {
        self.versions.len() == 1 && self.damage.is_none()
    }

    /// Whether a read may show a failed write until power loss.
    pub(super) fn may_be_shown(&self) -> bool {
        let mut versions = self.versions.iter();
        versions.any(|version| version.state == State::Shown)
    }

    pub(super) fn is_in_flight(&self) -> bool {
        let mut versions = self.versions.iter();
        versions.any(|version| version.state == State::InFlight)
    }

    /// Notes that metadata of the sector's versions up to `up_to` was lost. No operation is in
    /// flight.
    pub(super) const fn damage(&mut self, up_to: u64) {
        self.damage = Some(Damage {
            up_to,
            shown_at: NEVER,
            promised: false,
        });
    }

    /// After damage, returns whether a read may find content older than all known versions. The
    /// sector holds it from then on.
    fn came_back(&mut self, content: Content, submitted: u64, now: u64) -> bool {
        let Some(damage) = &mut self.damage else {
            return false;
        };
        let up_to = damage.up_to;
        let overtaken = self.versions.iter().any(|version| {
            let took_effect = (version.state == State::Certain && version.ended < submitted)
                || version.read_at < submitted;
            version.number > up_to && took_effect
        });
        if damage.shown_at < submitted || overtaken || content.number() > up_to {
            return false;
        }
        if damage.shown_at != NEVER {
            // A read in flight when the version was shown. It says nothing of later reads.
            return true;
        }
        damage.shown_at = now;
        self.versions.retain(|version| version.number > up_to);
        self.versions.insert(
            0,
            Version {
                number: content.number(),
                content,
                submitted: 0,
                ended: 0,
                state: State::Certain,
                read_at: now,
                mistakable: false,
                promised: false,
                surfaces: false,
                hidden: false,
                later: Vec::new(),
                superseded_at: NEVER,
            },
        );
        true
    }

    pub(super) fn submit(&mut self, number: u64, content: Content, now: u64) {
        self.versions.push(Version {
            number,
            content,
            submitted: now,
            ended: NEVER,
            state: State::InFlight,
            read_at: NEVER,
            mistakable: false,
            promised: false,
            surfaces: false,
            hidden: false,
            later: Vec::new(),
            superseded_at: NEVER,
        });
    }

    /// Notes the end of an operation. A discard that succeeds need not have an effect.
    pub(super) fn end(&mut self, number: u64, how: Ending, promised: bool, now: u64) {
        if how == Ending::FailedHidden {
            // A read may have found its zeroes, which memory hides from now on.
            (self.versions.iter_mut()).for_each(|version| version.superseded_at = NEVER);
        }
        for version in &mut self.versions {
            if version.number == number {
                version.ended = now;
                version.state = match how {
                    Ending::Done => State::Certain,
                    Ending::Discarded => State::Maybe,
                    Ending::Failed | Ending::FailedHidden => State::Failed,
                    Ending::FailedInSpell => State::Shown,
                };
                version.promised = how == Ending::Done && promised;
                version.surfaces = how == Ending::FailedHidden;
                if version.surfaces {
                    // A read in flight at the device may have shown it. Memory hides it from then
                    // on.
                    version.read_at = NEVER;
                }
            }
        }
    }

    /// Promises everything that took effect before a flush was submitted.
    pub(super) fn promise(&mut self, flush_submitted: u64) {
        if let Some(damage) = &mut self.damage {
            damage.promised |= damage.shown_at < flush_submitted;
        }
        // The version that reads showed in place of a hidden one is promised now, and supersedes
        // it.
        self.versions
            .retain(|version| !version.hidden || version.ended >= flush_submitted);
        for version in &mut self.versions {
            let was_read = version.state != State::Shown
                && !version.mistakable
                && version.read_at < flush_submitted;
            let effective = version.state == State::Certain || was_read;
            if version.ended < flush_submitted && effective {
                version.promised = true;
            }
        }
    }

    /// For each version, returns whether a version that `must` have taken effect is known to be
    /// later. Versions that are not `seen` prove no order.
    fn dead(&self, seen: impl Fn(&Version) -> bool, must: impl Fn(&Version) -> bool) -> Vec<bool> {
        let mut dead = vec![false; self.versions.len()];
        loop {
            let mut changed = false;
            for (index, version) in self.versions.iter().enumerate() {
                if dead[index] {
                    continue;
                }
                let overtaken = self.versions.iter().zip(&dead).any(|(other, &other_dead)| {
                    other.number != version.number
                        && seen(other)
                        && (other_dead || must(other))
                        && version.known_before(other)
                });
                if overtaken {
                    dead[index] = true;
                    changed = true;
                }
            }
            if !changed {
                return dead;
            }
        }
    }

    fn dead_for_reader(&self, submitted: u64) -> Vec<bool> {
        let seen = |version: &Version| !version.hidden;
        let mut dead = self.dead(seen, |version| {
            (version.state == State::Certain && version.ended < submitted)
                || version.read_at < submitted
        });
        for (dead, version) in dead.iter_mut().zip(&self.versions) {
            *dead |= version.hidden || version.superseded_at < submitted;
        }
        dead
    }

    /// For each version, returns whether power loss cannot show it.
    fn dead_for_power(&self) -> Vec<bool> {
        self.dead(|_| true, |version| version.promised)
    }

    /// Notes that a read submitted at `submitted` returned `content`.
    ///
    /// # Errors
    /// Returns the allowed contents if `content` is not among them.
    pub(super) fn read(
        &mut self,
        content: Content,
        submitted: u64,
        now: u64,
        hiding: bool,
    ) -> Result<(), String> {
        let known = self.read_known(content, submitted, now, hiding);
        if known.is_err() && self.came_back(content, submitted, now) {
            return Ok(());
        }
        if known.is_ok()
            && let Some(damage) = &mut self.damage
        {
            damage.shown_at = damage.shown_at.min(now);
        }
        known
    }

    fn read_known(
        &mut self,
        content: Content,
        submitted: u64,
        now: u64,
        hiding: bool,
    ) -> Result<(), String> {
        if let [only] = &mut self.versions[..] {
            if only.content != content {
                return Err(self.describe(submitted));
            }
            only.read_at = only.read_at.min(now);
            return Ok(());
        }
        let dead = self.dead_for_reader(submitted);
        let alive = (self.versions.iter().zip(&dead))
            .filter(|(version, dead)| !**dead && version.content == content);
        // Zeroes may have several sources. If all had ended, and one is known to be the last, that
        // one stands for all. Otherwise the read proves no order among them.
        let ambiguous = alive.clone().count() > 1;
        let found = (alive.clone().map(|(version, _)| version)).max_by_key(|version| version.ended);
        let Some(found) = found.cloned() else {
            return Err(self.describe(submitted));
        };
        let is_last = |(version, _): (&Version, &bool)| {
            version.number == found.number || version.known_before(&found)
        };
        if ambiguous && (found.ended >= submitted || !alive.clone().all(is_last)) {
            // Other content that had ended is older than one of them, or never took effect.
            for version in &mut self.versions {
                if !hiding && version.content != content && version.ended < submitted {
                    version.superseded_at = version.superseded_at.min(now);
                }
            }
            return Ok(());
        }
        let mistakable = alive
            .into_iter()
            .any(|(version, _)| version.number != found.number && version.state == State::Shown);
        let later = self.known_after(&found);
        self.versions.retain_mut(|version| {
            if version.number == found.number {
                version.mistakable |= mistakable;
                // The device may show a failed write. Memory hides the write before it ends.
                if !(hiding && version.state == State::InFlight) {
                    version.read_at = version.read_at.min(now);
                }
                return true;
            }
            if version.ended >= submitted {
                return true;
            }
            if later.contains(&version.number) {
                // It had ended and did not show, so it never took effect: if it were certain, the
                // found version would be dead. A stack whose memory hides it is an exception.
                version.hidden = hiding || version.surfaces;
                return version.hidden;
            }
            if !version.later.contains(&found.number) {
                version.later.push(found.number);
            }
            true
        });
        Ok(())
    }

    /// Returns the numbers of the versions that `first` is known before, if only by others in
    /// between.
    ///
    /// Power loss may take one in between that reads had shown. The order that they showed remains:
    /// without it, two versions could each count as later than the other.
    fn known_after(&self, first: &Version) -> Vec<u64> {
        let mut known = vec![first];
        let mut next = 0;
        while let Some(before) = known.get(next).copied() {
            let is_new = |version: &&Version| {
                before.known_before(version) && known.iter().all(|it| it.number != version.number)
            };
            let found: Vec<_> = self.versions.iter().filter(is_new).collect();
            known.extend(found);
            next += 1;
        }
        known[1..].iter().map(|version| version.number).collect()
    }

    /// Ends the process: operations that were in flight or had failed took effect, or never will.
    pub(super) fn lose_process(&mut self, now: u64) {
        for version in &mut self.versions {
            version.superseded_at = NEVER;
            if matches!(version.state, State::InFlight | State::Failed) {
                version.state = State::Maybe;
                version.ended = version.ended.min(now);
                version.read_at = NEVER;
            }
        }
    }

    /// Ends the power: unpromised versions are durable, or never will be.
    pub(super) fn lose_power(&mut self, now: u64) {
        self.damage = self.damage.filter(|damage| !damage.promised);
        if let Some(damage) = &mut self.damage {
            damage.shown_at = NEVER;
        }
        let dead = self.dead_for_power();
        let mut dead = dead.iter();
        self.versions
            .retain(|_| !dead.next().expect("one a version"));
        for version in &mut self.versions {
            version.ended = version.ended.min(now);
            version.surfaces = false;
            version.hidden = false;
            version.superseded_at = NEVER;
            if version.promised {
                version.state = State::Certain;
            } else {
                version.state = State::Maybe;
                version.read_at = NEVER;
                version.mistakable = false;
            }
        }
    }

    /// Forgets versions that neither a reader nor power loss can show.
    pub(super) fn prune(&mut self, oldest_read: u64) {
        self.damage =
            (self.damage).filter(|damage| !damage.promised || damage.shown_at >= oldest_read);
        if self.versions.len() < 2 {
            return;
        }
        let for_reader = self.dead_for_reader(oldest_read);
        let for_power = self.dead_for_power();
        let mut dead = for_reader.iter().zip(&for_power);
        self.versions.retain(|_| {
            let (reader, power) = dead.next().expect("one a version");
            !(*reader && *power)
        });
    }

    /// Describes all versions, and those that a read submitted at `submitted` may return.
    pub(super) fn describe(&self, submitted: u64) -> String {
        let dead = self.dead_for_reader(submitted);
        let mut out = format!("read submitted at {submitted}; allowed:");
        for (version, dead) in self.versions.iter().zip(dead) {
            let name = match version.content {
                Content::Zero => format!("zeroes of {}", version.number),
                Content::Write(number) => format!("write {number}"),
            };
            let ended = match (version.state, version.ended) {
                (State::InFlight, _) => "in flight".to_owned(),
                (State::Certain, at) => format!("acknowledged {at}"),
                (State::Maybe, at) => format!("uncertain since {at}"),
                (State::Failed, at) => format!("failed {at}"),
                (State::Shown, at) => format!("failed in a spell {at}"),
            };
            out.push_str(&format!(
                "\n    {} {name}: submitted {}, {ended}{}{}",
                if dead { "no, older:" } else { "yes:" },
                version.submitted,
                if version.promised { ", promised" } else { "" },
                if version.read_at == NEVER {
                    String::new()
                } else {
                    format!(", read {}", version.read_at)
                },
            ));
        }
        out
    }
}
