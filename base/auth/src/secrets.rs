//! Secrets of a subsystem's hosts, as a file.

use forebay_block::{Error, ErrorKind, Result};
use forebay_wire::nvme::fabrics::check_nqn;

use super::secret::Secret;

/// Hosts that may connect to a subsystem, with their secrets.
#[derive(Debug)]
pub struct Secrets(Vec<HostSecrets>);

/// The secrets of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSecrets {
    host: String,
    /// Secret of the host.
    pub own: Secret,
    /// Secret of the controller, if the host authenticates the controller.
    pub controller: Option<Secret>,
}

impl Secrets {
    /// Parses one line for each host: its name, its secret, and optionally the controller's secret
    /// for it, separated by blanks. Empty lines and lines that begin with `#` are ignored.
    ///
    /// # Errors
    /// `InvalidInput` with the number of the invalid line, or if there is no line. The error
    /// contains nothing of a secret.
    pub fn parse(text: &str) -> Result<Self> {
        let mut list: Vec<HostSecrets> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.first().is_none_or(|word| word.starts_with('#')) {
                continue;
            }
            let entry = parse_line(&words).and_then(|entry| {
                match list.iter().any(|known| known.host == entry.host) {
                    true => Err(wrong(format!("host {:?} has two lines", entry.host))),
                    false => Ok(entry),
                }
            });
            let place = |error: Error| error.context(format!("line {}", index + 1));
            list.push(entry.map_err(place)?);
        }
        match list.is_empty() {
            true => Err(wrong(
                "no host has a line, so that no host could connect".to_owned(),
            )),
            false => Ok(Self(list)),
        }
    }

    /// Returns whether a host has a line.
    #[must_use]
    pub fn knows(&self, host: &str) -> bool {
        self.of(host).is_some()
    }

    /// Returns the secrets of a host, if it has a line.
    #[must_use]
    pub fn of(&self, host: &str) -> Option<&HostSecrets> {
        self.0.iter().find(|known| known.host == host)
    }
}

fn wrong(what: String) -> Error {
    Error::new(ErrorKind::InvalidInput, what)
}

fn parse_line(words: &[&str]) -> Result<HostSecrets> {
    let (host, own, controller) = match *words {
        [host, own] => (host, own, None),
        [host, own, controller] => (host, own, Some(controller)),
        _ => {
            let what = "a host's name, its secret and, optionally, the controller's are expected";
            return Err(wrong(what.to_owned()));
        }
    };
    check_nqn(host)?;
    let own = Secret::parse(own)?;
    let controller = controller.map(Secret::parse).transpose()?;
    if controller.as_ref() == Some(&own) {
        // A holder of the one could pose as the other.
        let what = "the host and the controller have the same secret\n\
                    help: generate another (`forebay secret generate`)";
        return Err(wrong(what.to_owned()));
    }
    Ok(HostSecrets {
        host: host.to_owned(),
        own,
        controller,
    })
}
