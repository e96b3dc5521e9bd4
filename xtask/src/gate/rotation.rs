//! The rotation: the part of the rotating tests that a run of the gate takes, from the commit.

use std::path::Path;
use std::process::Command;

/// The variable that the tests read.
pub(crate) const VARIABLE: &str = "FOREBAY_ROTATION";

/// Returns the rotation and its origin, in words.
///
/// # Errors
/// Returns an error if the variable is neither a 32-bit number nor `all`.
pub(crate) fn rotation(root: &Path) -> Result<(String, String), String> {
    if let Ok(given) = std::env::var(VARIABLE) {
        return check(&given).map(|()| (given, "from the environment".into()));
    }
    let output = Command::new("git")
        .current_dir(root)
        .args(["rev-parse", "HEAD"])
        .output();
    let commit = match output {
        Ok(output) if output.status.success() => output.stdout,
        _ => Vec::new(),
    };
    let commit = String::from_utf8_lossy(&commit);
    Ok(match of_commit(commit.trim()) {
        Some(number) => (number.to_string(), format!("from commit {}", &commit[..8])),
        None => ("0".into(), "this is not a git checkout".into()),
    })
}

fn check(given: &str) -> Result<(), String> {
    if given == "all" || given.parse::<u32>().is_ok() {
        return Ok(());
    }
    let help = "set it to a 32-bit number or `all`, or unset it";
    Err(format!("{VARIABLE}={given:?} is not valid\nhelp: {help}"))
}

/// Returns the first eight digits of a commit id as a number.
fn of_commit(commit: &str) -> Option<u32> {
    u32::from_str_radix(commit.get(..8)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_gives_its_first_digits() {
        assert_eq!(of_commit("000000ff2a7f5c"), Some(255));
        assert_eq!(of_commit("ffffffff"), Some(u32::MAX));
        for none in ["", "fff", "HEAD is not a commit"] {
            assert_eq!(of_commit(none), None, "{none:?}");
        }
    }

    #[test]
    fn a_rotation_is_a_number_or_all() {
        for good in ["0", "9", "4294967295", "all"] {
            assert_eq!(check(good), Ok(()));
        }
        for bad in ["", "-1", "4294967296", "ALL", "0x7"] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
    }
}
