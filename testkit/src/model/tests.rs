//! The rules of the model, one by one. Each test shows an allowed history and a forbidden one.

use forebay_block::{Error, ErrorKind};

use super::*;

mod rot;

struct Bench {
    model: Model,
}

const WRITE: Op = Op::Write { fua: false };
const FUA: Op = Op::Write { fua: true };

impl Bench {
    fn new(promise: Promise) -> Self {
        Self {
            model: Model::new(promise, &[4096]),
        }
    }

    fn begin(&mut self, op: Op) -> Ticket {
        let len = if op == Op::Flush { 0 } else { 512 };
        let intent = Intent { op, offset: 0, len };
        self.model.submit(0, intent).0
    }

    fn ok(&mut self, ticket: &Ticket) {
        self.model.end(ticket, &Ok(()), None).unwrap();
    }

    fn fail(&mut self, ticket: &Ticket) {
        let error = Err(Error::new(ErrorKind::Io, "injected"));
        self.model.end(ticket, &error, None).unwrap();
    }

    /// Runs an operation to its end. Returns its number.
    fn run(&mut self, op: Op) -> u64 {
        let ticket = self.begin(op);
        self.ok(&ticket);
        ticket.number
    }

    fn end_read(&mut self, ticket: &Ticket, number: u64) -> bool {
        let buf = Buf::zeroed(512);
        if number > 0 {
            stamp::fill(&buf, 0, 0, number);
        }
        self.model.end(ticket, &Ok(()), Some(&buf)).is_ok()
    }

    /// Whether a read may return write `number` (zero: zeroes). The model notes the result.
    fn reads(&mut self, number: u64) -> bool {
        let ticket = self.begin(Op::Read);
        self.end_read(&ticket, number)
    }

    /// Whether it may, without a note in the model.
    fn may_read(&self, number: u64) -> bool {
        let mut copy = Self {
            model: self.model.clone(),
        };
        copy.reads(number)
    }

    fn may(&self, numbers: &[u64]) -> Vec<bool> {
        numbers
            .iter()
            .map(|&number| self.may_read(number))
            .collect()
    }
}

#[test]
fn a_read_returns_the_last_acknowledged_or_one_in_flight() {
    let mut bench = Bench::new(Promise::Flush);
    let first = bench.run(WRITE);
    assert_eq!(bench.may(&[0, first]), [false, true]);
    let second = bench.begin(WRITE);
    let third = bench.begin(WRITE);
    let all = [0, first, second.number, third.number];
    assert_eq!(bench.may(&all), [false, true, true, true]);
    bench.ok(&second);
    bench.ok(&third);
    assert_eq!(bench.may(&all), [false, false, true, true]);
    assert!(bench.reads(second.number));
    assert_eq!(bench.may(&all), [false, false, true, false], "stays read");
}

#[test]
fn a_read_that_began_before_may_be_old() {
    let mut bench = Bench::new(Promise::Flush);
    let first = bench.run(WRITE);
    let read = bench.begin(Op::Read);
    let second = bench.run(WRITE);
    let third = bench.run(WRITE);
    for number in [first, second, third] {
        let mut copy = Bench {
            model: bench.model.clone(),
        };
        assert!(copy.end_read(&read, number));
        assert_eq!(copy.may(&[first, second, third]), [false, false, true]);
    }
    assert!(!bench.end_read(&read, 0));
}

#[test]
fn an_in_flight_write_that_was_read_stays_visible_until_process_death() {
    let mut bench = Bench::new(Promise::Flush);
    let first = bench.run(WRITE);
    let second = bench.begin(WRITE);
    assert!(bench.reads(second.number));
    assert_eq!(bench.may(&[first, second.number]), [false, true]);
    bench.model.crash(Loss::Process);
    assert_eq!(bench.may(&[first, second.number]), [true, true]);
}

#[test]
fn process_death_keeps_acknowledged_writes() {
    let mut bench = Bench::new(Promise::Flush);
    let first = bench.run(WRITE);
    let second = bench.begin(WRITE);
    bench.model.crash(Loss::Process);
    let all = [0, first, second.number];
    assert_eq!(bench.may(&all), [false, true, true]);
    assert!(bench.reads(first));
    assert_eq!(bench.may(&all), [false, true, false]);
    bench.model.crash(Loss::Process);
    assert_eq!(bench.may(&all), [false, true, false]);
    bench.model.crash(Loss::Power);
    assert_eq!(bench.may(&all), [true, true, false]);
}

