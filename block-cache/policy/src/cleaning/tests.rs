use super::*;
use proptest::prelude::*;

const MS: Duration = Duration::from_millis(1);
/// I/Os from which `auto` knows what they take alone.
const ENOUGH_ALONE: u32 = 16;

fn input(dirty_percent: u64) -> PolicyInput {
    PolicyInput {
        now: Duration::ZERO,
        dirty_percent,
        low_percent: 20,
        high_percent: 60,
        wanted: false,
        idle: Duration::ZERO,
        rounds: 0,
    }
}

#[test]
fn policies_are_found_by_name() {
    for policy in Cleaning::ALL {
        assert_eq!(Cleaning::named(policy.as_str()), Some(policy));
        assert_eq!(Cleaner::new(policy).cleaning(), policy);
    }
    assert_eq!(Cleaning::named("lru"), None);
}

#[test]
fn nop_cleans_only_when_room_is_needed() {
    let mut nop = Cleaner::new(Cleaning::Nop);
    let idle = PolicyInput {
        idle: Duration::from_secs(3600),
        ..input(100)
    };
    assert_eq!(nop.turn(&input(100)), None);
    assert_eq!(nop.turn(&idle), None);
    let wanted = PolicyInput {
        wanted: true,
        ..input(1)
    };
    assert!(nop.turn(&wanted).is_some());
}

#[test]
fn acp_never_rests() {
    let mut acp = Cleaner::new(Cleaning::Acp);
    for dirty in [0, 10, 50, 100] {
        let turn = acp.turn(&input(dirty)).expect("always");
        assert!(turn.width == WIDEST && !turn.spare && turn.fullest);
        acp.note(IoDevice::Backing, Duration::from_secs(9), true);
        let rest = acp.ended(&Ended {
            now: MS,
            took: MS,
            empty: false,
        });
        assert!(rest.is_zero());
    }
}

#[test]
fn alru_makes_a_pass_every_half_minute() {
    let mut alru = Cleaner::new(Cleaning::Alru);
    let at = |seconds, rounds| PolicyInput {
        now: Duration::from_secs(seconds),
        rounds,
        ..input(50)
    };
    let turn = alru.turn(&at(0, 0)).expect("the first pass");
    assert!(turn.spare && turn.width == GENTLE);
    assert!(alru.turn(&at(5, 0)).is_some(), "the pass goes on");
    assert_eq!(alru.turn(&at(6, 1)), None, "the hand came round");
    assert_eq!(alru.turn(&at(29, 1)), None);
    assert!(alru.turn(&at(30, 1)).is_some());
    alru.ended(&Ended {
        now: MS,
        took: MS,
        empty: true,
    });
    assert_eq!(alru.turn(&at(31, 1)), None, "nothing was left");
    let full = PolicyInput {
        dirty_percent: 60,
        ..at(31, 1)
    };
    let turn = alru.turn(&full).expect("it is urgent");
    assert!(!turn.spare && turn.width == WIDEST);
}

/// Returns the largest width of `auto`. Its client mostly writes to the cache, which costs nothing.
/// Once a turn it bypasses the cache, which takes `slow` during cleaning and a millisecond
/// otherwise.
fn widest_at(slow: Duration) -> usize {
    let mut auto = Cleaner::new(Cleaning::Auto);
    let mut turn = |turn: u32| {
        for device in [IoDevice::Cache, IoDevice::Backing] {
            (0..ENOUGH_ALONE).for_each(|_| auto.note(device, MS, false));
        }
        (0..40).for_each(|_| auto.note(IoDevice::Cache, MS, true));
        auto.note(IoDevice::Backing, slow, true);
        let now = turn * 10 * MS;
        let width = auto
            .turn(&PolicyInput { now, ..input(50) })
            .expect("auto")
            .width;
        auto.ended(&Ended {
            now,
            took: MS,
            empty: false,
        });
        width
    };
    (0..200).map(&mut turn).max().expect("some")
}

#[test]
fn io_seen_only_during_cleaning_is_compared_with_its_shortest_time() {
    let mut auto = Cleaner::new(Cleaning::Auto);
    let mut turn = |turn: u32| {
        let now = turn * 10 * MS;
        let width = auto.turn(&input(50)).expect("auto").width;
        // The cleaner's blocks in flight are served first.
        let slow = MS + width as u32 * MS / 3;
        auto.note(IoDevice::Backing, slow, true);
        for during_cleaning in [true, false] {
            (0..ENOUGH_ALONE).for_each(|_| auto.note(IoDevice::Cache, MS / 10, during_cleaning));
        }
        auto.ended(&Ended {
            now,
            took: MS,
            empty: false,
        });
        width
    };
    let widths: Vec<usize> = (0..1000).map(&mut turn).collect();
    let widest = widths[500..].iter().max().expect("some");
    assert!(*widest <= 2, "{widest}");
}

