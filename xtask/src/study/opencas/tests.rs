use super::*;

fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for system in [
        "opencas-evict",
        "opencas-static",
        "blocks",
        "lines",
        "blocks-measured",
        "lines-measured",
    ] {
        for cache in ["pmem", "nvme"] {
            for backing in ["fast", "slow"] {
                for (write_bytes, file_percent, access) in [4096, 512 << 10]
                    .into_iter()
                    .flat_map(|write| [50, 125].map(|file| (write, file)))
                    .flat_map(|(write, file)| [1, 2].map(|access| (write, file, access)))
                {
                    let theirs = system.starts_with("opencas");
                    let round = system == "opencas-static" && write_bytes > 4096;
                    let evicts = file_percent > 100;
                    rows.push(Row {
                        system: system.into(),
                        cache: cache.into(),
                        backing: backing.into(),
                        line_bytes: 4096,
                        write_bytes,
                        file_percent,
                        access,
                        bytes_per_s: match (theirs, round && evicts, backing) {
                            (true, true, "fast") => 3.0,
                            (true, true, _) => 0.5,
                            (true, ..) => access as f64,
                            _ => 4.0,
                        },
                        cache_written: match (theirs, evicts) {
                            (true, true) => 3.0,
                            (true, false) => 2.0,
                            _ => 1.01,
                        },
                        metadata_written: 0.0,
                        cache_read: 0.0,
                        backing_written: 0.0,
                    });
                }
            }
        }
    }
    rows
}

#[test]
fn claims_compare_the_cells_that_they_name() {
    let mut rows = rows();
    let claims = super::claims(&rows);
    assert_eq!(claims.len(), 20);
    assert!(claims.iter().all(|claim| claim.holds), "{claims:#?}");
    for row in &mut rows {
        if row.system == "lines" && row.access == 1 {
            row.bytes_per_s = 1.9;
            row.cache_written = 1.05;
        }
    }
    let failed: Vec<String> = (super::claims(&rows).into_iter())
        .filter(|claim| !claim.holds)
        .map(|claim| claim.name)
        .collect();
    assert_eq!(
        failed,
        [
            "written/lines/first access",
            "first access by second/lines/pmem",
            "first access by second/lines/nvme",
            "worst cell/lines by the better of open cas's"
        ]
    );
    let study = Study {
        report: Report {
            quick: false,
            claims,
            rows,
        },
        processor: processor(500.0),
    };
    let header = Header {
        machine: "m".into(),
        commit: "c".into(),
        date: "d".into(),
        command: "study".into(),
        minutes: 1.0,
    };
    let text = OPENCAS.text(&page::grids(&header, &study)).unwrap();
    assert!(text.contains("| 125% | 2 |"), "{text}");
}

#[test]
fn claims_without_rows_fail_or_are_infinite() {
    assert!(
        claims(&[])
            .iter()
            .all(|claim| !claim.holds || claim.ours.is_infinite())
    );
}

fn processor(first_more_ns: f64) -> Vec<Processor> {
    let row = |(system, access, processor_ns): (&str, u64, f64)| Processor {
        system: system.into(),
        access,
        processor_ns,
        least_ns: processor_ns,
        most_ns: processor_ns,
    };
    let rows = [
        ("raw-cache", 1, 100.0),
        ("raw-cache", 2, 100.0),
        ("lines", 1, 2000.0 + first_more_ns),
        ("lines", 2, 2000.0),
    ];
    rows.map(row).to_vec()
}

#[test]
fn a_client_waits_for_the_processor_too() {
    let mut rows = rows();
    for row in &mut rows {
        row.bytes_per_s = 4096e6;
    }
    let claim = |more, nth| speeds::of_clients(&rows, &processor(more)).remove(nth);
    let (close, far, by_nbd) = (claim(100.0, 0), claim(300.0, 0), claim(300.0, 1));
    assert!(
        close.holds && (close.ours - 3000.0 / 3100.0).abs() < 1e-9,
        "{close:?}"
    );
    assert!(!far.holds, "{far:?}");
    assert!(by_nbd.holds && by_nbd.ours < 1.0, "{by_nbd:?}");
}
