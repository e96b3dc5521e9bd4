//! Reads the trace on a thread of its own, so that the reactor does nothing but I/O, and selects
//! the target of each request.

use std::sync::{Arc, Mutex, PoisonError};

use forebay_block::{Context as _, Error, ErrorKind, Result};
use forebay_trace::Request;
use tokio::sync::mpsc;

use super::Mapping;
use forebay_planner_cli::input::{Input, some};

/// Number of batches to read ahead.
const AHEAD: usize = 8;

/// Requests of a trace, with targets in place of volumes.
pub(super) struct Feed {
    batches: mpsc::Receiver<Result<Vec<Request>>>,
    seen: Arc<Mutex<Seen>>,
}

/// Results about the trace.
#[derive(Default)]
struct Seen {
    /// Volumes of the trace and their targets.
    routes: Vec<(String, String)>,
    remarks: Vec<String>,
}

impl Feed {
    /// Starts the thread.
    ///
    /// # Errors
    /// `NotFound` if a volume is mapped to a target that does not exist; `InvalidInput` if it is
    /// mapped twice.
    pub(super) fn start(input: Input, targets: Vec<String>, map: Vec<Mapping>) -> Result<Self> {
        if let Some(wrong) = map.iter().find(|mapping| !targets.contains(&mapping.to)) {
            let what = format!(
                "--map {}={}: there is no volume {:?} to replay on\nhelp: there are: {}",
                wrong.from,
                wrong.to,
                wrong.to,
                targets.join(", ")
            );
            return Err(Error::new(ErrorKind::NotFound, what));
        }
        for (number, mapping) in map.iter().enumerate() {
            if let Some(other) = map[..number].iter().find(|o| o.from == mapping.from) {
                let what = format!(
                    "--map {0}={1} and --map {0}={2}: a volume of the trace goes to one place\n\
                     help: leave one out",
                    mapping.from, other.to, mapping.to
                );
                return Err(Error::new(ErrorKind::InvalidInput, what));
            }
        }
        let (sender, batches) = mpsc::channel(AHEAD);
        let seen = Arc::new(Mutex::new(Seen::default()));
        let shared = Arc::clone(&seen);
        let routes = Routes {
            targets,
            map,
            numbers: Vec::new(),
        };
        let thread = std::thread::Builder::new().name("trace".into());
        thread
            .spawn(move || read(input, routes, &sender, &shared))
            .context(|| "cannot start a thread to read the trace")?;
        Ok(Self { batches, seen })
    }

    /// Returns the next requests; `None` at the end.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<Request>>> {
        self.batches.recv().await.transpose()
    }

    /// Returns the volumes of the trace with their targets, and remarks about the trace.
    pub(super) fn end(self) -> (Vec<(String, String)>, Vec<String>) {
        drop(self.batches);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        (
            std::mem::take(&mut seen.routes),
            std::mem::take(&mut seen.remarks),
        )
    }
}

fn read(
    mut input: Input,
    mut routes: Routes,
    sender: &mpsc::Sender<Result<Vec<Request>>>,
    seen: &Mutex<Seen>,
) {
    loop {
        let mut batch = Vec::new();
        let filled = input.fill(&mut batch).and_then(|more| {
            let names = input.volumes().names();
            routes.extend(names)?;
            for request in &mut batch {
                request.volume = routes.numbers[request.volume as usize];
            }
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.remarks = input.remarks();
            let target = |number: &u32| routes.targets[*number as usize].clone();
            let new = names.iter().zip(&routes.numbers).skip(seen.routes.len());
            seen.routes
                .extend(new.map(|(name, number)| (name.clone(), target(number))));
            Ok(more)
        });
        let last = match filled {
            Ok(true) => None,
            // The missing volumes may be in the part that --limit cuts off.
            Ok(false) if input.is_cut() => {
                if let Err(error) = routes.check_met(input.volumes().names()) {
                    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                    seen.remarks.push(format!(
                        "before the end that --limit sets: {}",
                        error.report()
                    ));
                }
                break;
            }
            Ok(false) => match (routes.check_met(input.volumes().names()))
                .and_then(|()| input.check_not_empty())
            {
                Ok(()) => break,
                Err(error) => Some(error),
            },
            Err(error) => Some(error),
        };
        let ends = last.is_some();
        // The receiver may have ended.
        if sender.blocking_send(last.map_or(Ok(batch), Err)).is_err() || ends {
            break;
        }
    }
}

