use std::ops::Range;

use super::*;
use forebay_block::{Completion, DeviceInfo, Extents, ExtentsFuture};
use forebay_device::emulate::{EmulateDevice, Profile};
use forebay_device::mem::MemDevice;
use forebay_io::rt;
use forebay_io::sync::WaitList;

const SIZE: u64 = 16 << 10;

fn random(state: &mut u64, below: u64) -> u64 {
    // Knuth's MMIX generator, of which the high bits are random enough.
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) % below
}

#[test]
fn any_range_reads_back_as_written() {
    rt::block_on_simulated(1, async {
        let file = ByteFile::new(MemDevice::new("m", SIZE));
        let mut model = vec![0u8; SIZE as usize];
        let mut state = 42;
        for round in 0..4000u32 {
            let offset = random(&mut state, SIZE);
            let len = random(&mut state, 3000) + 1;
            let fits = len.min(SIZE - offset);
            let range = offset as usize..(offset + fits) as usize;
            match random(&mut state, 4) {
                0 => {
                    file.write_zeroes(offset, len, true).await.expect("zeroed");
                    model[range].fill(0);
                }
                1 => {
                    let data = vec![round as u8; len as usize];
                    let written = file.write(offset, Buf::copied(&data), false).await;
                    assert_eq!(written.expect("written"), fits);
                    model[range].fill(round as u8);
                }
                _ => {
                    let read = file.read(offset, len).await.expect("read");
                    assert_eq!(
                        read.expect("within").to_vec(),
                        model[range],
                        "round {round}"
                    );
                }
            }
        }
    });
}

#[test]
fn the_end_is_the_end() {
    rt::block_on_simulated(1, async {
        let file = ByteFile::new(MemDevice::new("m", SIZE));
        assert!(file.read(SIZE, 1).await.expect("no error").is_none());
        assert!(file.read(u64::MAX, 1).await.expect("no error").is_none());
        let error = file.write(SIZE, Buf::zeroed(1), false).await;
        assert_eq!(error.expect_err("full").kind(), ErrorKind::NoSpace);
        file.write_zeroes(SIZE - 1, u64::MAX, true)
            .await
            .expect("cut at the end");
        file.write_zeroes(SIZE + 5, 7, true)
            .await
            .expect("nothing to do");
    });
}

/// Writes to different bytes of one block never overwrite each other, in any order.
#[test]
fn neighbours_in_one_block_do_not_undo_each_other() {
    for seed in 0..50 {
        rt::block_on_simulated(seed, async move {
            let slow = Profile {
                read_latency_us: 30,
                write_latency_us: 50,
                ..Profile::default()
            };
            let device = EmulateDevice::wrap(MemDevice::new("m", SIZE), slow);
            let file = Rc::new(ByteFile::new(device));
            let (left, finished) = (Rc::new(Cell::new(0)), Rc::new(WaitList::new()));
            // 128 writes of 24 bytes from byte 1024 on, and whole blocks before and after.
            let pieces = (0..128)
                .map(|index| (1024 + index * 24, 24))
                .chain([(0, 1024), (4096, 512)]);
            for (offset, len) in pieces {
                let (file, left, finished) =
                    (Rc::clone(&file), Rc::clone(&left), Rc::clone(&finished));
                left.set(left.get() + 1);
                rt::spawn(async move {
                    let data = Buf::scratch(len);
                    data.fill(offset as u8 | 1);
                    file.write(offset, data, false).await.expect("written");
                    left.set(left.get() - 1);
                    finished.wake_all();
                });
            }
            finished.until(|| left.get() == 0).await;
            let read = file.read(0, 4608).await.expect("read").expect("within");
            for (index, byte) in read.to_vec().into_iter().enumerate() {
                let piece = match index {
                    0..1024 => 0,
                    4096.. => 4096,
                    _ => 1024 + (index - 1024) / 24 * 24,
                };
                assert_eq!(byte, piece as u8 | 1, "byte {index}, seed {seed}");
            }
        });
    }
}

