//! Targets that break the protocol: the command is sent again on the next association.

use forebay_block::{BlockDeviceExt as _, Buf};
use forebay_wire::nvme::io::opcode;
use forebay_wire::nvme::{Command, Status};
use forebay_wire::nvme_tcp::{Kind, Terminate, flag};

use super::pdu::{data, ended, ready, said};
use super::target::{Act, Target};
use super::{TIMES, with_device};

const END: u8 = flag::LAST | flag::SUCCESS;

type Lie = fn(&Command) -> Vec<u8>;

/// Invalid answers to a read of 4 KiB.
const TO_READS: [(&str, Lie); 16] = [
    ("nothing of it has come", |it| {
        ended(it.cid, 0, Status::SUCCESS)
    }),
    ("half of it has come", |it| {
        let half = data(it.cid, flag::LAST, 0, &[6; 2048]);
        [half, ended(it.cid, 0, Status::SUCCESS)].concat()
    }),
    ("half, by itself", |it| data(it.cid, END, 0, &[6; 2048])),
    ("success before the last", |it| {
        data(it.cid, flag::SUCCESS, 0, &[6; 4096])
    }),
    ("too much", |it| data(it.cid, END, 0, &[6; 4100])),
    ("too far", |it| data(it.cid, END, 4, &[6; 4096])),
    ("at the end of all numbers", |it| {
        data(it.cid, END, u32::MAX - 3, &[6; 4096])
    }),
    ("twice the same", |it| {
        let half = data(it.cid, 0, 0, &[6; 2048]);
        [&half[..], &half].concat()
    }),
    ("another's", |it| data(it.cid ^ 1, END, 0, &[6; 4096])),
    ("an earlier one's", |it| {
        data(it.cid ^ 1 << 10, END, 0, &[6; 4096])
    }),
    ("another's end", |it| ended(it.cid ^ 1, 0, Status::SUCCESS)),
    ("it asks for data", |it| ready(it.cid, 0, 4096)),
    ("no PDU", |_| vec![0xee; 64]),
    ("two lengths", |it| {
        let mut pdu = data(it.cid, END, 0, &[6; 4096]);
        pdu[16] ^= 4;
        pdu
    }),
    ("a PDU of a host", |_| {
        said(Kind::CapsuleCmd, 0, &[0; 64], &[])
    }),
    ("half a PDU", |it| {
        data(it.cid, END, 0, &[6; 4096])[..3000].to_vec()
    }),
];

/// Invalid answers to a write of 64 KiB, whose command carries no data.
const TO_WRITES: [(&str, Lie); 8] = [
    ("nothing has gone", |it| ended(it.cid, 0, Status::SUCCESS)),
    ("not from the begin", |it| ready(it.cid, 4096, 4096)),
    ("too much", |it| ready(it.cid, 0, (64 << 10) + 4)),
    ("at the end of all numbers", |it| ready(it.cid, 0, u32::MAX)),
    ("nothing", |it| ready(it.cid, 0, 0)),
    ("another's", |it| ready(it.cid ^ 1, 0, 4096)),
    ("data of a read", |it| data(it.cid, END, 0, &[6; 4096])),
    ("a farewell", |_| {
        let why = Terminate {
            fatal: 1,
            information: 2,
        };
        said(Kind::C2hTermReq, 0, &why.encode(), &[])
    }),
];

#[test]
fn lies_about_reads_are_not_believed() {
    for (what, lie) in TO_READS {
        // Command 1 is the data to read, command 2 the lie.
        let target = Target::start(move |number, _| match number {
            2 => Act::Say(lie),
            _ => Act::Answer,
        });
        with_device(&target, TIMES, move |device| async move {
            device
                .write_fua(0, Buf::copied(&[8; 4096]))
                .await
                .expect(what);
            let read = Buf::zeroed(4096);
            device.read(0, read.clone()).await.expect(what);
            assert_eq!(read.to_vec(), [8; 4096], "{what}");
            assert_eq!(device.losses(), 1, "{what}");
        });
        let read = (opcode::READ, 0);
        assert_eq!(target.asked()[1..], [read, read], "{what}");
    }
}

#[test]
fn lies_about_writes_are_not_believed() {
    for (what, lie) in TO_WRITES {
        let target = Target::start(move |number, _| match number {
            1 => Act::Say(lie),
            _ => Act::Answer,
        });
        with_device(&target, TIMES, move |device| async move {
            let bytes: Vec<_> = (0..64 << 10).map(|at: u32| (at % 253) as u8).collect();
            device.write(0, Buf::copied(&bytes)).await.expect(what);
            let read = Buf::zeroed(bytes.len());
            device.read(0, read.clone()).await.expect(what);
            assert!(read.to_vec() == bytes, "{what}");
            assert_eq!(device.losses(), 1, "{what}");
        });
        let write = (opcode::WRITE, 0);
        assert_eq!(target.asked()[..2], [write, write], "{what}");
    }
}
