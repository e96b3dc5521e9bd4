//! DH-HMAC-CHAP (Base 8.13.5), the controller's side: who proves to know a secret without saying it. One transaction
//! is five messages: the host offers, the controller challenges, the host replies, the controller agrees, and the
//! host does if the controller had to prove itself, too.
//!
//! Of what is offered the strongest hash and the strongest group are chosen; no group only if the host offers none.

use std::time::Duration;

use forebay_auth::{Private, Question, Secrets, Side, augment, next_sequence};
use forebay_block::{ErrorKind, Result};
use forebay_io::{rt, system};
use forebay_wire::nvme::Status;
use forebay_wire::nvme::auth::{ControllerMessage, Group, Hash, HostMessage, Malformed, Reason};
use zeroize::Zeroizing;

/// Time from a host's offer to the end of its transaction. On a new queue the time to make it is the shorter limit.
const TRANSACTION_TIME: Duration = if cfg!(test) {
    Duration::from_secs(1)
} else {
    Duration::from_secs(30)
};

/// What authentication has come to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It goes on.
    Open,
    /// The host has proved itself, and is content with the controller.
    Proved,
    /// It has not, or is not: why.
    Failed(String),
}

/// A queue's authentication.
pub(super) struct Chap {
    host: String,
    subsystem: String,
    /// What the host and the controller prove themselves by.
    key: Zeroizing<Vec<u8>>,
    controller_key: Option<Zeroizing<Vec<u8>>>,
    stage: Stage,
    begun: Duration,
}

enum Stage {
    /// No transaction.
    Idle,
    /// The host is to fetch the challenge.
    Challenge(Box<Challenge>),
    /// It is to reply to it.
    Reply(Box<Challenge>),
    /// It is to fetch the controller's agreement.
    Success1 {
        transaction: u16,
        hash: Hash,
        response: Option<Zeroizing<Vec<u8>>>,
    },
    /// It is to agree, too.
    Success2(u16),
    /// It is to fetch the refusal.
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
    /// Authentication of `host` towards `subsystem`. None if it has no secret.
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

    /// Takes a message of the host. What is wrong with it is the next message to it.
    ///
    /// # Errors
    /// When nothing can be computed.
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
        let told = match &stage {
            Stage::Reply(challenge) => Some(challenge.transaction),
            Stage::Success2(told) => Some(*told),
            _ => None,
        };
        if told.is_some_and(|told| told != transaction) {
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

    /// Checks the reply to a challenge; answers the host's own.
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
            // A number of zero asks for the key of a secure channel, which there is not.
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

    /// The next message for the host, if it has room for it.
    ///
    /// # Errors
    /// [`Status::INVALID_FIELD`] if it has not; nothing has changed then.
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
            // The host is to speak.
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
