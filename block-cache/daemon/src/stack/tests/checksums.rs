//! Checksums in the configuration.

use super::*;

#[test]
fn checksums_of_the_configuration_are_those_of_the_cache() {
    let scratch = Scratch::new("checksums");
    let with = |wanted: bool| {
        let more = format!("\"journal\", checksums = {wanted},");
        scratch.config(&FILES.replace("\"journal\",", &more))
    };
    let (right, wrong) = (with(true), with(false));
    let base = scratch.0.clone();
    on_reactor(|| async move {
        file(&base.join("disk"), 16 << 20);
        let devices = forebay_cache::Devices {
            data: file(&base.join("cache"), 32 << 20),
            metadata: Some(file(&base.join("map"), 8 << 20)),
        };
        let options = FormatOptions {
            checksums: true,
            ..FormatOptions::new(16 << 10, [14; 16])
        };
        (forebay_cache::format(&devices, &options).await).expect("formatted");
    });
    on_reactor(|| async move {
        let Err(error) = Stack::open(&wrong, &Wishes::default()).await else {
            panic!("a cache that has checksums is refused where none are expected");
        };
        let report = error.report();
        assert!(report.contains("formatted with checksums"), "{report}");
        assert!(report.contains("without --checksums"), "{report}");
    });
    on_reactor(|| async move {
        let stack = (Stack::open(&right, &Wishes::default()).await).expect("opens");
        let db = stack.volume("db").expect("there").open();
        let written = db.write(0, Buf::copied(&[1; 4096])).await;
        written.expect("written");
        db.flush().await.expect("flushed");
        let cache = stack.status().cache.expect("there is one");
        let sums = cache.checksums.expect("it has some");
        assert_eq!((sums.refetched, sums.corrupt_bytes), (0, 0));
        assert!(sums.written_bytes > 0, "{sums:?}");
        stack.close().await.expect("closes");
    });
}
