//! Queue of the steps that wait for a worker, by file.

use std::collections::VecDeque;
use std::os::fd::RawFd;

/// Steps on one file.
struct File<J> {
    /// Steps that wait, in the order of their arrival.
    waiting: VecDeque<J>,
    /// Number of steps that workers carry out.
    running: usize,
    /// Whether the file is among those with a step that a worker may take.
    is_ready: bool,
}

/// Steps that wait, and the number of workers.
pub(super) struct Jobs<J> {
    /// By descriptor. An entry stays when its file is closed, and serves the next file with that
    /// number: a step then allocates nothing.
    files: Vec<File<J>>,
    /// Files with a step that a worker may start, in turn.
    ready: VecDeque<RawFd>,
    /// Largest number of steps on one file that are carried out at a time.
    per_file: usize,
    /// Number of steps that are carried out.
    running: usize,
    /// Number of workers.
    workers: usize,
    /// Largest number of workers.
    most_workers: usize,
    is_stopped: bool,
}

impl<J> Jobs<J> {
    /// Returns an empty queue.
    pub(super) fn new(per_file: usize, most_workers: usize) -> Self {
        Self {
            files: Vec::new(),
            ready: VecDeque::new(),
            per_file,
            running: 0,
            workers: 0,
            most_workers,
            is_stopped: false,
        }
    }

    /// Adds a step.
    pub(super) fn push(&mut self, fd: RawFd, job: J) {
        let index = index_of(fd);
        if index >= self.files.len() {
            self.files.resize_with(index + 1, || File {
                waiting: VecDeque::new(),
                running: 0,
                is_ready: false,
            });
        }
        self.files[index].waiting.push_back(job);
        self.offer(fd);
    }

    /// Puts a file among the ready ones if it has a step that a worker may take.
    fn offer(&mut self, fd: RawFd) {
        let file = &mut self.files[index_of(fd)];
        if !file.is_ready && !file.waiting.is_empty() && file.running < self.per_file {
            file.is_ready = true;
            self.ready.push_back(fd);
        }
    }

    /// Takes the next step that may be carried out.
    pub(super) fn take(&mut self) -> Option<J> {
        let fd = self.ready.pop_front()?;
        let file = &mut self.files[index_of(fd)];
        file.is_ready = false;
        let job = file.waiting.pop_front().expect("a ready file has steps");
        file.running += 1;
        self.running += 1;
        self.offer(fd);
        Some(job)
    }

    /// Notes the end of a step.
    pub(super) fn finish(&mut self, fd: RawFd) {
        self.running -= 1;
        self.files[index_of(fd)].running -= 1;
        self.offer(fd);
    }

    /// Returns whether a step may be carried out that no worker is free for, and a worker may be
    /// added.
    pub(super) fn lacks_worker(&self) -> bool {
        let free = self.workers - self.running;
        free < self.ready.len() && self.workers < self.most_workers && !self.is_stopped
    }

    /// Counts a worker that is about to start.
    pub(super) const fn add_worker(&mut self) {
        self.workers += 1;
    }

    /// Takes back a worker that could not be started.
    pub(super) const fn remove_worker(&mut self) {
        self.workers -= 1;
    }

    /// Lets the workers end when no step is ready.
    pub(super) const fn stop(&mut self) {
        self.is_stopped = true;
    }

    /// Returns whether the workers end.
    pub(super) const fn is_stopped(&self) -> bool {
        self.is_stopped
    }
}

fn index_of(fd: RawFd) -> usize {
    usize::try_from(fd).expect("an open descriptor")
}
