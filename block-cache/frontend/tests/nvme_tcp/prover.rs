//! Authentication messages of a host for the tests, written from the specification.

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};

use crate::initiator::{Done, Identity, Queue, Style, With, command, words};
use crate::target::{CONTROLLER_KEY, HOST_KEY, SECRET_HOST, SECRET_NQN, Target};

/// SHA-256, which all tests here use; Python tests use the other functions.
pub(crate) const SHA_256: u8 = 1;
/// Its length, and that of a response, bytes.
pub(crate) const HASH_BYTES: usize = 32;

pub(crate) fn identity() -> Identity<'static> {
    Identity {
        host: SECRET_HOST,
        ..Identity::to(SECRET_NQN)
    }
}

/// Returns an authentication command for a message of this length, or with this room.
pub(crate) fn entry(kind: u32, len: usize) -> [u8; 64] {
    let len = u32::try_from(len).expect("short");
    command(0x7f, kind, words(&[0xe901_0100, len]))
}

pub(crate) fn send(queue: &mut Queue, message: &[u8]) -> Done {
    queue.call(entry(5, message.len()), With::InCapsule(message))
}

/// Receives a message.
pub(crate) fn fetch(queue: &mut Queue) -> Vec<u8> {
    let done = queue.call(entry(6, 4096), With::Room(4096));
    assert_eq!((done.status, done.data.len()), (0, 4096));
    done.data
}

pub(crate) fn negotiate(hashes: &[u8], groups: &[u8]) -> Vec<u8> {
    let mut message = vec![0; 72];
    (message[4], message[7], message[8]) = (9, 1, 1);
    message[10] = u8::try_from(hashes.len()).expect("short");
    message[11] = u8::try_from(groups.len()).expect("short");
    message[12..12 + hashes.len()].copy_from_slice(hashes);
    message[42..42 + groups.len()].copy_from_slice(groups);
    message
}

pub(crate) fn hmac(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any length");
    mac.update(&parts.concat());
    mac.finalize().into_bytes().to_vec()
}

/// Challenge of the target.
pub(crate) struct Challenge {
    value: Vec<u8>,
    sequence: Vec<u8>,
    public: Vec<u8>,
}

impl Challenge {
    pub(crate) fn of(message: &[u8]) -> Self {
        assert_eq!(message[..9], [1, 1, 0, 0, 9, 0, 32, 0, SHA_256]);
        let public = usize::from(u16::from_le_bytes([message[10], message[11]]));
        let end = 16 + HASH_BYTES;
        Self {
            value: message[16..end].to_vec(),
            sequence: message[12..16].to_vec(),
            public: message[end..end + public].to_vec(),
        }
    }

    /// Returns the response for `key`. The private exponent here is 1, so the shared secret is the
    /// target's public value.
    fn response(&self, key: &[u8], value: &[u8], tail: &[&[u8]]) -> Vec<u8> {
        let mut value = value.to_vec();
        if !self.public.is_empty() {
            value = hmac(&Sha256::digest(&self.public), &[&value]);
        }
        hmac(key, &[&[&value[..]], tail].concat())
    }

    /// Returns the reply of a host with `key`. With `number`, it challenges the controller.
    pub(crate) fn reply(&self, key: &[u8], number: Option<u32>) -> Vec<u8> {
        let names = [SECRET_HOST.as_bytes(), b"\0", SECRET_NQN.as_bytes()].concat();
        let tail: [&[u8]; 4] = [&self.sequence, &[9, 0, 0], b"HostHost", &names];
        let response = self.response(key, &self.value, &tail);
        let mut public = vec![0; self.public.len()];
        if let Some(last) = public.last_mut() {
            *last = 2;
        }
        let mut message = vec![1, 2, 0, 0, 9, 0, 32, 0, u8::from(number.is_some()), 0];
        message.extend(u16::try_from(public.len()).expect("short").to_le_bytes());
        message.extend(number.unwrap_or(0).to_le_bytes());
        message.extend(response);
        message.extend([0x77; HASH_BYTES]);
        message.extend(public);
        message
    }

    /// Returns the expected response of the controller to the challenge in [`Challenge::reply`].
    pub(crate) fn controllers(&self, number: u32) -> Vec<u8> {
        let names = [SECRET_NQN.as_bytes(), b"\0", SECRET_HOST.as_bytes()].concat();
        let number = number.to_le_bytes();
        let tail: [&[u8]; 4] = [&number, &[9, 0, 0], b"Controller", &names];
        self.response(CONTROLLER_KEY, &[0x77; HASH_BYTES], &tail)
    }
}

/// Connects a queue whose host must authenticate itself.
pub(crate) fn promised(target: &Target, number: u16, controller: u16) -> (Queue, u16) {
    let mut queue = Queue::open(target.address, Style::default());
    let done = queue.connect(&identity(), number, controller);
    assert_eq!(
        (done.status, done.result >> 16),
        (0, 2),
        "authentication is asked for"
    );
    let controller = u16::try_from(done.result & 0xffff).expect("16 bits");
    (queue, controller)
}

/// Returns a queue whose host must reply to a challenge.
pub(crate) fn challenged(target: &Target, group: u8) -> (Queue, Challenge) {
    let (mut queue, _) = promised(target, 0, 0xffff);
    assert_eq!(send(&mut queue, &negotiate(&[SHA_256], &[group])).status, 0);
    let challenge = Challenge::of(&fetch(&mut queue));
    (queue, challenge)
}

/// Authenticates the host.
pub(crate) fn authenticate(queue: &mut Queue, group: u8) {
    assert_eq!(send(queue, &negotiate(&[SHA_256], &[group])).status, 0);
    let challenge = Challenge::of(&fetch(queue));
    assert_eq!(send(queue, &challenge.reply(HOST_KEY, None)).status, 0);
    let success = fetch(queue);
    assert_eq!(
        success[..16],
        [1, 3, 0, 0, 9, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    );
}

/// Returns an admin queue that is ready, and an I/O queue.
pub(crate) fn admitted(target: &Target) -> (Queue, Queue, u16) {
    let (mut admin, controller) = promised(target, 0, 0xffff);
    authenticate(&mut admin, 0);
    let set = command(0x7f, 0, words(&[0, 0x14, 0x46_0001]));
    assert_eq!(admin.call(set, With::Nothing).status, 0);
    let (mut io, same) = promised(target, 1, controller);
    assert_eq!(same, controller);
    authenticate(&mut io, 0);
    (admin, io, controller)
}
