use proptest::prelude::*;

use super::*;

#[test]
fn commands_are_numbered_as_ioctls() {
    // _IOWR('u', 0x04, 32 bytes) and so on, as a compiler computes them from the header.
    assert_eq!(control::ADD, 0xc020_7504);
    assert_eq!(control::GET_INFO, 0x8020_7502);
    assert_eq!(control::END_RECOVERY, 0xc020_7511);
    assert_eq!(control::GET_FEATURES, 0x8020_7513);
    assert_eq!(io::FETCH, 0xc010_7520);
    assert_eq!(io::COMMIT_AND_FETCH, 0xc010_7521);
}

#[test]
fn each_field_is_at_its_place() {
    let control = Control {
        device: 0x0102,
        address: 0x1122_3344_5566_7788,
        len: 64,
        data: 77,
    };
    let bytes = control.encode();
    assert_eq!(bytes[..8], [2, 1, 0, 0, 255, 255, 64, 0]);
    assert_eq!((bytes[8], bytes[15], bytes[16]), (0x88, 0x11, 77));
    let info = Info {
        queues: 2,
        depth: 128,
        state: state::QUIESCED,
        max_bytes: 1 << 19,
        device: 5,
        server: -1,
        features: feature::USER_COPY,
        note: 9,
    };
    let bytes = info.encode();
    assert_eq!(bytes[..12], [2, 0, 128, 0, 2, 0, 0, 0, 0, 0, 8, 0]);
    assert_eq!((bytes[12], bytes[16], bytes[19]), (5, 255, 255));
    assert_eq!((bytes[24], bytes[32]), (128, 9));
    let params = Params {
        attributes: attribute::FUA,
        logical_shift: 9,
        physical_shift: 12,
        max_sectors: 1024,
        sectors: 0x0102_0304_0506,
        discard_unit_bytes: 4096,
        max_discard_sectors: 3,
        max_zeroes_sectors: 4,
    };
    let bytes = params.encode();
    assert_eq!(
        bytes[..20],
        [
            60, 0, 0, 0, 3, 0, 0, 0, 8, 0, 0, 0, 9, 12, 12, 12, 0, 4, 0, 0
        ]
    );
    assert_eq!(bytes[24..32], [6, 5, 4, 3, 2, 1, 0, 0]);
    assert_eq!((bytes[45], bytes[48], bytes[52], bytes[56]), (16, 3, 4, 1));
    let descriptor = Descriptor {
        op: op::WRITE_ZEROES,
        flags: FUA | NOUNMAP,
        sectors: 8,
        start_sector: 1,
    };
    let bytes = descriptor.encode();
    assert_eq!(
        bytes[..16],
        [5, 0xa0, 0, 0, 8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
    );
    let answer = Io {
        queue: 1,
        tag: 2,
        result: -5,
    };
    assert_eq!(
        answer.encode(),
        [1, 0, 2, 0, 251, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0]
    );
}

#[test]
fn offsets_do_not_meet() {
    assert_eq!(descriptors_offset(1), 4096 * 24);
    assert_eq!(data_offset(0, 1) - data_offset(0, 0), 32 << 20);
    assert_eq!(
        data_offset(1, 0) - data_offset(0, u16::MAX),
        data_offset(0, 1) - data_offset(0, 0)
    );
    assert!(descriptors_offset(4095) + 4096 * 24 < data_offset(0, 0));
}

#[test]
fn params_that_a_driver_lacks_are_none() {
    let mut bytes = [0; PARAMS_BYTES];
    assert_eq!(Params::decode(bytes), None);
    bytes[4] = 1;
    assert_eq!(Params::decode(bytes), None);
}

proptest! {
    #[test]
    fn encoded_structures_are_decoded(
        (device, address, len, data) in any::<(u32, u64, u16, u64)>(),
        (queue, tag, result) in any::<(u16, u16, i32)>(),
        (op, flags, sectors, start_sector) in any::<(u8, u32, u32, u64)>(),
    ) {
        let control = Control { device, address, len, data };
        prop_assert_eq!(Control::decode(control.encode()), control);
        let io = Io { queue, tag, result };
        prop_assert_eq!(Io::decode(io.encode()), io);
        let descriptor = Descriptor { op, flags: flags & !0xff, sectors, start_sector };
        prop_assert_eq!(Descriptor::decode(descriptor.encode()), descriptor);
        let info = Info {
            queues: queue, depth: tag, state: len, max_bytes: sectors,
            device, server: result, features: address, note: data,
        };
        prop_assert_eq!(Info::decode(info.encode()), info);
        let params = Params {
            attributes: flags, logical_shift: op, physical_shift: op, max_sectors: sectors,
            sectors: start_sector, discard_unit_bytes: device, max_discard_sectors: flags,
            max_zeroes_sectors: sectors,
        };
        prop_assert_eq!(Params::decode(params.encode()), Some(params));
    }
}
