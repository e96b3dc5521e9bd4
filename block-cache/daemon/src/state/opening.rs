//! `UUID.cache`: number and devices of the last opening of a cache.
//!
//! The superblock has the same data. If its number is lower, the cache device holds an earlier
//! state of the cache. If its devices differ, the cache is a copy.

use std::path::{Path, PathBuf};

use forebay_block::{Error, ErrorKind, Identity, Result};
use forebay_metadata::Media;

use super::{files, hex};

/// Record of the last opening of a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// Number of the last opening. The cache has this number or a higher one.
    pub generation: u64,
    /// Devices that held the cache.
    pub media: Media,
    /// Path of the metadata device.
    pub place: String,
    /// Path of a separate data device; empty if there is none or it is unknown.
    pub data_place: String,
}

/// A cache that is about to be opened.
#[derive(Clone, Debug)]
pub struct Found<'a> {
    /// Last opening according to the superblock.
    pub last: Opening,
    /// Devices that hold the cache now.
    pub media: Media,
    /// Path of the metadata device.
    pub place: &'a str,
    /// Path of a separate data device; otherwise empty.
    pub data_place: &'a str,
    /// Whether the user states that these devices replace the former ones.
    pub moved: bool,
}

/// A former device of the cache that still holds it, next to the device that is to be served.
#[derive(Clone, Copy, Debug)]
pub struct Twin<'a> {
    /// Path of the device.
    pub place: &'a str,
    /// Whether it is the separate data device. Otherwise it holds the metadata.
    pub is_data: bool,
}

/// Condition of `--moved-cache`, in the words of a remedy: a copy that was made in service lacks
/// later writes.
pub(crate) const MADE_AFTER: &str = " and was made after its daemon ended";

const HEAD: &str = "forebay cache state 1";

fn path(directory: &Path, uuid: &[u8; 16]) -> PathBuf {
    directory.join(format!("{}.cache", hex(uuid)))
}

fn words(identity: Identity) -> String {
    format!("{:016x} {}", identity.medium, identity.birth)
}

fn identity(words: &str) -> Option<Identity> {
    let (medium, birth) = words.split_once(' ')?;
    let mut identity = Identity::of(u64::from_str_radix(medium, 16).ok()?);
    identity.birth = birth.parse().ok()?;
    Some(identity)
}

fn render(opening: &Opening) -> String {
    let body = format!(
        "{HEAD}\ngeneration {}\nmetadata {}\ndata {}\nplace {}\ndata-place {}\n",
        opening.generation,
        words(opening.media.metadata),
        words(opening.media.data),
        opening.place.replace('\n', "?"),
        opening.data_place.replace('\n', "?"),
    );
    let check = super::epoch::check(&body);
    format!("{body}check {check:016x}\n")
}

fn parse(text: &str) -> Option<Opening> {
    let (body, last) = text.split_at(text.rfind("check ")?);
    let expected = last.strip_prefix("check ")?.trim_end();
    if u64::from_str_radix(expected, 16).ok()? != super::epoch::check(body) {
        return None;
    }
    let mut lines = body.strip_prefix(HEAD)?.lines().skip(1);
    Some(Opening {
        generation: lines.next()?.strip_prefix("generation ")?.parse().ok()?,
        media: Media {
            metadata: identity(lines.next()?.strip_prefix("metadata ")?)?,
            data: identity(lines.next()?.strip_prefix("data ")?)?,
        },
        place: lines.next()?.strip_prefix("place ")?.to_owned(),
        // Earlier versions neither write nor read this line.
        data_place: (lines
            .next()
            .and_then(|line| line.strip_prefix("data-place ")))
        .unwrap_or_default()
        .to_owned(),
    })
}

/// Returns the record of a cache. For a damaged file it returns none and logs a warning, since an
/// earlier state of the cache device would not be recognized.
pub(super) fn load(directory: &Path, uuid: &[u8; 16]) -> Result<Option<Opening>> {
    let path = path(directory, uuid);
    let Some(bytes) = files::read(&path)? else {
        return Ok(None);
    };
    let found = parse(&String::from_utf8_lossy(&bytes));
    if found.is_none() {
        tracing::warn!(
            "{} is damaged: an earlier state of the cache device would not be recognized",
            path.display()
        );
    }
    Ok(found)
}

