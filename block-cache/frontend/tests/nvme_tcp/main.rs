//! Tests of the NVMe/TCP target with a host that was written from the specification.

mod authenticate;
mod connect;
mod device;
mod hostile;
mod initiator;
mod life;
mod prover;
mod shares;
mod target;

use std::collections::HashSet;

use forebay_block::Op;
use forebay_io::Engine;

use initiator::{Association, Identity, Style, With, command, on_blocks, u16_at, words};
use target::{NQN, SEALED_HOST, SIZE_BYTES, Target};

const FLUSH: u8 = 0x00;
pub(crate) const WRITE: u8 = 0x01;
pub(crate) const READ: u8 = 0x02;
const COMPARE: u8 = 0x05;
const WRITE_ZEROES: u8 = 0x08;
const DATASET_MANAGEMENT: u8 = 0x09;
const VERIFY: u8 = 0x0c;
const FUA: u32 = 1 << 30;
pub(crate) const BLOCK: usize = 512;

/// A generator of numbers (xorshift), the same in each run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let seed = self.below(u64::MAX);
        let byte = |at: usize| {
            (seed.rotate_left(u32::try_from(at % 61).expect("small")) ^ at as u64).to_le_bytes()[0]
        };
        (0..len).map(byte).collect()
    }
}

#[test]
fn discovery_lists_the_subsystems_of_each_host() {
    let target = Target::start();
    for (host, count) in [("nqn.2026-11.io.forebay:somebody", 1), (SEALED_HOST, 2)] {
        let identity = Identity {
            host,
            ..Identity::to("nqn.2014-08.org.nvmexpress.discovery")
        };
        let mut discovery = Association::new(target.address, identity, Style::default());
        let page = discovery.identify(1, 0).data;
        assert_eq!(page[111], 2, "a discovery controller");
        assert_eq!(u16_at(&page, 78), discovery.controller);
        let header = discovery.log(0x70, 0, 1024).data;
        assert_eq!(header[8..16], u64::to_le_bytes(count));
        let log = discovery.log(0x70, 0, 4096).data;
        let names: Vec<_> = log[1024..]
            .chunks(1024)
            .filter(|entry| entry[0] == 3)
            .collect();
        assert_eq!(names.len() as u64, count);
        assert_eq!(
            &names[0][256..256 + NQN.len() + 1],
            format!("{NQN}\0").as_bytes()
        );
        let port = format!("{:<32}", target.address.port());
        assert_eq!(&names[0][32..64], port.as_bytes());
        assert_eq!(&names[0][512..522], b"127.0.0.1 ");
        assert_eq!(names[0][1..3], [1, 2]);
        // It has no I/O, and no pages of its own.
        assert_eq!(discovery.identify(0, 1).status, 0x02);
        assert_eq!(discovery.log(2, 0, 512).status, 0x109);
    }
}

#[test]
fn a_controller_and_its_namespace_are_described() {
    let target = Target::start();
    let mut host = Association::new(target.address, Identity::to(NQN), Style::default());
    let page = host.identify(1, 0).data;
    assert_eq!(u16_at(&page, 78), host.controller);
    assert_eq!(page[111], 1, "an I/O controller");
    assert_eq!(page[525], 7, "a volatile write cache");
    assert_eq!(&page[768..768 + NQN.len()], NQN.as_bytes());
    let list = host.identify(2, 0).data;
    assert_eq!(list[..8], [1, 0, 0, 0, 0, 0, 0, 0]);
    let space = host.identify(0, 1).data;
    assert_eq!(space[..8], (SIZE_BYTES / BLOCK as u64).to_le_bytes());
    assert_eq!(space[130], 9, "blocks of 512 bytes");
    assert_eq!(host.identify(0, 2).data, vec![0; 4096], "not active");
    assert_eq!(host.identify(0, 0).status, 0x0b);
    let descriptors = host.identify(3, 1).data;
    assert_eq!(descriptors[..2], [3, 16]);
    assert_eq!(descriptors[10] >> 4, 8, "a UUID of version 8");
    assert_eq!(host.identify(3, 2).status, 0x0b);
    assert_eq!(host.identify(6, 0).status, 0);
    assert_eq!(host.identify(0x55, 0).status, 0x02);
    // The same names: they do not change with associations.
    let mut other = Association::new(target.address, Identity::to(NQN), Style::default());
    assert_ne!(other.controller, host.controller);
    assert_eq!(other.identify(3, 1).data, descriptors);
    // Properties: CAP, VS, CC; and an unknown one.
    let get = |wide, offset| command(0x7f, 4, words(&[wide, offset]));
    let cap = host.admin.call(get(1, 0), With::Nothing).result;
    assert_eq!(cap & 0xffff, 127);
    assert_eq!(host.admin.call(get(0, 8), With::Nothing).result, 0x1_0400);
    assert_eq!(
        host.admin.call(get(0, 0x14), With::Nothing).result,
        0x46_0001
    );
    assert_eq!(host.admin.call(get(0, 0x24), With::Nothing).status, 0x02);
    assert_eq!(host.admin.call(get(0, 0), With::Nothing).status, 0x02);
}

