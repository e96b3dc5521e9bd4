//! A rewrite of the log of a large cache.

use super::*;
use crate::commit::rewrite::STEP_RECORDS;

/// Written blocks: more than two steps of a rewrite stay cached.
const BLOCKS: u64 = 3 * STEP_RECORDS as u64 + 100;

/// A device that notes how many records wait at each write.
struct Queue {
    file: TestFile,
    cache: Rc<RefCell<Option<Cache>>>,
    longest: Rc<Cell<usize>>,
    writes: Rc<Cell<usize>>,
}

impl BlockDevice for Queue {
    fn info(&self) -> DeviceInfo {
        self.file.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        if let Some(cache) = &*self.cache.borrow()
            && matches!(request.op, Op::Write { .. })
        {
            let waiting = cache.engine.committer.urgent_records();
            self.longest.set(self.longest.get().max(waiting));
            self.writes.set(self.writes.get() + 1);
        }
        self.file.submit(request, done);
    }

    fn holes(&self, range: Range<u64>) -> Option<Vec<Range<u64>>> {
        self.file.holes(range)
    }

    fn allocated_bytes(&self) -> Option<u64> {
        self.file.allocated_bytes()
    }
}

/// The queue stays short, other tasks run during the rewrite, and the next start finds all blocks.
#[test]
fn a_rewrite_of_many_records_queues_a_bounded_number_at_a_time() {
    run(&World::new(1), async |_| {
        let bytes = (BLOCKS as usize + 2000) * 4096;
        let mut files = Files::formatted(DirtyTracking::Exact, false).await;
        files.data = TestFile::new(1, bytes);
        files.metadata = Some(TestFile::new(2, 16 << 20));
        files.backing = TestFile::new(100, bytes);
        files.journal = Buf::zeroed(4 << 20);
        let options = FormatOptions::sizes(&[4096], UUID);
        format(&files.devices(), &options).await.expect("formats");
        let (known, longest, writes) = (Rc::default(), Rc::default(), Rc::default());
        let metadata = Queue {
            file: files.holder().clone(),
            cache: Rc::clone(&known),
            longest: Rc::clone(&longest),
            writes: Rc::clone(&writes),
        };
        let devices = Devices {
            metadata: Some(Rc::new(metadata)),
            ..files.devices()
        };
        let (cache, _) = open_on(devices, &files.journal).await.expect("opens");
        let options = VolumeOptions::new(Mode::WriteBack);
        let volume = cache.attach("v", files.backing.device(), options).await;
        let volume = volume.expect("attaches");
        for block in 0..BLOCKS {
            let data = Buf::copied(&[7; 4096]);
            volume.write(block * 4096, data).await.expect("writes");
        }
        volume.flush().await.expect("flushes");
        cache.look_for_cut().await;
        let log = cache.engine.superblock.current().log.offset;
        files.holder().cut(log);
        files.holder().lengthen(16 << 20);
        known.replace(Some(cache.clone()));
        cache.look_for_cut().await;
        known.take();
        assert!(writes.get() > 4, "the rewrite is seen: {}", writes.get());
        // A mark each for some regions, and the entries of the rewrite itself.
        let most = STEP_RECORDS + 16;
        assert!(longest.get() <= most, "{} records wait", longest.get());
        let stats = cache.stats();
        let live = (stats.cached_blocks, stats.dirty_blocks);
        assert!(live.0 > 2 * STEP_RECORDS as u64, "{live:?}");
        let left = files.dead();
        let (_cache, report) = left.open().await.expect("opens");
        assert_eq!((report.damaged_records, report.unreadable_units), (0, 0));
        assert_eq!((report.cached_blocks, report.dirty_blocks), live);
    });
}
