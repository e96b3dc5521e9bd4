//! Simulation of the whole protocol in one thread.
//!
//! Its parts are a directory, nodes, their memory, a store and programs. Links and schedule are
//! drawn from a seed. A [`model`] checks the results. A seed replays a run exactly.
//!
//! # Fault contract
//!
//! - A link delivers in order and late. The order between links is arbitrary. Packets are encoded
//!   and decoded.
//! - The store is slow, and may stall: programs give up then. A read may fail. A write may fail
//!   without effect. A finished write stays.
//! - A node may die at any step: between the halves of a store into a frame, or in a fill. A write
//!   to the store in flight then happens or not. Its earlier messages may arrive until the
//!   directory is notified of the death, and none after it. The store and the other nodes' memory
//!   are fenced against it before that.
//! - A dead node's memory stays readable to nodes that map it, until they have unmapped it. In some
//!   lives it outlives the node (`placement = "pool"`), and the directory's host writes back its
//!   pages.
//! - The directory may end between any two steps, with all messages to it, and is restarted with
//!   the list of nodes only. Its messages to nodes that find the new one first are lost. Nodes find
//!   the new one at any time.
//! - The store does not die.

mod client;
mod invariants;
mod model;
mod pace;
mod publications;
mod replicas;
mod restart;
mod shelf;
mod summary;
mod trace;
mod work;
mod world;

use forebay_testkit::rotation::{Lives, assert_found_by_each_rotation, print_row, variable};

use crate::fault::Fault;
use crate::node::Consistency;
use summary::Summary;
use world::World;

const PAGE_WORDS: usize = 8;
const PAGE_BYTES: usize = PAGE_WORDS * 8;

/// Content of a page, as the programs here write it.
type Words = [u64; PAGE_WORDS];

fn to_bytes(words: &Words) -> [u8; PAGE_BYTES] {
    let mut bytes = [0; PAGE_BYTES];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

fn to_words(bytes: &[u8]) -> Words {
    let mut words = [0; PAGE_WORDS];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(chunk.try_into().expect("a word"));
    }
    words
}

/// Lives of each consistency.
const LIVES: Lives = Lives {
    // Fault::UnreportedLoss, Fault::WriteBackOverlaps, Fault::GivenUpForgotten,
    // Fault::ProtectionNotCancelled, Fault::FilledForgotten
    pinned: &[103, 312, 165, 221, 292],
    gate: 800,
    whole: 5000,
    share: 2,
};

/// Runs seeds. Checks that the lives of the nightly run together cover everything.
fn run_seeds(consistency: Consistency, test: &str) -> Summary {
    let seeds = LIVES.seeds();
    let count = seeds.len() as u64;
    let mut total = Summary::default();
    for seed in seeds {
        match World::new(seed, consistency, None).run() {
            Ok(summary) => total.add(&summary),
            Err(wrong) => panic!(
                "seed {seed}, {consistency:?}: {wrong}\nreplay with: FOREBAY_SEED={seed} \
                 FOREBAY_STEPS=1 cargo test -p forebay-pagecache {test} -- --nocapture"
            ),
        }
    }
    println!("{count} seeds, {consistency:?}: {total:?}");
    // Any other seeds may all miss a rare case.
    let is_chosen = ["FOREBAY_SEED", "FOREBAY_SEEDS"].map(variable) != [None, None];
    if count >= LIVES.whole && !is_chosen {
        total.expect_everything_happened();
    }
    print_row("lives of the page cache", count, total.deaths);
    total
}

#[test]
fn lives_are_strong() {
    let total = run_seeds(Consistency::Strong, "lives_are_strong");
    assert_eq!(
        total.copies_peak, 1,
        "no page has two copies but while it is published"
    );
}

#[test]
fn lives_are_relaxed() {
    let total = run_seeds(Consistency::Relaxed, "lives_are_relaxed");
    // One frame that all share, and one unpublished page for each writer; there are five nodes at
    // most.
    assert!(
        total.copies_peak <= 6,
        "{} copies of a page",
        total.copies_peak
    );
}

#[test]
fn a_node_may_die_before_every_step() {
    for consistency in [Consistency::Strong, Consistency::Relaxed] {
        for seed in 0..6 {
            let run = |step| World::killed_at(seed, consistency, step).run();
            let undisturbed = run(u64::MAX).expect("a life without a death");
            assert_eq!(undisturbed.deaths, 0);
            for step in 1..undisturbed.steps {
                let life = run(step);
                let summary = life.unwrap_or_else(|wrong| {
                    panic!("seed {seed}, {consistency:?}, a death at step {step}: {wrong}")
                });
                assert_eq!(summary.deaths, 1, "step {step}");
            }
        }
    }
}