#[test]
fn logs_and_features() {
    let target = Target::start();
    let mut host = Association::new(target.address, Identity::to(NQN), Style::default());
    let mut queue = host.queue(1);
    let data = vec![7; 1000 * BLOCK];
    assert_eq!(
        queue
            .call(on_blocks(WRITE, 0, 1000, 0), With::Data(&data))
            .status,
        0
    );
    assert_eq!(
        queue
            .call(on_blocks(READ, 1 << 40, 1, 0), With::Room(BLOCK))
            .status,
        0x80
    );
    for nsid in [1, 0xffff_ffff] {
        let smart = host.log(2, nsid, 512).data;
        assert_eq!((smart[48], smart[80]), (1, 1), "512,000 bytes by one write");
        assert_eq!(smart[176], 1, "one error");
    }
    let errors = host.log(1, 0, 128).data;
    assert_eq!(errors[..12], [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 3, 0]);
    assert_eq!(u16_at(&errors, 12) >> 1 & 0x7ff, 0x80);
    assert_eq!(errors[64..], [0; 64], "and no other");
    let ana = host.log(0x0c, 0, 52).data;
    assert_eq!(
        (ana[8], ana[32], ana[48]),
        (1, 1, 1),
        "one group, optimized, namespace 1"
    );
    // In pieces, up to its length with the maximum number of namespaces, and not beyond.
    let rest = |offset| command(2, 0, words(&[0x0c | 11 << 16, 0, offset]));
    assert_eq!(host.admin.call(rest(4096), With::Room(48)).data, [0; 48]);
    assert_eq!(host.admin.call(rest(4148), With::Room(48)).status, 0x02);
    assert_eq!(host.log(3, 0, 512).data[0], 1);
    assert_eq!(host.log(0x81, 0, 512).status, 0x109);
    let set = |id: u32, value| command(9, 0, words(&[id, value]));
    let get = |id: u32| command(0x0a, 0, words(&[id]));
    let queues = host.admin.call(set(7, 0x0003_0003), With::Nothing);
    assert_eq!((queues.status, queues.result), (0, 0x0003_0003));
    assert_eq!(
        host.admin.call(set(7, 0xff_00ff), With::Nothing).result,
        0x3f_003f
    );
    assert_eq!(host.admin.call(get(6), With::Nothing).result, 1);
    assert_eq!(host.admin.call(set(0x0f, 7000), With::Nothing).status, 0);
    assert_eq!(host.admin.call(get(0x0f), With::Nothing).result, 7000);
    assert_eq!(host.admin.call(set(1, 1), With::Nothing).status, 0x10e);
    assert_eq!(host.admin.call(get(0x99), With::Nothing).status, 0x02);
    assert_eq!(
        host.admin
            .call(command(0x18, 0, [0; 6]), With::Nothing)
            .status,
        0
    );
    assert_eq!(
        host.admin
            .call(command(0x80, 0, [0; 6]), With::Nothing)
            .status,
        0x01
    );
}