/// Target of each volume of the trace.
struct Routes {
    targets: Vec<String>,
    map: Vec<Mapping>,
    /// Targets by the volume's number.
    numbers: Vec<u32>,
}

impl Routes {
    /// Adds volumes that have appeared in the trace. With any mapping, each volume needs one.
    /// Otherwise a misspelled name would let one volume's writes overwrite the data of another.
    ///
    /// # Errors
    /// `NotFound` for a volume that is not mapped although others are.
    fn extend(&mut self, names: &[String]) -> Result<()> {
        for (number, name) in names.iter().enumerate().skip(self.numbers.len()) {
            let mapped = self.map.iter().find(|mapping| mapping.from == *name);
            if mapped.is_none() && !self.map.is_empty() {
                let what = format!(
                    "volume {name:?} of the trace has no --map, and was not replayed\n\
                     help: map each one, or choose with --volume those that are replayed; volumes \
                     so far: {}",
                    some(names)
                );
                return Err(Error::new(ErrorKind::NotFound, what));
            }
            let wanted = mapped.map_or(name, |mapping| &mapping.to);
            let target = self.targets.iter().position(|target| target == wanted);
            let target = target.unwrap_or(number % self.targets.len());
            let target = u32::try_from(target).map_err(|_| ErrorKind::InvalidInput)?;
            self.numbers.push(target);
        }
        Ok(())
    }

    /// Checks, at the end of the trace, that it had every mapped volume.
    ///
    /// # Errors
    /// `NotFound` for one that it did not have.
    fn check_met(&self, names: &[String]) -> Result<()> {
        let missing = self.map.iter().find(|m| !names.contains(&m.from));
        missing.map_or(Ok(()), |Mapping { from, to }| {
            let what = format!(
                "--map {from}={to}: the trace has no volume {from:?}\nhelp: it has {}",
                some(names)
            );
            Err(Error::new(ErrorKind::NotFound, what))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(targets: &[&str], map: &[&str]) -> Routes {
        Routes {
            targets: own(targets),
            map: map
                .iter()
                .map(|text| text.parse().expect("a mapping"))
                .collect(),
            numbers: Vec::new(),
        }
    }

    fn own(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|text| (*text).to_owned()).collect()
    }

    fn routed(names: &[&str], targets: &[&str], map: &[&str]) -> Vec<u32> {
        let mut routes = routes(targets, map);
        let names = own(names);
        // In the order of appearance, not all at once.
        routes.extend(&names[..names.len() / 2]).expect("few");
        routes.extend(&names).expect("few");
        routes.numbers
    }

    #[test]
    fn volumes_go_where_they_are_mapped_or_called_or_in_turn() {
        assert_eq!(routed(&["a", "b", "c"], &["x", "y"], &[]), [0, 1, 0]);
        assert_eq!(routed(&["b", "a"], &["a", "b"], &[]), [1, 0]);
        assert_eq!(
            routed(&["a=1", "b"], &["x", "y"], &["a=1=y", "b=x"]),
            [1, 0]
        );
        assert!("a".parse::<Mapping>().is_err() && "a=".parse::<Mapping>().is_err());
    }

    #[test]
    fn where_one_is_mapped_nothing_goes_where_it_was_not_sent() {
        // Neither to the target of the same name nor to the next one.
        for names in [["a", "db"], ["a", "c"]] {
            let mut routes = routes(&["db", "logs"], &["a=logs"]);
            routes.extend(&own(&names[..1])).expect("it is mapped");
            let refused = routes.extend(&own(&names)).expect_err("it is not");
            assert_eq!(refused.kind(), ErrorKind::NotFound);
            assert!(
                refused.report().contains(&format!("a, {}", names[1])),
                "{refused}"
            );
            assert_eq!(routes.numbers, [1]);
        }
        let routes = routes(&["db", "logs"], &["a=logs", "b=db"]);
        routes.check_met(&own(&["b", "a"])).expect("both are there");
        let missing = routes.check_met(&own(&["b"])).expect_err("one is not");
        assert!(missing.report().contains("help: it has b"));
    }
}