#[test]
fn a_seed_is_replayed_exactly() {
    for seed in 0..20 {
        let run = || World::new(seed, Consistency::Relaxed, None).run();
        assert_eq!(run(), run(), "seed {seed}");
    }
}

/// Returns the first of `seeds` whose lives find a planted fault, in either consistency.
fn find(fault: Fault, seeds: impl IntoIterator<Item = u64>) -> Option<u64> {
    seeds.into_iter().find(|seed| {
        [Consistency::Strong, Consistency::Relaxed]
            .iter()
            .any(|consistency| {
                let lived = World::new(*seed, *consistency, Some(fault)).run();
                lived.is_err_and(|wrong| {
                    println!("{fault:?} is found by seed {seed}, {consistency:?}: {wrong}");
                    true
                })
            })
    })
}

/// Checks that 400 seeds find a planted fault.
fn found(fault: Fault) {
    assert!(find(fault, 0..400).is_some(), "no seed finds {fault:?}");
}

#[test]
fn the_gate_finds_each_fault_in_ten_rotations() {
    for fault in Fault::ALL {
        assert_found_by_each_rotation(&fault, |rotation| find(fault, LIVES.of(rotation)));
    }
}

#[test]
fn an_acknowledgement_before_the_mapping_is_gone_is_found() {
    found(Fault::AcknowledgeMapped);
}

#[test]
fn a_generation_that_is_not_checked_is_found() {
    found(Fault::UncheckedGeneration);
}

#[test]
fn a_publish_before_the_fill_ended_is_found() {
    found(Fault::PublishUnfilled);
}

#[test]
fn an_unremoved_dead_sharer_is_found() {
    found(Fault::KeepDeadSharer);
}

#[test]
fn a_frame_reused_before_all_acknowledged_is_found() {
    found(Fault::ReuseBeforeAcknowledged);
}

#[test]
fn a_lost_page_refilled_while_mapped_is_found() {
    found(Fault::RefillMapped);
}

#[test]
fn a_store_called_clean_by_a_racing_write_back_is_found() {
    found(Fault::CleanRacing);
}

#[test]
fn an_unsaved_page_that_a_new_directory_does_not_look_for_is_found() {
    found(Fault::UnsavedForgotten);
}

#[test]
fn a_dead_node_forgotten_too_soon_is_found() {
    found(Fault::ForgetMapped);
}

#[test]
fn a_word_taken_from_its_holder_is_found() {
    found(Fault::TakeTaken);
}

#[test]
fn a_dead_nodes_word_that_stays_its_own_is_found() {
    found(Fault::KeepDeadAlone);
}

#[test]
fn a_page_called_clean_before_the_store_has_it_is_found() {
    found(Fault::CleanBeforeStored);
}

#[test]
fn a_fill_that_a_new_directory_does_not_learn_of_is_found() {
    found(Fault::FillForgotten);
}

#[test]
fn two_write_backs_of_a_page_at_a_time_are_found() {
    found(Fault::WriteBackOverlaps);
}

#[test]
fn a_write_back_that_takes_the_report_of_a_loss_is_found() {
    found(Fault::WriteBackReports);
}

#[test]
fn a_cancelled_flush_that_takes_the_report_of_a_loss_is_found() {
    found(Fault::CancelledReports);
}

#[test]
fn a_store_before_the_replicas_are_dropped_is_found() {
    found(Fault::ReplicaNotRevoked);
}

#[test]
fn a_replica_that_is_used_after_its_drop_is_found() {
    found(Fault::ReplicaUsedAfterDrop);
}

#[test]
fn a_replica_that_outlives_its_directory_is_found() {
    found(Fault::ReplicaOutlivesDirectory);
}

#[test]
fn a_page_that_is_protected_during_a_store_is_found() {
    found(Fault::ProtectPinned);
}

#[test]
fn a_protection_that_outlasts_a_permission_is_found() {
    found(Fault::ProtectionNotCancelled);
}

#[test]
fn a_publication_that_awaits_one_node_of_several_is_found() {
    found(Fault::FirstAnswerCounts);
}

#[test]
fn an_answer_before_the_publication_is_found() {
    found(Fault::AnswerUnpublished);
}

#[test]
fn a_page_that_is_discarded_since_its_node_died_before_the_publication_is_found() {
    found(Fault::FilledForgotten);
}

#[test]
fn a_page_that_outlived_its_node_and_is_given_up_is_found() {
    found(Fault::PoolLost);
}

#[test]
fn an_unreported_loss_of_a_refused_page_is_found() {
    found(Fault::UnreportedLoss);
}

#[test]
fn an_unreported_loss_from_before_a_restart_is_found() {
    found(Fault::GivenUpForgotten);
}
