//! Controller side of DH-HMAC-CHAP (Base 8.13.5), which proves knowledge of a secret without
//! revealing it. A transaction has five messages: the host negotiates, the controller challenges,
//! the host replies, the controller confirms. The host confirms too if it challenged the
//! controller.
//!
//! The controller selects the strongest offered hash and group. It selects the null group only if
//! the host offers no other.

use std::time::Duration;

use forebay_auth::{Private, Question, Secrets, Side, augment, next_sequence};
use forebay_block::{ErrorKind, Result};
use forebay_io::{rt, system};
use forebay_wire::nvme::Status;
use forebay_wire::nvme::auth::{ControllerMessage, Group, Hash, HostMessage, Malformed, Reason};
use zeroize::Zeroizing;

/// Time limit from a host's first message to the end of its transaction. On a new queue the limit
/// of the handshake is shorter.
const TRANSACTION_TIME: Duration = if cfg!(test) {
    Duration::from_secs(1)
} else {
    Duration::from_secs(30)
};

/// State of an authentication.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// In progress.
    Open,
    /// The host is authenticated, and accepts the controller.
    Proved,
    /// Authentication failed, with the reason.
    Failed(String),
}

/// Authentication of a queue.
pub(super) struct Chap {
    host: String,
    subsystem: String,
    /// Key of the authentication.
    key: Zeroizing<Vec<u8>>,
    controller_key: Option<Zeroizing<Vec<u8>>>,
    stage: Stage,
    begun: Duration,
}

enum Stage {
    /// No transaction.
    Idle,
    /// The host must fetch the challenge.
    Challenge(Box<Challenge>),
    /// The host must reply to the challenge.
    Reply(Box<Challenge>),
    /// The host must fetch the controller's confirmation.
    Success1 {
        transaction: u16,
        hash: Hash,
        response: Option<Zeroizing<Vec<u8>>>,
    },
    /// The host must confirm, too.
    Success2(u16),
    /// The host must fetch the refusal.
    Failure1(u16, Reason),
}

struct Challenge {
    transaction: u16,
    hash: Hash,
    private: Private,
    public: Zeroizing<Vec<u8>>,
    value: Vec<u8>,
    sequence: u32,
}

impl Chap {
    /// Creates the authentication of `host` by `subsystem`. Returns `None` if the host has no
    /// secret.
    pub(super) fn new(secrets: &Secrets, host: &str, subsystem: &str) -> Option<Self> {
        let secrets = secrets.of(host)?;
        let controller = secrets.controller.as_ref();
        Some(Self {
            host: host.to_owned(),
            subsystem: subsystem.to_owned(),
            key: secrets.own.key(host),
            controller_key: controller.map(|secret| secret.key(subsystem)),
            stage: Stage::Idle,
            begun: Duration::ZERO,
        })
    }

    /// Processes a message of the host. An error in the message becomes the next message to the
    /// host.
    ///
    /// # Errors
    /// Fails if a computation fails.
    pub(super) async fn take(&mut self, message: &[u8]) -> Result<Outcome> {
        let stage = std::mem::replace(&mut self.stage, Stage::Idle);
        let stage = match rt::now() - self.begun < TRANSACTION_TIME {
            true => stage,
            false => Stage::Idle,
        };
        let (transaction, next) = match HostMessage::decode(message) {
            Ok((transaction, message)) => {
                (transaction, self.step(stage, transaction, message).await?)
            }
            Err(Malformed {
                transaction,
                reason,
            }) => (transaction, Err(reason)),
        };
        match next {
            Ok((stage, outcome)) => {
                self.stage = stage;
                Ok(outcome)
            }
            Err(reason) => {
                self.stage = Stage::Failure1(transaction, reason);
                Ok(Outcome::Open)
            }
        }
    }

    async fn step(
        &mut self,
        stage: Stage,
        transaction: u16,
        message: HostMessage<'_>,
    ) -> Result<Result<(Stage, Outcome), Reason>> {
        let expected = match &stage {
            Stage::Reply(challenge) => Some(challenge.transaction),
            Stage::Success2(expected) => Some(*expected),
            _ => None,
        };
        if expected.is_some_and(|expected| expected != transaction) {
            return Ok(Err(Reason::IncorrectPayload));
        }
        let open = |stage| (stage, Outcome::Open);
        Ok(match (stage, message) {
            (Stage::Idle, HostMessage::Negotiate { hashes, groups }) => {
                self.begun = rt::now();
                let challenge = self.challenge(transaction, hashes, groups).await?;
                challenge.map(|challenge| open(Stage::Challenge(Box::new(challenge))))
            }
            (Stage::Reply(asked), reply @ HostMessage::Reply { .. }) => {
                self.judge(&asked, reply).await?.map(open)
            }
            (Stage::Success2(_), HostMessage::Success2) => Ok((Stage::Idle, Outcome::Proved)),
            (Stage::Reply(_) | Stage::Success2(_), HostMessage::Failure2(code)) => {
                let why = Reason::of(code).map_or_else(|| code.to_string(), |it| it.to_string());
                let what = format!("the host does not accept this controller: {why}");
                Ok((Stage::Idle, Outcome::Failed(what)))
            }
            _ => Err(Reason::IncorrectMessage),
        })
    }

