mod daemon;
mod fake;
mod numbers;

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use forebay_block::{ErrorKind, Op, Persistence};
use forebay_wire::ublk::{
    Descriptor, FUA, NOUNMAP, Params, attribute, control, feature, io, op, state,
};

use super::*;
use daemon::{Daemon, Media};
use fake::{Fake, own};

const SIZE_BYTES: u64 = 1 << 20;

fn request(op: u8, flags: u32, start_sector: u64, sectors: u32) -> Descriptor {
    Descriptor {
        op,
        flags,
        sectors,
        start_sector,
    }
}

fn write(start_sector: u64) -> Descriptor {
    request(op::WRITE, 0, start_sector, 8)
}

/// A flush as the kernel sends it.
fn flush() -> Descriptor {
    request(op::FLUSH, 0, u64::MAX, 0)
}

fn params(driver: &Fake) -> Params {
    Params::decode(driver.params(0)).expect("all parts")
}

fn refused(attached: Result<Attached<Fake>>) -> (ErrorKind, String) {
    let error = attached.err().expect("it is refused");
    (error.kind(), error.report())
}

/// A queue's task ends after the answer that its device is gone.
fn places_are_given_back(daemon: &Daemon) {
    let began = Instant::now();
    while daemon.spread.connections() != [0, 0] {
        let waited = began.elapsed();
        assert!(waited.as_secs() < 20, "places are not given back");
        std::thread::yield_now();
    }
}

#[test]
fn a_device_is_made_serves_and_goes() {
    let (driver, media) = (Fake::new(), Media::new());
    let daemon = Daemon::start(&media, false);
    let device = daemon.attach(&driver, None).expect("made");
    let order = [control::GET_FEATURES, control::GET_INFO, control::ADD];
    let order = [&order[..], &[control::SET_PARAMS, control::START]].concat();
    assert_eq!(driver.log(), order);
    let info = driver.info(0).expect("it is there");
    assert_eq!(
        (info.queues, info.state, info.server),
        (2, state::LIVE, own())
    );
    assert_eq!(daemon.spread.connections(), [1, 1], "a queue each");
    let data = vec![7; 4096];
    for (queue, tag) in [(0, 0), (0, 127), (1, 5)] {
        let at = u64::from(tag) * 8;
        for _ in 0..3 {
            assert_eq!(driver.call(0, queue, tag, write(at), &data).0, 4096);
        }
        let (read, found) = driver.call(0, queue, tag, request(op::READ, 0, at, 8), &[]);
        assert_eq!((read, found), (4096, data.clone()));
    }
    media.log();
    let fua = [
        (request(op::WRITE, FUA, 8, 8), Op::Write { fua: true }, 4096),
        (flush(), Op::Flush, 0),
        (request(op::DISCARD, 0, 8, 16), Op::Discard, 8192),
        (
            request(op::WRITE_ZEROES, NOUNMAP, 8, 8),
            Op::WriteZeroes {
                fua: false,
                unmap: false,
            },
            4096,
        ),
        (
            request(op::WRITE_ZEROES, FUA, 8, 8),
            Op::WriteZeroes {
                fua: true,
                unmap: true,
            },
            4096,
        ),
    ];
    for (asked, becomes, len) in fua {
        let (result, _) = driver.call(0, 1, 9, asked, &data);
        assert_eq!(result, if asked.op == op::WRITE { 4096 } else { 0 });
        let at = if asked.op == op::FLUSH { 0 } else { 4096 };
        assert_eq!(media.log(), [(becomes, at, len)]);
    }
    assert_eq!(device.detach().expect("it goes"), Left::Removed);
    assert_eq!(driver.info(0), None);
    places_are_given_back(&daemon);
    daemon.die();
}

#[test]
fn an_invalid_or_failed_request_fails_alone() {
    let (driver, media) = (Fake::new(), Media::new());
    let daemon = Daemon::start(&media, false);
    let device = daemon.attach(&driver, None).expect("made");
    let data = vec![7; 4096];
    let result = |asked| driver.call(0, 0, 0, asked, &data).0;
    assert_eq!(result(request(15, 0, 0, 8)), -libc::EOPNOTSUPP);
    assert_eq!(result(request(op::READ, 0, 0, 0)), -libc::EIO);
    assert_eq!(result(request(op::READ, 0, u64::MAX, 8)), -libc::EIO);
    assert_eq!(result(request(op::READ, 0, 0, u32::MAX)), -libc::EIO);
    assert_eq!(
        result(request(op::READ, 0, SIZE_BYTES / 512, 8)),
        -libc::EIO
    );
    assert_eq!(
        result(request(op::DISCARD, 0, u64::MAX / 512, u32::MAX)),
        -libc::EIO
    );
    for (kind, errno) in [
        (ErrorKind::NoSpace, libc::ENOSPC),
        (ErrorKind::TimedOut, libc::ETIMEDOUT),
        // The block layer would retry these.
        (ErrorKind::Busy, libc::EIO),
        (ErrorKind::Lost, libc::EIO),
    ] {
        *media.fails.lock().expect("whole") = Some(kind);
        assert_eq!(result(write(0)), -errno);
        assert_eq!(result(flush()), -errno);
    }
    *media.fails.lock().expect("whole") = None;
    assert_eq!(result(write(0)), 4096, "the tag goes on");
    device.detach().expect("it goes");
    daemon.die();
}

