//! The leave of a node whose pages the source refuses.

use super::*;

const PAGES: usize = 32;

/// A node with pages of a file that another node has open. Its process cannot find the file, so
/// the source refuses its write-backs.
struct Refused {
    goes: Node,
    /// The other node's open file.
    file: File,
    second_name: PathBuf,
}

impl Refused {
    fn new(bed: &Bed) -> Self {
        let goes = bed.node(1);
        let id = NodeId::new(2).expect("a node");
        let mut options = Options::new(&bed.pool, id, 8);
        // Nothing is written back before the leave.
        options.dirty_pages = 256;
        let stays = Node::join(options).expect("it joins");
        let file = stays.create("data").expect("made");
        file.write_at(0, &[7; PAGES * PAGE_BYTES]).expect("written");
        let second_name = bed.source.join(format!(".forebay/files/{}", file.inode()));
        std::fs::remove_file(&second_name).expect("there");
        Self {
            goes,
            file,
            second_name,
        }
    }
}

#[test]
fn a_page_that_the_source_refused_leaves_when_the_source_takes_it() {
    let bed = Bed::new("leave");
    let Refused {
        goes,
        file,
        second_name,
    } = Refused::new(&bed);
    let client = Arc::clone(goes.inner().client());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let begin = Instant::now();
            while client.counts().write_back_failures == 0 {
                assert!(begin.elapsed() < Duration::from_secs(60), "never refused");
                std::thread::sleep(Duration::from_millis(1));
            }
            std::fs::hard_link(bed.source.join("data"), second_name).expect("linked");
        });
        assert!(goes.leave(), "the source takes them now");
    });
    file.fsync().expect("nothing is lost");
    let stored = std::fs::read(bed.source.join("data")).expect("there");
    assert!(stored == [7; PAGES * PAGE_BYTES]);
}

#[test]
fn a_leave_that_gives_up_names_a_file() {
    let bed = Bed::new("leave-refused");
    let Refused {
        goes,
        file,
        second_name,
    } = Refused::new(&bed);
    let inner = goes.inner();
    let refused = inner.client().leave(Duration::from_millis(1200));
    let refused = refused.expect_err("the source refuses its pages");
    assert_eq!(refused.kind(), ErrorKind::TimedOut, "{refused:?}");
    let report = refused.report();
    let name = format!("inode {}", file.inode());
    assert!(
        report.contains(&name) && report.contains("help:"),
        "{report}"
    );
    std::fs::hard_link(bed.source.join("data"), second_name).expect("linked");
    drop(inner);
    assert!(goes.leave(), "it may try once more");
    file.fsync().expect("nothing is lost");
}