/// A whole-block write that completes during a partial write of the block stays, except in that
/// part.
#[test]
fn a_partial_write_never_reverts_a_block() {
    for seed in 0..50 {
        rt::block_on_simulated(seed, async move {
            let slow = Profile {
                read_latency_us: 10,
                write_latency_us: 40,
                ..Profile::default()
            };
            let device = EmulateDevice::wrap(MemDevice::new("m", SIZE), slow);
            let file = Rc::new(ByteFile::new(device));
            let other = Rc::clone(&file);
            let (done, finished) = (Rc::new(Cell::new(false)), Rc::new(WaitList::new()));
            let (set, wake) = (Rc::clone(&done), Rc::clone(&finished));
            rt::spawn(async move {
                other
                    .write(100, Buf::copied(b"part"), false)
                    .await
                    .expect("written");
                set.set(true);
                wake.wake_all();
            });
            rt::sleep(std::time::Duration::from_micros(seed)).await;
            let whole = Buf::scratch(512);
            whole.fill(7);
            file.write(0, whole, false).await.expect("written");
            finished.until(|| done.get()).await;
            let read = file
                .read(0, 512)
                .await
                .expect("read")
                .expect("within")
                .to_vec();
            let others = read[..100].iter().chain(&read[104..]);
            assert!(others.clone().all(|&byte| byte == 7), "seed {seed}");
        });
    }
}

/// Allocation in an endless alternation, block by block or not at all.
struct Striped {
    data: fn(u64) -> bool,
    answers: Cell<u32>,
}

impl BlockDevice for Striped {
    fn info(&self) -> DeviceInfo {
        DeviceInfo::new("s", 1 << 30)
    }

    fn submit(&self, _: Request, done: Completion) {
        done.complete(Ok(()));
    }

    fn extents(&self, range: Range<u64>) -> ExtentsFuture<'_> {
        self.answers.set(self.answers.get() + 1);
        let mut found = Extents::default();
        // Short answers of 1 MiB.
        for at in (range.start..range.end.min(range.start + (1 << 20))).step_by(512) {
            let allocation = match (self.data)(at / 512) {
                true => Allocation::Data,
                false => Allocation::Zero,
            };
            found.push(at..at + 512, allocation);
        }
        Box::pin(std::future::ready(Ok(found)))
    }
}

#[test]
fn a_seek_finds_data_and_holes_from_any_byte() {
    rt::block_on_simulated(1, async {
        let seek = async |data: fn(u64) -> bool, at: u64, aim: Seek| {
            let answers = Cell::new(0);
            let device = Rc::new(Striped { data, answers });
            let file = ByteFile::new(device.clone());
            let found = file.seek(at, aim).await.expect("no error");
            assert!(device.answers.get() <= SEEK_ANSWERS);
            found
        };
        let third = |block: u64| block % 3 == 2;
        for (at, data, hole) in [
            (0, 1024, 0),
            (513, 1024, 513),
            (1024, 1024, 1536),
            (1025, 1025, 1536),
            (1536, 2560, 1536),
        ] {
            assert_eq!(seek(third, at, Seek::Data).await, Some(data), "{at}");
            assert_eq!(seek(third, at, Seek::Hole).await, Some(hole), "{at}");
        }
        let end = 1 << 30;
        for aim in [Seek::Data, Seek::Hole] {
            assert_eq!(seek(third, end, aim).await, None);
            assert_eq!(seek(third, u64::MAX, aim).await, None);
        }
        // The last block, after many answers.
        let last = |block: u64| block == (1 << 21) - 1;
        assert_eq!(
            seek(last, end - (2 << 20), Seek::Data).await,
            Some(end - 512)
        );
        assert_eq!(seek(|_| false, end - 4096, Seek::Data).await, None);
        assert_eq!(seek(|_| true, end - 4096, Seek::Hole).await, Some(end));
        // A search that takes too long ends with data.
        assert_eq!(seek(last, 0, Seek::Data).await, Some(64 << 20));
        assert_eq!(seek(|_| true, 0, Seek::Hole).await, Some(end));
    });
}