#[test]
fn power_loss_keeps_promised_writes() {
    let mut bench = Bench::new(Promise::Flush);
    let first = bench.run(WRITE);
    let flush = bench.begin(Op::Flush);
    let second = bench.run(WRITE);
    bench.ok(&flush);
    let third = bench.run(WRITE);
    bench.model.crash(Loss::Power);
    let all = [0, first, second, third];
    assert_eq!(bench.may(&all), [false, true, true, true]);
    assert!(bench.reads(second));
    assert_eq!(bench.may(&all), [false, false, true, false]);
    bench.run(Op::Flush);
    bench.model.crash(Loss::Power);
    assert_eq!(bench.may(&all), [false, false, true, false]);
}

#[test]
fn a_failed_flush_promises_nothing_and_fua_promises_itself() {
    let mut bench = Bench::new(Promise::Flush);
    let first = bench.run(FUA);
    let second = bench.run(WRITE);
    let flush = bench.begin(Op::Flush);
    bench.fail(&flush);
    bench.model.crash(Loss::Power);
    assert_eq!(bench.may(&[0, first, second]), [false, true, true]);
}

#[test]
fn sync_promises_every_acknowledgement() {
    let mut bench = Bench::new(Promise::Sync);
    let first = bench.run(WRITE);
    let second = bench.begin(WRITE);
    bench.model.crash(Loss::Power);
    assert_eq!(bench.may(&[0, first, second.number]), [false, true, true]);
}

#[test]
fn a_failed_write_happened_or_not() {
    let mut bench = Bench::new(Promise::Sync);
    let first = bench.run(WRITE);
    let second = bench.begin(WRITE);
    bench.fail(&second);
    let all = [0, first, second.number];
    assert_eq!(bench.may(&all), [false, true, true]);
    let mut copy = Bench {
        model: bench.model.clone(),
    };
    assert!(copy.reads(second.number));
    assert_eq!(copy.may(&all), [false, false, true]);
    assert!(bench.reads(first));
    assert_eq!(bench.may(&all), [false, true, false]);
}

#[test]
fn a_failed_write_that_memory_hides_is_shown_by_power_loss_alone() {
    for hiding in [true, false] {
        let mut bench = Bench::new(Promise::Flush);
        let first = bench.run(FUA);
        let second = bench.run(WRITE);
        bench.model.set_hiding(hiding);
        let third = bench.begin(FUA);
        bench.fail(&third);
        let all = [0, first, second, third.number];
        assert_eq!(bench.may(&all), [false, false, true, true]);
        assert!(bench.reads(second));
        assert_eq!(bench.may(&all), [false, false, true, false], "hidden");
        bench.model.crash(Loss::Power);
        assert_eq!(bench.may(&all), [false, true, true, hiding]);
        // A read decides which one is there.
        let shown = if hiding { third.number } else { second };
        assert!(bench.reads(shown));
        assert_eq!(bench.may(&all), [false, false, !hiding, hiding]);
    }
}

#[test]
fn a_read_beside_a_failed_write_that_memory_hides_says_nothing_of_later_reads() {
    for hiding in [true, false] {
        let mut bench = Bench::new(Promise::Flush);
        let first = bench.run(WRITE);
        bench.model.set_hiding(hiding);
        let second = bench.begin(FUA);
        assert!(bench.reads(second.number), "it is in flight");
        assert_eq!(bench.may(&[first, second.number]), [hiding, true]);
        bench.fail(&second);
        assert_eq!(bench.may(&[first, second.number]), [hiding, true]);
    }
}

#[test]
fn a_flush_behind_a_hidden_write_promises_the_data_shown_in_its_place() {
    let mut bench = Bench::new(Promise::Flush);
    let first = bench.run(WRITE);
    bench.model.set_hiding(true);
    let second = bench.begin(FUA);
    bench.fail(&second);
    assert!(bench.reads(first));
    bench.model.set_hiding(false);
    bench.run(Op::Flush);
    bench.model.crash(Loss::Power);
    let all = [0, first, second.number];
    assert_eq!(bench.may(&all), [false, true, false]);
}

#[test]
fn a_write_behind_a_hidden_one_supersedes_it() {
    let mut bench = Bench::new(Promise::Flush);
    let first = bench.run(WRITE);
    bench.model.set_hiding(true);
    let second = bench.begin(FUA);
    bench.fail(&second);
    assert!(bench.reads(first));
    bench.model.set_hiding(false);
    let third = bench.run(FUA);
    bench.model.crash(Loss::Power);
    let all = [0, first, second.number, third];
    assert_eq!(bench.may(&all), [false, false, false, true]);
}

