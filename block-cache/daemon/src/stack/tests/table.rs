//! A volume on a block translation table.

use super::*;

const ON_TABLE: &str = r#"
server.state = "state"
device = [
    { name = "pm", kind = "pmem", path = "pm" },
    { name = "whole", kind = "btt", on = "pm" },
]
volume = [{ name = "db", backing = "whole", mode = "wt" }]
"#;

#[test]
fn a_volume_on_a_table_over_mapped_memory_keeps_written_data() {
    let scratch = Scratch::new("table");
    let config = scratch.config(ON_TABLE);
    let path = scratch.0.join("pm");
    let image = std::fs::File::create(&path).expect("made");
    image.set_len(32 << 20).expect("sparse");
    let same = config.clone();
    let none = config.clone();
    on_reactor(|| async move {
        let refused = Stack::open(&none, &Wishes::default()).await;
        let report = refused.expect_err("no table yet").report();
        assert!(report.contains("f.toml:5: device \"whole\""), "{report}");
        assert!(report.contains("forebay format --btt"), "{report}");
    });
    let memory = forebay_io::pmem::PmemMapping::open(&path, None).expect("a file");
    let options = forebay_btt::FormatOptions::new(4096, [1; 16]);
    forebay_btt::format(&memory, &options).expect("large enough");
    drop(memory);
    on_reactor(|| async move {
        let wishes = Wishes::default();
        let stack = Stack::open(&config, &wishes).await.expect("opens");
        let db = stack.volume("db").expect("there").open();
        assert_eq!(db.info().logical_block_bytes, 4096);
        db.write(8192, Buf::copied(&[7; 4096]))
            .await
            .expect("written");
        let status = stack.devices.borrow()[0].status();
        assert!(
            status.what.contains("block translation table on"),
            "{}",
            status.what
        );
        assert!(status.what.contains("not persistent"), "{}", status.what);
        stack.close().await.expect("closed");
    });
    on_reactor(|| async move {
        let wishes = Wishes::default();
        let stack = Stack::open(&same, &wishes).await.expect("opens");
        let db = stack.volume("db").expect("there").open();
        let back = Buf::zeroed(8192);
        db.read(4096, back.clone()).await.expect("read");
        let back = back.to_vec();
        assert!(back[..4096].iter().all(|byte| *byte == 0));
        assert!(back[4096..].iter().all(|byte| *byte == 7));
        stack.close().await.expect("closed");
    });
}
