//! The codecs of NVMe and NVMe/TCP: properties of well-formed messages, the specification's
//! numbers, and a seeded substitute for the fuzzer that needs no nightly compiler.

mod auth;
mod check;

use forebay_wire::nvme::admin::{LogRequest, lid};
use forebay_wire::nvme::auth::Exchange;
use forebay_wire::nvme::fabrics::{self, Connect, ConnectData, DiscoveryEntry, Property};
use forebay_wire::nvme::identify::{self, Controller, ControllerKind, Namespace};
use forebay_wire::nvme::io::{Range, opcode};
use forebay_wire::nvme::log::{self, ErrorEntry, Smart};
use forebay_wire::nvme::{Command, Completion, Data, Status};
use forebay_wire::nvme_tcp::{
    Common, DataHeader, Digests, Fault, Initialize, Kind, Terminate, digest, flag,
};
use proptest::prelude::*;

const BOTH: Digests = Digests {
    header: true,
    data: true,
};

fn connect_data() -> ConnectData {
    ConnectData {
        host_id: [7; 16],
        controller: fabrics::ANY_CONTROLLER,
        subsystem: "nqn.2026-11.io.forebay:db".to_owned(),
        host: "nqn.2014-08.org.nvmexpress:uuid:01".to_owned(),
    }
}

/// A valid message to damage.
fn seeds() -> Vec<Vec<u8>> {
    let none = Digests::default();
    let mut seeds = Vec::new();
    for (kind, data_bytes) in [
        (Kind::IcReq, 0),
        (Kind::H2cTermReq, 8),
        (Kind::CapsuleCmd, 0),
        (Kind::CapsuleCmd, 4096),
        (Kind::H2cData, 512),
        (Kind::C2hData, 512),
        (Kind::R2t, 0),
    ] {
        seeds.push(Common::new(kind, 0, data_bytes, none, 0).encode().to_vec());
        seeds.push(Common::new(kind, 0, data_bytes, BOTH, 3).encode().to_vec());
    }
    let initialize = Initialize {
        version: 0,
        alignment: 0,
        digests: BOTH,
        limit: 1,
    };
    seeds.push(initialize.encode().to_vec());
    let write = Command::on_range(opcode::WRITE, 1, 8, 8, true);
    let write = write.with_data(Data::Transport { length: 4096 });
    seeds.push(write.encode().to_vec());
    seeds.push(connect_data().encode().to_vec());
    seeds.extend(auth::messages());
    seeds.extend(auth::answers());
    seeds.push(Exchange::command(true, 72).encode().to_vec());
    seeds
}

#[test]
fn damaged_messages_never_break_the_codec() {
    let seeds = seeds();
    let mut state = 0x0f0e_b0a1_u64;
    let mut draw = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % below as u64).expect("a small number")
    };
    let mut taken = 0;
    for _ in 0..100_000 {
        let mut data = seeds[draw(seeds.len())].clone();
        for _ in 0..draw(4) {
            match draw(4) {
                0 if !data.is_empty() => {
                    let at = draw(data.len());
                    data[at] ^= 1 << draw(8);
                }
                1 => data.truncate(draw(data.len() + 1)),
                2 => data.push(u8::try_from(draw(256)).expect("a byte")),
                _ => data.extend_from_slice(&seeds[draw(seeds.len())]),
            }
        }
        taken += check::any_input(&data);
    }
    assert!(taken > 50_000, "the inputs reach past the headers: {taken}");
}

#[test]
fn every_seed_is_taken() {
    for seed in seeds() {
        assert!(check::any_input(&seed) > 0, "{seed:?}");
    }
}

