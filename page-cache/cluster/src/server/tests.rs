//! Reaction of a directory to the state of an earlier one in the pool.

use super::*;

const PAGES: u32 = 64;

/// A listed node whose process has ended.
fn dead(number: u8) -> Known {
    let mut child = std::process::Command::new("true").spawn().expect("it runs");
    let pid = child.id();
    child.wait().expect("it ends");
    let node = NodeId::new(number).expect("few");
    let share = Share {
        node,
        first_frame: 0,
        frames: PAGES / 2,
        unpublished_pages: 0,
        alive: true,
    };
    Known {
        share,
        session: 5,
        pid,
        started: 1,
    }
}

/// Returns the number of free file words under a directory of `pages` pages of `then`. Before it, a
/// node of one of 64 pages of `first` had all words and was killed, and its directory too.
fn free_words(name: &str, then: &str, pages: u32) -> u32 {
    let id = std::process::id();
    let top = std::env::temp_dir().join(format!("forebay-server-{name}-{id}"));
    let path = PathBuf::from(format!("/dev/shm/forebay-server-{name}-{id}"));
    for source in ["first", then] {
        std::fs::create_dir_all(top.join(source)).expect("made");
    }
    drop(Server::open(Options::new(&top.join("first"), &path, PAGES)).expect("it opens"));
    let pool = Pool::new(&path).expect("short");
    let mut nodes = pool.load().expect("read").expect("it was made");
    nodes.known = vec![dead(1)];
    pool.save(&nodes).expect("saved");
    let frames = pool.join_frames(PAGES).expect("they are there");
    let node = nodes.known[0].share.node;
    assert!((0..PAGES).all(|word| frames.take_alone(word, node)));
    let server = Server::open(Options::new(&top.join(then), &path, pages)).expect("it opens");
    let words = 0..server.segment.frames();
    let other = NodeId::new(2).expect("few");
    let free = words.filter(|word| server.segment.take_alone(*word, other));
    let free = u32::try_from(free.count()).expect("few");
    drop(server);
    std::fs::remove_dir_all(&top).expect("removed");
    std::fs::remove_dir_all(&path).expect("removed");
    free
}

#[test]
fn words_of_the_dead_end_whether_they_are_remembered_or_forgotten() {
    assert_eq!(free_words("same", "first", PAGES), PAGES);
    assert_eq!(free_words("other", "other", PAGES), PAGES, "another source");
    // The file of the frames has the same length.
    assert_eq!(free_words("more", "first", PAGES - 3), PAGES - 3);
}
