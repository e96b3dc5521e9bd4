//! Formatting, and power loss in the middle of it.

use std::sync::{Arc, Mutex};

use forebay_block::ErrorKind;
use forebay_io::pmem::Pmem as _;
use forebay_io::sim::{PmemSite, PmemStep, Rng, SimPmem, Survival};

use super::{SIZE, formatted, holds, open, options, read, stamp};
use crate::layout::Version;
use crate::{Btt, FormatOptions, format};

#[test]
fn an_empty_table_reads_as_zeroes_and_accepts_writes() {
    for (block_bytes, version) in [(512, Version::V2_0), (4096, Version::V1_1)] {
        let mut options = options(block_bytes);
        options.version = version;
        let memory = formatted(SIZE + 4096 + 100 * 4096, &options);
        let table = open(&memory);
        assert_eq!(table.block_bytes(), block_bytes);
        assert_eq!((table.version(), table.uuid()), (version, [7; 16]));
        let last = table.blocks() - 1;
        for block in [0, 17, last] {
            assert!(read(&table, block).is_zero());
            table
                .write(block, &stamp(block, 1, block_bytes))
                .expect("written");
        }
        let table = open(&memory.crash(Survival::None));
        for block in [0, 17, last] {
            assert!(holds(&read(&table, block), block, 1), "block {block}");
        }
        let usage = table.check().expect("sound");
        assert_eq!((usage.data, usage.zero), (3, last + 1 - 3));
    }
}

#[test]
fn a_medium_larger_than_an_arena_has_several() {
    let mut options = options(4096);
    options.arena_max_bytes = SIZE;
    // Two whole ones, one of 17 MiB less a page, and 15 MiB that are too small for one.
    let memory = SimPmem::new(3 * SIZE + (15 << 20));
    let made = format(&*memory, &options).expect("large enough");
    assert_eq!((made.arenas, made.blocks), (3, 3 * 3829));
    let table = open(&memory.crash(Survival::None));
    assert_eq!(table.blocks(), made.blocks);
    for block in [3828, 3829, 2 * 3829, made.blocks - 1] {
        table.write(block, &stamp(block, 1, 4096)).expect("written");
    }
    let table = open(&memory.crash(Survival::None));
    assert!(read(&table, 3829).is_zero(), "it was another memory");
    table.check().expect("sound");
}

#[test]
fn blocks_at_the_seams_of_arenas_are_theirs() {
    let mut options = options(4096);
    options.arena_max_bytes = SIZE;
    let memory = formatted(2 * SIZE, &options);
    let table = open(&memory);
    for block in 3820..3840 {
        table.write(block, &stamp(block, 1, 4096)).expect("written");
    }
    table.zero(3826, 6).expect("zeroed");
    let table = open(&memory.crash(Survival::None));
    for block in 3820..3840 {
        let version = u64::from(!(3826..3832).contains(&block));
        assert!(holds(&read(&table, block), block, version), "block {block}");
    }
    assert_eq!(table.check().expect("sound").data, 14);
}

#[test]
fn impossible_formats_are_refused() {
    let memory = SimPmem::new(SIZE);
    let error = format(&*memory, &options(1024)).expect_err("1024");
    assert!(error.report().contains("512 or 4096"), "{error:?}");
    let mut with_page = options(512);
    with_page.version = Version::V1_1;
    let error = format(&*memory, &with_page).expect_err("a page too small");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.report().contains("16781312"), "{error:?}");
}

/// Formats over a table with data, with power loss at every step. Returns the error.
fn format_over_data(new: &FormatOptions, left_out: Option<PmemSite>) -> Result<u32, String> {
    let memory = formatted(SIZE + 8192, &options(4096));
    let table = open(&memory);
    for block in 0..20 {
        table.write(block, &stamp(block, 1, 4096)).expect("written");
    }
    let memory = memory.crash(Survival::None);
    if let Some(site) = left_out {
        memory.leave_out(site);
    }
    let wrong = Arc::new(Mutex::new((0, None)));
    let report = Arc::clone(&wrong);
    memory.observe(Some(Arc::new(move |memory: &SimPmem, step: PmemStep| {
        let rng = Rng::new(memory.undurable_words() as u64);
        let mut states = vec![Survival::None, Survival::All];
        states.extend((0..48).map(|_| Survival::Random(rng.draw())));
        for state in states {
            let mut wrong = report.lock().expect("one thread");
            wrong.0 += 1;
            if let Err(why) = old_or_new_or_none(&memory.crash(state)) {
                wrong
                    .1
                    .get_or_insert(format!("{state:?} before a {step:?}: {why}"));
            }
        }
    })));
    format(&*memory, new).expect("large enough");
    memory.observe(None);
    let (states, why) = wrong.lock().expect("one thread").clone();
    if let Some(why) = why {
        return Err(why);
    }
    let table = Btt::open(memory.crash(Survival::None)).map_err(|error| error.report())?;
    match table.uuid() == new.uuid && table.check().is_ok() {
        true => Ok(states),
        false => Err("the new table is not durable".to_owned()),
    }
}

fn old_or_new_or_none(memory: &Arc<SimPmem>) -> Result<(), String> {
    let table = match Btt::open(Arc::clone(memory)) {
        Ok(table) => table,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        // Torn: there is no table.
        Err(error) if error.report().contains("both info blocks") => return Ok(()),
        Err(error) => return Err(error.report()),
    };
    table.check().map_err(|error| error.report())?;
    let version = u64::from(table.uuid() == [7; 16]);
    match (0..20).find(|block| !holds(&read(&table, *block), *block, version)) {
        Some(block) => Err(format!("block {block} is not of version {version}")),
        None => Ok(()),
    }
}

#[test]
fn power_loss_while_formatting_leaves_the_old_table_or_the_new_one_or_none() {
    for version in Version::ALL {
        let mut new = options(4096);
        new.uuid = [9; 16];
        new.version = version;
        let states = format_over_data(&new, None).expect("sound");
        assert!(states >= 100, "{states} states");
    }
}

#[test]
fn every_fence_of_formatting_that_is_left_out_is_missed() {
    let mut new = options(4096);
    new.uuid = [9; 16];
    let memory = SimPmem::new(SIZE);
    format(&*memory, &new).expect("large enough");
    let sites = memory.sites();
    assert_eq!(sites.len(), 3, "{sites:?}");
    for site in sites {
        match format_over_data(&new, Some(site)) {
            Ok(states) => panic!("{site:?} is not missed in {states} states"),
            Err(violation) => eprintln!("{site:?}: {violation}"),
        }
    }
    assert_eq!(memory.size_bytes(), SIZE);
}
