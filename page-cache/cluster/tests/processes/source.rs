//! A source has one pool at a time, whichever processes of the other pool live and whatever data it
//! has left.

use forebay_block::{ErrorKind, Result};
use forebay_cluster::server::{self, Server};
use forebay_cluster::{Node, Options, Placement};

use super::cluster::{Cluster, SHORT_LEASE, Worker, node_id};

/// A directory of the other pool on the same source, in this process.
fn other(cluster: &Cluster, placement: Placement) -> Result<Server> {
    let mut options = server::Options::new(cluster.source(), &cluster.other_pool(), 256);
    options.placement = Some(placement);
    Server::open(options)
}

/// The same, which must fail. Returns the error.
fn refused(cluster: &Cluster) -> String {
    let refused = other(cluster, Placement::Node).map(drop);
    let refused = refused.expect_err("the source is another pool's");
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused:?}");
    let said = refused.report();
    for part in [cluster.source(), cluster.pool()] {
        let part = part.display().to_string();
        assert!(said.contains(&part), "{part}: {said}");
    }
    said
}

#[test]
fn two_directories_do_not_have_one_source_and_no_write_is_lost_so() {
    let mut cluster = Cluster::new("one", 256, SHORT_LEASE);
    let node = cluster.join(1, 64);
    let file = node.create("data").expect("made");
    file.write_at(0, &[1; 4096]).expect("written");
    // An earlier version allowed a second directory, which took the first one's files for unused
    // ones.
    let said = refused(&cluster);
    assert!(
        said.contains("end its directory and all its nodes"),
        "{said}"
    );
    let files = cluster.source().join(".forebay/files");
    assert_eq!(std::fs::read_dir(files).expect("there").count(), 1);
    file.fsync().expect("durable");
    drop((file, node));
    cluster.wait(|status| status.nodes.is_empty());
    // The source is free after the first is killed, in both directions.
    cluster.kill_directory();
    let second = other(&cluster, Placement::Node).expect("nobody has it");
    let first = server::Options::new(cluster.source(), cluster.pool(), 256);
    Server::open(first.clone()).expect_err("the other pool has it");
    drop(second);
    Server::open(first).expect("nobody has it");
}

#[test]
fn a_node_that_outlives_its_directory_keeps_the_source_for_its_pool() {
    let mut cluster = Cluster::new("outlives", 256, SHORT_LEASE);
    cluster.fill("data", 48);
    let mut worker: Worker = cluster.worker(1, 64);
    assert_eq!(worker.receive(), "joined");
    cluster.kill_directory();
    let said = refused(&cluster);
    let who = format!("process {} of the pool", worker.pid());
    assert!(said.contains(&who), "{said}");
    // The same pool may continue.
    cluster.start_directory();
    cluster.wait(|status| status.awaited.is_empty() && status.nodes.len() == 1);
    cluster.kill_directory();
    worker.kill();
    let second = other(&cluster, Placement::Node).expect("all of the other pool are dead");
    std::thread::spawn(move || second.run());
    let options = Options::new(&cluster.other_pool(), node_id(1), 64);
    let node = Node::join(options).expect("it joins");
    let file = node.open("data").expect("there");
    file.write_at(0, &[9; 4096]).expect("written");
    file.fsync().expect("durable");
}

/// Kills all processes of a pool that holds unwritten data of the source.
fn left_behind(name: &str) -> Option<Cluster> {
    let mut cluster = Cluster::placed(name, 256, SHORT_LEASE, "pool");
    cluster.fill("data", 48);
    let mut worker = cluster.worker(0, 128);
    assert_eq!(worker.receive(), "joined");
    while !worker.receive().starts_with("F ") {}
    cluster.kill_directory();
    worker.kill();
    let mut options = server::Options::new(cluster.source(), cluster.pool(), 300);
    options.placement = Some(Placement::Pool);
    // It may just have written back everything.
    Server::open(options).is_err().then_some(cluster)
}

#[test]
fn a_pool_with_unwritten_data_keeps_the_source() {
    let found = (0..10).find_map(|attempt| left_behind(&format!("left-{attempt}")));
    let mut cluster = found.expect("a node that is killed has written something just before");
    let said = refused(&cluster);
    assert!(said.contains("256 pages"), "{said}");
    cluster.start_directory();
    cluster.wait(|status| status.rescued_pages > 0 && status.pages.to_be_invalidated == 0);
    cluster.kill_directory();
    other(&cluster, Placement::Node).expect("nothing is left");
    // In the other direction there is no data either.
    cluster.start_directory();
}

#[test]
fn old_data_of_a_pool_never_overwrites_that_of_another() {
    let found = (0..10).find_map(|attempt| left_behind(&format!("old-{attempt}")));
    let cluster = found.expect("a node that is killed has written something just before");
    // A user removes the record.
    std::fs::remove_file(cluster.source().join(".forebay/pool")).expect("there");
    drop(other(&cluster, Placement::Pool).expect("nobody knows of the first"));
    let mut options = server::Options::new(cluster.source(), cluster.pool(), 256);
    options.placement = Some(Placement::Pool);
    let refused = Server::open(options.clone()).expect_err("what it has is old");
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused:?}");
    let said = refused.report();
    let name = cluster.other_pool().display().to_string();
    assert!(
        said.contains(&name) && said.contains("remove this pool"),
        "{said}"
    );
    std::fs::remove_dir_all(cluster.pool()).expect("removed");
    Server::open(options).expect("it has nothing");
}