/// Returns the caches whose last opening was on a device at this path, in the order of their
/// identities. The directory may belong to another process, or not exist.
pub(crate) fn caches_at(directory: &Path, place: &str) -> Vec<[u8; 16]> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let uuids = names.filter_map(|name| super::digits::unhex(name.strip_suffix(".cache")?));
    let is_there = |uuid: &[u8; 16]| match load(directory, uuid) {
        Ok(Some(opening)) => [opening.place, opening.data_place]
            .iter()
            .any(|it| it == place),
        _ => false,
    };
    let mut found: Vec<_> = uuids.filter(is_there).collect();
    found.sort_unstable();
    found
}

/// Returns whether there is a record, damaged or not.
pub(super) fn exists(directory: &Path, uuid: &[u8; 16]) -> bool {
    path(directory, uuid).exists()
}

/// Stores the record, durably.
pub(super) fn store(directory: &Path, uuid: &[u8; 16], opening: &Opening) -> Result<()> {
    let path = path(directory, uuid);
    let new = path.with_extension("cache.new");
    files::replace(&path, &new, render(opening).as_bytes())
}

/// Checks whether a cache may be opened on its present devices. `record` is its record in the state
/// directory. `twin` is another device with this cache, if there is one. Returns a notice for the
/// user.
///
/// # Errors
/// `Busy` for a copy next to its original; `Lost` for an earlier state of the cache.
pub fn check(
    found: &Found<'_>,
    record: Option<&Opening>,
    twin: Option<Twin<'_>>,
) -> Result<Option<String>> {
    let Found {
        last,
        media,
        place,
        data_place,
        ..
    } = found;
    let refuse = |kind, what: String| Err(Error::new(kind, what));
    if let Some(twin) = twin.filter(|_| !found.moved) {
        let Twin {
            place: twin,
            is_data,
        } = twin;
        if is_data {
            return refuse(
                ErrorKind::Busy,
                format!(
                    "two devices hold the data of this cache: {twin}, where it was served last, \
                     and {data_place}\n    \
                     help: serve it with {twin}; or, if {data_place} takes the place of \
                     {twin}{MADE_AFTER}, start once with --moved-cache"
                ),
            );
        }
        return refuse(
            ErrorKind::Busy,
            format!(
                "two devices hold this cache: {twin}, where it was served last, and {place}\n    \
                 help: serve {twin}; or make {place} a cache of its own with `{}`; or, if {place} \
                 takes the place of {twin}{MADE_AFTER}, start once with --moved-cache",
                clone_command(place, data_place)
            ),
        );
    }
    let generation = last.generation;
    if let Some(record) = record.filter(|record| generation != 0 && generation < record.generation)
    {
        let where_ = match record.media.differs_from(*media) {
            true => format!(" on {}", record.place),
            false => String::new(),
        };
        return refuse(
            ErrorKind::Lost,
            format!(
                "{place} holds an earlier state of the cache: opening {generation}, the last one \
                 was {}{where_}\n    \
                 help: put the newest state of the device back. If that is gone, make a new cache \
                 with `forebay format --force --discard-dirty`, and start once with --adopt \
                 VOLUME: what was not written back IS LOST THEN",
                record.generation
            ),
        );
    }
    let former = [record.unwrap_or(last), last];
    let former = former.into_iter().find(|it| it.media.differs_from(*media));
    Ok(former.map(|former| {
        let is_data = !former.media.metadata.differs_from(media.metadata);
        let (what, place, from) = match is_data {
            true => ("the data of the cache", data_place, &former.data_place),
            false => ("the cache", place, &former.place),
        };
        let advice = match is_data {
            true => "if both are in use, stop: a copy needs a copy of the metadata, too".to_owned(),
            false => format!(
                "if both are in use, stop, and run `{}` on the copy",
                clone_command(found.place, found.data_place)
            ),
        };
        match &**from {
            "" => format!(
                "{what} on {place} was last served on other devices, which are not there any more: \
                 {place} takes their place\n    help: {advice}"
            ),
            from if from == *place => format!(
                "{what} on {place} was last served on another file or disk at this path: this one \
                 takes its place\n    help: {advice}"
            ),
            // With --moved-cache the former one may still be there.
            from if Path::new(from).exists() => format!(
                "{what} on {place} was last served on {from}, which still exists: {place} takes \
                 its place\n    help: {advice}"
            ),
            from => format!(
                "{what} on {place} was last served on {from}, which is not there any more: {place} \
                 takes its place\n    help: {advice}"
            ),
        }
    }))
}

