//! Admission of hosts by Connect.

use crate::initiator::{Association, Identity, Queue, Style, With, command, words};
use crate::target::{NQN, SEALED_HOST, SEALED_NQN, Target};

#[test]
fn connect_refuses_invalid_hosts_subsystems_and_queues() {
    let target = Target::start();
    let refusal = |identity: Identity<'_>, queue, controller| {
        let mut connection = Queue::open(target.address, Style::default());
        let done = connection.connect(&identity, queue, controller);
        (done.status, done.result)
    };
    assert_eq!(
        refusal(Identity::to(SEALED_NQN), 0, 0xffff),
        (0x184, 1 << 16 | 512)
    );
    let the_one = Identity {
        host: SEALED_HOST,
        ..Identity::to(SEALED_NQN)
    };
    assert_eq!(refusal(the_one, 0, 0xffff).0, 0);
    assert_eq!(
        refusal(Identity::to("nqn.2026-11.io.forebay:none"), 0, 0xffff),
        (0x182, 1 << 16 | 256)
    );
    assert_eq!(
        refusal(Identity::to("none"), 0, 0xffff),
        (0x182, 1 << 16 | 256)
    );
    assert_eq!(refusal(Identity::to(NQN), 0, 5), (0x182, 1 << 16 | 16));
    let mut large = Identity::to(NQN);
    large.queue_size = 129;
    assert_eq!(refusal(large, 0, 0xffff), (0x182, 44));
    let host = Association::new(target.address, Identity::to(NQN), Style::default());
    let _first = host.queue(1);
    assert_eq!(
        refusal(Identity::to(NQN), 1, host.controller),
        (0x182, 42),
        "there is one"
    );
    assert_eq!(refusal(Identity::to(NQN), 65, host.controller), (0x182, 42));
    assert_eq!(
        refusal(Identity::to(NQN), 2, host.controller + 7),
        (0x182, 1 << 16 | 16)
    );
    let mut stranger = Identity::to(NQN);
    stranger.host = "nqn.2026-11.io.forebay:other";
    assert_eq!(
        refusal(stranger, 2, host.controller),
        (0x182, 1 << 16 | 512)
    );
    stranger = Identity::to(NQN);
    stranger.host_id = [2; 16];
    assert_eq!(refusal(stranger, 2, host.controller), (0x182, 1 << 16));
    // No command precedes Connect, and no I/O queue the enabling of the controller.
    let mut queue = Queue::open(target.address, Style::default());
    assert_eq!(
        queue
            .call(command(6, 0, words(&[1])), With::Room(4096))
            .status,
        0x0c
    );
    let done = queue.connect(&Identity::to(NQN), 0, 0xffff);
    assert_eq!(done.status, 0);
    assert_eq!(
        queue
            .call(command(6, 0, words(&[1])), With::Room(4096))
            .status,
        0x0c
    );
    let controller = u16::try_from(done.result).expect("an identifier");
    assert_eq!(refusal(Identity::to(NQN), 1, controller).0, 0x0c);
}
