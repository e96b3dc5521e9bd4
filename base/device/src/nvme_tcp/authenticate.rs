//! DH-HMAC-CHAP (Base 8.13.5), the host's side: on a new queue whose target asks for it. The host offers, the target
//! challenges, the host replies, and the target agrees; if the host knows a secret of the target's, that has to prove
//! itself, too, and the host agrees in turn.
//!
//! All hash functions and groups of ours are offered, also no group, since targets exist that have none: the secret is
//! random and long, so that nobody finds it by trying.

use forebay_auth::{HostSecrets, Private, Question, Side, augment, next_sequence};
use forebay_block::{Error, ErrorKind, Result};
use forebay_io::system;
use forebay_wire::nvme::auth::{
    ControllerMessage, Exchange, Group, Hash, HostMessage, MAX_MESSAGE_BYTES, Reason,
};
use zeroize::Zeroizing;

use super::Uri;
use super::queue::{Queue, With, broken};

/// Why it ends early.
enum Stop {
    /// What the target says is not accepted; it is told so.
    Reason(Reason),
    /// There is nothing to be told.
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

/// Proves on a new queue that this is the host that it says, and has the target prove itself if its secret is known.
///
/// # Errors
/// `Permission` if there is no secret, or it is not the one that the target knows, or the target does not prove itself.
pub(super) async fn prove(queue: &mut Queue, uri: &Uri) -> Result<()> {
    let Some(secrets) = &uri.secrets else {
        let what = "the target asks its hosts to authenticate themselves: give the device `secrets`, a file with a \
                    line for this host";
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
            // The connection ends whether it hears this or not.
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
                "the target has not authenticated itself: {reason}; check its own secret, the second one in the \
                 line of {}",
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

/// Who proves itself to whom, and in which transaction.
struct Host<'a> {
    name: &'a str,
    subsystem: &'a str,
    secrets: &'a HostSecrets,
    transaction: u16,
}

/// What the host replies, and what the target has to answer.
struct Reply {
    response: Zeroizing<Vec<u8>>,
    public: Zeroizing<Vec<u8>>,
    expected: Option<Expected>,
}

struct Expected {
    hash: Hash,
    /// As it is sent, and as it is answered.
    challenge: Vec<u8>,
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
    /// What the target says, if it makes sense and is of this transaction.
    fn understand<'m>(&self, heard: &'m [u8]) -> Result<ControllerMessage<'m>, Stop> {
        let (transaction, message) =
            ControllerMessage::decode(heard).map_err(|malformed| malformed.reason)?;
        // What it refuses it may not have read so far.
        if let ControllerMessage::Failure1(reason) = message {
            let what = format!(
                "the target refuses to authenticate host {}: {reason}; check that the target has the \
                 same secrets for it",
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

    /// Answers the target's challenge, and challenges it.
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

    /// Whether the target, which agrees, is to hear that this host does.
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
