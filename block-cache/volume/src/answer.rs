//! Requests from reactors other than the engine reactor, and their outcomes.

use std::cell::RefCell;
use std::sync::Arc;

use forebay_block::{Completion, Error, ErrorKind, Extents, Request, Result};
use forebay_io::answer;
use forebay_io::rt;

use crate::blocking::Slot;
use crate::mailbox::Mailbox;

/// A request in flight to the engine reactor.
pub(crate) struct RemoteRequest {
    pub(crate) volume: u64,
    pub(crate) request: Request,
    pub(crate) answer: RemoteAnswer,
}

/// The outcome of a request, in flight to the requesting reactor.
pub(crate) struct Reply {
    waiting: u32,
    outcome: Result<()>,
}

/// Destination of a request's outcome.
pub(crate) enum Answer {
    Local(Completion),
    Remote(RemoteAnswer),
}

impl Answer {
    pub(crate) fn give(self, outcome: Result<()>) {
        match self {
            Self::Local(done) => done.complete(outcome),
            Self::Remote(answer) => answer.give(outcome),
        }
    }
}

/// An answer for another thread. If it is dropped unused, the waiting side gets an error.
pub(crate) struct RemoteAnswer(Option<Destination>);

enum Destination {
    Reactor(Arc<Mailbox<Reply>>, u32),
    Thread(Arc<Slot>),
}

impl RemoteAnswer {
    pub(crate) const fn thread(slot: Arc<Slot>) -> Self {
        Self(Some(Destination::Thread(slot)))
    }

    /// Sends the outcome from a reactor, batched with the others of this turn.
    pub(crate) fn give(mut self, outcome: Result<()>) {
        match self.0.take() {
            Some(Destination::Reactor(mailbox, waiting)) => {
                gather(mailbox, Reply { waiting, outcome })
            }
            Some(Destination::Thread(slot)) => slot.put(outcome),
            None => {}
        }
    }

    /// Sends an error at once, from any thread.
    pub(crate) fn refuse(mut self, error: Error) {
        self.put(Err(error));
    }

    fn put(&mut self, outcome: Result<()>) {
        match self.0.take() {
            Some(Destination::Reactor(mailbox, waiting)) => {
                // A reactor's mailbox is never closed. If the reactor has ended, no task waits.
                let _ = mailbox.post(Reply { waiting, outcome });
            }
            Some(Destination::Thread(slot)) => slot.put(outcome),
            None => {}
        }
    }
}

impl Drop for RemoteAnswer {
    fn drop(&mut self) {
        if self.0.is_some() {
            self.put(Err(Error::new(
                ErrorKind::Io,
                "the volume's reactor ended before the request was completed",
            )));
        }
    }
}

/// An answer with extents, for another thread. If it is dropped unused, the waiting side gets an
/// error.
pub(crate) struct ExtentsAnswer(Option<answer::Answer<Result<Extents>>>);

impl ExtentsAnswer {
    pub(crate) const fn new(answer: answer::Answer<Result<Extents>>) -> Self {
        Self(Some(answer))
    }

    /// Gives the answer, from any thread.
    pub(crate) fn give(mut self, found: Result<Extents>) {
        if let Some(answer) = self.0.take() {
            answer.give(found);
        }
    }
}

impl Drop for ExtentsAnswer {
    fn drop(&mut self) {
        if let Some(answer) = self.0.take() {
            answer.give(Err(Error::new(
                ErrorKind::Io,
                "the volume's reactor ended before the query was answered",
            )));
        }
    }
}

thread_local! {
    /// Outcomes that are sent at the end of this reactor's turn.
    static GATHERED: RefCell<Vec<(Arc<Mailbox<Reply>>, Reply)>> =
        const { RefCell::new(Vec::new()) };
}

/// Sends the gathered outcomes on drop: by its task, or at the end of the reactor.
struct SendGathered;

impl Drop for SendGathered {
    fn drop(&mut self) {
        // On a thread that is ending, there is nothing left to send.
        let _ = GATHERED.try_with(|gathered| {
            let mut gathered = gathered.borrow_mut();
            while let Some((mailbox, _)) = gathered.first() {
                let mailbox = Arc::clone(mailbox);
                let same = gathered.extract_if(.., |(to, _)| Arc::ptr_eq(to, &mailbox));
                mailbox.post_all(same.map(|(_, reply)| reply));
            }
        });
    }
}

fn gather(mailbox: Arc<Mailbox<Reply>>, reply: Reply) {
    let first = GATHERED.with_borrow_mut(|gathered| {
        gathered.push((mailbox, reply));
        gathered.len() == 1
    });
    if first {
        // Runs after all tasks that are ready now.
        let send = SendGathered;
        rt::spawn(async move { drop(send) });
    }
}

/// Requests that one reactor has sent, and the mailbox for their outcomes.
struct Requester {
    mailbox: Arc<Mailbox<Reply>>,
    waiting: Vec<Option<Completion>>,
    free: Vec<u32>,
}

thread_local! {
    static REQUESTER: RefCell<Option<Requester>> = const { RefCell::new(None) };
}

impl Requester {
    fn new() -> Self {
        Self {
            mailbox: Mailbox::new(rt::remote(), deliver),
            waiting: Vec::new(),
            free: Vec::new(),
        }
    }

    fn wait(&mut self, done: Completion) -> RemoteAnswer {
        let index = self.free.pop().unwrap_or_else(|| {
            self.waiting.push(None);
            u32::try_from(self.waiting.len() - 1).expect("fewer than 2^32 requests")
        });
        self.waiting[index as usize] = Some(done);
        RemoteAnswer(Some(Destination::Reactor(Arc::clone(&self.mailbox), index)))
    }
}

impl Drop for Requester {
    /// The reactor has ended, so no task waits any more. The thread may be ending as well.
    fn drop(&mut self) {
        for done in self.waiting.drain(..).flatten() {
            std::mem::forget(done);
        }
    }
}

/// Returns the answer for another reactor that completes `done` on this one.
pub(crate) fn remote_answer(done: Completion) -> RemoteAnswer {
    REQUESTER.with_borrow_mut(|requester| {
        if !requester
            .as_ref()
            .is_some_and(|requester| requester.mailbox.is_here())
        {
            *requester = Some(Requester::new());
        }
        requester.as_mut().expect("just made").wait(done)
    })
}

fn deliver(reply: Reply) {
    let done = REQUESTER.with_borrow_mut(|requester| {
        let requester = requester.as_mut()?;
        let done = requester.waiting[reply.waiting as usize].take()?;
        requester.free.push(reply.waiting);
        Some(done)
    });
    if let Some(done) = done {
        done.complete(reply.outcome);
    }
}
