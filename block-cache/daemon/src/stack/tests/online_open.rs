//! A stack that is served while its cache, whose metadata is slow, is being opened.

use super::*;

const ZONE: u64 = 1 << 20;

fn slow(text: &str) -> String {
    let map = r#"{ name = "map", kind = "file", path = "map" },"#;
    let slow = r#"{ name = "raw", kind = "file", path = "map" },
    { name = "map", kind = "emulate", on = "raw", read_latency = "300ms" },"#;
    text.replace(map, slow)
}

async fn make(base: &Path, uuid: [u8; 16]) {
    file(&base.join("disk"), 16 << 20);
    let devices = forebay_cache::Devices {
        data: file(&base.join("cache"), 32 << 20),
        metadata: Some(file(&base.join("map"), 8 << 20)),
    };
    let options = FormatOptions {
        zone_shift: ZONE.ilog2() as u8,
        ..FormatOptions::new(16 << 10, uuid)
    };
    (forebay_cache::format(&devices, &options).await).expect("formatted");
}

async fn byte_at(db: &Rc<dyn BlockDevice>, offset: u64) -> u8 {
    let buf = Buf::zeroed(4096);
    db.read(offset, buf.clone()).await.expect("read");
    buf.to_vec()[0]
}

#[test]
fn clean_reads_come_before_the_cache_is_open() {
    let scratch = Scratch::new("early");
    let (quick, slow) = (scratch.config(FILES), scratch.config(&slow(FILES)));
    let base = scratch.0.clone();
    on_reactor(|| async move {
        make(&base, [15; 16]).await;
        let stack = (Stack::open(&quick, &Wishes::default()).await).expect("opens");
        let db = stack.volume("db").expect("there").open();
        for (offset, byte) in [(ZONE, 1), (0, 2)] {
            let written = db.write(offset, Buf::copied(&[byte; 4096])).await;
            written.expect("written");
            if offset == ZONE {
                (stack.write_back(None).await).expect("written back");
                // Longer than clean zones are held.
                rt::sleep(Duration::from_secs(8)).await;
            }
        }
        // Dropped, as if the process had died.
    });
    on_reactor(|| async move {
        let stack = (Stack::open(&slow, &Wishes::default()).await).expect("opens");
        let db = stack.volume("db").expect("there").open();
        let cache = stack.status().cache.expect("there is one");
        assert!(cache.opening.is_some(), "{cache:?}");
        let epoch = stack.status().volumes[0].epoch;
        assert_eq!(byte_at(&db, ZONE).await, 1);
        assert!(
            stack
                .status()
                .cache
                .expect("there is one")
                .opening
                .is_some(),
            "it did not wait"
        );
        let busy = stack.set_cleaning("nop").expect_err("it is being opened");
        assert_eq!(busy.kind(), ErrorKind::Busy);
        assert_eq!(byte_at(&db, 0).await, 2, "that waits, and is dirty");
        stack.ready().await.expect("opened");
        let status = stack.status();
        assert_eq!(status.volumes[0].epoch, epoch, "it was told before");
        let cache = status.cache.expect("there is one");
        assert_eq!(cache.opening, None);
        let written = db.write(ZONE, Buf::copied(&[3; 4096])).await;
        written.expect("written");
        assert_eq!(byte_at(&db, ZONE).await, 3);
        stack.close().await.expect("closes");
    });
}

#[test]
fn a_cache_that_does_not_open_is_an_error_of_all_that_waits() {
    let scratch = Scratch::new("early-fails");
    let (quick, slow) = (scratch.config(FILES), scratch.config(&slow(FILES)));
    let base = scratch.0.clone();
    let journal = scratch.0.join("journal");
    on_reactor(|| async move {
        make(&base, [16; 16]).await;
        let stack = (Stack::open(&quick, &Wishes::default()).await).expect("opens");
        let db = stack.volume("db").expect("there").open();
        let written = db.write(0, Buf::copied(&[2; 4096])).await;
        written.expect("written");
        // Dropped, as if the process had died.
    });
    // The journal alone has the last acknowledged write.
    let mut bytes = std::fs::read(&journal).expect("there");
    bytes[4096..].fill(0);
    std::fs::write(&journal, bytes).expect("written");
    on_reactor(|| async move {
        let stack = (Stack::open(&slow, &Wishes::default()).await).expect("begins to");
        let db = stack.volume("db").expect("there").open();
        assert_eq!(byte_at(&db, 2 * ZONE).await, 0, "nothing was written there");
        let refused = db.read(0, Buf::zeroed(4096)).await.expect_err("lost");
        assert_eq!(refused.kind(), ErrorKind::Lost);
        let refused = stack.ready().await.expect_err("lost");
        let report = refused.report();
        assert!(report.contains("cannot be opened"), "{report}");
        assert!(report.contains("--accept-journal-loss"), "{report}");
        stack.close().await.expect_err("it tells again");
    });
}

#[test]
fn an_attach_that_hangs_holds_up_no_other_and_hides_no_refusal() {
    on_reactor(|| async {
        let [hangs, attached, refused] = [Promise::new(), Promise::new(), Promise::new()];
        attached.set(Ok(()));
        let named = |name: &str, attach: &Promise<Result<()>>| (name.to_owned(), attach.clone());
        let two = [named("db", &hangs), named("logs", &attached)];
        assert_eq!(await_attaches(&two).await.expect("in time"), ["db"]);
        refused.set(Err(Error::new(ErrorKind::InvalidInput, "it differs")));
        let two = [named("db", &hangs), named("logs", &refused)];
        let error = rt::at_most(Duration::from_secs(1), await_attaches(&two)).await;
        let error = error.expect("at once").expect_err("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    });
}
