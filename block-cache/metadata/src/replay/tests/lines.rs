//! A log in lines: the remains of a torn record never become part of another one.

use super::*;

/// All pieces of 8 bytes of a line, and the one with the record's number.
const ALL: u8 = 0xff;
const NUMBER: u8 = 1 << 1;

const LINES: LogGeometry = LogGeometry {
    offset: 0,
    records: 32,
    unit_bytes: 64,
};

fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("the device completes at once"),
    }
}

fn seed() -> Seed {
    Seed::new(&[1; 16])
}

/// Stores a batch, of each line of which these pieces arrive.
fn store(device: &Bytes, log: &mut Log, bodies: &[Body], pieces: u8) {
    bodies.iter().for_each(|body| _ = log.push(body));
    for extent in log.seal() {
        let at = usize::try_from(extent.offset).expect("small");
        let bytes = extent.buf.to_vec();
        let mut there = device.0.borrow_mut();
        for (nth, piece) in bytes.chunks(8).enumerate() {
            if pieces >> (nth % 8) & 1 == 1 {
                there[at + nth * 8..at + nth * 8 + 8].copy_from_slice(piece);
            }
        }
    }
    log.committed();
}

/// Returns the findings of the next process, which completes torn batches.
fn reopened(device: &Bytes) -> (Log, Vec<BlockRecord>) {
    let mut blocks = Vec::new();
    let tell = |found: &[FoundBlock]| blocks.extend(found.iter().map(|found| found.block));
    let replayed = now(replay(
        device,
        LINES,
        seed(),
        16,
        Elsewhere::default(),
        tell,
    ))
    .expect("readable");
    now(rewrite_last_batch(device, LINES, seed(), &replayed)).expect("it takes writes");
    (
        Log::new(LINES, seed(), replayed.tail, replayed.next),
        blocks,
    )
}

#[test]
fn pieces_of_two_torn_batches_make_no_record() {
    let device = Bytes(RefCell::new(vec![0; 32 * RECORD_BYTES]));
    let mut log = Log::new(LINES, seed(), 0, 0);
    let open = Body::Open {
        boot_id: [1; 16],
        journal: false,
    };
    store(&device, &mut log, &[open], ALL);
    // Of two records all arrives but their numbers.
    let lost = [Body::Block(block(3, 30)), Body::Block(block(4, 40))];
    store(&device, &mut log, &lost, ALL & !NUMBER);
    let (mut log, blocks) = reopened(&device);
    assert!(blocks.is_empty(), "{blocks:?}");
    // The next process gives place 4 to another block. Of the record behind that, only the number
    // arrives, which is that of the lost one.
    store(&device, &mut log, &[Body::Block(block(4, 99))], ALL);
    store(&device, &mut log, &[Body::Block(block(7, 70))], NUMBER);
    let (_, blocks) = reopened(&device);
    assert_eq!(blocks, [block(4, 99)]);
}

#[test]
fn lines_that_cannot_have_been_torn_are_left_alone() {
    let device = Bytes(RefCell::new(vec![0; 32 * RECORD_BYTES]));
    let mut log = Log::new(LINES, seed(), 0, 0);
    // More than a lap, one record a batch, of which the last four count.
    for nth in 0..40 {
        while log.used() > 4 {
            log.drop_oldest();
        }
        store(
            &device,
            &mut log,
            &[Body::Block(block(nth % 16, u64::from(nth)))],
            ALL,
        );
    }
    let before = device.0.borrow().clone();
    reopened(&device);
    assert!(
        before == *device.0.borrow(),
        "whole records of the lap before"
    );
}
