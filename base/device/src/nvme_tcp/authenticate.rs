//! Host side of DH-HMAC-CHAP (NVMe Base 8.13.5), on a new queue whose target asks for it. The host
//! negotiates, the target challenges, the host replies, and the target confirms. If the host knows
//! the target's secret, it challenges the target in its reply, and confirms in turn.
//!
//! The host offers all supported hash functions and groups. It also offers the null group, since
//! some targets have no other. The secret is random and long, so that it cannot be guessed.

use forebay_auth::{HostSecrets, Private, Question, Side, augment, next_sequence};
use forebay_block::{Error, ErrorKind, Result};
use forebay_io::system;
use forebay_wire::nvme::auth::{
    ControllerMessage, Exchange, Group, Hash, HostMessage, MAX_MESSAGE_BYTES, Reason,
};
use zeroize::Zeroizing;

use super::Uri;
use super::queue::{Queue, With, broken};

/// Reason for a failed authentication.
enum Stop {
    /// The host rejects the target's message, and sends the target this reason.
    Reason(Reason),
    /// An error that is not sent to the target.
    Error(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<Reason> for Stop {
    fn from(reason: Reason) -> Self {
        Self::Reason(reason)
    }
}

fn refused(what: String) -> Error {
    Error::new(ErrorKind::Permission, what)
}

/// Authenticates this host on a new queue, and the target if its secret is known.
///
/// # Errors
/// `Permission` if there is no secret, if the target does not accept it, or if the target fails to
/// authenticate itself.
pub(super) async fn prove(queue: &mut Queue, uri: &Uri) -> Result<()> {
    let Some(secrets) = &uri.secrets else {
        let what = "the target asks its hosts to authenticate themselves: give the device \
                    `secrets`, a file with a line for this host";
        return Err(refused(format!("{what}, {}", uri.host)));
    };
    let mut number = [0; 2];
    system::random(&mut number);
    let host = Host {
        name: &uri.host,
        subsystem: &uri.nqn,
        secrets,
        transaction: u16::from_le_bytes(number),
    };
    match converse(queue, &host).await {
        Ok(()) => Ok(()),
        Err(Stop::Error(error)) => Err(error),
        Err(Stop::Reason(reason)) => {
            // The connection ends even if this message is not received.
            let _ = say(
                queue,
                host.transaction,
                &HostMessage::Failure2(reason.code()),
            )
            .await;
            if reason != Reason::Failed {
                return Err(broken(&format!("authentication: {reason}")));
            }
            let what = format!(
                "the target has not authenticated itself: {reason}; check its own secret, the \
                 second one in the line of {}",
                uri.host
            );
            Err(refused(what))
        }
    }
}

async fn converse(queue: &mut Queue, host: &Host<'_>) -> Result<(), Stop> {
    let offer = HostMessage::Negotiate {
        hashes: &Hash::ALL.map(Hash::id),
        groups: &Group::ALL.map(Group::id),
    };
    say(queue, host.transaction, &offer).await?;
    let heard = hear(queue).await?;
    let reply = host.reply(&heard).await?;
    say(queue, host.transaction, &reply.message()).await?;
    let heard = hear(queue).await?;
    if host.judge(&heard, reply.expected.as_ref())? {
        say(queue, host.transaction, &HostMessage::Success2).await?;
    }
    Ok(())
}

async fn say(queue: &mut Queue, transaction: u16, message: &HostMessage<'_>) -> Result<()> {
    let message = message.encode(transaction);
    let length = u32::try_from(message.len()).expect("short");
    let command = Exchange::command(true, length);
    let said = queue.must("Authentication Send", command, With::InCapsule(&message));
    said.await.map(drop)
}

async fn hear(queue: &mut Queue) -> Result<[u8; MAX_MESSAGE_BYTES as usize]> {
    let command = Exchange::command(false, MAX_MESSAGE_BYTES);
    queue.page("Authentication Receive", command).await
}

/// Names, secrets and transaction of the authentication.
struct Host<'a> {
    name: &'a str,
    subsystem: &'a str,
    secrets: &'a HostSecrets,
    transaction: u16,
}

/// Reply of the host, and the answer that it expects from the target.
struct Reply {
    response: Zeroizing<Vec<u8>>,
    public: Zeroizing<Vec<u8>>,
    expected: Option<Expected>,
}

struct Expected {
    hash: Hash,
    /// Challenge as sent.
    challenge: Vec<u8>,
    /// Challenge as the target answers it.
    augmented: Zeroizing<Vec<u8>>,
    sequence: u32,
}

impl Reply {
    fn message(&self) -> HostMessage<'_> {
        let challenge = self.expected.as_ref();
        HostMessage::Reply {
            response: &self.response,
            challenge: challenge.map(|expected| (&*expected.challenge, expected.sequence)),
            public: &self.public,
        }
    }
}