#[test]
fn a_write_that_failed_in_a_spell_stays_until_power_loss_and_no_flush_promises_it() {
    let mut bench = Bench::new(Promise::Flush);
    let first = bench.run(WRITE);
    bench.model.set_spell(true);
    let second = bench.begin(WRITE);
    bench.fail(&second);
    assert!(bench.model.may_show_failed());
    let all = [0, first, second.number];
    assert_eq!(bench.may(&all), [false, true, true]);
    assert!(bench.reads(second.number));
    assert_eq!(bench.may(&all), [false, false, true], "stays read");
    bench.run(Op::Flush);
    bench.model.crash(Loss::Power);
    assert!(!bench.model.may_show_failed());
    assert_eq!(
        bench.may(&all),
        [false, true, true],
        "the first is promised"
    );
    let mut copy = Bench {
        model: bench.model.clone(),
    };
    assert!(copy.reads(first));
    assert_eq!(copy.may(&all), [false, true, false]);
    assert!(bench.reads(second.number));
    bench.run(Op::Flush);
    bench.model.crash(Loss::Power);
    assert_eq!(bench.may(&all), [false, false, true]);
}

#[test]
fn zeroes_behind_a_discard_may_be_those_of_a_write_that_failed_in_a_spell() {
    for zeroes_failed in [true, false] {
        let mut bench = Bench::new(Promise::Flush);
        let first = bench.run(FUA);
        bench.model.set_spell(true);
        let op = match zeroes_failed {
            true => Op::WriteZeroes {
                fua: false,
                unmap: false,
            },
            false => WRITE,
        };
        let second = bench.begin(op);
        bench.fail(&second);
        bench.model.set_spell(false);
        bench.run(Op::Discard);
        assert!(bench.reads(0));
        assert!(
            !bench.may_read(first),
            "the zeroes stay until power is lost"
        );
        bench.run(Op::Flush);
        bench.model.crash(Loss::Power);
        assert!(bench.may_read(0));
        assert_eq!(bench.may_read(first), zeroes_failed, "{zeroes_failed}");
    }
}

#[test]
fn a_discard_is_old_or_zero_and_stays_so() {
    let mut bench = Bench::new(Promise::Flush);
    let first = bench.run(FUA);
    let second = bench.run(FUA);
    bench.run(Op::Discard);
    let all = [0, first, second];
    assert_eq!(bench.may(&all), [true, false, true]);
    let mut copy = Bench {
        model: bench.model.clone(),
    };
    assert!(copy.reads(second));
    assert_eq!(copy.may(&all), [false, false, true]);
    assert!(bench.reads(0));
    assert_eq!(bench.may(&all), [true, false, false]);
    let mut copy = Bench {
        model: bench.model.clone(),
    };
    copy.model.crash(Loss::Power);
    assert_eq!(copy.may(&all), [true, false, true], "not flushed");
    bench.run(Op::Flush);
    bench.model.crash(Loss::Power);
    assert_eq!(bench.may(&all), [true, false, false], "flushed");
}

#[test]
fn zeroes_are_a_write() {
    let mut bench = Bench::new(Promise::Flush);
    let first = bench.run(FUA);
    bench.run(Op::WriteZeroes {
        fua: false,
        unmap: true,
    });
    assert_eq!(bench.may(&[0, first]), [true, false]);
    bench.model.crash(Loss::Power);
    assert_eq!(bench.may(&[0, first]), [true, true]);
    let third = bench.run(WRITE);
    assert_eq!(bench.may(&[0, first, third]), [false, false, true]);
}

#[test]
fn an_order_that_a_read_has_shown_outlives_power_loss_once_promised() {
    let mut bench = Bench::new(Promise::Flush);
    let (one, two) = (bench.begin(WRITE), bench.begin(WRITE));
    bench.ok(&one);
    bench.ok(&two);
    let all = [one.number, two.number];
    assert!(bench.reads(one.number));
    assert_eq!(bench.may(&all), [true, false]);
    bench.run(Op::Flush);
    bench.model.crash(Loss::Power);
    assert_eq!(bench.may(&all), [true, false]);
}

