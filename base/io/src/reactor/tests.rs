use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use super::*;
use crate::rt::{now, remote, sleep, spawn, yield_now};
use crate::sync::Promise;
use crate::testing::engines;

fn reactor(engine: Engine) -> Rc<Reactor> {
    Reactor::new(engine).expect("this engine works here")
}

#[test]
fn the_engine_is_the_one_that_was_asked_for() {
    for engine in engines() {
        let name = if engine == Engine::Uring {
            "io_uring"
        } else {
            "threads"
        };
        assert_eq!(reactor(engine).engine_name(), name);
    }
}

#[test]
fn timers_are_on_time() {
    for engine in engines() {
        let (first, late) = reactor(engine).run(async {
            let start = now();
            sleep(Duration::from_millis(2)).await;
            let first = now() - start;
            sleep(Duration::from_millis(30)).await;
            (first, now() - start)
        });
        assert!(first >= Duration::from_millis(2), "{engine:?} {first:?}");
        assert!(late >= Duration::from_millis(32), "{engine:?} {late:?}");
        assert!(late < Duration::from_secs(30), "{engine:?} {late:?}");
    }
}

#[test]
fn another_thread_wakes_a_sleeping_reactor_at_once() {
    for engine in engines() {
        let waited = reactor(engine).run(async {
            let mut worst = Duration::ZERO;
            for _ in 0..20 {
                let woken = Promise::new();
                thread_local! {
                    static WOKEN: RefCell<Option<Promise<Instant>>> = const { RefCell::new(None) };
                }
                WOKEN.with(|slot| slot.replace(Some(woken.clone())));
                let remote = remote();
                let thread = std::thread::spawn(move || {
                    // Long enough for the reactor to fall asleep.
                    std::thread::sleep(Duration::from_millis(5));
                    let called = Instant::now();
                    remote.call(move || {
                        let woken = WOKEN.with(RefCell::take);
                        woken.expect("this is the reactor's thread").set(called);
                    });
                });
                worst = worst.max(woken.get().await.elapsed());
                thread.join().expect("no panic");
            }
            worst
        });
        // There is no timer: without the wake-up it would sleep for ever.
        assert!(waited < Duration::from_secs(30), "{engine:?} {waited:?}");
    }
}

#[test]
fn two_reactors_pass_a_message_to_and_fro() {
    for engine in engines() {
        let (send, receive) = std::sync::mpsc::channel();
        let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stopped = std::sync::Arc::clone(&stop);
        let thread = spawn_reactor("echo", engine, move || async move {
            let _ = send.send(remote());
            while !stopped.load(std::sync::atomic::Ordering::Acquire) {
                sleep(Duration::from_millis(1)).await;
            }
        })
        .expect("a second reactor");
        let other = receive.recv().expect("it runs");
        thread_local! {
            static COUNT: Cell<u32> = const { Cell::new(0) };
        }
        COUNT.set(0);
        reactor(engine).run(async move {
            for round in 1..=200 {
                let back = remote();
                other.call(move || back.call(|| COUNT.set(COUNT.get() + 1)));
                while COUNT.get() < round {
                    yield_now().await;
                }
            }
        });
        stop.store(true, std::sync::atomic::Ordering::Release);
        thread.join().expect("no panic");
        assert_eq!(COUNT.get(), 200);
    }
}

#[test]
fn spawned_tasks_go_on_in_the_next_run() {
    for engine in engines() {
        let reactor = reactor(engine);
        let flag = Rc::new(Cell::new(false));
        let set = Rc::clone(&flag);
        reactor.run(async move {
            spawn(async move {
                sleep(Duration::from_millis(1)).await;
                set.set(true);
            });
        });
        assert!(!flag.get());
        reactor.run(async move {
            let begin = now();
            while !flag.get() {
                assert!(now() - begin < Duration::from_secs(30), "{engine:?}");
                sleep(Duration::from_millis(1)).await;
            }
        });
    }
}

async fn sleep_briefly() {
    sleep(Duration::from_millis(20)).await;
}

#[test]
fn engines_are_named_in_the_environment() {
    assert_eq!(Engine::named("uring").expect("a name"), Engine::Uring);
    assert_eq!(Engine::named("threads").expect("a name"), Engine::Threads);
    assert_eq!(Engine::named("auto").expect("a name"), Engine::Auto);
    let error = Engine::named("epoll").expect_err("no name");
    assert!(error.report().contains("FOREBAY_IO"), "{error:?}");
}