#[test]
fn the_device_reports_the_volumes_properties() {
    let (driver, media) = (Fake::new(), Media::new());
    media.set(|info| (info.logical_block_bytes, info.physical_block_bytes) = (512, 4096));
    let daemon = Daemon::start(&media, false);
    let device = daemon.attach(&driver, None).expect("made");
    let reported = params(&driver);
    assert_eq!(
        reported.attributes,
        attribute::VOLATILE_CACHE | attribute::FUA
    );
    assert_eq!((reported.logical_shift, reported.physical_shift), (9, 12));
    assert_eq!(
        (reported.sectors, reported.discard_unit_bytes),
        (SIZE_BYTES / 512, 512)
    );
    assert_eq!(
        reported.max_sectors * 512,
        driver.info(0).expect("there").max_bytes
    );
    assert!(reported.max_discard_sectors > 0 && reported.max_zeroes_sectors > 0);
    device.detach().expect("it goes");
    daemon.die();
    media.set(|info| (info.volatile_cache, info.discard) = (false, false));
    let daemon = Daemon::start(&media, true);
    let device = daemon.attach(&driver, None).expect("made");
    let reported = params(&driver);
    assert_eq!(reported.attributes, attribute::READ_ONLY);
    assert_eq!(reported.max_discard_sectors, 0);
    assert_eq!(driver.call(0, 0, 0, write(0), &[1; 4096]).0, -libc::EIO);
    device.detach().expect("it goes");
    daemon.die();
}

#[test]
fn a_device_in_use_outlives_its_server_and_its_requests_are_repeated() {
    let (driver, media) = (Fake::new(), Media::new());
    let first = Daemon::start(&media, false);
    let device = first.attach(&driver, None).expect("made");
    let (old, new) = (vec![1; 4096], vec![2; 4096]);
    assert_eq!(driver.call(0, 0, 3, write(0), &old).0, 4096);
    media.held.store(true, Ordering::Release);
    driver.ask(0, 0, 3, write(0), &new);
    driver.ask(0, 1, 4, write(8), &new);
    let soon = Duration::from_millis(50);
    assert_eq!(driver.answer_within(0, 0, 3, soon), None);
    drop(device);
    first.die();
    driver.after_death(0);
    media.held.store(false, Ordering::Release);
    let second = Daemon::start(&media, false);
    driver.log();
    let device = second.attach(&driver, None).expect("taken over");
    let order = [
        control::GET_FEATURES,
        control::GET_INFO,
        control::GET_PARAMS,
    ];
    let order = [
        &order[..],
        &[control::START_RECOVERY, control::END_RECOVERY],
    ]
    .concat();
    assert_eq!(driver.log(), order);
    // Each succeeds the second time.
    assert_eq!(driver.answer(0, 0, 3).0, 4096);
    assert_eq!(driver.answer(0, 1, 4).0, 4096);
    let (read, found) = driver.call(0, 1, 0, request(op::READ, 0, 0, 8), &[]);
    assert_eq!((read, found), (4096, new));
    driver.mount(0, true);
    assert!(device.in_use().expect("it is there"));
    assert_eq!(device.detach().expect("it waits"), Left::Waiting);
    assert_eq!(
        driver.call(0, 0, 0, write(0), &old).0,
        4096,
        "until the end"
    );
    second.close_volume();
    driver.ask(0, 0, 0, write(16), &old);
    driver.ask(0, 1, 0, flush(), &[]);
    let late = driver.answer_within(0, 0, 0, soon);
    assert_eq!(late, None, "no error comes to a file system");
    second.die();
    driver.after_death(0);
    let third = Daemon::start(&media, false);
    let device = third.attach(&driver, None).expect("taken over");
    assert_eq!(driver.answer(0, 0, 0).0, 4096);
    assert_eq!(driver.answer(0, 1, 0).0, 0);
    driver.mount(0, false);
    assert_eq!(device.detach().expect("it goes"), Left::Removed);
    third.die();
}

