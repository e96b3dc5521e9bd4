//! The modules of a crate that have files of their own, and the arrows between them.

use std::collections::{BTreeMap, BTreeSet};

use super::code::{self, Path};

/// Limit of re-exports to follow from one module to the next, so that a circle of them ends.
const FOLLOWED: u32 = 8;

/// A module with its file.
#[derive(Debug)]
struct Module {
    /// Its path from the crate's root, which is empty.
    path: Path,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// Paths in its code.
    paths: Vec<Path>,
    /// Imported names.
    uses: BTreeMap<String, Path>,
}

/// The modules of a crate. The first is the root.
#[derive(Debug, Default)]
pub(super) struct Tree {
    modules: Vec<Module>,
}

impl Tree {
    /// Reads the modules from a root file. `None` if there is no such file.
    pub(super) fn read(texts: &BTreeMap<&str, &str>, root: &str) -> Option<Self> {
        texts.get(root)?;
        let mut tree = Self::default();
        tree.add(texts, root, Vec::new(), None);
        Some(tree)
    }

    fn add(
        &mut self,
        texts: &BTreeMap<&str, &str>,
        file: &str,
        path: Path,
        parent: Option<usize>,
    ) -> usize {
        let tokens = code::tokens(texts[file]);
        let tokens = code::without_tests(&tokens);
        let number = self.modules.len();
        self.modules.push(Module {
            path: path.clone(),
            parent,
            children: BTreeMap::new(),
            paths: code::paths(&tokens),
            uses: code::uses(&tokens).into_iter().collect(),
        });
        let (folder, name) = file.rsplit_once('/').unwrap_or(("", file));
        let folder = match name {
            "mod.rs" | "lib.rs" | "main.rs" => folder.to_owned(),
            _ => file.trim_end_matches(".rs").to_owned(),
        };
        for name in code::declared(&tokens) {
            let files = [
                format!("{folder}/{name}.rs"),
                format!("{folder}/{name}/mod.rs"),
            ];
            if let Some(file) = files.iter().find(|file| texts.contains_key(file.as_str())) {
                let path = [path.clone(), vec![name.clone()]].concat();
                let child = self.add(texts, file, path, Some(number));
                self.modules[number].children.insert(name, child);
            }
        }
        number
    }

    /// Returns the arrows between modules, except those to a module below.
    pub(super) fn arrows(&self) -> BTreeSet<(Path, Path)> {
        let mut arrows = BTreeSet::new();
        for (number, module) in self.modules.iter().enumerate() {
            for path in &module.paths {
                let target = &self.modules[self.resolve(number, path, FOLLOWED)].path;
                if !target.starts_with(&module.path) {
                    arrows.insert((module.path.clone(), target.clone()));
                }
            }
        }
        arrows
    }

    /// Returns the module at which a path in a module ends.
    fn resolve(&self, from: usize, path: &[String], followed: u32) -> usize {
        let mut at = from;
        for (nth, name) in path.iter().enumerate() {
            let module = &self.modules[at];
            at = match name.as_str() {
                "crate" => 0,
                "self" => at,
                "super" => module.parent.unwrap_or(0),
                name => match (module.children.get(name), module.uses.get(name)) {
                    (Some(child), _) => *child,
                    (None, Some(used)) if followed > 0 && self.is_inside(at, used) => {
                        let whole = [used, &path[nth + 1..]].concat();
                        return self.resolve(at, &whole, followed - 1);
                    }
                    _ => return at,
                },
            };
        }
        at
    }

    /// Returns whether an imported path begins in this crate.
    fn is_inside(&self, module: usize, used: &[String]) -> bool {
        let first = used.first().map_or("", String::as_str);
        matches!(first, "crate" | "super" | "self")
            || self.modules[module].children.contains_key(first)
    }
}
