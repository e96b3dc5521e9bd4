use super::*;
use crate::mem::MemDevice;
use forebay_block::{Buf, ErrorKind};
use forebay_io::rt::{Executor, block_on_simulated};
use std::time::Instant;

const MS: Duration = Duration::from_millis(1);

fn memory() -> Rc<dyn BlockDevice> {
    MemDevice::new("m", 64 << 20)
}

/// Virtual time of `test`.
fn virtual_time(
    profile: Profile,
    test: impl AsyncFnOnce(Rc<dyn BlockDevice>) + 'static,
) -> Duration {
    block_on_simulated(1, async move {
        let start = rt::now();
        test(EmulateDevice::wrap(memory(), profile)).await;
        rt::now() - start
    })
}

async fn all(futures: Vec<IoFuture>) {
    for future in futures {
        future.await.expect("no error");
    }
}

#[test]
fn each_operation_takes_its_declared_time() {
    let profile = Profile {
        read_latency_us: 1000,
        write_latency_us: 2000,
        flush_latency_us: 5000,
        bandwidth_bytes_per_s: 100_000_000,
        ..Profile::default()
    };
    let transfer = Duration::from_nanos(40_960);
    let time = |request: fn() -> Request| {
        virtual_time(profile, async move |device| {
            device.start(request()).await.expect("no error");
        })
    };
    assert_eq!(time(|| Request::read(0, Buf::scratch(4096))), MS + transfer);
    assert_eq!(
        time(|| Request::write(0, Buf::zeroed(4096), false)),
        2 * MS + transfer
    );
    assert_eq!(time(Request::flush), 5 * MS);
    assert_eq!(time(|| Request::discard(0, 1 << 20)), 2 * MS);
    assert_eq!(
        time(|| Request::write_zeroes(0, 1 << 20, false, false)),
        2 * MS
    );
}

#[test]
fn overlapping_requests_overlap_latency_and_share_bandwidth() {
    let profile = Profile {
        read_latency_us: 1000,
        write_latency_us: 1000,
        bandwidth_bytes_per_s: 1 << 30,
        ..Profile::default()
    };
    let time = virtual_time(profile, async |device| {
        let mut futures = Vec::new();
        for index in 0..16 {
            futures.push(device.read(index << 20, Buf::scratch(1 << 20)));
            futures.push(device.write((32 + index) << 20, Buf::zeroed(1 << 20)));
        }
        all(futures).await;
    });
    // 32 MiB at 1 GiB/s is 31.25 ms; one latency on top. Each transfer rounds down to a nanosecond.
    let expected = MS + Duration::from_micros(31_250);
    assert!(
        time <= expected && expected - time < Duration::from_nanos(32),
        "{time:?}"
    );
}

#[test]
fn a_limit_of_operations_binds_small_requests_and_one_of_bytes_large_ones() {
    let profile = Profile {
        read_latency_us: 1000,
        write_latency_us: 1000,
        bandwidth_bytes_per_s: 1 << 20,
        iops: 100,
        ..Profile::default()
    };
    let time = |requests: fn() -> Vec<Request>| {
        virtual_time(profile, async move |device| {
            all(requests()
                .into_iter()
                .map(|request| device.start(request))
                .collect())
            .await;
        })
    };
    let small = || {
        (0..5)
            .map(|_| Request::read(0, Buf::scratch(512)))
            .collect()
    };
    assert_eq!(time(small), MS + 5 * 10 * MS);
    let large = || vec![Request::write(0, Buf::zeroed(1 << 20), false); 2];
    assert_eq!(time(large), MS + Duration::from_secs(2));
    assert_eq!(
        time(|| vec![Request::discard(0, 1 << 20); 3]),
        MS + 3 * 10 * MS
    );
    assert_eq!(time(|| vec![Request::flush(); 3]), Duration::ZERO);
}

#[test]
fn an_idle_link_saves_nothing_up() {
    let profile = Profile {
        bandwidth_bytes_per_s: 1_024_000,
        ..Profile::default()
    };
    let time = virtual_time(profile, async |device| {
        rt::sleep(10 * MS).await;
        all((0..2).map(|_| device.read(0, Buf::scratch(1024))).collect()).await;
    });
    assert_eq!(time, 12 * MS);
}

