//! Targets that lose power, and so their unflushed changes.

use super::*;

fn block(byte: u8) -> Buf {
    Buf::copied(&[byte; 4096])
}

async fn read(device: &NvmeTcpDevice, block: u64) -> u8 {
    let into = Buf::zeroed(4096);
    let read = device.read(block * 4096, into.clone()).await;
    read.expect("read");
    into.to_vec()[4095]
}

/// Writes and ends without a flush, as a process that dies. The next device begins with command 2.
fn die_unflushed(target: &Target) {
    with_device(target, TIMES, |device| async move {
        let data = Buf::copied(&[7; 4096]);
        device.write(0, data).await.expect("written");
    });
}

#[test]
fn unflushed_changes_of_another_process_are_flushed_first() {
    let target = Target::start(|_, _| Act::Answer);
    die_unflushed(&target);
    with_device(&target, TIMES, |_| async {});
    target.lose_power();
    assert_eq!(target.byte(0), 7);
}

#[test]
fn a_failed_first_flush_fails_the_next_one() {
    let target = Target::start(|number, asked| match (number, asked) {
        (2, opcode::FLUSH) => Act::Fail(Status::WRITE_FAULT),
        _ => Act::Answer,
    });
    die_unflushed(&target);
    with_device(&target, TIMES, |device| async move {
        let error = device.flush().await.expect_err("something may be lost");
        assert!(
            error.report().contains("bytes 0..4194304"),
            "{}",
            error.report()
        );
        device.flush().await.expect("reported once");
    });
}

#[test]
fn unflushed_changes_are_resent_and_then_a_flush_succeeds() {
    // Power is lost at the seventh command.
    let target = Target::start(|number, _| match number {
        7 => Act::PowerLoss,
        _ => Act::Answer,
    });
    with_device(&target, TIMES, |device| async move {
        device.write(0, block(1)).await.expect("1");
        device.flush().await.expect("2");
        device.write(0, block(2)).await.expect("3");
        device.write(4096, block(3)).await.expect("4");
        device.write_fua(8192, block(4)).await.expect("5");
        device.write(4096, block(5)).await.expect("6");
        device.flush().await.expect("7, then after the writes");
        assert_eq!(device.losses(), 1);
        assert_eq!(read(&device, 0).await, 2);
        assert_eq!(read(&device, 1).await, 5);
        assert_eq!(read(&device, 2).await, 4);
    });
    // Block 1 has its newer data only, and the flush follows.
    let asked = target.asked();
    let (wrote, flush) = (opcode::WRITE, (opcode::FLUSH, 0));
    let mut resent = asked[7..9].to_vec();
    resent.sort_unstable();
    assert_eq!(resent, [(wrote, 0), (wrote, 4096)]);
    assert_eq!(asked[9], flush);
    // The data is durable now.
    target.lose_power();
    assert_eq!(target.byte(0), 2);
    assert_eq!(target.byte(4096), 5);
}

#[test]
fn no_newer_write_precedes_the_answer_to_a_resent_one() {
    let target = Target::start(|number, _| match number {
        2 => Act::PowerLoss,
        // Damaged in transfer: the host sends it once more.
        3 => Act::Fail(Status::TRANSIENT_TRANSPORT_ERROR),
        _ => Act::Answer,
    });
    with_device(&target, TIMES, |device| async move {
        device.write(0, block(1)).await.expect("1");
        // Lost with the target, and submitted before it is back.
        device.write(0, block(2)).await.expect("2 and 5");
        assert_eq!(read(&device, 0).await, 2);
        device.flush().await.expect("flushed");
    });
    let asked = target.asked();
    let writes = asked.iter().filter(|(op, _)| *op == opcode::WRITE);
    assert_eq!(writes.count(), 5);
    assert_eq!(target.byte(0), 2);
}

#[test]
fn a_change_that_fails_on_resend_is_reported_once_by_range() {
    let target = Target::start(|number, asked| match (number, asked) {
        (3, _) => Act::PowerLoss,
        (4 | 5, opcode::WRITE) => Act::Fail(Status::WRITE_FAULT),
        _ => Act::Answer,
    });
    with_device(&target, TIMES, |device| async move {
        device.write(8192, block(1)).await.expect("1");
        device.write(32_768, block(1)).await.expect("2");
        let error = device.flush().await.expect_err("both writes failed");
        assert_eq!(error.kind(), ErrorKind::Io);
        let report = error.report();
        assert!(
            report
                .contains("MAY BE LOST at bytes 8192..12288, 32768..36864 (I/O error)\n    help: "),
            "{report}"
        );
        device.flush().await.expect("it was reported");
    });
}

#[test]
fn a_loss_without_waiting_requests_fails_the_next_flush() {
    let target = Target::start(|number, asked| match (number, asked) {
        (2, _) => Act::PowerLoss,
        (3, opcode::WRITE) => Act::Fail(Status::WRITE_FAULT),
        _ => Act::Answer,
    });
    with_device(&target, TIMES, |device| async move {
        device.write(0, block(1)).await.expect("1");
        assert_eq!(read(&device, 0).await, 0, "2 and 4");
        assert_eq!(kind(device.flush().await), Some(ErrorKind::Io));
        device.flush().await.expect("it was reported");
    });
}

#[test]
fn a_change_that_ends_each_association_on_resend_is_given_up() {
    let target = Target::start(|number, asked| match (number, asked) {
        (2.., opcode::WRITE) => Act::PowerLoss,
        (2, _) => Act::PowerLoss,
        _ => Act::Answer,
    });
    let times = Times {
        keep_alive: Duration::from_millis(40),
        ..TIMES
    };
    with_device(&target, times, |device| async move {
        device.write(4096, block(1)).await.expect("1");
        let error = device.flush().await.expect_err("it was never answered");
        let report = error.report();
        assert!(report.contains("LOST at bytes 4096..8192 ("), "{report}");
        device.flush().await.expect("others are served");
        assert_eq!(device.losses(), 6);
    });
}

/// More changes than entries, of which all but one are durable: a loss affects none.
#[test]
fn durable_writes_behind_one_that_is_not_flushed_are_not_named_after_a_loss() {
    const FUA_WRITES: u32 = 16_500;
    let target = Target::start(|number, _| match number {
        number if number == FUA_WRITES + 3 => Act::PowerLoss,
        _ => Act::Answer,
    });
    with_device(&target, TIMES, |device| async move {
        device.write(0, block(1)).await.expect("1");
        for number in 0..u64::from(FUA_WRITES) {
            let at = (1 + number % 1000) * 4096;
            device.write_fua(at, block(2)).await.expect("durable");
        }
        device.write(4096, block(3)).await.expect("not flushed");
        device.flush().await.expect("nothing is gone");
        assert_eq!(device.losses(), 1);
        for (number, byte) in [(0, 1), (1, 3), (2, 2), (1000, 2)] {
            assert_eq!(read(&device, number).await, byte, "block {number}");
        }
    });
}
