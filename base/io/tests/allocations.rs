//! In its steady state a reactor does I/O without asking the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use forebay_block::{Buf, Request, completion_pair};
use forebay_io::file::{File, FileOptions};
use forebay_io::net::{Listener, Stream};
use forebay_io::{Engine, Reactor, rt};

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn engines() -> Vec<Engine> {
    match Reactor::new(Engine::Uring) {
        Ok(_) => vec![Engine::Uring, Engine::Threads],
        Err(error) => {
            eprintln!("SKIPPED on io_uring: {}", error.report());
            vec![Engine::Threads]
        }
    }
}

#[test]
fn steady_io_allocates_nothing() {
    for engine in engines() {
        let path = std::env::temp_dir().join(format!("forebay-alloc-{}", std::process::id()));
        let opened = path.clone();
        let reactor = Reactor::new(engine).expect("this engine works here");
        let (warm, steady) = reactor.run(async move {
            let options = FileOptions {
                direct: true,
                create_bytes: Some(1 << 20),
                ..FileOptions::default()
            };
            let file = File::open(&opened, &options).expect("new");
            let any = "127.0.0.1:0".parse().expect("an address");
            let listener = Listener::bind(&any).expect("free");
            let client = Stream::connect(&listener.address()).await;
            let client = client.expect("it listens");
            let (server, _) = listener.accept().await.expect("the client");
            let buf = Buf::zeroed(8192);
            let parts = [buf.slice(0..100), buf.slice(100..4096)];
            let (got, block) = (buf.slice(0..4096), buf.slice(4096..8192));
            let start = COUNT.get();
            let mut warm = 0;
            for round in 0..300u64 {
                if round == 100 {
                    warm = COUNT.get();
                }
                client.send(&parts).await.expect("sends");
                server.recv_exact(got.clone()).await.expect("receives");
                for request in [
                    Request::write(round * 1024 / 4096 * 4096, block.clone(), false),
                    Request::read(0, block.clone()),
                    Request::flush(),
                ] {
                    let (done, future) = completion_pair();
                    file.submit(request, done);
                    future.await.expect("the file takes it");
                }
                rt::sleep(std::time::Duration::from_micros(10)).await;
            }
            (warm - start, COUNT.get() - warm)
        });
        let _ = std::fs::remove_file(path);
        assert!(warm > 0, "{engine:?}: the counter counts");
        assert_eq!(steady, 0, "{engine:?}: allocations in 200 rounds");
    }
}
