//! A stack whose metadata lies on byte-addressable media.

use forebay_device::pmem::PmemDevice;

use super::*;

/// Returns the bytes written to the cache's device and to the metadata device.
fn written(stack: &Stack) -> [u64; 2] {
    let devices = stack.status().devices;
    assert_eq!(
        (&*devices[0].role, &*devices[1].role),
        ("cache", "metadata")
    );
    [devices[0].write_bytes, devices[1].write_bytes]
}

#[test]
fn a_cold_write_takes_a_line_of_metadata() {
    let scratch = Scratch::new("lines");
    let map = "name = \"map\", kind = ";
    let config = FILES.replace(&format!("{map}\"file\""), &format!("{map}\"pmem\""));
    // Each flush commits; nothing else does.
    let config = config.replace(
        "cleaning = \"nop\"",
        "cleaning = \"nop\", commit_interval = \"60s\"",
    );
    let config = scratch.config(&config);
    let base = scratch.0.clone();
    on_reactor(|| async move {
        file(&base.join("disk"), 16 << 20);
        let map = std::fs::File::create(base.join("map")).expect("made");
        map.set_len(8 << 20).expect("as large");
        let devices = forebay_cache::Devices {
            data: file(&base.join("cache"), 32 << 20),
            metadata: Some(PmemDevice::open(base.join("map"), "map").expect("mapped")),
        };
        let options = FormatOptions::new(16 << 10, [21; 16]);
        (forebay_cache::format(&devices, &options).await).expect("formatted");
    });
    let (first, base) = (config.clone(), scratch.0.clone());
    on_reactor(|| async move {
        let stack = Stack::open(&first, &Wishes::default())
            .await
            .expect("opens");
        let db = stack.volume("db").expect("there").open();
        // The first one sets a bit in the superblock.
        let first = db.write(100 * (16 << 10), Buf::copied(&[9; 4096])).await;
        first.expect("written");
        db.flush().await.expect("flushed");
        let before = written(&stack);
        for block in 0..10 {
            let data = Buf::copied(&[block as u8; 4096]);
            db.write(block * (16 << 10), data).await.expect("written");
            db.flush().await.expect("flushed");
        }
        let after = written(&stack);
        let each = [0, 1].map(|device| (after[device] - before[device]) / 10);
        assert_eq!(each, [4096, 64], "bytes of a cold write of 4 KiB");
        // Dropped, as if the process had died.
    });
    on_reactor(|| async move {
        let stack = (Stack::open(&config, &Wishes::default()).await).expect("recovers");
        let db = stack.volume("db").expect("there").open();
        let back = Buf::scratch(4096);
        for block in 0..10 {
            let read = db.read(block * (16 << 10), back.clone()).await;
            read.expect("read");
            assert_eq!(back.to_vec(), [block as u8; 4096]);
        }
        stack.close().await.expect("closes");
    });
    on_reactor(|| async move {
        // `forebay check` recognizes the kind by itself.
        let options = FileDeviceOptions::default;
        let map = open_metadata(&base.join("map"), options()).expect("opens");
        assert!(map.info().byte_addressable);
        drop(map);
        let data = open_metadata(&base.join("cache"), options()).expect("opens");
        assert!(!data.info().byte_addressable, "it holds the data");
    });
}