/// Returns the command that turns a copy into a cache of its own. `place` has the metadata.
/// `data_place` is the path of a separate data device, or empty.
pub(crate) fn clone_command(place: &str, data_place: &str) -> String {
    match data_place {
        "" => format!("forebay clone-id --cache {place}"),
        data => format!("forebay clone-id --cache {data} --metadata {place}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opening(generation: u64, medium: u64) -> Opening {
        Opening {
            generation,
            media: Media {
                metadata: Identity::of(medium),
                data: Identity::of(medium),
            },
            place: format!("/dev/m{medium}"),
            data_place: format!("/dev/d{medium}"),
        }
    }

    #[test]
    fn a_remembered_opening_survives_a_round_trip_and_damage_is_detected() {
        let opening = opening(7, 0xabc);
        let text = render(&opening);
        assert_eq!(parse(&text), Some(opening));
        for at in 0..text.len() - 1 {
            let mut bytes = text.clone().into_bytes();
            bytes[at] ^= 1;
            assert_eq!(parse(&String::from_utf8_lossy(&bytes)), None, "byte {at}");
        }
    }

    #[test]
    fn openings_remembered_by_an_earlier_version_are_parsed() {
        let mut opening = opening(7, 0xabc);
        opening.data_place.clear();
        let text = render(&opening).replace("data-place \n", "");
        let body = &text[..text.rfind("check ").expect("there")];
        let text = format!("{body}check {:016x}\n", super::super::epoch::check(body));
        assert_eq!(parse(&text), Some(opening));
    }

    #[test]
    fn a_copy_of_the_data_device_is_named_as_that() {
        let mut last = opening(5, 1);
        last.media.data = Identity::of(2);
        let mut media = last.media;
        media.data = Identity::of(3);
        let found = |moved| Found {
            last: last.clone(),
            media,
            place: "/dev/m1",
            data_place: "/dev/copy",
            moved,
        };
        let twin = Twin {
            place: "/dev/d1",
            is_data: true,
        };
        let refused = check(&found(false), None, Some(twin)).expect_err("a twin");
        assert_eq!(refused.kind(), ErrorKind::Busy);
        for (found, twin) in [(found(false), None), (found(true), Some(twin))] {
            let note = check(&found, None, twin).expect("served");
            let note = note.expect("it is reported");
            for said in [note, refused.report()] {
                assert!(
                    said.contains("/dev/d1") && said.contains("/dev/copy"),
                    "{said}"
                );
                assert!(!said.contains("/dev/m1"), "{said}");
            }
        }
    }

    #[test]
    fn a_copy_beside_its_original_and_an_earlier_state_are_refused() {
        let found = |generation, on, now, moved| Found {
            last: opening(generation, on),
            media: opening(0, now).media,
            place: "/dev/now",
            data_place: "",
            moved,
        };
        let kind = |found: &Found<'_>, record: Option<&Opening>, twin| {
            let twin = (twin as Option<&str>).map(|place| Twin {
                place,
                is_data: false,
            });
            check(found, record, twin)
                .map(|note| note.is_some())
                .map_err(|error| error.kind())
        };
        let record = opening(5, 1);
        let record = Some(&record);
        // Opened in place. The process may have died before the state directory recorded it.
        for generation in [5, 6] {
            assert_eq!(
                kind(&found(generation, 1, 1, false), record, None),
                Ok(false)
            );
        }
        // Served by an earlier version, or with another state directory.
        assert_eq!(kind(&found(0, 0, 1, false), record, None), Ok(false));
        assert_eq!(kind(&found(5, 1, 1, false), None, None), Ok(false));
        // Rolled back in place, or an older copy on another device, with and without
        // `--moved-cache`.
        for (now, moved) in [(1, false), (1, true), (2, false), (2, true)] {
            assert_eq!(
                kind(&found(4, 1, now, moved), record, None),
                Err(ErrorKind::Lost)
            );
        }
        // A copy whose original is present, and one whose original is gone.
        for record in [record, None] {
            let copy = found(5, 1, 2, false);
            assert_eq!(kind(&copy, record, Some("/dev/m1")), Err(ErrorKind::Busy));
            assert_eq!(kind(&copy, record, None), Ok(true));
            let moved = found(5, 1, 2, true);
            assert_eq!(kind(&moved, record, Some("/dev/m1")), Ok(true));
        }
    }
}
