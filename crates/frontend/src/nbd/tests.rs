use super::*;
use forebay_io::rt::block_on_simulated;

#[test]
fn a_flood_of_bad_clients_is_counted_not_logged() {
    block_on_simulated(1, async {
        let log = LogLimit::new();
        let logged = (0..1000).filter(|_| log.admit().is_some()).count();
        assert_eq!(logged, LOGGED as usize);
        rt::sleep(LOG_WINDOW).await;
        assert_eq!(log.admit(), Some(1000 - u64::from(LOGGED)));
        assert_eq!(log.admit(), Some(0));
    });
}