#[test]
fn a_device_is_not_taken_over_by_an_unsuitable_volume() {
    let (driver, media) = (Fake::new(), Media::new());
    let first = Daemon::start(&media, false);
    drop(first.attach(&driver, None).expect("made"));
    first.die();
    driver.after_death(0);
    let made = driver.params(0);
    let try_it = |read_only, gap, says: &str| {
        let daemon = Daemon::start(&media, read_only);
        let (kind, report) = refused(daemon.attach(&driver, gap));
        assert_eq!(kind, ErrorKind::InvalidInput, "{report}");
        assert!(
            report.contains(says) && report.contains("remove-ublk 0"),
            "{report}"
        );
        daemon.die();
        let log = driver.log();
        assert!(!log.contains(&control::START_RECOVERY), "nothing is begun");
        assert!(!log.contains(&control::DELETE), "its users wait");
    };
    try_it(false, Some("served without its cache"), "without its cache");
    try_it(true, None, "is read-only");
    let unfit = Daemon::start(&media, false);
    let (sender, receiver) = mpsc::channel();
    unfit.engine.call(move || {
        fake::UNFIT.set(true);
        sender.send(()).expect("the test waits");
    });
    receiver.recv().expect("done");
    let (kind, _) = refused(unfit.attach(&driver, None));
    assert_eq!(kind, ErrorKind::Unsupported);
    assert!(!driver.log().contains(&control::START_RECOVERY));
    unfit.die();
    let change = |change: fn(&mut Params)| {
        let mut params = Params::decode(made).expect("all parts");
        change(&mut params);
        driver.set_params(0, params.encode());
    };
    change(|params| params.sectors += 1);
    try_it(false, None, "bytes");
    change(|params| params.attributes = 0);
    try_it(false, None, "volatile cache");
    change(|params| params.sectors -= 8);
    media.set(|info| info.logical_block_bytes = 4096);
    media.set(|info| info.physical_block_bytes = 4096);
    try_it(false, None, "blocks");
    media.set(|info| info.logical_block_bytes = 512);
    media.set(|info| info.persistence = Persistence::Process);
    try_it(false, None, "end with the process");
    media.set(|info| info.persistence = Persistence::Machine);
    // A volume that has grown keeps the old size.
    let daemon = Daemon::start(&media, false);
    let device = daemon.attach(&driver, None).expect("taken over");
    assert_eq!(params(&driver).sectors, SIZE_BYTES / 512 - 8);
    device.detach().expect("it goes");
    daemon.die();
}

#[test]
fn a_volume_that_ends_with_the_process_does_not_wait_for_the_next() {
    let (driver, media) = (Fake::new(), Media::new());
    media.set(|info| info.persistence = Persistence::Process);
    let first = Daemon::start(&media, false);
    let device = first.attach(&driver, None).expect("made");
    let info = driver.info(0).expect("it is there");
    let recovery = feature::USER_RECOVERY | feature::USER_RECOVERY_REISSUE;
    assert_eq!(info.features & recovery, 0);
    drop(device);
    first.die();
    driver.after_death(0);
    driver.log();
    let second = Daemon::start(&media, false);
    let device = second.attach(&driver, None).expect("recreated");
    let log = driver.log();
    assert!(
        log.contains(&control::DELETE) && log.contains(&control::ADD),
        "{log:x?}"
    );
    second.close_volume();
    assert_eq!(driver.call(0, 0, 0, write(0), &[1; 4096]).0, -libc::EIO);
    // In use or not: its data would be gone.
    driver.mount(0, true);
    driver.keep_open(0);
    let error = device.detach().expect_err("somebody has it");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.report().contains("unmount it"), "{}", error.report());
    assert_eq!(driver.info(0).map(|info| info.state), Some(state::DEAD));
    second.die();
}

#[test]
fn a_number_that_others_have_is_left_alone() {
    let (driver, media) = (Fake::new(), Media::new());
    let daemon = Daemon::start(&media, false);
    let other = Export::new(daemon.volume.clone(), b"elsewhere", None);
    let strange = Export::info(&other, 0, 1);
    for (state, running, says) in [
        (state::LIVE, true, "process 77"),
        (state::QUIESCED, false, "remove-ublk 0"),
        (state::DEAD, false, "remove-ublk 0"),
    ] {
        let server = 77;
        driver.strange(forebay_wire::ublk::Info {
            state,
            server,
            ..strange
        });
        if !running {
            driver.bury(server);
        }
        let (kind, report) = refused(daemon.attach(&driver, None));
        assert_eq!(kind, ErrorKind::Busy, "{report}");
        assert!(report.contains(says), "{report}");
        assert!(!driver.log().contains(&control::DELETE));
    }
    let removed = handshake::remove(&driver, 0);
    removed.expect("nobody serves it");
    let second = handshake::remove(&driver, 0).expect_err("it is gone");
    assert_eq!(second.kind(), ErrorKind::NotFound);
    let device = daemon.attach(&driver, None).expect("made");
    let live = handshake::remove(&driver, 0).expect_err("it is served");
    assert_eq!(live.kind(), ErrorKind::Busy);
    let second = Daemon::start(&media, false);
    let (kind, report) = refused(second.attach(&driver, None));
    assert_eq!(kind, ErrorKind::Busy, "{report}");
    assert!(report.contains("stop that process first"), "{report}");
    device.detach().expect("it goes");
    second.die();
    daemon.die();
}

