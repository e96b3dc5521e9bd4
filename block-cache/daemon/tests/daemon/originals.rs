//! `clone-id` on an original, which keeps its identity while it has dirty data.

use super::copies::copy;
use super::moved::{move_away, usual_journal};
use super::support::{Place, text};
use super::{check_blocks, write_blocks};

/// Checks that `clone-id` recognizes an original by its superblock, whatever became of the journal.
#[test]
fn an_original_gets_no_other_identity_while_it_has_dirty_data() {
    for (name, usual) in [("original-usual", true), ("original-elsewhere", false)] {
        let place = Place::new(name, "wb");
        if usual {
            let path = place.path("forebay.toml");
            let config = std::fs::read_to_string(&path).expect("there");
            let config = config.replace("journal = \"journal\"\n", "");
            std::fs::write(&path, config).expect("written");
        }
        let cache = place.path("cache");
        let clone_id = ["clone-id", "--cache", text(&cache)];
        let daemon = place.serve(&[]);
        write_blocks(&mut place.connect(), 0..20);
        daemon.kill();
        // In its usual place there is the journal, or a link to it.
        let usual_place = usual_journal(&place);
        let aside = place.path("aside");
        match usual {
            true => move_away(&usual_place, &place.path("elsewhere")),
            false => std::fs::remove_file(&usual_place).expect("there"),
        }
        let before = std::fs::read(&cache).expect("there");
        let said = place.refused(&clone_id);
        for part in [
            "is no copy",
            text(&cache),
            "its superblock names this device",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        // It is no copy either while another file has its path.
        std::fs::rename(&cache, &aside).expect("moved");
        copy(&place, "aside", "cache");
        let said = place.refused(&["clone-id", "--cache", text(&aside)]);
        assert!(said.contains("is no copy"), "{said}");
        std::fs::rename(&aside, &cache).expect("moved");
        assert!(std::fs::read(&cache).expect("there") == before);
        if usual {
            std::fs::copy(place.path("elsewhere"), &usual_place).expect("put back");
        }
        // As the remedy says.
        let daemon = place.serve(&[]);
        check_blocks(&mut place.connect(), 0..20);
        daemon.terminate();
        let said = place.refused(&clone_id);
        assert!(said.contains("it has dirty data, "), "{said}");
        let daemon = place.serve(&[]);
        place.ok(&["flush"]);
        daemon.terminate();
        place.ok(&clone_id);
    }
}