impl Host<'_> {
    /// Decodes the target's message, which must be of this transaction.
    fn understand<'m>(&self, heard: &'m [u8]) -> Result<ControllerMessage<'m>, Stop> {
        let (transaction, message) =
            ControllerMessage::decode(heard).map_err(|malformed| malformed.reason)?;
        // The target may refuse a message before it has read the transaction, so it is not checked.
        if let ControllerMessage::Failure1(reason) = message {
            let what = format!(
                "the target refuses to authenticate host {}: {reason}; check that the target has \
                 the same secrets for it",
                self.name
            );
            return Err(refused(what).into());
        }
        match transaction == self.transaction {
            true => Ok(message),
            false => Err(Reason::IncorrectPayload.into()),
        }
    }

    fn question<'a>(
        &'a self,
        side: Side,
        hash: Hash,
        challenge: &'a [u8],
        sequence: u32,
    ) -> Question<'a> {
        Question {
            side,
            hash,
            challenge,
            sequence,
            transaction: self.transaction,
            host: self.name,
            subsystem: self.subsystem,
        }
    }

    /// Answers the target's challenge, and challenges the target.
    async fn reply(&self, heard: &[u8]) -> Result<Reply, Stop> {
        let ControllerMessage::Challenge {
            hash,
            group,
            sequence,
            value,
            public: theirs,
        } = self.understand(heard)?
        else {
            return Err(Reason::IncorrectMessage.into());
        };
        let private = Private::draw(group);
        let shared = match private.shared(theirs).await {
            Ok(shared) => shared,
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                return Err(Reason::IncorrectPayload.into());
            }
            Err(error) => return Err(error.into()),
        };
        let shared = shared.as_ref().map(|shared| shared.as_slice());
        let augmented = augment(hash, value, shared);
        let question = self.question(Side::Host, hash, &augmented, sequence);
        let response = question.answer(&self.secrets.own.key(self.name));
        let expected = self.secrets.controller.as_ref().map(|_| {
            let mut challenge = vec![0; hash.bytes()];
            system::random(&mut challenge);
            Expected {
                hash,
                augmented: augment(hash, &challenge, shared),
                challenge,
                sequence: next_sequence(),
            }
        });
        Ok(Reply {
            response,
            public: private.public().await?,
            expected,
        })
    }

    /// Checks the target's success message. Returns whether the host must confirm it.
    fn judge(&self, heard: &[u8], expected: Option<&Expected>) -> Result<bool, Stop> {
        let ControllerMessage::Success1 { response, .. } = self.understand(heard)? else {
            return Err(Reason::IncorrectMessage.into());
        };
        let (Some(expected), Some(secret)) = (expected, &self.secrets.controller) else {
            return Ok(false);
        };
        let Expected {
            hash,
            augmented,
            sequence,
            ..
        } = expected;
        let question = self.question(Side::Controller, *hash, augmented, *sequence);
        let key = secret.key(self.subsystem);
        match response.is_some_and(|response| question.is_answer(&key, response)) {
            true => Ok(true),
            false => Err(Reason::Failed.into()),
        }
    }
}

#[cfg(test)]
mod tests;