proptest! {
    #[test]
    fn commands_come_back(
        cid: u16,
        nsid: u32,
        first: u64,
        blocks in 1u32..=65536,
        fua: bool,
        length: u32,
    ) {
        let mut command = Command::on_range(opcode::READ, nsid, first, blocks, fua);
        command.cid = cid;
        let command = command.with_data(Data::Transport { length });
        let back = Command::decode(command.encode());
        prop_assert_eq!(back, command);
        prop_assert_eq!((back.first_block(), back.blocks(), back.fua()), (first, blocks, fua));
        prop_assert_eq!(back.data(), Ok(Data::Transport { length }));
    }

    #[test]
    fn headers_come_back(
        at in 0usize..9,
        data_bytes in 1u32..1 << 30,
        header: bool,
        data: bool,
        alignment in 0u8..=31,
    ) {
        let kinds = [
            Kind::IcReq,
            Kind::IcResp,
            Kind::H2cTermReq,
            Kind::C2hTermReq,
            Kind::CapsuleCmd,
            Kind::CapsuleResp,
            Kind::H2cData,
            Kind::C2hData,
            Kind::R2t,
        ];
        let kind = kinds[at];
        let digests = Digests { header, data };
        let carries = !matches!(kind, Kind::IcReq | Kind::IcResp | Kind::CapsuleResp | Kind::R2t);
        let data_bytes = if carries { data_bytes } else { 0 };
        let common = Common::new(kind, 0, data_bytes, digests, alignment);
        let layout = Common::decode(common.encode()).check(digests, alignment).unwrap();
        prop_assert_eq!(layout.kind, kind);
        prop_assert_eq!(layout.data_bytes, data_bytes);
        if layout.padding_bytes > 0 {
            prop_assert_eq!(u32::from(common.data_offset) % ((u32::from(alignment) + 1) * 4), 0);
        }
    }

    #[test]
    fn log_requests_come_back(
        lid: u8,
        specific in 0u8..128,
        retain: bool,
        dwords in 1u64..=1 << 32,
        offset: u64,
    ) {
        let request = LogRequest { lid, specific, retain, length: dwords * 4, offset };
        prop_assert_eq!(LogRequest::of(&request.command(1)), request);
    }

    #[test]
    fn connects_come_back(queue: u16, queue_size: u16, no_flow_control: bool, keep_alive_ms: u32) {
        let connect = Connect { format: 0, queue, queue_size, no_flow_control, keep_alive_ms };
        prop_assert_eq!(Connect::of(&connect.command()), connect);
    }

    #[test]
    fn any_bytes_are_handled(data in proptest::collection::vec(any::<u8>(), 0..1100)) {
        check::any_input(&data);
    }
}