#[test]
fn the_queue_depth_holds_back_the_rest_in_order() {
    let profile = Profile {
        read_latency_us: 1000,
        queue_depth: 2,
        ..Profile::default()
    };
    let time = virtual_time(profile, async |device| {
        all((0..7).map(|_| device.read(0, Buf::scratch(512))).collect()).await;
        // Every slot is free.
        all((0..2).map(|_| device.read(0, Buf::scratch(512))).collect()).await;
    });
    assert_eq!(time, 5 * MS);
}

#[test]
fn the_inner_time_counts_and_does_not_add() {
    let time = |inner_us, outer_us| {
        let profile = |read_latency_us| Profile {
            read_latency_us,
            ..Profile::default()
        };
        virtual_time(profile(inner_us), async move |device| {
            let outer = EmulateDevice::wrap(device, profile(outer_us));
            outer.read(0, Buf::scratch(512)).await.expect("no error");
        })
    };
    assert_eq!(time(1000, 3000), 3 * MS);
    assert_eq!(time(4000, 3000), 4 * MS);
}

#[test]
fn data_and_errors_pass_through() {
    let profile = Profile {
        write_latency_us: 10,
        queue_depth: 1,
        ..Profile::default()
    };
    virtual_time(profile, async |device| {
        let data = Buf::scratch(4096);
        data.fill(0x5a);
        device.write(8192, data).await.expect("no error");
        let back = Buf::scratch(4096);
        device.read(8192, back.clone()).await.expect("no error");
        assert!(back.to_vec().iter().all(|&byte| byte == 0x5a));
        let error = device.read(64 << 20, Buf::scratch(512)).await;
        assert_eq!(
            error.expect_err("past the end").kind(),
            ErrorKind::OutOfRange
        );
        device
            .read(0, Buf::scratch(512))
            .await
            .expect("the slot is free");
    });
}

#[test]
fn the_description_names_the_emulated_profile() {
    let words = |profile: Profile| EmulateDevice::wrap(memory(), profile).info().emulated;
    let remote = Profile {
        read_latency_us: 1000,
        write_latency_us: 1000,
        bandwidth_bytes_per_s: 100_000_000,
        ..Profile::default()
    };
    assert_eq!(
        words(remote).as_deref(),
        Some("emulated: 1 ms read, 1 ms write, 100 MB/s")
    );
    let odd = Profile {
        read_latency_us: 80,
        write_latency_us: 1500,
        flush_latency_us: 2345,
        bandwidth_bytes_per_s: 3_200_000_000,
        iops: 500,
        queue_depth: 8,
    };
    assert_eq!(
        words(odd).as_deref(),
        Some(
            "emulated: 80 us read, 1.5 ms write, 2345 us flush, 3.2 GB/s, 500 IOPS, queue depth 8"
        )
    );
    let outer = EmulateDevice::wrap(EmulateDevice::wrap(memory(), odd), remote);
    let text = outer.info().emulated.expect("says so");
    assert!(text.contains("100 MB/s; over emulated: 80 us"), "{text}");
}

#[test]
fn the_end_of_the_executor_fails_requests_in_flight() {
    let executor = Executor::simulated(1);
    let _entered = executor.enter();
    let profile = Profile {
        read_latency_us: 1000,
        queue_depth: 1,
        ..Profile::default()
    };
    let device = EmulateDevice::wrap(memory(), profile);
    let answers: Vec<IoFuture> = (0..2).map(|_| device.read(0, Buf::scratch(512))).collect();
    while executor.collect() {
        executor.run_ready(10);
    }
    executor.clear();
    for answer in answers {
        let mut answer = std::pin::pin!(answer);
        let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
        let polled = answer.as_mut().poll(&mut cx);
        assert!(
            matches!(polled, std::task::Poll::Ready(Err(_))),
            "no answer"
        );
    }
}

/// On the real clock. The delay beyond the declared time depends on the machine.
#[test]
fn no_answer_is_earlier_than_declared_in_real_time() {
    let executor = Executor::new(|| ());
    let _entered = executor.enter();
    let profile = Profile {
        read_latency_us: 2000,
        bandwidth_bytes_per_s: 100_000_000,
        ..Profile::default()
    };
    let device = EmulateDevice::wrap(memory(), profile);
    let declared = Duration::from_nanos(2_040_960);
    executor.spawn(async move {
        for _ in 0..20 {
            let start = Instant::now();
            device.read(0, Buf::scratch(4096)).await.expect("no error");
            let time = start.elapsed();
            assert!(time >= declared, "{time:?} is too fast");
        }
    });
    while executor.task_count() > 0 {
        executor.collect();
        executor.run_ready(100);
    }
}