    async fn challenge(
        &self,
        transaction: u16,
        hashes: &[u8],
        groups: &[u8],
    ) -> Result<Result<Challenge, Reason>> {
        let hash = Hash::ALL
            .into_iter()
            .find(|hash| hashes.contains(&hash.id()));
        let Some(hash) = hash else {
            return Ok(Err(Reason::HashUnusable));
        };
        let group = Group::ALL
            .into_iter()
            .find(|group| groups.contains(&group.id()));
        let Some(group) = group else {
            return Ok(Err(Reason::GroupUnusable));
        };
        let private = Private::draw(group);
        let public = private.public().await?;
        let mut value = vec![0; hash.bytes()];
        system::random(&mut value);
        Ok(Ok(Challenge {
            transaction,
            hash,
            private,
            public,
            value,
            sequence: next_sequence(),
        }))
    }

    /// Checks the reply to a challenge, and answers the host's own challenge.
    async fn judge(
        &self,
        asked: &Challenge,
        reply: HostMessage<'_>,
    ) -> Result<Result<Stage, Reason>> {
        let HostMessage::Reply {
            response,
            challenge,
            public,
        } = reply
        else {
            return Ok(Err(Reason::IncorrectMessage));
        };
        let hash = asked.hash;
        if response.len() != hash.bytes() {
            return Ok(Err(Reason::IncorrectPayload));
        }
        let shared = match asked.private.shared(public).await {
            Ok(shared) => shared,
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                return Ok(Err(Reason::IncorrectPayload));
            }
            Err(error) => return Err(error),
        };
        let shared = shared.as_ref().map(|shared| shared.as_slice());
        let question = |side, challenge, sequence| Question {
            side,
            hash,
            challenge,
            sequence,
            transaction: asked.transaction,
            host: &self.host,
            subsystem: &self.subsystem,
        };
        let augmented = augment(hash, &asked.value, shared);
        let ours = question(Side::Host, &augmented, asked.sequence);
        if !ours.is_answer(&self.key, response) {
            return Ok(Err(Reason::Failed));
        }
        let response = match (challenge, &self.controller_key) {
            (None, _) => None,
            // A sequence number of zero requests a secure channel, which is not supported.
            (Some((_, 0)), _) => return Ok(Err(Reason::IncorrectPayload)),
            (Some(_), None) => return Ok(Err(Reason::Failed)),
            (Some((value, sequence)), Some(key)) => {
                let augmented = augment(hash, value, shared);
                Some(question(Side::Controller, &augmented, sequence).answer(key))
            }
        };
        Ok(Ok(Stage::Success1 {
            transaction: asked.transaction,
            hash,
            response,
        }))
    }

    /// Returns the next message for the host, if it has room for it.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] if there is no room; the state does not change then.
    pub(super) fn fetch(&mut self, room: u32) -> Result<(Vec<u8>, Outcome), Status> {
        let fits = |message: Vec<u8>| match message.len() <= room as usize {
            true => Ok(message),
            false => Err(Status::INVALID_FIELD),
        };
        let refusal = |transaction, reason: Reason| {
            let message = ControllerMessage::Failure1(reason).encode(transaction);
            Ok((fits(message)?, Outcome::Failed(reason.to_string())))
        };
        let (message, outcome) = match &self.stage {
            Stage::Challenge(challenge) => {
                let message = ControllerMessage::Challenge {
                    hash: challenge.hash,
                    group: challenge.private.group(),
                    sequence: challenge.sequence,
                    value: &challenge.value,
                    public: &challenge.public,
                };
                (fits(message.encode(challenge.transaction))?, Outcome::Open)
            }
            Stage::Success1 {
                transaction,
                hash,
                response,
            } => {
                let message = ControllerMessage::Success1 {
                    hash: *hash,
                    response: response.as_ref().map(|response| response.as_slice()),
                };
                let outcome = match response {
                    Some(_) => Outcome::Open,
                    None => Outcome::Proved,
                };
                (fits(message.encode(*transaction))?, outcome)
            }
            Stage::Failure1(transaction, reason) => refusal(*transaction, *reason)?,
            // It is the host's turn to send a message.
            Stage::Reply(challenge) => refusal(challenge.transaction, Reason::IncorrectMessage)?,
            Stage::Success2(transaction) => refusal(*transaction, Reason::IncorrectMessage)?,
            Stage::Idle => refusal(0, Reason::IncorrectMessage)?,
        };
        self.stage = match std::mem::replace(&mut self.stage, Stage::Idle) {
            Stage::Challenge(challenge) => Stage::Reply(challenge),
            Stage::Success1 {
                transaction,
                response: Some(_),
                ..
            } => Stage::Success2(transaction),
            _ => Stage::Idle,
        };
        Ok((message, outcome))
    }
}

#[cfg(test)]
mod tests;