/// Forbids io_uring to this thread from now on, as containers do.
fn forbid_io_uring() {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let setup = u32::try_from(libc::SYS_io_uring_setup).expect("a small number");
    let mut filter = [
        instruction(LOAD, 0, 0, 0), // The system call's number.
        instruction(JUMP_IF_EQUAL, 0, 1, setup),
        instruction(
            RETURN,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned(),
        ),
        instruction(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: 4,
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: the program and its filter live through the calls, which concern this thread only.
    let results = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            ),
        ]
    };
    assert_eq!(results, [0, 0], "{}", std::io::Error::last_os_error());
}

#[test]
fn where_io_uring_is_forbidden_threads_take_its_place() {
    let thread = std::thread::spawn(|| {
        forbid_io_uring();
        let refused = Reactor::new(Engine::Uring).expect_err("it is forbidden");
        assert_eq!(refused.kind(), ErrorKind::Permission);
        assert!(refused.report().contains("io_uring_setup"), "{refused:?}");
        if std::env::var("FOREBAY_IO").is_ok_and(|name| name != "auto") {
            eprintln!("SKIPPED: FOREBAY_IO chooses the engine, nothing is automatic");
            return;
        }
        let reactor = reactor(Engine::Auto);
        assert_eq!(reactor.engine_name(), "threads");
        reactor.run(sleep_briefly());
    });
    thread.join().expect("no panic");
}

#[test]
fn outside_of_a_reactor_nothing_opens() {
    let error = current().err().expect("no reactor runs in this test");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_reactor_that_is_gone_refuses_and_cancels() {
    use crate::file::{File, FileOptions};
    use crate::net::{Listener, Stream};
    use forebay_block::{Buf, Request, completion_pair};

    for engine in engines() {
        let scratch = crate::testing::Scratch::new();
        let first = reactor(engine);
        let path = scratch.path("f");
        let (file, stream, receiving) = first.run(async move {
            let options = FileOptions {
                create_bytes: Some(8192),
                ..FileOptions::default()
            };
            let file = File::open(path, &options).expect("new");
            let any = "127.0.0.1:0".parse().expect("an address");
            let listener = Listener::bind(&any).expect("free");
            let stream = Stream::connect(&listener.address()).await;
            let stream = Rc::new(stream.expect("it listens"));
            let other = Rc::clone(&stream);
            // Started, and then left in flight outside of any task.
            let mut receiving = Box::pin(async move { other.recv(Buf::scratch(1)).await });
            let waiting = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(receiving.as_mut().poll(cx).is_pending())
            });
            assert!(waiting.await, "nothing was sent");
            (file, stream, receiving)
        });
        drop(first);
        let second = reactor(engine);
        second.run(async move {
            let (done, future) = completion_pair();
            file.submit(Request::flush(), done);
            let refused = future.await.expect_err("its reactor is gone");
            assert_eq!(refused.kind(), ErrorKind::ShuttingDown);
            let refused = stream.recv(Buf::scratch(1)).await;
            let refused = refused.expect_err("its reactor is gone");
            assert_eq!(refused.kind(), ErrorKind::ShuttingDown);
            let cancelled = receiving.await.expect_err("it was in flight");
            assert_eq!(cancelled.kind(), ErrorKind::Disconnected);
        });
    }
}

/// Returns the number of times that this thread has slept.
fn slept() -> i64 {
    // SAFETY: all zeroes are a value of it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the place lives through the call.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) };
    usage.ru_nvcsw
}

#[test]
fn a_busy_reactor_never_sleeps_and_its_timers_are_on_time() {
    for engine in engines() {
        let (before, between, after) = reactor(engine).run(async {
            let before = slept();
            sleep(Duration::from_millis(20)).await;
            let between = slept();
            crate::never_sleep().expect("a reactor runs here");
            // Several times, as the processor may be elsewhere through one of them.
            for _ in 0..10 {
                let begin = now();
                sleep(Duration::from_millis(5)).await;
                assert!(now() - begin >= Duration::from_millis(5));
            }
            (before, between, slept())
        });
        assert!(between > before, "{engine:?}");
        assert_eq!(after == between, engine == Engine::Uring, "{engine:?}");
    }
}

