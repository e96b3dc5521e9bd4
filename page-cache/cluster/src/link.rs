//! One end of a connection: a bounded send queue, and a receiver of whole packets.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use forebay_block::{Error, ErrorKind, Result};
use forebay_io::send::send_now;
use forebay_pagecache::client::Link;
use forebay_pagecache::protocol::{Message, PACKET_BYTES_MAX, Packet};

/// Maximum length of a send queue, bytes, with those that are being written. More end the
/// connection: the peer has stopped reading. The number of messages has no exact bound: while the
/// source stalls, a page may be requested once for each store that a program flushes.
const QUEUE_BYTES_MAX: usize = 64 << 20;

/// Send queue of a connection. The threads that use it send, as long as the peer has room.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    shared: Arc<Queue>,
}

#[derive(Debug)]
struct Queue {
    stream: UnixStream,
    state: Mutex<State>,
    /// Notified of a rest, and of the end.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    bytes: Vec<u8>,
    /// Number of bytes that are being sent.
    sending: usize,
    /// Whether a thread sends. It sends what is queued meanwhile, too.
    is_sending: bool,
    /// Bytes for which the peer had no room. The queue's own thread sends them and waits.
    rest: Vec<u8>,
    /// An empty buffer.
    spare: Vec<u8>,
    closed: bool,
    lingers: bool,
}