#[test]
fn an_order_that_a_read_has_shown_never_becomes_a_circle() {
    for hiding in [true, false] {
        let mut bench = Bench::new(Promise::Flush);
        bench.model.set_hiding(hiding);
        let one = bench.begin(FUA);
        let two = bench.run(WRITE);
        let three = bench.begin(WRITE);
        bench.ok(&one);
        // It is later than `one`, so `three` is, too.
        assert!(bench.reads(two));
        bench.model.crash(Loss::Power);
        let all = [one.number, two, three.number];
        assert_eq!(bench.may(&all), [true, true, true]);
        assert!(bench.reads(one.number));
        assert_eq!(bench.may(&all), [true, false, false]);
        bench.model.crash(Loss::Power);
        assert!(bench.may_read(one.number));
    }
}

#[test]
fn zeroes_of_several_sources_are_not_mistaken() {
    let zeroes = Op::WriteZeroes {
        fua: false,
        unmap: true,
    };
    let mut bench = Bench::new(Promise::Flush);
    let read = bench.begin(Op::Read);
    let first = bench.run(WRITE);
    let second = bench.begin(zeroes);
    // The zeroes are from before the write, or from the second one. The read does not tell them
    // apart.
    assert!(bench.end_read(&read, 0));
    assert_eq!(bench.may(&[0, first]), [true, true]);
    bench.ok(&second);
    assert_eq!(bench.may(&[0, first]), [true, false]);
}

#[test]
fn zeroes_of_concurrent_sources_prove_no_order() {
    let zeroes = |fua| Op::WriteZeroes { fua, unmap: true };
    let mut bench = Bench::new(Promise::Flush);
    let durable = bench.begin(zeroes(true));
    let write = bench.begin(WRITE);
    let last = bench.begin(zeroes(false));
    for ticket in [&write, &last, &durable] {
        bench.ok(ticket);
    }
    // The zeroes may be those of the last one, which power loss takes. The write shows then.
    assert!(bench.reads(0));
    bench.model.crash(Loss::Power);
    assert_eq!(bench.may(&[0, write.number]), [true, true]);
}

#[test]
fn zeroes_of_concurrent_sources_stay_until_power_is_lost() {
    let zeroes = Op::WriteZeroes {
        fua: false,
        unmap: true,
    };
    for (is_ended, hiding) in [(true, false), (false, false), (true, true), (false, true)] {
        let mut bench = Bench::new(Promise::Flush);
        bench.model.set_hiding(hiding);
        let tickets = [zeroes, WRITE, zeroes].map(|op| bench.begin(op));
        let [one, write, two] = &tickets;
        bench.ok(write);
        if is_ended {
            bench.ok(one);
            bench.ok(two);
        }
        // A read in flight may have found the write before its zeroes.
        let in_flight = bench.begin(Op::Read);
        assert!(bench.reads(0));
        assert_eq!(bench.may(&[0, write.number]), [true, hiding], "{is_ended}");
        assert!(bench.end_read(&in_flight, write.number));
        bench.model.crash(Loss::Power);
        assert_eq!(bench.may(&[0, write.number]), [true, true], "{is_ended}");
    }
}

const RANGE: LostRange = LostRange {
    volume: 0,
    offset: 0,
    len: 512,
};

#[test]
fn damage_restores_an_earlier_version_for_good() {
    let mut bench = Bench::new(Promise::Flush);
    let (first, second) = (bench.run(FUA), bench.run(FUA));
    assert_eq!(bench.may(&[0, first, second]), [false, false, true]);
    bench.model.damage(RANGE);
    assert_eq!(bench.may(&[0, first, second]), [true; 3]);
    assert!(bench.reads(first));
    assert_eq!(bench.may(&[0, first, second]), [false, true, false]);
    bench.run(Op::Flush);
    bench.model.crash(Loss::Power);
    assert_eq!(bench.may(&[0, first, second]), [false, true, false]);
    bench.model.damage(RANGE);
    let third = bench.run(FUA);
    assert_eq!(bench.may(&[0, first, third]), [false, false, true]);
}

#[test]
fn after_damage_a_slow_read_may_find_an_older_version() {
    let mut bench = Bench::new(Promise::Flush);
    let first = bench.run(FUA);
    bench.run(FUA);
    bench.model.damage(RANGE);
    let slow = bench.begin(Op::Read);
    let third = bench.run(WRITE);
    assert!(bench.reads(third));
    assert!(!bench.may_read(first));
    // Neither does a flush wait for the read.
    bench.run(Op::Flush);
    assert!(bench.end_read(&slow, first));
    bench.model.crash(Loss::Power);
    assert_eq!(bench.may(&[first, third]), [false, true]);
}