#[test]
fn few_waits_at_one_device_count_beside_many_at_the_other() {
    assert!(widest_at(MS) > 12, "nobody waits longer");
    assert!(widest_at(2 * MS) <= 6, "a little longer");
    assert!(widest_at(20 * MS) <= 6, "much longer");
}

/// A device that serves `iops` requests a second, for which `clients` wait at any time.
#[derive(Clone, Copy, Debug)]
struct Served {
    iops: u64,
    clients: u64,
    dirty_percent: u64,
}

/// Runs `auto` for a while. Returns the clients' mean latency in percent of the latency alone, and
/// the number of blocks written back a second.
fn served(
    Served {
        iops,
        clients,
        dirty_percent,
    }: Served,
) -> (u64, u64) {
    let mut auto = Cleaner::new(Cleaning::Auto);
    let alone = Duration::from_nanos(clients * 1_000_000_000 / iops);
    let mut now = Duration::ZERO;
    let (mut waited, mut requests, mut cleaned) = (Duration::ZERO, 0_u32, 0_u64);
    let mut carry = 0_u64;
    let end = Duration::from_secs(120);
    while now < end {
        let measured = now > end / 2;
        let turn = auto
            .turn(&PolicyInput {
                now,
                ..input(dirty_percent)
            })
            .expect("auto always has something to do");
        // A batch in chunks; each waits behind the clients' requests and its own.
        let width = turn.width as u64;
        let during_cleaning = Duration::from_nanos((clients + width) * 1_000_000_000 / iops);
        let took = during_cleaning * 64_u32.div_ceil(turn.width as u32);
        let mut note =
            |auto: &mut Cleaner, span: Duration, each: Duration, during_cleaning: bool| {
                let nanos = span.as_nanos() as u64 * clients + carry;
                let count = nanos / each.as_nanos() as u64;
                carry = nanos % each.as_nanos() as u64;
                for _ in 0..count {
                    auto.note(IoDevice::Backing, each, during_cleaning);
                }
                if measured {
                    waited += each * count as u32;
                    requests += count as u32;
                }
            };
        note(&mut auto, took, during_cleaning, true);
        now += took;
        let rest = auto.ended(&Ended {
            now,
            took,
            empty: false,
        });
        note(&mut auto, rest, alone, false);
        now += rest;
        cleaned += if measured { 64 } else { 0 };
    }
    let mean = waited / requests.max(1);
    (
        (mean.as_nanos() * 100 / alone.as_nanos()) as u64,
        cleaned / 60,
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// On any device, with any number of clients, cleaning continues, and costs clients no more
    /// than it may.
    #[test]
    fn auto_keeps_client_costs_within_its_limit(iops in 50u64..50_000, clients in 1u64..128) {
        let (percent, cleaned) = served(Served { iops, clients, dirty_percent: 100 });
        prop_assert!(percent <= 150, "{percent}%");
        prop_assert!(cleaned * 100 >= iops, "{cleaned} a second of {iops}");
        let (percent, cleaned) = served(Served { iops, clients, dirty_percent: 50 });
        prop_assert!(percent <= 120, "{percent}%");
        prop_assert!(cleaned > 0);
    }
}

#[test]
fn auto_takes_a_fair_share_of_a_busy_device() {
    let served = served(Served {
        iops: 3000,
        clients: 32,
        dirty_percent: 100,
    });
    assert!(
        (115..=145).contains(&served.0) && served.1 > 500,
        "{served:?}"
    );
}

#[test]
fn auto_is_gentle_below_the_low_mark_and_quick_where_nobody_is() {
    let mut auto = Cleaner::new(Cleaning::Auto);
    let ended = Ended {
        now: MS,
        took: MS,
        empty: false,
    };
    let turn = auto.turn(&input(10)).expect("a batch");
    assert!(turn.width <= GENTLE && turn.spare);
    assert!(auto.ended(&ended) >= 500 * MS);
    let idle = PolicyInput {
        idle: Duration::from_secs(1),
        ..input(10)
    };
    assert_eq!(auto.turn(&idle).expect("a batch").width, WIDEST);
    assert!(auto.ended(&ended).is_zero());
    // Towards the high mark pauses are shorter.
    let pause = |auto: &mut Cleaner, dirty| {
        auto.turn(&input(dirty));
        auto.ended(&Ended { now: MS, ..ended });
        auto.turn(&input(dirty));
        auto.ended(&ended)
    };
    let (low, mid) = (pause(&mut auto, 20), pause(&mut auto, 40));
    assert!(low > mid && !mid.is_zero(), "{low:?}, {mid:?}");
}