impl Outgoing {
    /// Creates a queue with a thread for times in which the peer has no room. The thread ends with
    /// [`Outgoing::close`], or when the peer is gone.
    ///
    /// # Errors
    /// Errors of the system.
    pub(crate) fn new(stream: UnixStream) -> Result<Self> {
        let shared = Arc::new(Queue {
            stream,
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let queue = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("pagecache-out".into())
            .spawn(move || queue.drain())?;
        Ok(Self { shared })
    }

    /// Appends bytes to the queue. [`Outgoing::flush`] sends them.
    ///
    /// # Errors
    /// `Disconnected` if the connection is closed or the peer does not read.
    pub(crate) fn push(&self, bytes: &[u8]) -> Result<()> {
        let mut state = self.shared.lock();
        if state.closed || state.bytes.len() + state.sending + bytes.len() > QUEUE_BYTES_MAX {
            let context = "page cache: the connection is closed, or the other side does not read";
            return Err(Error::new(ErrorKind::Disconnected, context));
        }
        state.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Sends the queue, or leaves it to a thread that is sending. It does not wait for the peer.
    pub(crate) fn flush(&self) {
        let shared = &self.shared;
        let mut state = shared.lock();
        if state.is_sending {
            return;
        }
        state.is_sending = true;
        while !state.bytes.is_empty() && !state.closed {
            let spare = std::mem::take(&mut state.spare);
            let mut sending = std::mem::replace(&mut state.bytes, spare);
            state.sending = sending.len();
            drop(state);
            let sent = send_now(&shared.stream, &sending);
            state = shared.lock();
            let count = match sent {
                Ok(count) => count,
                Err(error) if is_passing(&error) => 0,
                // The reader of the connection sees its end.
                Err(_) => {
                    state.closed = true;
                    break;
                }
            };
            if count < sending.len() {
                sending.drain(..count);
                state.sending = sending.len();
                state.rest = sending;
                shared.changed.notify_all();
                return;
            }
            sending.clear();
            state.spare = sending;
            state.sending = 0;
        }
        state.is_sending = false;
        if state.lingers || state.closed {
            shared.changed.notify_all();
        }
    }

    /// Appends bytes to the queue and sends it, as [`Outgoing::flush`].
    ///
    /// # Errors
    /// As for [`Outgoing::push`].
    pub(crate) fn send(&self, bytes: &[u8]) -> Result<()> {
        self.push(bytes)?;
        self.flush();
        Ok(())
    }

    /// Ends the connection after the queue was sent, if the peer reads it.
    pub(crate) fn linger(&self) {
        self.shared.lock().lingers = true;
        self.shared.changed.notify_all();
    }

    /// Ends the connection and drops the queue.
    pub(crate) fn close(&self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
        // It may be closed already.
        let _ = self.shared.stream.shutdown(Shutdown::Both);
    }
}

/// Returns whether a send may succeed later.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what the peer had no room for, until the end.
    fn drain(&self) {
        let mut state = self.lock();
        loop {
            if state.closed {
                return;
            }
            if !state.rest.is_empty() {
                let mut sending = std::mem::take(&mut state.rest);
                while !sending.is_empty() && !state.closed {
                    state.sending = sending.len();
                    drop(state);
                    let sent = (&self.stream).write_all(&sending);
                    state = self.lock();
                    // The reader of the connection sees its end.
                    state.closed |= sent.is_err();
                    sending = std::mem::take(&mut state.bytes);
                }
                state.sending = 0;
                state.is_sending = false;
                continue;
            }
            if state.lingers && !state.is_sending && state.bytes.is_empty() {
                drop(state);
                let _ = self.stream.shutdown(Shutdown::Both);
                return;
            }
            let woken = self.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Connection of a node to the current directory process. Without a connection, messages are
/// dropped, since the node reports its state to the next directory.
#[derive(Debug, Default)]
pub struct DirectoryLink {
    now: Mutex<Option<Outgoing>>,
}

impl DirectoryLink {
    pub(crate) fn open(&self, outgoing: Outgoing) {
        *self.lock() = Some(outgoing);
    }

    pub(crate) fn close(&self) {
        if let Some(outgoing) = self.lock().take() {
            outgoing.close();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Outgoing>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link for DirectoryLink {
    fn send(&self, packet: &[u8]) -> Result<()> {
        let mut now = self.lock();
        if let Some(outgoing) = &*now
            && outgoing.push(packet).is_err()
        {
            outgoing.close();
            *now = None;
        }
        Ok(())
    }

    fn flush(&self) {
        // Not under the lock: other threads queue their messages meanwhile.
        let outgoing = self.lock().clone();
        if let Some(outgoing) = outgoing {
            outgoing.flush();
        }
    }
}

/// Received bytes of a connection that were not processed yet.
#[derive(Debug)]
pub(crate) struct Incoming {
    stream: UnixStream,
    bytes: Vec<u8>,
}

impl Incoming {
    pub(crate) fn new(stream: UnixStream) -> Self {
        let bytes = Vec::with_capacity(PACKET_BYTES_MAX);
        Self { stream, bytes }
    }

    pub(crate) const fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Waits for more bytes, and passes all whole packets to `take`: at least one. Returns false at
    /// the end of the stream.
    ///
    /// # Errors
    /// If the bytes are not packets, or errors of the system.
    pub(crate) fn packets<M: Message>(&mut self, take: impl FnOnce(&[u8])) -> Result<bool> {
        loop {
            let mut whole = 0;
            loop {
                match Packet::<M>::decode(&self.bytes[whole..]) {
                    Ok(Some(packet)) => whole += packet.size_bytes,
                    // The packets before the error count; the next call finds it again.
                    Ok(None) | Err(_) if whole > 0 => break,
                    Ok(None) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            if whole > 0 {
                take(&self.bytes[..whole]);
                self.bytes.drain(..whole);
                return Ok(true);
            }
            let mut more = [0; 16 << 10];
            match self.stream.read(&mut more) {
                Ok(0) => return Ok(false),
                Ok(count) => self.bytes.extend_from_slice(&more[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_pagecache::message::{NodeId, ToNode};
    use forebay_pagecache::protocol::encode;

    #[test]
    fn packets_come_whole_however_they_are_cut_and_rubbish_is_an_error() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let mut bytes = Vec::new();
        let node = NodeId::new(1).expect("a node");
        for ticket in 0..3 {
            encode(node, &[ToNode::Locked { ticket }], &mut bytes);
        }
        let sent = bytes.clone();
        let writer = std::thread::spawn(move || {
            for byte in &sent {
                (&theirs).write_all(&[*byte]).expect("it is read");
            }
            (&theirs).write_all(&[0xff; 64]).expect("it is read");
        });
        let (mut incoming, mut received) = (Incoming::new(ours), Vec::new());
        while received.len() < bytes.len() {
            let more = incoming.packets::<ToNode>(|packets| received.extend_from_slice(packets));
            assert!(more.expect("they are packets"));
        }
        assert_eq!(received, bytes);
        let rubbish = incoming.packets::<ToNode>(|_| ()).expect_err("no packet");
        assert_eq!(rubbish.kind(), ErrorKind::InvalidInput);
        writer.join().expect("it ended");
    }

    #[test]
    fn a_peer_that_does_not_read_is_given_up() {
        let (ours, _theirs) = UnixStream::pair().expect("a pair");
        let outgoing = Outgoing::new(ours).expect("a thread");
        let piece = vec![0; 1 << 20];
        let sent = (0..100).take_while(|_| outgoing.send(&piece).is_ok());
        assert!(sent.count() < 70, "the queue has an end");
        outgoing.close();
    }

    #[test]
    fn threads_send_in_order_to_a_peer_that_is_slow() {
        const THREADS: u8 = 4;
        const NUMBERS: u32 = 20_000;
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let outgoing = Outgoing::new(ours).expect("a thread");
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let outgoing = &outgoing;
                scope.spawn(move || {
                    for number in 0..NUMBERS {
                        let [a, b, c, _] = number.to_le_bytes();
                        outgoing.send(&[thread, a, b, c]).expect("it is read");
                    }
                });
            }
            let mut next = [0; THREADS as usize];
            let mut word = [0; 4];
            for count in 0..u32::from(THREADS) * NUMBERS {
                theirs.read_exact(&mut word).expect("it was sent");
                let [thread, a, b, c] = word;
                let next = &mut next[usize::from(thread)];
                assert_eq!(u32::from_le_bytes([a, b, c, 0]), *next);
                *next += 1;
                if count % 5_000 == 0 {
                    std::thread::sleep(std::time::Duration::from_millis(20));
                }
            }
        });
        outgoing.linger();
        assert_eq!(theirs.read(&mut [0]).expect("it ends"), 0);
    }
}
