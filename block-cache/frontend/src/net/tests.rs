use std::sync::Arc;
use std::time::Instant;

use forebay_io::rt::{self, block_on_simulated};

use super::Spread;
use super::log::{self, LogLimit, Verdict};

#[test]
fn a_flood_of_bad_clients_is_counted_not_logged() {
    let log = LogLimit::default();
    let begin = Instant::now();
    assert_eq!(log.admit(begin, "first"), Verdict::Now);
    let late = begin + log::WINDOW / 2;
    assert_eq!(log.admit(late, "second"), Verdict::After(log::WINDOW / 2));
    for _ in 0..1000 {
        assert_eq!(log.admit(late, "more"), Verdict::Counted);
    }
    // No event lies between the window's end and the line with the count.
    let end = begin + log::WINDOW;
    assert_eq!(log.admit(end, "last"), Verdict::Counted);
    assert_eq!(log.rest(end), (1002, "last".to_owned()));
    assert!(matches!(log.admit(end, "again"), Verdict::After(_)));
    assert_eq!(log.rest(end).0, 1);
    assert_eq!(log.admit(end + log::WINDOW, "quiet since"), Verdict::Now);
}

#[test]
fn a_connection_goes_where_the_fewest_are() {
    block_on_simulated(1, async {
        let spread = Arc::new(Spread::new([rt::remote(), rt::remote(), rt::remote()]));
        let places: Vec<_> = (0..4).map(|_| spread.place()).collect();
        assert_eq!(spread.connections(), [2, 1, 1]);
        let mut places = places.into_iter();
        drop(places.next());
        drop(places.next());
        assert_eq!(spread.connections(), [1, 0, 1]);
        let next = spread.place();
        assert_eq!(spread.connections(), [1, 1, 1]);
        drop(next);
        drop(places);
        assert_eq!(spread.connections(), [0, 0, 0]);
    });
}

/// Each connection needs a descriptor, whatever the front-end.
#[test]
fn connections_share_one_limit_and_room_comes_back() {
    block_on_simulated(2, async {
        let spread = Arc::new(Spread::new([rt::remote(), rt::remote()]));
        let unlimited: Vec<_> = (0..5000).filter_map(|_| spread.admit().ok()).collect();
        assert_eq!(unlimited.len(), 5000);
        drop(unlimited);
        spread.limit(3);
        let mut admitted: Vec<_> = (0..3).filter_map(|_| spread.admit().ok()).collect();
        assert_eq!(admitted.len(), 3);
        for _ in 0..10 {
            assert_eq!(
                spread.admit().err(),
                Some(3),
                "those refused leave no trace"
            );
        }
        admitted.pop();
        admitted.extend(spread.admit().ok());
        assert_eq!(admitted.len(), 3);
        // Disks have no socket connection, so their places are not limited.
        let places: Vec<_> = (0..10).map(|_| spread.place()).collect();
        assert_eq!(spread.connections().iter().sum::<usize>(), places.len());
    });
}
