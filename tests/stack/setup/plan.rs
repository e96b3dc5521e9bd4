//! The actions of clients in a configuration.

use forebay_io::sim::Rng;
use forebay_testkit::workload::{Mix, Plan};

use super::{LARGE, Pressure, Setup, VOLUME_BYTES};

impl Setup {
    /// Returns the clients' plan. A variant draws its kind.
    pub(crate) fn plan(&self) -> Plan {
        let plain = Mix::default();
        if let Some(aim) = self.aim() {
            return Plan {
                script: aim.script,
                lanes: 1,
                operations: 0,
                mix: plain,
                largest_bytes: 8 << 10,
            };
        }
        if self.is_plain() {
            return Plan {
                script: &[],
                lanes: 3,
                operations: 8,
                mix: Mix {
                    control: 12 * u64::from(self.changes()),
                    ..plain
                },
                largest_bytes: 48 << 10,
            };
        }
        let rng = Rng::labelled(self.variant, 23);
        let mix = match rng.below(4) {
            0 => Mix { read: 80, ..plain },
            1 => Mix { flush: 1, ..plain },
            2 => Mix {
                discard: 10,
                zeroes: 10,
                ..plain
            },
            _ => plain,
        };
        let mix = match self.pressure() {
            None => Mix { control: 2, ..mix },
            Some(Pressure::Mixed) => Mix {
                read: [4, 24][rng.index(2)],
                fua: [1, 8][rng.index(2)],
                flush: [1, 10, 60][rng.index(3)],
                zeroes: [3, 20][rng.index(2)],
                pause: [2, 10][rng.index(2)],
                control: [0, 2, 10][rng.index(3)],
                ..mix
            },
            Some(Pressure::Calm) => Mix {
                read: 24,
                fua: 0,
                flush: [1, 6][rng.index(2)],
                discard: 1,
                zeroes: 1,
                pause: 20,
                control: [0, 5][rng.index(2)],
                ..plain
            },
            Some(Pressure::Bulk) => Mix {
                read: [4, 24][rng.index(2)],
                fua: 1,
                flush: 10,
                discard: 1,
                zeroes: 1,
                control: [2, 10, 30][rng.index(3)],
                ..plain
            },
        };
        Plan {
            script: &[],
            lanes: if self.is_pressed() {
                [1, 2, 6][rng.index(3)]
            } else {
                2 + rng.index(5)
            },
            operations: [10, 40, 80, 160][rng.index(if self.is_pressed() { 4 } else { 3 })],
            mix,
            largest_bytes: match self.pressure() {
                Some(Pressure::Bulk) => VOLUME_BYTES,
                _ if self.variant & LARGE != 0 => [8, 48, 96, 700][rng.index(4)] << 10,
                _ => [8, 48, 96][rng.index(3)] << 10,
            },
        }
    }
}