#[test]
fn the_specifications_numbers() {
    assert_eq!(digest(b"123456789"), 0xe306_9283_u32.to_le_bytes());
    // 32 bytes of zeroes: the vector of RFC 3720, B.4.
    assert_eq!(digest(&[0; 32]), [0xaa, 0x36, 0x91, 0x8a]);
    let common = Common::new(Kind::CapsuleCmd, 0, 4096, BOTH, 0);
    assert_eq!(common.encode(), [4, 3, 72, 76, 0x50, 0x10, 0, 0]);
    let common = Common::new(
        Kind::C2hData,
        flag::LAST | flag::SUCCESS,
        512,
        Digests::default(),
        15,
    );
    assert_eq!(common.encode(), [7, 12, 24, 64, 0x40, 2, 0, 0]);
    let r2t = DataHeader {
        cid: 1,
        tag: 2,
        offset: 3,
        length: 4,
    };
    let bytes = [1, 0, 2, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(r2t.encode(), bytes);
    let said = Terminate::of(Fault::field(10));
    assert_eq!(said.encode()[..6], [1, 0, 10, 0, 0, 0]);
    let write = Command::on_range(opcode::WRITE, 1, 0x1_0000_0002, 8, true);
    let write = write.with_data(Data::InCapsule {
        offset: 0,
        length: 4096,
    });
    let bytes = write.encode();
    assert_eq!(bytes[..8], [1, 0x40, 0, 0, 1, 0, 0, 0]);
    assert_eq!(bytes[32..40], [0, 0x10, 0, 0, 0, 0, 0, 1]);
    assert_eq!(bytes[40..52], [2, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0x40]);
    let connect = Connect {
        format: 0,
        queue: 3,
        queue_size: 31,
        no_flow_control: true,
        keep_alive_ms: 5000,
    };
    let bytes = connect.command().encode();
    assert_eq!((bytes[0], bytes[4]), (0x7f, 1));
    assert_eq!(bytes[40..52], [0, 0, 3, 0, 31, 0, 4, 0, 0x88, 0x13, 0, 0]);
    let set = Property::set(fabrics::property::CC, 0x46_0001).encode();
    assert_eq!((set[0], set[4]), (0x7f, 0));
    assert_eq!(set[40..52], [0, 0, 0, 0, 0x14, 0, 0, 0, 1, 0, 0x46, 0]);
    let range = Range {
        attributes: 0,
        blocks: 8,
        first_block: 16,
    };
    let bytes = [0, 0, 0, 0, 8, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(range.encode(), bytes);
    let done = Completion {
        result: 5,
        sq_head: 6,
        sq_id: 0,
        cid: 7,
        status: Status::LBA_OUT_OF_RANGE,
    };
    assert_eq!(
        done.encode(),
        [5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 7, 0, 0, 0x81]
    );
    let page = LogRequest {
        lid: lid::DISCOVERY,
        specific: 0,
        retain: true,
        length: 1024,
        offset: 4096,
    };
    assert_eq!(page.command(0).words[0], 0x00ff_8070);
}

#[test]
fn pages_have_their_fields_where_hosts_look() {
    let page = Controller {
        kind: ControllerKind::Io,
        serial: "serial".to_owned(),
        model: "model".to_owned(),
        revision: "1.0".to_owned(),
        id: 0x0102,
        subsystem: "nqn.a:b".to_owned(),
        max_transfer_shift: 8,
        events: 1 << 8,
        event_requests: 4,
        error_entries: 32,
        keep_alive_100ms: 10,
        queue_size: 128,
        namespaces: 1024,
        volatile_cache: true,
        atomic_blocks: 8,
        in_capsule_bytes: 8192,
    }
    .encode();
    assert_eq!(&page[4..14], b"serial    ");
    assert_eq!((page[76], page[77]), (0b1010, 8));
    assert_eq!(page[78..80], [2, 1]);
    assert_eq!(page[80..84], [0, 4, 1, 0]);
    assert_eq!((page[111], page[259], page[525]), (1, 3, 7));
    assert_eq!(page[512..514], [0x66, 0x44]);
    assert_eq!(page[528..530], [7, 0]);
    assert_eq!(page[536..540], [1, 0, 0x30, 0]);
    assert_eq!(&page[768..776], b"nqn.a:b\0");
    // 64 bytes and 8 KiB, in 16 bytes.
    assert_eq!(page[1792..1796], [4, 2, 0, 0]);
    let page = Namespace {
        blocks: 0x1000,
        block_shift: 12,
        preferred_blocks: 2,
        atomic_blocks: 1,
        read_only: true,
    }
    .encode();
    assert_eq!(page[..2], [0, 0x10]);
    assert_eq!((page[99], page[130], page[64]), (1, 12, 1));
    let page = identify::descriptors(&[9; 16]);
    assert_eq!(page[..5], [3, 16, 0, 0, 9]);
    let page = identify::namespace_list([1, 2, 5].into_iter(), 1);
    assert_eq!(page[..12], [2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
    let entry = DiscoveryEntry {
        subsystem: "nqn.a:b".to_owned(),
        address: "::1".parse().expect("an address"),
        port: 4420,
        port_id: 1,
        admin_queue_size: 32,
    }
    .encode();
    assert_eq!(entry[..4], [3, 2, 2, 6]);
    assert_eq!(&entry[32..37], b"4420 ");
    assert_eq!(&entry[512..516], b"::1 ");
}

#[test]
fn log_pages_have_their_fields_where_hosts_look() {
    let page = Smart {
        read_bytes: 512_001,
        reads: 3,
        media_errors: 4,
        read_only: true,
        ..Smart::default()
    }
    .encode();
    assert_eq!((page[0], page[3], page[32], page[48]), (8, 100, 2, 0));
    assert_eq!((page[64], page[160]), (3, 4));
    let entry = ErrorEntry {
        number: 1,
        queue: 2,
        cid: 3,
        status: Status::WRITE_FAULT,
        first_block: 4,
        nsid: 5,
    }
    .encode();
    assert_eq!(
        (entry[0], entry[8], entry[10], entry[16], entry[24]),
        (1, 2, 3, 4, 5)
    );
    assert_eq!(entry[12..14], Status::WRITE_FAULT.to_wire().to_le_bytes());
    let page = log::ana(3, &[1, 2], false);
    assert_eq!(page.len(), 16 + 32 + 8);
    assert_eq!(
        (page[8], page[16], page[20], page[32], page[48]),
        (1, 1, 2, 1, 1)
    );
    assert_eq!(log::ana(3, &[1, 2], true).len(), 48);
    assert_eq!(log::changed_namespaces(&[7])[..8], [7, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(log::changed_namespaces(&[1; 1025])[..4], [0xff; 4]);
}

#[test]
fn invalid_messages_are_named() {
    let none = Digests::default();
    let good = Common::new(Kind::H2cData, flag::LAST, 512, none, 0);
    assert!(good.check(none, 0).is_ok());
    let wrong = |change: fn(&mut Common)| {
        let mut header = good;
        change(&mut header);
        header.check(none, 0).expect_err("it is wrong").information
    };
    assert_eq!(wrong(|h| h.kind = 8), 0);
    assert_eq!(wrong(|h| h.flags |= flag::SUCCESS), 1);
    assert_eq!(wrong(|h| h.flags |= flag::HEADER_DIGEST), 1);
    assert_eq!(wrong(|h| h.header_length = 72), 2);
    assert_eq!(wrong(|h| h.data_offset = 28), 3);
    assert_eq!(wrong(|h| h.length = 24), 4);
    assert_eq!(wrong(|h| h.length = 0), 4);
    let mut fused = Command::new(opcode::WRITE, 1, [0; 6]);
    fused.flags |= 1;
    assert_eq!(fused.data(), Err(Status::INVALID_FIELD));
    let mut keyed = Command::new(opcode::WRITE, 1, [0; 6]);
    keyed.sgl_type = 0x40;
    assert_eq!(keyed.data(), Err(Status::SGL_TYPE_INVALID));
    let mut nameless = connect_data().encode();
    nameless[256] = b'x';
    assert_eq!(ConnectData::decode(&nameless), Err(fabrics::BadField(256)));
    let mut endless = connect_data().encode();
    endless[512 + 34..768].fill(b'a');
    assert_eq!(ConnectData::decode(&endless), Err(fabrics::BadField(512)));
}
