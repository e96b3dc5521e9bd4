//! Loads with the published figures of three sets of traces.
//!
//! The AdaCache paper (CLOUD '23) has the numbers of volumes, of reads and writes, and of their
//! bytes (its Table II). It also states which volumes have mostly reads or writes. More than half
//! of the requests of Alibaba and SYSTOR have at most 4 KiB. More than half of MSR's are larger
//! than 32 KiB. Other properties are ours: the distribution of bytes over volumes, locality, and
//! arrivals.

use super::{Arrivals, SizeCdf, VolumeLoad};

const GIB: f64 = (1_u64 << 30) as f64;
const KIB: u32 = 1 << 10;

/// A set of traces with published figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Alibaba Cloud, five virtual disks.
    Alibaba,
    /// MSR Cambridge, seven drives.
    Msr,
    /// SYSTOR '17, six logical units.
    Systor,
}

/// Published figures of a set, for 10 million requests of each volume.
#[derive(Clone, Copy, Debug)]
struct Published {
    read_gib: f64,
    write_gib: f64,
    reads: f64,
    writes: f64,
}

/// Name of a volume, its share of reads, and the relative sizes of its reads and writes.
type Volume = (&'static str, f64, f64, f64);

impl Preset {
    /// All sets.
    pub const ALL: [Self; 3] = [Self::Alibaba, Self::Msr, Self::Systor];

    /// Requests of each volume in the paper.
    pub const REQUESTS: u64 = 10_000_000;

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Alibaba => "alibaba",
            Self::Msr => "msr",
            Self::Systor => "systor",
        }
    }

    const fn published(self) -> Published {
        match self {
            Self::Alibaba => Published {
                read_gib: 607.3,
                write_gib: 375.9,
                reads: 24.5e6,
                writes: 25.5e6,
            },
            Self::Msr => Published {
                read_gib: 2416.8,
                write_gib: 207.2,
                reads: 61e6,
                writes: 9e6,
            },
            Self::Systor => Published {
                read_gib: 1109.2,
                write_gib: 271.9,
                reads: 40.7e6,
                writes: 19.3e6,
            },
        }
    }

    /// The shares of reads have the published sum.
    const fn volumes(self) -> &'static [Volume] {
        match self {
            Self::Alibaba => &[
                ("vd2", 0.20, 1.1, 0.9),
                ("vd10", 0.85, 0.9, 1.2),
                ("vd49", 0.48, 1.0, 1.0),
                ("vd124", 0.77, 1.1, 0.8),
                ("vd740", 0.15, 0.8, 1.1),
            ],
            Self::Msr => &[
                ("prn_1", 0.78, 0.8, 1.0),
                ("proj_1", 0.93, 1.1, 0.9),
                ("proj_2", 0.92, 1.2, 1.3),
                ("src1_0", 0.80, 0.9, 1.1),
                ("src1_1", 0.95, 1.0, 0.8),
                ("usr_1", 0.92, 1.1, 0.9),
                ("usr_2", 0.80, 0.9, 1.0),
            ],
            Self::Systor => &[
                ("LUN1", 0.62, 1.1, 1.0),
                ("LUN2", 0.66, 0.9, 1.1),
                ("LUN3", 0.68, 1.0, 0.9),
                ("LUN4", 0.70, 1.0, 1.1),
                ("LUN5", 0.72, 1.1, 0.9),
                ("LUN6", 0.69, 0.9, 1.0),
            ],
        }
    }

    /// Returns small and large sizes; each volume has a mixture of them.
    fn sizes(self) -> (SizeCdf, SizeCdf) {
        let sizes = |weights: &[(u32, f64)]| {
            let bytes: Vec<_> = weights
                .iter()
                .map(|(kib, weight)| (kib * KIB, *weight))
                .collect();
            SizeCdf::new(&bytes).expect("sizes in whole sectors")
        };
        match self {
            Self::Alibaba | Self::Systor => (
                sizes(&[(1, 2.0), (4, 78.0), (8, 12.0), (16, 8.0)]),
                sizes(&[(16, 15.0), (32, 20.0), (64, 35.0), (128, 20.0), (256, 10.0)]),
            ),
            Self::Msr => (
                sizes(&[(4, 45.0), (8, 30.0), (16, 20.0), (32, 5.0)]),
                sizes(&[(64, 97.0), (128, 3.0)]),
            ),
        }
    }

    /// Returns Zipf's exponent, the share of sequential requests, and the rate of each volume in
    /// requests per second.
    const fn locality(self) -> (f64, f64, f64) {
        match self {
            Self::Alibaba => (0.95, 0.15, 500.0),
            Self::Msr => (0.60, 0.40, 50.0),
            Self::Systor => (0.85, 0.25, 100.0),
        }
    }

    /// Returns the loads of all volumes, with `requests` requests each. Counts and bytes are in
    /// proportion to the published ones. The names of the volumes say that they are generated.
    #[must_use]
    pub fn loads(self, requests: u64) -> Vec<VolumeLoad> {
        let published = self.published();
        let volumes = self.volumes();
        let (zipf_exponent, sequential_share, rate_per_s) = self.locality();
        let (small, large) = self.sizes();
        // Scales the factors, weighted by the numbers of requests, to a mean of one.
        let weight = |share: fn(f64) -> f64, factor: fn(&Volume) -> f64| {
            let (mut sum, mut number) = (0.0, 0.0);
            for volume in volumes {
                sum += share(volume.1) * factor(volume);
                number += share(volume.1);
            }
            sum / number
        };
        let read_factor = weight(|read| read, |volume| volume.2);
        let write_factor = weight(|read| 1.0 - read, |volume| volume.3);
        let read_mean = published.read_gib * GIB / published.reads / read_factor;
        let write_mean = published.write_gib * GIB / published.writes / write_factor;
        let load = |(name, read_share, reads, writes): &Volume| VolumeLoad {
            name: format!("generated-{name}"),
            requests,
            read_share: *read_share,
            read_sizes: small.mixed(&large, read_mean * reads),
            write_sizes: small.mixed(&large, write_mean * writes),
            // 20 GB for the published numbers.
            working_set_bytes: (requests * 2048).max(16 << 20),
            zipf_exponent,
            sequential_share,
            arrivals: Arrivals::Poisson { rate_per_s },
        };
        volumes.iter().map(load).collect()
    }
}
