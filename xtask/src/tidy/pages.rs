//! The pages of results equal their templates and grids.
//!
//! A page of `docs/results` with a folder of grids is rendered, never edited.

use std::path::Path;

use super::Finding;
use crate::pages::{RENDER, stale_pages};

const RULE: &str = "pages";

pub(super) fn check(root: &Path) -> Result<Vec<Finding>, String> {
    let findings = stale_pages(root)?.into_iter().map(|(path, difference)| {
        let place = path.strip_prefix(root).unwrap_or(&path);
        Finding::new(
            RULE,
            place.display().to_string(),
            format!("differs from its template and grids: {difference}: run {RENDER}"),
        )
    });
    Ok(findings.collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Copies `from` with its folders.
    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            let target = to.join(path.file_name().unwrap());
            match path.is_dir() {
                true => copy(&path, &target),
                false => drop(fs::copy(&path, &target).unwrap()),
            }
        }
    }

    #[test]
    fn an_edited_page_and_an_edited_grid_are_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let results = "docs/results";
        let planted = std::env::temp_dir().join(format!("forebay-pages-{}", std::process::id()));
        copy(&root.join(results), &planted.join(results));
        assert_eq!(check(&planted).unwrap(), Vec::new());

        let edit = |file: &str, old: &str, new: &str| {
            let path = planted.join(results).join(file);
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains(old), "{file}");
            fs::write(path, text.replacen(old, new, 1)).unwrap();
        };
        edit("dpc.md", "| 5.069 |", "| 5.700 |");
        edit("data/caiti/measured.csv", "430300", "430301");
        let found = check(&planted).unwrap();
        let places: Vec<&str> = found.iter().map(|one| one.place.as_str()).collect();
        assert_eq!(places, ["docs/results/caiti.md", "docs/results/dpc.md"]);
        assert!(found[0].message.contains("430301"), "{found:?}");
        assert!(found[1].message.contains("5.700"), "{found:?}");

        // A page that lost its end is another page.
        let path = planted.join(results).join("opencas.md");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.trim_end()).unwrap();
        assert_eq!(check(&planted).unwrap().len(), 3);
        fs::remove_dir_all(&planted).unwrap();
    }
}