#[test]
fn a_simulated_reactor_serves_both_ends_and_waits_for_no_clock() {
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    use crate::net::{Address, Listener};
    use crate::testing::Scratch;
    use forebay_block::Buf;

    let scratch = Scratch::new();
    let path = scratch.path("echo.sock");
    let reactor = Reactor::simulated(Engine::Threads, 3).expect("a reactor");
    reactor.within(|| {
        let listener = Listener::bind(&Address::Unix(path.clone())).expect("a socket");
        spawn(async move {
            let (stream, _) = listener.accept().await.expect("somebody connects");
            let buf = Buf::zeroed(4);
            stream.recv_exact(buf.clone()).await.expect("four bytes");
            sleep(Duration::from_secs(3600)).await;
            stream.send(&[buf]).await.expect("sent");
        });
    });
    let mut stream = UnixStream::connect(&path).expect("it listens");
    stream.write_all(b"echo").expect("sent");
    stream.set_nonblocking(true).expect("an option");
    let mut answer = [0; 4];
    let begin = Instant::now();
    reactor.pass(Duration::from_secs(3599));
    assert!(stream.read(&mut answer).is_err(), "an hour is not over");
    reactor.pass(Duration::from_secs(1));
    stream.read_exact(&mut answer).expect("it is");
    assert_eq!(&answer, b"echo");
    assert_eq!(reactor.now(), Duration::from_secs(3600));
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[test]
fn on_a_virtual_clock_a_busy_thread_uses_up_no_time_limit() {
    for engine in engines() {
        let reactor = Reactor::simulated(engine, 4).expect("a reactor");
        let limit = Duration::from_millis(50);
        let passed = reactor.run_simulated(async move {
            let begin = now();
            let ends_late = async {
                std::thread::sleep(2 * limit);
                yield_now().await;
            };
            crate::rt::at_most(limit, ends_late).await.expect("in time");
            assert_eq!(now(), begin);
            sleep(limit).await;
            now() - begin
        });
        assert_eq!(passed, limit);
    }
}

#[test]
fn a_shared_event_can_be_registered_anew_under_its_old_number() {
    use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd};

    use crate::event::{Event, signal};

    for engine in engines() {
        // SAFETY: a plain system call; the descriptor is new and has no other owner.
        let original = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC)) };
        reactor(engine).run(async move {
            let mut number: Option<i32> = None;
            for round in 0..3 {
                let copy = match number {
                    None => original.try_clone().expect("a copy"),
                    // SAFETY: the number was just closed; the descriptor is new and has no other
                    // owner.
                    Some(number) => unsafe {
                        let made = libc::fcntl(original.as_raw_fd(), libc::F_DUPFD_CLOEXEC, number);
                        OwnedFd::from_raw_fd(made)
                    },
                };
                number = Some(copy.as_raw_fd());
                let event = Event::adopt(copy).expect("an event");
                let other = original.try_clone().expect("a copy");
                spawn(async move {
                    sleep(Duration::from_millis(5)).await;
                    signal(other.as_fd());
                });
                let waited = event.wait().await;
                assert!(waited.is_ok(), "{engine:?}, round {round}: {waited:?}");
            }
        });
    }
}

/// Requests that are answered at once, with a stall after each thousand: as under load at depth.
/// A client with one request at a time then finds the reactor as ready to poll as a new one.
#[test]
fn a_load_with_stalls_does_not_keep_a_reactor_from_polling() {
    use crate::file::{File, FileOptions};
    use forebay_block::{Buf, Request, completion_pair};

    if !engines().contains(&Engine::Uring) {
        eprintln!("SKIPPED: there is no io_uring");
        return;
    }
    const ROUNDS: u32 = 40;
    let scratch = crate::testing::Scratch::new();
    let path = scratch.path("file");
    std::fs::write(&path, [7; 4096]).expect("written");
    let worst = reactor(Engine::Uring).run(async move {
        let file = File::open(path, &FileOptions::default()).expect("there");
        let into = Buf::zeroed(512);
        let mut worst = 0;
        for _ in 0..ROUNDS {
            for _ in 0..1000 {
                let (done, read) = completion_pair();
                file.submit(Request::read(0, into.clone()), done);
                read.await.expect("read");
            }
            sleep(Duration::from_millis(2)).await;
            worst = worst.max(current().expect("a reactor").polls_after());
        }
        worst
    });
    assert!(worst <= 128, "it polls after {worst} short idle times");
}