/// Runs random commands, one after the other, against a model.
fn against_the_model(target: &Target, style: Style, seed: u64, rounds: u64) {
    let identity = Identity {
        flow_control: seed.is_multiple_of(2),
        ..Identity::to(NQN)
    };
    let host = Association::new(target.address, identity, style);
    let mut queues = [host.queue(1), host.queue(2)];
    let mut draw = Draw(seed);
    let size = usize::try_from(SIZE_BYTES).expect("small");
    let mut model = vec![0; size];
    // Clears the previous content.
    let all = size / BLOCK;
    for first in (0..all).step_by(2048) {
        let done = queues[0].call(
            on_blocks(WRITE_ZEROES, first as u64, 2048, 0),
            With::Nothing,
        );
        assert_eq!(done.status, 0);
    }
    for round in 0..rounds {
        let queue = &mut queues[usize::try_from(draw.below(2)).expect("small")];
        let most = if draw.below(4) == 0 { 2048 } else { 24 };
        let blocks = usize::try_from(draw.below(most) + 1).expect("small");
        let first = usize::try_from(draw.below((all - blocks) as u64)).expect("small");
        let range = first * BLOCK..(first + blocks) * BLOCK;
        let fua = if draw.below(3) == 0 { FUA } else { 0 };
        let count = u32::try_from(blocks).expect("small");
        let entry = |opcode, flags| on_blocks(opcode, first as u64, count, flags);
        match draw.below(9) {
            0..=2 => {
                let data = draw.bytes(blocks * BLOCK);
                let with = match data.len() <= 8192 && draw.below(2) == 0 {
                    true => With::InCapsule(&data),
                    false => With::Data(&data),
                };
                assert_eq!(
                    queue.call(entry(WRITE, fua), with).status,
                    0,
                    "round {round}"
                );
                model[range].copy_from_slice(&data);
            }
            3..=5 => {
                let done = queue.call(entry(READ, fua), With::Room(range.len()));
                assert_eq!(done.status, 0, "round {round}");
                assert!(
                    done.data == model[range],
                    "round {round}: {first}, {blocks} blocks"
                );
            }
            6 => {
                assert_eq!(
                    queue.call(entry(WRITE_ZEROES, fua), With::Nothing).status,
                    0
                );
                model[range].fill(0);
            }
            7 => {
                let mut data = model[range].to_vec();
                let status = if draw.below(2) == 0 {
                    0
                } else {
                    data[0] ^= 1;
                    0x285
                };
                let done = queue.call(entry(COMPARE, 0), With::Data(&data));
                assert_eq!(done.status, status, "round {round}");
            }
            _ => {
                assert_eq!(queue.call(entry(VERIFY, 0), With::Nothing).status, 0);
                let flush = command(FLUSH, 1, [0; 6]);
                assert_eq!(queue.call(flush, With::Nothing).status, 0);
            }
        }
    }
}

#[test]
fn data_matches_the_model() {
    let target = Target::start();
    for (seed, header_digest, data_digest, alignment) in [
        (1, false, false, 0),
        (2, true, false, 0),
        (3, false, true, 7),
        (4, true, true, 31),
    ] {
        let style = Style {
            header_digest,
            data_digest,
            alignment,
        };
        against_the_model(&target, style, seed, 300);
    }
    drop(target);
    against_the_model(&Target::on(Engine::Threads), Style::default(), 5, 200);
}

#[test]
fn many_commands_are_in_flight_and_several_r2ts() {
    let target = Target::start();
    let identity = Identity {
        queue_size: 128,
        ..Identity::to(NQN)
    };
    let style = Style {
        header_digest: true,
        data_digest: true,
        alignment: 0,
    };
    let host = Association::new(target.address, identity, style);
    let mut queue = host.queue(1);
    let mut draw = Draw(9);
    let pieces: Vec<Vec<u8>> = (0..100).map(|_| draw.bytes(64 << 10)).collect();
    let blocks = (64 << 10) / 512;
    let entry = |opcode, at: usize| on_blocks(opcode, at as u64 * 128, blocks, 0);
    // No data is sent before every command has its R2T.
    let ids: Vec<u16> = pieces
        .iter()
        .enumerate()
        .map(|(at, data)| queue.start(entry(WRITE, at), With::Data(data)))
        .collect();
    let mut tags = Vec::new();
    for _ in &ids {
        let pdu = queue.pdu();
        assert_eq!(pdu.kind, 9);
        tags.push((u16_at(&pdu.header, 0), u16_at(&pdu.header, 2)));
    }
    let unique: HashSet<u16> = tags.iter().map(|(_, tag)| *tag).collect();
    assert_eq!(unique.len(), ids.len(), "a tag each");
    assert_eq!(
        target.take_log(),
        [],
        "nothing is written before it is here"
    );
    // Data of different commands is interleaved, starting with the last command.
    for half in [0, 1] {
        for (cid, tag) in tags.iter().rev() {
            let at = ids.iter().position(|id| id == cid).expect("ours");
            let range = half * (32 << 10)..(half + 1) * (32 << 10);
            queue.send_data(*cid, *tag, range.start, &pieces[at][range], half == 1, 0);
        }
    }
    for cid in ids {
        assert_eq!(queue.wait(cid).status, 0);
    }
    let reads: Vec<u16> = (0..pieces.len())
        .map(|at| queue.start(entry(READ, at), With::Room(64 << 10)))
        .collect();
    for (cid, piece) in reads.into_iter().zip(&pieces) {
        assert!(queue.wait(cid).data == *piece);
    }
}

#[test]
fn compares_do_not_wait_for_each_others_memory() {
    let target = Target::start();
    let identity = Identity {
        queue_size: 128,
        ..Identity::to(NQN)
    };
    let host = Association::new(target.address, identity, Style::default());
    let mut queue = host.queue(1);
    let data = vec![0; 1 << 20];
    let entry = on_blocks(COMPARE, 0, 2048, 0);
    // Each takes two buffers of 1 MiB, out of 32.
    let ids: Vec<u16> = (0..100)
        .map(|_| queue.start(entry, With::Data(&data)))
        .collect();
    for cid in ids {
        assert_eq!(queue.wait(cid).status, 0);
    }
}

