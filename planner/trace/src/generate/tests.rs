use super::*;
use crate::stats::{Stats, StatsOptions, Summary};

fn load() -> VolumeLoad {
    VolumeLoad {
        name: "v".to_owned(),
        requests: 200_000,
        read_share: 0.7,
        read_sizes: SizeCdf::new(&[(4096, 60.0), (65_536, 40.0)]).unwrap(),
        write_sizes: SizeCdf::new(&[(8192, 100.0)]).unwrap(),
        working_set_bytes: 64 << 20,
        zipf_exponent: 0.0,
        sequential_share: 0.0,
        arrivals: Arrivals::Poisson { rate_per_s: 1000.0 },
    }
}

fn summary(loads: Vec<VolumeLoad>, seed: u64) -> Summary {
    let mut generator = Generator::new(loads, seed).unwrap();
    let (expected, mut found) = (generator.left(), 0);
    let mut stats = Stats::new(StatsOptions::default());
    let mut batch = Vec::new();
    while generator.fill(&mut batch) {
        found += batch.len() as u64;
        stats.add(&batch);
    }
    assert_eq!(found, expected);
    stats.summary(generator.volumes())
}

fn close(what: &str, found: f64, expected: f64, within: f64) {
    let off = (found / expected - 1.0).abs();
    assert!(off <= within, "{what}: {found}, not {expected}: {off} off");
}

#[test]
fn a_trace_is_as_described() {
    let summary = summary(vec![load()], 1);
    assert_eq!(
        (summary.reads.requests, summary.writes.requests),
        (140_000, 60_000)
    );
    close(
        "read size",
        summary.reads.mean_bytes(),
        load().read_sizes.mean_bytes(),
        0.02,
    );
    assert_eq!(summary.writes.mean_bytes(), 8192.0);
    close("span", summary.span_ns as f64, 200e9, 0.02);
    assert_eq!((summary.out_of_order, summary.unaligned), (0, 0));
    // 200,000 requests over 16,384 slots reach all of them.
    assert_eq!(summary.working_set_bytes(), 64 << 20);
    assert!(summary.volumes[0].end_bytes <= 64 << 20);
}

#[test]
fn a_share_is_sequential() {
    for share in [0.0, 0.3, 0.9] {
        let load = VolumeLoad {
            sequential_share: share,
            read_share: 1.0,
            working_set_bytes: 4 << 30,
            ..load()
        };
        let summary = summary(vec![load], 1);
        let found = summary.sequential as f64 / summary.requests() as f64;
        assert!((found - share).abs() < 0.01, "{found}, not {share}");
    }
}

#[test]
fn popular_data_is_asked_for_more() {
    let small = SizeCdf::new(&[(4096, 1.0)]).unwrap();
    let pages = |zipf_exponent| {
        let load = VolumeLoad {
            zipf_exponent,
            read_sizes: small.clone(),
            write_sizes: small.clone(),
            ..load()
        };
        summary(vec![load], 1).working_set_pages
    };
    let (equal, unequal, steep) = (pages(0.0), pages(1.1), pages(2.0));
    assert!(
        equal > 16_000 && unequal < 14_000 && steep < 1_000,
        "{equal} {unequal} {steep}"
    );
}

#[test]
fn arrivals_are_poisson_or_fixed() {
    let gaps = |arrivals| {
        let mut generator = Generator::new(vec![VolumeLoad { arrivals, ..load() }], 5).unwrap();
        let (mut batch, mut times) = (Vec::new(), Vec::new());
        while generator.fill(&mut batch) {
            times.extend(batch.iter().map(|request| request.time_ns as f64));
        }
        let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let square = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>();
        (mean, (square / gaps.len() as f64).sqrt())
    };
    let (mean, deviation) = gaps(Arrivals::Poisson { rate_per_s: 1000.0 });
    close("mean", mean, 1e6, 0.02);
    // They are equal for exponentially distributed gaps.
    close("deviation", deviation, 1e6, 0.02);
    let (mean, deviation) = gaps(Arrivals::Fixed { rate_per_s: 1000.0 });
    close("mean", mean, 1e6, 1e-6);
    assert!(deviation < 2.0, "{deviation}");
}

#[test]
fn presets_have_the_published_figures() {
    const REQUESTS: u64 = 200_000;
    // Table II of the paper, and the number of volumes that it names.
    for (preset, volumes, reads, writes, read_gib, write_gib) in [
        (Preset::Alibaba, 5, 24.5e6, 25.5e6, 607.3, 375.9),
        (Preset::Msr, 7, 61e6, 9e6, 2416.8, 207.2),
        (Preset::Systor, 6, 40.7e6, 19.3e6, 1109.2, 271.9),
    ] {
        let summary = summary(preset.loads(REQUESTS), 9);
        let name = preset.name();
        let scale = REQUESTS as f64 / Preset::REQUESTS as f64;
        assert_eq!(summary.volumes.len(), volumes);
        close(name, summary.reads.requests as f64, reads * scale, 1e-9);
        close(name, summary.writes.requests as f64, writes * scale, 1e-9);
        let gib = scale * (1_u64 << 30) as f64;
        close(
            "bytes read",
            summary.reads.bytes as f64,
            read_gib * gib,
            0.02,
        );
        close(
            "bytes written",
            summary.writes.bytes as f64,
            write_gib * gib,
            0.02,
        );
        let small = summary.sizes.at_most(12) * 2 > summary.sizes.total();
        let large = summary.sizes.at_most(15) * 2 < summary.sizes.total();
        match preset {
            Preset::Msr => assert!(large && !small, "{name}: {:?}", summary.sizes),
            _ => assert!(small && !large, "{name}: {:?}", summary.sizes),
        }
        for volume in &summary.volumes {
            let share = volume.reads.requests as f64 / REQUESTS as f64;
            let expected = match volume.name.as_str() {
                "generated-vd2" | "generated-vd740" => 0.0..0.3,
                "generated-vd49" => 0.45..0.55,
                _ => 0.6..1.0,
            };
            assert!(expected.contains(&share), "{}: {share}", volume.name);
            assert!(volume.name.starts_with("generated-"));
        }
    }
}

#[test]
fn a_seed_says_it_all() {
    let first = |seed| {
        let mut batch = Vec::new();
        Generator::new(Preset::Alibaba.loads(1000), seed)
            .unwrap()
            .fill(&mut batch);
        batch
    };
    assert_eq!(first(1), first(1));
    assert_ne!(first(1), first(2));
}

#[test]
fn nonsense_is_refused() {
    let refused = |change: fn(&mut VolumeLoad)| {
        let mut load = load();
        change(&mut load);
        Generator::new(vec![load], 1).expect_err("refused").report()
    };
    assert!(refused(|load| load.read_share = 1.5).contains("from 0 to 1"));
    assert!(refused(|load| load.sequential_share = f64::NAN).contains("from 0 to 1"));
    assert!(refused(|load| load.working_set_bytes = 4096).contains("smaller"));
    assert!(refused(|load| load.working_set_bytes = u64::MAX).contains("larger"));
    assert!(refused(|load| load.zipf_exponent = -1.0).contains("Zipf"));
    assert!(
        refused(|load| load.arrivals = Arrivals::Fixed { rate_per_s: 0.0 }).contains("a second")
    );
    assert!(Generator::new(vec![load(), load()], 1).is_err());
}
