use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Waker};

use super::*;

/// Polls `future` once. Returns whether it is ready.
fn is_ready(future: Pin<&mut impl Future>) -> bool {
    let mut context = Context::from_waker(Waker::noop());
    future.poll(&mut context).is_ready()
}

#[test]
fn permits_go_in_order_and_survive_a_dropped_waiter() {
    let semaphore = Semaphore::new(1);
    assert!(is_ready(pin!(semaphore.acquire(1))));
    let mut first = Box::pin(semaphore.acquire(1));
    let mut second = pin!(semaphore.acquire(1));
    assert!(!is_ready(first.as_mut()) && !is_ready(second.as_mut()));
    drop(first);
    semaphore.release(1);
    assert!(!semaphore.try_acquire(1), "the second waits for it");
    assert!(is_ready(second));
    assert_eq!(semaphore.available(), 0);
}

#[test]
fn a_small_request_does_not_overtake_a_large_one() {
    let semaphore = Semaphore::new(2);
    assert!(semaphore.try_acquire(1));
    let mut large = pin!(semaphore.acquire(2));
    let mut small = pin!(semaphore.acquire(1));
    assert!(!is_ready(large.as_mut()) && !is_ready(small.as_mut()));
    assert_eq!(semaphore.available(), 1);
    semaphore.release(1);
    assert!(!is_ready(small.as_mut()) && is_ready(large));
    semaphore.release(2);
    assert!(is_ready(small));
}

#[test]
fn a_wait_begins_with_its_call_and_not_with_its_first_poll() {
    let list = WaitList::new();
    let before = pin!(list.wait());
    list.wake_all();
    let mut after = pin!(list.wait());
    assert!(is_ready(before) && !is_ready(after.as_mut()));
    list.wake_all();
    assert!(is_ready(after));
}

#[test]
fn a_promise_keeps_its_first_value() {
    let promise = Promise::new();
    let mut waits = pin!(promise.get());
    assert!(!is_ready(waits.as_mut()) && promise.now().is_none());
    promise.set(1);
    promise.clone().set(2);
    assert!(is_ready(waits));
    assert_eq!(promise.now(), Some(1));
}
