//! Searches for holes in metadata, which may visit each extent of a large file.

use super::super::medium::PAGE;
use super::*;

/// A file that counts searches for holes.
struct Counted {
    file: TestFile,
    searches: Rc<Cell<usize>>,
}

impl BlockDevice for Counted {
    fn info(&self) -> DeviceInfo {
        self.file.info()
    }

    fn submit(&self, request: Request, done: Completion) {
        self.file.submit(request, done);
    }

    fn holes(&self, range: Range<u64>) -> Option<Vec<Range<u64>>> {
        self.searches.set(self.searches.get() + 1);
        self.file.holes(range)
    }

    fn allocated_bytes(&self) -> Option<u64> {
        self.file.allocated_bytes()
    }
}

/// A cache with metadata in a file of its own, or in one file with the data.
async fn counted(is_one: bool) -> (Files, Rc<Cell<usize>>, Cache, Rc<dyn BlockDevice>) {
    let files = Files::formatted(DirtyTracking::Exact, is_one).await;
    let searches = Rc::default();
    let counted: Rc<dyn BlockDevice> = Rc::new(Counted {
        file: files.holder().clone(),
        searches: Rc::clone(&searches),
    });
    let devices = match is_one {
        true => Devices {
            data: counted,
            metadata: None,
        },
        false => Devices {
            metadata: Some(counted),
            ..files.devices()
        },
    };
    let (cache, volume) = live(devices, &files).await;
    cache.look_for_cut().await;
    searches.set(0);
    (files, searches, cache, volume)
}

/// Makes a hole of four pages in the metadata.
fn dig(files: &Files, at: u64) {
    let (first, contents) = (at / PAGE, &files.holder().0);
    let bytes = first * PAGE..(first + 4) * PAGE;
    contents.bytes.borrow_mut()[bytes.start as usize..bytes.end as usize].fill(0);
    contents
        .written
        .borrow_mut()
        .retain(|page| !(first..first + 4).contains(page));
}

#[test]
fn looks_at_a_file_that_keeps_its_space_search_for_holes_once_a_minute() {
    run(&World::new(1), async |_| {
        for is_one in [false, true] {
            for is_busy in [false, true] {
                let (_files, searches, cache, volume) = counted(is_one).await;
                for second in 1..=600 {
                    if is_busy {
                        write(&volume, 0..8, second as u8).await;
                        volume.flush().await.expect("flushes");
                    }
                    cache.look_for_cut().await;
                }
                let found = searches.get();
                assert!((1..=10).contains(&found), "{is_one}, {is_busy}: {found}");
            }
        }
    });
}

/// Data of the same size fills other holes before the next look, or metadata is written again.
#[test]
fn a_cut_is_found_whatever_space_the_file_takes_afterwards() {
    for (name, refill, looks) in [
        ("less", 0_u64..0, 1),
        ("more", 250..256, 1),
        ("equal", 252..256, 60),
    ] {
        run(&World::new(1), async move |_| {
            let files = Files::formatted(DirtyTracking::Exact, false).await;
            let written = &files.holder().0.written;
            // A tool made holes behind what counts.
            written.borrow_mut().retain(|page| *page < 250);
            let (cache, _volume) = live(files.devices(), &files).await;
            cache.look_for_cut().await;
            dig(&files, cache.engine.superblock.current().log.offset);
            written.borrow_mut().extend(refill.clone());
            for _ in 0..looks {
                cache.look_for_cut().await;
            }
            assert!(files.dead().has(&VALUES).await, "{name}");
        });
    }
}

/// The end searches, even if the space is the same.
#[test]
fn a_cut_before_the_end_is_found_by_it_whatever_space_the_file_takes() {
    run(&World::new(1), async |_| {
        let files = Files::formatted(DirtyTracking::Exact, false).await;
        let written = &files.holder().0.written;
        written.borrow_mut().retain(|page| *page < 250);
        let (cache, _volume) = live(files.devices(), &files).await;
        cache.look_for_cut().await;
        dig(&files, cache.engine.superblock.current().log.offset);
        written.borrow_mut().extend(252..256);
        cache.close().await.expect("a clean end");
        assert!(files.has(&VALUES).await);
    });
}