#[test]
fn a_refusal_of_the_driver_is_reported_and_leaves_no_device() {
    let media = Media::new();
    let daemon = Daemon::start(&media, false);
    for (number, result, kind) in [
        (control::GET_FEATURES, -libc::EPERM, ErrorKind::Permission),
        (
            control::GET_FEATURES,
            -libc::EOPNOTSUPP,
            ErrorKind::Unsupported,
        ),
        (control::GET_INFO, -libc::EPERM, ErrorKind::Permission),
        (control::ADD, -libc::EEXIST, ErrorKind::Busy),
        (control::SET_PARAMS, -libc::EINVAL, ErrorKind::InvalidInput),
        (control::START, -libc::ENOMEM, ErrorKind::Io),
    ] {
        let driver = Fake::new();
        driver.refuse(number, result);
        let (found, report) = refused(daemon.attach(&driver, None));
        assert_eq!(found, kind, "{report}");
        assert_eq!(driver.info(0), None, "{number:#x}");
        places_are_given_back(&daemon);
    }
    daemon.die();
}

#[test]
fn a_queue_whose_command_is_refused_ends_the_start() {
    let (driver, media) = (Fake::new(), Media::new());
    let daemon = Daemon::start(&media, false);
    driver.refuse_io(-libc::EINVAL);
    let (kind, report) = refused(daemon.attach(&driver, None));
    assert_eq!(
        (kind, driver.refusals()),
        (ErrorKind::InvalidInput, 1),
        "{report}"
    );
    assert_eq!(driver.info(0), None, "it is removed");
    daemon.die();
}

#[test]
fn a_stop_waits_for_requests_in_flight_but_not_for_ever() {
    let (driver, media) = (Fake::new(), Media::new());
    let daemon = Daemon::start(&media, false);
    let device = daemon.attach(&driver, None).expect("made");
    media.held.store(true, Ordering::Release);
    driver.ask(0, 0, 0, write(0), &[1; 4096]);
    let error = device.detach().expect_err("the request does not end");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    daemon.die();
    driver.after_death(0);
    // A request that ends while the device is being stopped.
    let (driver, media) = (Fake::new(), Media::new());
    let daemon = Daemon::start(&media, false);
    let device = daemon.attach(&driver, None).expect("made");
    driver.ask(0, 1, 1, write(0), &[1; 4096]);
    assert_eq!(device.detach().expect("it goes"), Left::Removed);
    assert_eq!(media.log().len(), 1, "the write was done");
    daemon.die();
}

#[test]
fn a_device_whose_server_has_just_died_is_waited_for() {
    let (driver, media) = (Fake::new(), Media::new());
    let first = Daemon::start(&media, false);
    drop(first.attach(&driver, None).expect("made"));
    first.die();
    // The kernel has not detected it yet.
    driver.bury(own());
    let second = Daemon::start(&media, false);
    let (kind, report) = refused(second.attach(&driver, None));
    assert_eq!(kind, ErrorKind::Busy, "{report}");
    assert!(report.contains("has ended"), "{report}");
    driver.log();
    let sees = driver.clone();
    let kernel = std::thread::spawn(move || {
        // Not before the next daemon has polled more than once.
        let mut looks = 0;
        while looks < 3 {
            let log = sees.log();
            looks += log.iter().filter(|it| **it == control::GET_INFO).count();
            std::thread::sleep(Duration::from_millis(1));
        }
        sees.after_death(0);
    });
    let patience = handshake::Patience {
        running: Duration::ZERO,
        dead: Duration::from_secs(30),
    };
    let device = second.attach_within(&driver, 0, None, patience);
    let device = device.expect("taken over");
    kernel.join().expect("it saw it");
    assert_eq!(driver.call(0, 0, 0, write(0), &[1; 4096]).0, 4096);
    device.detach().expect("it goes");
    second.die();
}

#[test]
fn commands_that_wait_are_given_up_with_their_reactor() {
    let (driver, media) = (Fake::new(), Media::new());
    let daemon = Daemon::start(&media, false);
    let device = daemon.attach(&driver, None).expect("made");
    assert_eq!(io::RESULT_ABORT, -libc::ENODEV);
    driver.ask(0, 0, 0, request(op::READ, 0, 0, 8), &[]);
    daemon.die();
    driver.after_death(0);
    drop(device);
}
