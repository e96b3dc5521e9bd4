//! Messages of a monitor, by number ("Front-end message types" of the vhost-user protocol).

use std::fs::File;
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::fs::FileExt as _;

use super::here::{self, Here};
use super::{ENTRIES, QUEUES, REGION_BYTES, guest, places};

const GET_FEATURES: u32 = 1;
const SET_FEATURES: u32 = 2;
const SET_OWNER: u32 = 3;
const SET_MEM_TABLE: u32 = 5;
const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_BASE: u32 = 10;
pub(super) const GET_VRING_BASE: u32 = 11;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
const SET_VRING_ERR: u32 = 14;
const GET_PROTOCOL_FEATURES: u32 = 15;
const SET_PROTOCOL_FEATURES: u32 = 16;
const GET_QUEUE_NUM: u32 = 17;
const SET_VRING_ENABLE: u32 = 18;
const GET_CONFIG: u32 = 24;
const SET_CONFIG: u32 = 25;
pub(super) const GET_INFLIGHT_FD: u32 = 31;
pub(super) const SET_INFLIGHT_FD: u32 = 32;

/// First messages of a monitor, and messages for each queue.
pub(super) const SET_UP: [u32; 6] = [
    GET_FEATURES,
    SET_OWNER,
    SET_FEATURES,
    GET_PROTOCOL_FEATURES,
    SET_PROTOCOL_FEATURES,
    SET_MEM_TABLE,
];
pub(super) const START_QUEUE: [u32; 6] = [
    SET_VRING_NUM,
    SET_VRING_BASE,
    SET_VRING_ADDR,
    SET_VRING_CALL,
    SET_VRING_KICK,
    SET_VRING_ENABLE,
];

/// Returns whether the guest's requests keep their meaning after a valid message of this number.
pub(super) const fn keeps_order(number: u32) -> bool {
    matches!(
        number,
        GET_FEATURES
            | SET_OWNER
            | GET_VRING_BASE
            | SET_VRING_CALL
            | SET_VRING_ERR
            | GET_PROTOCOL_FEATURES
            | GET_QUEUE_NUM
            | GET_CONFIG
    )
}

/// Address of the guest's memory in the monitor.
const USER: u64 = 0x7000_0000_0000;
/// Feature bit of the protocol features.
const PROTOCOL_FEATURES: u64 = 1 << 30;

pub(super) fn encode(number: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).expect("short");
    // Version 1.
    let header = [number, 1 | flags, length];
    let mut bytes: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(body);
    bytes
}

/// State of the monitor, from the target's answers.
#[derive(Default)]
pub(super) struct Message {
    features: u64,
    protocol: u64,
    /// Description of the list of requests in flight, and the list.
    list: Option<(Vec<u8>, File)>,
    /// Whether both queues run as they were set up.
    pub(super) untouched: bool,
}

impl Message {
    /// Stores an answer.
    pub(super) fn heard(&mut self, bytes: &[u8], file: Option<File>) {
        let Some((header, body)) = bytes.split_first_chunk::<12>() else {
            return;
        };
        let number = || {
            body.first_chunk()
                .map_or(0, |eight| u64::from_le_bytes(*eight))
        };
        match (u32::from(header[0]), file) {
            (GET_FEATURES, _) => self.features = number(),
            (GET_PROTOCOL_FEATURES, _) => self.protocol = number(),
            (GET_INFLIGHT_FD, Some(file)) => self.list = Some((body.to_vec(), file)),
            _ => {}
        }
    }

    /// Changes the list of requests in flight.
    pub(super) fn scribble(&self, at: u16, value: u8) {
        if let Some((description, list)) = &self.list {
            let size = description
                .first_chunk()
                .map_or(1, |eight| u64::from_le_bytes(*eight));
            // It does not grow.
            let _ = list.write_all_at(&[value], u64::from(at) % size.max(1));
        }
    }

    /// Returns the body of a valid message.
    pub(super) fn body(&self, number: u32, queue: usize, base: u16) -> Vec<u8> {
        let numbers = |list: &[u64]| list.iter().flat_map(|one| one.to_le_bytes()).collect();
        let state = |value: u32| numbers(&[u64::from(value) << 32 | queue as u64]);
        match number {
            SET_FEATURES => numbers(&[self.features | PROTOCOL_FEATURES]),
            SET_PROTOCOL_FEATURES => numbers(&[self.protocol]),
            SET_MEM_TABLE => {
                let mut list = vec![2];
                for at in [0, REGION_BYTES] {
                    list.extend([guest(at), REGION_BYTES, USER + at, at]);
                }
                numbers(&list)
            }
            SET_VRING_NUM => state(ENTRIES.into()),
            SET_VRING_BASE => state(base.into()),
            GET_VRING_BASE => state(0),
            SET_VRING_ENABLE => state(1),
            SET_VRING_ADDR => {
                let [table, available, used] = places(queue).map(|at| USER + at);
                numbers(&[queue as u64, table, used, available, 0])
            }
            SET_VRING_KICK | SET_VRING_CALL | SET_VRING_ERR => numbers(&[queue as u64]),
            GET_CONFIG | SET_CONFIG => {
                let mut bytes: Vec<u8> = [0, 60, 0_u32]
                    .iter()
                    .flat_map(|w| w.to_le_bytes())
                    .collect();
                bytes.extend([0; 60]);
                bytes
            }
            GET_INFLIGHT_FD => {
                let mut bytes = vec![0; 16];
                bytes.extend((QUEUES as u16).to_le_bytes());
                bytes.extend(ENTRIES.to_le_bytes());
                bytes
            }
            SET_INFLIGHT_FD => self
                .list
                .as_ref()
                .map_or(vec![0; 20], |(description, _)| description.clone()),
            _ => Vec::new(),
        }
    }

    /// Returns the descriptors of a message.
    pub(super) fn files(&self, here: &Here, number: u32, queue: usize) -> Vec<RawFd> {
        match number {
            SET_MEM_TABLE => vec![here.file.as_raw_fd(); 2],
            SET_VRING_KICK => vec![here::fd(&here.kicks[queue])],
            SET_VRING_CALL | SET_VRING_ERR => vec![here::fd(&here.call)],
            SET_INFLIGHT_FD => self.list.iter().map(|(_, list)| list.as_raw_fd()).collect(),
            _ => Vec::new(),
        }
    }
}
