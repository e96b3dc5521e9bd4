use super::*;
use crate::sync::Promise;

#[test]
fn virtual_time_passes_when_all_wait() {
    let passed = block_on_simulated(1, async {
        let start = now();
        sleep(Duration::from_secs(3600)).await;
        now() - start
    });
    assert_eq!(passed, Duration::from_secs(3600));
}

#[test]
fn the_next_turn_comes_after_all_that_is_ready_and_without_a_reason() {
    let executor = Executor::new(|| ());
    let _entered = executor.enter();
    let log = Rc::new(RefCell::new(Vec::new()));
    for (name, later) in [("first", true), ("second", false), ("third", true)] {
        let log = Rc::clone(&log);
        executor.spawn(async move {
            for part in 0..2 {
                log.borrow_mut().push((name, part));
                match later {
                    true => next_turn().await,
                    false => yield_now().await,
                }
            }
        });
    }
    executor.collect();
    executor.run_ready(100);
    let ready = [("first", 0), ("second", 0), ("third", 0), ("second", 1)];
    assert_eq!(*log.borrow(), ready);
    assert!(executor.has_work(), "or the driver would sleep");
    assert!(executor.collect());
    executor.run_ready(100);
    assert_eq!(log.borrow()[4..], [("first", 1), ("third", 1)]);
    assert!(executor.has_work(), "both wait once more");
    executor.collect();
    executor.run_ready(100);
    assert_eq!((executor.task_count(), executor.has_work()), (0, false));
    // A dropped one wakes no task.
    executor.spawn(next_turn());
    executor.run_ready(1);
    executor.clear();
    assert!(!executor.has_work());
}

#[test]
fn one_seed_gives_one_order() {
    let order = |seed| {
        block_on_simulated(seed, async {
            let log = Rc::new(RefCell::new(Vec::new()));
            let done = Promise::new();
            for task in 0..20 {
                let (log, done) = (Rc::clone(&log), done.clone());
                spawn(async move {
                    yield_now().await;
                    log.borrow_mut().push(task);
                    if log.borrow().len() == 20 {
                        done.set(());
                    }
                });
            }
            done.get().await;
            Rc::try_unwrap(log)
                .map(RefCell::into_inner)
                .unwrap_or_default()
        })
    };
    assert_eq!(order(7), order(7));
    assert_ne!(order(7), order(8));
}

#[test]
fn without_a_seed_tasks_run_in_the_order_of_their_wake_ups() {
    let log = Rc::new(RefCell::new(Vec::new()));
    let order = Rc::clone(&log);
    let passed = block_on_in_order(async move {
        for task in 0..20 {
            let log = Rc::clone(&log);
            spawn(async move {
                sleep(Duration::from_secs(1)).await;
                log.borrow_mut().push(task);
            });
        }
        sleep(Duration::from_secs(2)).await;
        now()
    });
    assert_eq!(passed, Duration::from_secs(2));
    assert_eq!(order.take(), (0..20).collect::<Vec<_>>());
}

#[test]
fn a_wake_from_another_thread_arrives() {
    let (send, receive) = std::sync::mpsc::channel();
    let executor = Executor::new(move || {
        let _ = send.send(());
    });
    let _entered = executor.enter();
    let flag = Rc::new(Cell::new(false));
    let remote = executor.remote();
    let waiting = Rc::clone(&flag);
    executor.spawn(async move {
        let promise = Arc::new(std::sync::Mutex::new((false, None)));
        let shared = Arc::clone(&promise);
        std::thread::spawn(move || {
            loop {
                let mut state = shared.lock().expect("not poisoned");
                if let (_, Some(waker)) = &mut *state {
                    let waker: std::task::Waker = std::task::Waker::clone(waker);
                    state.0 = true;
                    drop(state);
                    waker.wake();
                    return;
                }
            }
        });
        std::future::poll_fn(|cx| {
            let mut state = promise.lock().expect("not poisoned");
            if state.0 {
                return Poll::Ready(());
            }
            state.1 = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        waiting.set(true);
    });
    remote.call(|| ());
    while !flag.get() {
        if !executor.collect() {
            receive.recv().expect("the executor lives");
        }
        executor.run_ready(10);
    }
    assert_eq!(executor.task_count(), 0);
}

#[test]
fn clear_drops_tasks_and_their_spawned_tasks() {
    struct SpawnOnDrop;
    impl Drop for SpawnOnDrop {
        fn drop(&mut self) {
            spawn(async {});
        }
    }
    let executor = Executor::simulated(0);
    let _entered = executor.enter();
    executor.spawn(async {
        let _held = SpawnOnDrop;
        std::future::pending::<()>().await;
    });
    executor.run_ready(1);
    assert_eq!(executor.task_count(), 1);
    executor.clear();
    assert_eq!(executor.task_count(), 0);
}
