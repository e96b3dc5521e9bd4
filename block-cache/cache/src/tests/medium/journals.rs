//! Journals of earlier versions, and journals behind a clean end.

use super::*;

#[test]
fn a_journal_of_an_earlier_version_is_believed() {
    run(&World::new(1), async |_| {
        let file = formatted(1, 1 << 20).await;
        let journal = Buf::zeroed(1 << 16);
        drop(Journal::create(journal.clone(), &UUID, &BOOT).expect("made"));
        try_open(&file, &journal, false, false)
            .await
            .expect("opens");
    });
}

/// The newest records of the log are gone: that is damage, also behind a clean end, which needs no
/// journal.
#[test]
fn a_damaged_end_behind_a_clean_end_is_not_called_a_missing_journal() {
    for is_clean in [true, false] {
        run(&World::new(1), async move |_| {
            let backing = TestFile::new(100, 1 << 20);
            let file = formatted(1, 1 << 20).await;
            let journal = Buf::zeroed(1 << 16);
            let cache = live(&file, &journal, &backing, 7).await;
            match is_clean {
                true => cache.close().await.expect("closes"),
                false => cache.engine.committer.commit_all().await.expect("commits"),
            }
            let (file, left) = dead(&file, &journal);
            let superblock = Superblock::read(&file).await.expect("sound");
            let log = superblock.log.offset as usize;
            let records = log..log + superblock.log.records as usize * 64;
            {
                let mut bytes = file.0.bytes.borrow_mut();
                let lsn = |bytes: &[u8], at: usize| match bytes[at + 4] {
                    0 => 0,
                    _ => u64::from_le_bytes(bytes[at + 8..at + 16].try_into().expect("8 bytes")),
                };
                let newest = records.step_by(64).max_by_key(|at| lsn(&bytes, *at));
                let unit = newest.expect("some") / 4096 * 4096;
                bytes[unit..unit + 4096].fill(0xa5);
            }
            // The journal's state at a clean end is gone with its removal.
            let left = if is_clean { Buf::zeroed(1 << 16) } else { left };
            let found = inspect(&devices(&file), Some(&left), &BOOT)
                .await
                .expect("read");
            assert!(found.damaged_records > 0);
            assert!(found.journal_problem.is_none(), "{found:?}");
            let (_, report) = try_open(&file, &left, false, false).await.expect("opens");
            assert!(report.damaged_records > 0);
        });
    }
}