#[test]
fn fua_flush_and_deallocation_reach_the_device() {
    let target = Target::start();
    let mut host = Association::new(target.address, Identity::to(NQN), Style::default());
    let mut queue = host.queue(1);
    let data = [1; 4096];
    let last = |target: &Target| target.take_log().pop().expect("something was asked");
    for (flags, with) in [
        (0, With::InCapsule(&data)),
        (FUA, With::InCapsule(&data)),
        (FUA, With::Data(&data)),
    ] {
        assert_eq!(queue.call(on_blocks(WRITE, 8, 8, flags), with).status, 0);
        let fua = flags != 0;
        assert_eq!(last(&target), (Op::Write { fua }, 4096, 4096));
    }
    for nsid in [1, 0xffff_ffff] {
        assert_eq!(
            queue
                .call(command(FLUSH, nsid, [0; 6]), With::Nothing)
                .status,
            0
        );
        assert_eq!(target.take_log(), [(Op::Flush, 0, 0)]);
    }
    let deac = 1 << 25;
    for (flags, fua, unmap) in [(0, false, false), (FUA, true, false), (deac, false, true)] {
        let entry = on_blocks(WRITE_ZEROES, 0, 65536 / 4, flags);
        assert_eq!(queue.call(entry, With::Nothing).status, 0);
        assert_eq!(last(&target), (Op::WriteZeroes { fua, unmap }, 0, 8 << 20));
    }
    let ranges = |list: &[(u64, u32)]| -> Vec<u8> {
        let range = |(first, blocks): &(u64, u32)| {
            [&[0; 4][..], &blocks.to_le_bytes(), &first.to_le_bytes()].concat()
        };
        list.iter().flat_map(range).collect()
    };
    let dsm =
        |count: u32, attributes| command(DATASET_MANAGEMENT, 1, words(&[count - 1, attributes]));
    let list = ranges(&[(8, 8), (100, 0), (64, 16)]);
    assert_eq!(queue.call(dsm(3, 4), With::InCapsule(&list)).status, 0);
    assert_eq!(
        target.take_log(),
        [(Op::Discard, 4096, 4096), (Op::Discard, 32768, 8192)]
    );
    assert_eq!(queue.call(dsm(3, 1), With::Data(&list)).status, 0, "a hint");
    assert_eq!(target.take_log(), []);
    // Room for more ranges than are used, as Linux sends it; not for fewer, nor for more than the
    // maximum.
    let room = [&ranges(&[(8, 8)])[..], &[0xff; 4080]].concat();
    assert_eq!(queue.call(dsm(1, 4), With::InCapsule(&room)).status, 0);
    assert_eq!(target.take_log(), [(Op::Discard, 4096, 4096)]);
    assert_eq!(queue.call(dsm(4, 4), With::Data(&list)).status, 0x0f);
    let long = [&room[..], &[0; 16]].concat();
    assert_eq!(queue.call(dsm(1, 4), With::Data(&long)).status, 0x0f);
    let beyond = ranges(&[(8, 8), (SIZE_BYTES / 512, 1)]);
    assert_eq!(queue.call(dsm(2, 4), With::Data(&beyond)).status, 0x80);
    assert_eq!(target.take_log(), [], "nothing of it");
    // A host without volatile cache gets FUA for every write.
    let no_cache = command(9, 0, words(&[6, 0]));
    assert_eq!(host.admin.call(no_cache, With::Nothing).status, 0);
    assert_eq!(
        queue
            .call(on_blocks(WRITE, 8, 8, 0), With::InCapsule(&data))
            .status,
        0
    );
    assert_eq!(last(&target), (Op::Write { fua: true }, 4096, 4096));
}

#[test]
fn a_shutdown_flushes_first() {
    let target = Target::start();
    let mut host = Association::new(target.address, Identity::to(NQN), Style::default());
    target.hold(true);
    let set = command(0x7f, 0, words(&[0, 0x14, 0x46_4001]));
    assert_eq!(host.admin.call(set, With::Nothing).status, 0);
    let get = command(0x7f, 4, words(&[0, 0x1c]));
    assert_eq!(
        host.admin.call(get, With::Nothing).result,
        1,
        "not complete while the flush runs"
    );
    target.hold(false);
    while host.admin.call(get, With::Nothing).result != 0b1001 {
        std::thread::yield_now();
    }
    assert_eq!(target.take_log(), [(Op::Flush, 0, 0)]);
}
