//! Every order of the steps of few clients and the device. Two writers and a reader use one block,
//! with concurrent evictions, a flush and FUA. Power is lost after every step. The cache is the
//! real one. Only the order of steps is chosen here, by trying all of them.

use std::cell::RefCell;
use std::rc::Rc;

use forebay_block::{BlockDevice, Buf, Op, Result};
use forebay_io::rt::Executor;
use forebay_testkit::model::{Intent, Loss, Model, Ticket};
use forebay_testkit::stack::Promise;

use super::gate::Gate;
use crate::comparators;
use crate::fault::{Fault, Faults};
use crate::{Policy, Transit, TransitOptions, memory_bytes};

const BLOCKS: u64 = 2;

const fn at(block: u64, op: Op) -> Intent {
    Intent {
        op,
        offset: block * 512,
        len: 512,
    }
}

const fn write(block: u64) -> Intent {
    at(block, Op::Write { fua: false })
}

const fn fua(block: u64) -> Intent {
    at(block, Op::Write { fua: true })
}

const fn read(block: u64) -> Intent {
    at(block, Op::Read)
}

const FLUSH: Intent = Intent {
    op: Op::Flush,
    offset: 0,
    len: 0,
};

/// Operations of each client, in order.
type Script = &'static [&'static [Intent]];

struct Pending {
    ticket: Ticket,
    buf: Option<Buf>,
    answer: Rc<RefCell<Option<Result<()>>>>,
}

/// Runs once by `choices`, which is extended by zeroes at its end. Returns the number of choices at
/// each step.
fn run(
    script: Script,
    slots: usize,
    policy: Policy,
    faults: Faults,
    choices: &mut Vec<usize>,
) -> std::result::Result<Vec<usize>, String> {
    let executor = Executor::simulated(1);
    let entered = executor.enter();
    let gate = Gate::new(BLOCKS);
    let options = TransitOptions {
        policy,
        ..TransitOptions::new("t", [1; 16])
    };
    let memory = Buf::zeroed(memory_bytes(slots, 512));
    let (cache, _) =
        Transit::open_with(gate.device(), gate.device(), memory, options, faults).expect("opens");
    let mut model = Model::new(Promise::Flush, &[BLOCKS * 512]);
    let mut next = vec![0; script.len()];
    let mut pending: Vec<Option<Pending>> = script.iter().map(|_| None).collect();
    let mut widths = Vec::new();
    let mut outcome = Ok(());
    while outcome.is_ok() {
        let ready: Vec<usize> = (0..script.len())
            .filter(|&lane| pending[lane].is_none() && next[lane] < script[lane].len())
            .collect();
        let waiting = gate.waiting().len();
        let width = ready.len() + waiting;
        if width == 0 {
            let stuck = pending.iter().flatten().count();
            if stuck > 0 {
                outcome = Err(format!("{stuck} operations never end"));
            }
            break;
        }
        if widths.len() == choices.len() {
            choices.push(0);
        }
        let choice = choices[widths.len()];
        widths.push(width);
        match ready.get(choice) {
            Some(&lane) => {
                let (ticket, request) = model.submit(0, script[lane][next[lane]]);
                next[lane] += 1;
                let buf = request.buf.clone();
                let (done, io) = forebay_block::completion_pair();
                cache.submit(request, done);
                let answer: Rc<RefCell<Option<Result<()>>>> = Rc::default();
                let slot = Rc::clone(&answer);
                executor.spawn(async move { *slot.borrow_mut() = Some(io.await) });
                pending[lane] = Some(Pending {
                    ticket,
                    buf,
                    answer,
                });
            }
            None => gate.pass(choice - ready.len()),
        }
        while executor.collect() {
            executor.run_ready(1);
        }
        for lane in &mut pending {
            let Some(one) = lane.take_if(|one| one.answer.borrow().is_some()) else {
                continue;
            };
            let result = one.answer.take().expect("it is there");
            let checked = model.end(&one.ticket, &result, one.buf.as_ref());
            outcome = outcome.and(checked);
        }
        outcome = outcome.and_then(|()| survives(&model, &gate));
    }
    executor.clear();
    while !gate.waiting().is_empty() {
        gate.pass(0);
    }
    executor.clear();
    drop(entered);
    outcome.map(|()| widths)
}

/// Whether power may be lost now.
fn survives(model: &Model, gate: &Gate) -> std::result::Result<(), String> {
    let mut model = model.clone();
    model.crash(Loss::Power);
    for block in 0..BLOCKS {
        let (ticket, request) = model.submit(0, read(block));
        let buf = request.buf.expect("a read has a buffer");
        let from = block as usize * 512;
        buf.copy_from(0, &gate.durable()[from..from + 512]);
        model
            .end(&ticket, &Ok(()), Some(&buf))
            .map_err(|why| format!("after power loss: {why}"))?;
    }
    Ok(())
}

/// Tries every order. Returns how many there are.
fn explore(
    script: Script,
    slots: usize,
    policy: Policy,
    faults: Faults,
) -> std::result::Result<u64, String> {
    let mut choices = Vec::new();
    for runs in 1.. {
        let widths = run(script, slots, policy, faults, &mut choices)
            .map_err(|why| format!("{policy}, {slots} slots, {choices:?}: {why}"))?;
        choices.truncate(widths.len());
        while let Some(last) = choices.pop() {
            if last + 1 < widths[choices.len()] {
                choices.push(last + 1);
                break;
            }
        }
        if choices.is_empty() {
            return Ok(runs);
        }
    }
    unreachable!("the loop ends when everything was tried")
}

const SCRIPTS: [Script; 4] = [
    &[&[write(0)], &[write(0)], &[read(0), read(0)], &[FLUSH]],
    &[&[write(0), FLUSH], &[fua(0)], &[read(0)]],
    &[&[write(0), write(0)], &[write(1), FLUSH], &[read(0)]],
    &[&[write(0), fua(0)], &[write(0), FLUSH]],
];

#[test]
fn every_order_is_sound_under_every_policy() {
    for policy in comparators::ALL {
        let mut runs = 0;
        for script in SCRIPTS {
            for slots in [2, 4] {
                match explore(script, slots, policy, Faults::default()) {
                    Ok(count) => runs += count,
                    Err(why) => panic!("{why}"),
                }
            }
        }
        eprintln!("{policy}: {runs} orders");
        assert!(runs > 1000, "{policy}: {runs}");
    }
}

#[test]
fn planted_faults_are_found() {
    for fault in [
        Fault::BypassOverSlot,
        Fault::FlushIgnoresEvicting,
        Fault::FuaFromMemory,
    ] {
        let found = SCRIPTS
            .iter()
            .find_map(|script| explore(script, 4, Policy::CAITI, Faults::planted(fault)).err());
        let found = found.unwrap_or_else(|| panic!("{fault:?} was not found"));
        eprintln!("{fault:?}: {found}");
    }
}
