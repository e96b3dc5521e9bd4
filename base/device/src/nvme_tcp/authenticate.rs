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
use super::queue::{CommandData, Queue, broken};

/// Cause of a failed authentication.
enum Failure {
    /// The host rejects the target's message, and sends the target this reason.
    Rejected(Reason),
    /// An error that is not sent to the target.
    Error(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl From<Reason> for Failure {
    fn from(reason: Reason) -> Self {
        Self::Rejected(reason)
    }
}

fn refused(message: String) -> Error {
    Error::new(ErrorKind::Permission, message)
}

/// Authenticates this host on a new queue, and the target if its secret is known.
///
/// # Errors
/// `Permission` if there is no secret, if the target does not accept it, or if the target fails to
/// authenticate itself.
pub(super) async fn authenticate_queue(queue: &mut Queue, uri: &Uri) -> Result<()> {
    let Some(secrets) = &uri.secrets else {
        let message = "the target requires authentication, and the device has no `secrets`\n\
                       help: give the device `secrets`, a file with a line for this host";
        return Err(refused(format!("{message}, {}", uri.host)));
    };
    let mut transaction = [0; 2];
    system::random(&mut transaction);
    let host = Host {
        name: &uri.host,
        subsystem: &uri.nqn,
        secrets,
        transaction: u16::from_le_bytes(transaction),
    };
    match run_transaction(queue, &host).await {
        Ok(()) => Ok(()),
        Err(Failure::Error(error)) => Err(error),
        Err(Failure::Rejected(reason)) => {
            let failure = HostMessage::Failure2(reason.code());
            // The connection ends even if this message is not received.
            let _ = send(queue, host.transaction, &failure).await;
            if reason != Reason::Failed {
                return Err(broken(&format!("authentication: {reason}")));
            }
            Err(refused(format!(
                "the target has not authenticated itself: {reason}\n\
                 help: check its own secret, the second one in the line of {}",
                uri.host
            )))
        }
    }
}

/// Exchanges the messages of a transaction, until the target has accepted the host and, if its
/// secret is known, the host has accepted the target.
async fn run_transaction(queue: &mut Queue, host: &Host<'_>) -> Result<(), Failure> {
    let negotiate = HostMessage::Negotiate {
        hashes: &Hash::ALL.map(Hash::id),
        groups: &Group::ALL.map(Group::id),
    };
    send(queue, host.transaction, &negotiate).await?;
    let challenge = receive(queue).await?;
    let reply = host.reply(&challenge).await?;
    send(queue, host.transaction, &reply.message()).await?;
    let success = receive(queue).await?;
    if host.check_success(&success, reply.expected.as_ref())? {
        send(queue, host.transaction, &HostMessage::Success2).await?;
    }
    Ok(())
}

/// Sends a message to the target.
async fn send(queue: &mut Queue, transaction: u16, message: &HostMessage<'_>) -> Result<()> {
    let message = message.encode(transaction);
    let length = u32::try_from(message.len()).expect("short");
    let command = Exchange::command(true, length);
    let sent = queue.must(
        "Authentication Send",
        command,
        CommandData::InCapsule(&message),
    );
    sent.await.map(drop)
}

/// Fetches the target's next message, padded.
async fn receive(queue: &mut Queue) -> Result<[u8; MAX_MESSAGE_BYTES as usize]> {
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

/// Reply of the host to the target's challenge.
struct Reply {
    response: Zeroizing<Vec<u8>>,
    /// Public value of the host, empty for the null group.
    public: Zeroizing<Vec<u8>>,
    /// Challenge to the target, if the host knows its secret.
    expected: Option<Expected>,
}

/// Challenge of the host to the target.
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
    fn decode<'m>(&self, bytes: &'m [u8]) -> Result<ControllerMessage<'m>, Failure> {
        let (transaction, message) =
            ControllerMessage::decode(bytes).map_err(|malformed| malformed.reason)?;
        // The target may refuse a message before it has read the transaction, so it is not checked.
        if let ControllerMessage::Failure1(reason) = message {
            let message = format!(
                "the target refuses to authenticate host {}: {reason}\n\
                 help: check that the target has the same secrets for this host",
                self.name
            );
            return Err(refused(message).into());
        }
        match transaction == self.transaction {
            true => Ok(message),
            false => Err(Reason::IncorrectPayload.into()),
        }
    }

    /// Returns the input of the response that `side` must give to a challenge.
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
    async fn reply(&self, bytes: &[u8]) -> Result<Reply, Failure> {
        let ControllerMessage::Challenge {
            hash,
            group,
            sequence,
            value,
            public: theirs,
        } = self.decode(bytes)?
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

    /// Checks the target's success message. Returns whether the host must confirm it: it must if it
    /// challenged the target.
    fn check_success(&self, bytes: &[u8], expected: Option<&Expected>) -> Result<bool, Failure> {
        let ControllerMessage::Success1 { response, .. } = self.decode(bytes)? else {
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
