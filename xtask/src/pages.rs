//! Pages of results: grids of figures as CSV files, and pages rendered from them.
//!
//! A page is a template (prose in Markdown, `pages/*.tmpl`) and the grids of its study. The same
//! renderer serves the run of a study, `cargo xtask study render` and the test that compares the
//! checked-in page with the checked-in grids.

mod compare;
mod grid;
mod template;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

pub(crate) use compare::{RENDER, Rerun, differences, stale_pages};
pub(crate) use grid::{Data, Grid};

use crate::claims::Claim;

/// Result with an error for the terminal.
type Outcome<T> = Result<T, String>;

/// Most lines of a page.
#[cfg(test)]
const MOST_LINES: usize = 300;

/// A study's page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    /// Name of the study, of its page and of the folder of its grids.
    pub(crate) study: &'static str,
    /// Prose in Markdown with places for figures.
    pub(crate) template: &'static str,
}

pub(crate) const ADACACHE: Page = Page {
    study: "adacache",
    template: include_str!("pages/adacache.tmpl"),
};

pub(crate) const APPLICATIONS: Page = Page {
    study: "applications",
    template: include_str!("pages/applications.tmpl"),
};

pub(crate) const CAITI: Page = Page {
    study: "caiti",
    template: include_str!("pages/caiti.tmpl"),
};

pub(crate) const DPC: Page = Page {
    study: "dpc",
    template: include_str!("pages/dpc.tmpl"),
};

pub(crate) const MAPPERX: Page = Page {
    study: "mapperx",
    template: include_str!("pages/mapperx.tmpl"),
};

pub(crate) const MAPPERX_TIMING: Page = Page {
    study: "mapperx-timing",
    template: include_str!("pages/mapperx-timing.tmpl"),
};

pub(crate) const OPENCAS: Page = Page {
    study: "opencas",
    template: include_str!("pages/opencas.tmpl"),
};

/// All pages that are rendered from grids.
const PAGES: [Page; 7] = [
    ADACACHE,
    APPLICATIONS,
    CAITI,
    DPC,
    MAPPERX,
    MAPPERX_TIMING,
    OPENCAS,
];

/// The run that the figures are of.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) machine: String,
    pub(crate) commit: String,
    pub(crate) date: String,
    pub(crate) command: String,
    pub(crate) minutes: f64,
}

impl Page {
    /// Writes the grids and the page.
    ///
    /// The grids go into the folder `data` beside the page. Grids there that `data` does not hold
    /// stay, so that two commands can write parts of one page.
    ///
    /// # Errors
    /// If a file cannot be written, or the template names a grid or column that does not exist.
    pub(crate) fn write(&self, out: &Path, data: &Data, quick: bool) -> Outcome<()> {
        let folder = self.data_folder(out);
        data.write(&folder)?;
        let mut text = self.text(&Data::read(&folder)?)?;
        if quick {
            text += "\n**A quick run with a part of the cells. Not a result.**\n";
        }
        std::fs::write(out, text).map_err(|error| format!("{}: {error}", out.display()))?;
        println!("written: {}", out.display());
        Ok(())
    }

    /// Text of the page.
    ///
    /// # Errors
    /// If the template names a grid or column that does not exist.
    pub(crate) fn text(&self, data: &Data) -> Outcome<String> {
        template::render(self.template, data)
    }

    /// Renders the checked-in page from the checked-in grids.
    ///
    /// # Errors
    /// If a grid cannot be read, or the template names a grid or column that does not exist.
    pub(crate) fn render(&self, root: &Path) -> Outcome<String> {
        self.text(&self.data(root)?)
    }

    /// Reads the checked-in grids.
    ///
    /// # Errors
    /// If a grid cannot be read.
    pub(crate) fn data(&self, root: &Path) -> Outcome<Data> {
        Data::read(&self.data_folder(&self.path(root)))
    }

    /// Path of the checked-in page.
    pub(crate) fn path(&self, root: &Path) -> PathBuf {
        root.join(format!("docs/results/{}.md", self.study))
    }

    fn data_folder(&self, page: &Path) -> PathBuf {
        page.with_file_name("data").join(self.study)
    }
}

/// Renders all pages from the checked-in grids, after a template was edited.
///
/// # Errors
/// If a page cannot be rendered or written.
pub(crate) fn render_all(root: &Path) -> Outcome<bool> {
    for page in PAGES {
        let (path, text) = (page.path(root), page.render(root)?);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("written: {}", path.display());
    }
    Ok(true)
}

/// Prints the pages that differ from their templates and grids. Returns whether none does.
///
/// # Errors
/// If a page cannot be read or rendered.
pub(crate) fn check_all(root: &Path) -> Outcome<bool> {
    let stale = stale_pages(root)?;
    for (path, difference) in &stale {
        println!("{}: {difference}\nhelp: {RENDER}", path.display());
    }
    Ok(stale.is_empty())
}

/// Grid of claims: one row a claim, its figures formatted by `figure`.
pub(crate) fn claims_grid(name: &str, claims: &[Claim], figure: fn(f64) -> String) -> Grid {
    let columns = [
        "claim",
        "kind",
        "paper or peer",
        "ours",
        "unit",
        "bar",
        "holds",
    ];
    let mut grid = Grid::new(name, &columns);
    for claim in claims {
        grid.row([
            claim.name.clone(),
            format!("{:?}", claim.kind).to_lowercase(),
            claim.paper_or_peer.map_or("-".into(), figure),
            figure(claim.ours),
            claim.unit.clone(),
            claim.bar.clone(),
            if claim.holds { "yes" } else { "no" }.into(),
        ]);
    }
    grid
}

/// Grid `values` of a study: the run, for the places `{{date}}`, `{{commit}}` and so on.
pub(crate) fn values_grid(header: &Header) -> Grid {
    let mut grid = Grid::new("values", &["name", "value"]);
    for (name, value) in [
        ("machine", header.machine.clone()),
        ("commit", header.commit.clone()),
        ("date", header.date.clone()),
        ("command", header.command.clone()),
        ("minutes", format!("{:.0}", header.minutes)),
    ] {
        grid.row([name.into(), value]);
    }
    grid
}
