//! Demands on every store.

use bytes::Bytes;
use forebay_block::ErrorKind;
use forebay_object::store::{Creation, Store};
use futures_util::future::join_all;

/// Contents that differ by `seed`.
fn data(seed: u8, len: usize) -> Bytes {
    (0..len)
        .map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8) ^ seed)
        .collect()
}

/// Checks an empty store. Leaves objects in it.
pub(crate) async fn check(store: &dyn Store) {
    creation_keeps_the_first(store).await;
    ranges_end_with_the_object(store).await;
    lists_are_sorted_and_whole(store).await;
    deletion_is_idempotent(store).await;
    concurrent_creations_have_one_winner(store).await;
    large_objects_come_back(store).await;
    other_names_are_refused(store).await;
}

async fn creation_keeps_the_first(store: &dyn Store) {
    let (first, second) = (data(1, 5000), data(2, 400));
    let created = store.create("volume", first.clone()).await;
    assert_eq!(created.expect("created"), Creation::Created);
    for content in [second, first.clone()] {
        let created = store.create("volume", content).await;
        assert_eq!(created.expect("there is one"), Creation::Exists);
    }
    let read = store.read("volume", 0..u64::MAX / 2).await;
    assert!(read.expect("there") == first, "it is unchanged");
}

async fn ranges_end_with_the_object(store: &dyn Store) {
    let content = data(3, 5000);
    let created = store.create("log/ranges", content.clone()).await;
    assert_eq!(created.expect("created"), Creation::Created);
    for (start, end) in [
        (0, 1),
        (0, 5000),
        (4096, 4999),
        (4999, 9000),
        (5000, 6000),
        (9000, 9001),
    ] {
        let read = store.read("log/ranges", start..end).await.expect("there");
        let expected = content.slice((start as usize).min(5000)..(end as usize).min(5000));
        assert!(read == expected, "{start}..{end}: {} bytes", read.len());
    }
    let empty = store.create("log/empty", Bytes::new()).await;
    assert_eq!(empty.expect("created"), Creation::Created);
    assert!(
        store
            .read("log/empty", 0..10)
            .await
            .expect("there")
            .is_empty()
    );
    let missing = store.read("log/missing", 0..10).await.expect_err("none");
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{}", missing.report());
}

async fn lists_are_sorted_and_whole(store: &dyn Store) {
    // More than a page of the S3 protocol, which has 1000 names.
    let mut expected = Vec::new();
    for begin in (0..1050).step_by(50) {
        let names: Vec<_> = (begin..begin + 50)
            .map(|number: u64| {
                // Not created in the order of the names.
                let number = number.wrapping_mul(7919) % 1050;
                (format!("map/{number:016x}"), number)
            })
            .collect();
        let created = names
            .iter()
            .map(|(name, number)| store.create(name, data(0, *number as usize % 7)));
        for created in join_all(created).await {
            assert_eq!(created.expect("created"), Creation::Created);
        }
        expected.extend(names.into_iter().map(|(name, number)| (name, number % 7)));
    }
    expected.sort();
    let mapped = store.create("mapped", data(0, 1)).await;
    assert_eq!(mapped.expect("created"), Creation::Created);
    let listed = store.list("map/").await.expect("listed");
    let listed: Vec<_> = listed.into_iter().map(|it| (it.name, it.bytes)).collect();
    assert!(listed == expected, "{} objects", listed.len());
    assert!(store.list("none/").await.expect("listed").is_empty());
}

async fn deletion_is_idempotent(store: &dyn Store) {
    for _ in 0..2 {
        store.delete("map/0000000000000000").await.expect("deleted");
        store
            .delete("nowhere/missing")
            .await
            .expect("there is none");
        let listed = store.list("map/").await.expect("listed");
        assert_eq!(listed.len(), 1049);
    }
    let created = store.create("map/0000000000000000", data(9, 9)).await;
    assert_eq!(created.expect("the name is free"), Creation::Created);
}

async fn concurrent_creations_have_one_winner(store: &dyn Store) {
    for round in 0..4_u8 {
        let name = format!("probe/{round}");
        let contents: Vec<_> = (0..8_u8).map(|number| data(number, 3000)).collect();
        let outcomes = contents
            .iter()
            .map(|content| store.create(&name, content.clone()));
        let outcomes: Vec<_> = join_all(outcomes).await;
        let outcomes: Vec<_> = outcomes
            .into_iter()
            .map(|it| it.expect("an answer"))
            .collect();
        let winners: Vec<_> = (0..8)
            .filter(|at| outcomes[*at] == Creation::Created)
            .collect();
        assert_eq!(winners.len(), 1, "{outcomes:?}");
        let read = store.read(&name, 0..3000).await.expect("there");
        assert!(read == contents[winners[0]], "the winner's content");
    }
}

async fn large_objects_come_back(store: &dyn Store) {
    let content = data(5, 8 << 20);
    let names = ["log/large-0", "log/large-1", "log/large-2", "log/large-3"];
    let created = names.iter().map(|name| store.create(name, content.clone()));
    for created in join_all(created).await {
        assert_eq!(created.expect("created"), Creation::Created);
    }
    let middle = store.read("log/large-2", 4_000_000..4_100_000).await;
    assert!(middle.expect("there") == content.slice(4_000_000..4_100_000));
    let whole = store.read("log/large-3", 0..8 << 20).await;
    assert!(whole.expect("there") == content);
}

async fn other_names_are_refused(store: &dyn Store) {
    for name in ["../outside", "/etc/passwd", "", ".incomplete/a", "Capital"] {
        let error = store.create(name, data(0, 1)).await.expect_err(name);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}");
        let error = store.read(name, 0..1).await.expect_err(name);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}");
        let error = store.delete(name).await.expect_err(name);
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}");
    }
}
