//! New names of files whose names other nodes remove.

use super::*;

#[test]
fn a_file_without_a_name_gets_none() {
    let bed = Bed::new("links");
    let (one, two) = (bed.node(1), bed.node(2));
    let [at_one, at_two] = [&one, &two].map(|node| node.names().expect("it can be mounted"));
    for is_open in [true, false] {
        let name = if is_open { "open" } else { "closed" };
        let file = one.create(name).expect("made");
        file.write_at(0, b"data").expect("written");
        file.fsync().expect("durable");
        let number = find(&at_one, name);
        let open = is_open.then_some(file);
        at_one
            .link(number, ROOT, "other".as_ref())
            .expect("it has a name");
        for name in [name, "other"] {
            at_two.remove(ROOT, name.as_ref()).expect("removed");
        }
        let linked = refused(at_one.link(number, ROOT, "again".as_ref()));
        assert_eq!(linked, Some(libc::ENOENT), "{name}");
        assert!(!bed.source.join("again").exists(), "{name}");
        drop(open);
        let second_name = bed.source.join(format!(".forebay/files/{number}"));
        assert!(!second_name.exists(), "{name} is given up");
    }
}

#[test]
fn a_file_that_loses_its_name_while_it_gets_one_keeps_its_content() {
    let bed = Bed::new("link-race");
    let (one, two) = (bed.node(1), bed.node(2));
    let [at_one, at_two] = [&one, &two].map(|node| node.names().expect("it can be mounted"));
    let mut linked = 0;
    for round in 0..200 {
        let (old, new) = (format!("old-{round}"), format!("new-{round}"));
        let file = one.create(&old).expect("made");
        file.write_at(0, b"data").expect("written");
        file.fsync().expect("durable");
        drop(file);
        let number = find(&at_one, &old);
        let found = std::thread::scope(|scope| {
            scope.spawn(|| at_two.remove(ROOT, old.as_ref()).expect("removed"));
            at_one.link(number, ROOT, new.as_ref())
        });
        match found {
            Ok(found) => {
                linked += 1;
                assert_eq!(found.number, number, "round {round}");
                let stored = std::fs::read(bed.source.join(new)).expect("there");
                assert_eq!(stored, b"data", "round {round}");
            }
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOENT), "round {round}"),
        }
    }
    println!("{linked} of 200 were linked in time");
}
