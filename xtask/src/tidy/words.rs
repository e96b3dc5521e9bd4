//! Text that must not be in the repository: paths of one machine, and addresses that only a package
//! manager's configuration needs.
//!
//! The words are spelled in two halves here, so that this file does not find itself.

use super::{Finding, Source};

const RULE: &str = "words";

/// Absolute paths of a single machine.
const PATHS: [&str; 4] = [
    concat!("/wo", "rk/"),
    concat!("/ho", "me/"),
    concat!("/ro", "ot/"),
    concat!("/Us", "ers/"),
];

const HOSTS: [&str; 3] = [
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("proxy.golang", ".org"),
];

pub(super) fn check(sources: &[Source]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for source in sources {
        // Cargo writes its lock files.
        if source.path.ends_with("Cargo.lock") {
            continue;
        }
        for (index, line) in source.text.lines().enumerate() {
            let place = || format!("{}:{}", source.path, index + 1);
            for path in PATHS.iter().filter(|path| has_absolute(line, path)) {
                let message = format!("{path} is one machine's path: name it from the repository");
                findings.push(Finding::new(RULE, place(), message));
            }
            for host in HOSTS.iter().filter(|host| line.contains(*host)) {
                let message = format!("{host}: leave registries to cargo's configuration");
                findings.push(Finding::new(RULE, place(), message));
            }
        }
    }
    findings
}

/// Whether `path` begins in `line`, and does not continue an earlier text.
fn has_absolute(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(start, _)| {
        let goes_on = |c: char| c.is_alphanumeric() || "_-.~}/".contains(c);
        !line[..start].ends_with(goes_on)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, line: &str) -> usize {
        check(&[Source {
            path: path.into(),
            text: line.into(),
        }])
        .len()
    }

    #[test]
    fn machine_paths_are_found() {
        for path in PATHS {
            assert_eq!(findings("a.md", &format!("see `{path}shared`")), 1);
            assert_eq!(findings("a.rs", &format!("open(\"{path}x\")")), 1);
            assert_eq!(findings("a.sh", &format!("cd ${{dir}}{path}x")), 0);
        }
    }

    #[test]
    fn registry_hosts_are_found() {
        for host in HOSTS {
            assert_eq!(findings("README.md", &format!("from https://{host}/x")), 1);
            assert_eq!(findings("Cargo.lock", &format!("from https://{host}/x")), 0);
        }
    }
}
