use super::*;
use template::{figure, render};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn data() -> Data {
    let mut cells = Grid::new("cells", &["trace", "dirty", "ours", "memory", "holds"]);
    for (trace, dirty, ours, memory, holds) in [
        ("a, \"first\"", "5%", "9.5", "334 KiB", "yes"),
        ("a, \"first\"", "20%", "2.0", "2.0 MiB", "no"),
        ("b", "5%", "12.25", "512 KiB", "no"),
        ("b", "20%", "3.0", "-", "yes"),
        ("c", "5%", "11", "1 KiB", "yes"),
    ] {
        cells.row([trace, dirty, ours, memory, holds].map(String::from));
    }
    let mut values = Grid::new("values", &["name", "value"]);
    values.row(["date", "2026-11-26"].map(String::from));
    Data(vec![cells, values])
}

#[test]
fn a_grid_survives_writing_and_reading() {
    for grid in data().0 {
        assert_eq!(Grid::from_csv(&grid.name, &grid.to_csv()), Ok(grid));
    }
    assert_eq!(
        Grid::from_csv("x", "a,b\n1,2\n3\n").unwrap_err(),
        "x.csv:3: 1 cells for 2 columns"
    );
    assert_eq!(
        Grid::from_csv("x", "a,b\n\"1,2\n").unwrap_err(),
        "x.csv:2: a quote is not closed"
    );
    assert_eq!(
        Grid::from_csv("x", "a,b,a\n").unwrap_err(),
        "x.csv:1: the title `a` twice"
    );
    assert!(Grid::from_csv("x", "").is_err());
}

#[test]
fn places_are_replaced_by_figures() {
    let text = |template: &str| render(template, &data()).unwrap().trim_end().to_owned();
    assert_eq!(text("On {{date}}: {{count cells}}."), "On 2026-11-26: 5.");
    assert_eq!(text("{{count cells | where holds = no; trace = b}}"), "1");
    assert_eq!(
        text("{{table cells |\n  where holds = no}}"),
        "| trace | dirty | ours | memory |\n|---|---:|---:|---:|\n\
         | a, \"first\" | 20% | 2.0 | 2.0 MiB |\n| b | 5% | 12.25 | 512 KiB |"
    );
    assert_eq!(
        text("{{table cells | where trace ~ first | columns ours; holds}}"),
        "| ours | holds |\n|---|---|\n| 9.5 | yes |\n| 2.0 | **no** |"
    );
    assert_eq!(
        text("{{top 2 cells | by ours | columns trace; ours}}"),
        "| trace | ours |\n|---|---:|\n| b | 12.25 |\n| c | 11 |"
    );
    assert_eq!(
        text("{{bottom 1 cells | by ours | where dirty = 5% | columns trace; ours}}"),
        "| trace | ours |\n|---|---:|\n| a, \"first\" | 9.5 |"
    );
    assert_eq!(
        text("{{median cells | by dirty}}"),
        "| dirty | ours | memory |\n|---|---:|---:|\n| 5% | 11 | 334 KiB |\n| 20% | 2.0 | 2.0 MiB |"
    );
}

#[test]
fn lines_that_figures_make_too_long_are_broken() {
    let mut data = data();
    let long = vec!["word"; 30].join(" ");
    data.0[1].row(["long".to_owned(), long.clone()]);
    let text = render("# {{long}}\n\n  - {{long}} end.\n| {{long}} |\n", &data).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], format!("# {long}"));
    assert_eq!(lines[4], format!("| {long} |"));
    assert_eq!(lines[2].chars().count(), 98);
    assert!(
        lines[3].starts_with("    word") && lines[3].ends_with(" end."),
        "{text}"
    );
    let rejoined = format!("{} {}", lines[2], lines[3].trim_start());
    assert_eq!(rejoined, format!("  - {long} end."));
}

#[test]
fn figures_compare_in_their_base_unit() {
    assert_eq!(figure("1,052"), Some(1052.0));
    assert_eq!(figure("19.6%"), Some(19.6));
    assert_eq!(figure("2.0 MiB"), Some(2_097_152.0));
    assert_eq!(figure("two MiB"), None);
    assert_eq!(figure("1 of 8"), None);
}

#[test]
fn a_template_with_an_error_is_rejected() {
    for (template, part) in [
        ("{{date", "not closed"),
        ("{{day}}", "no value `day`"),
        ("{{table rows}}", "no grid `rows`"),
        ("{{table cells | columns age}}", "no column `age`"),
        ("{{count cells | where age = 1}}", "no column `age`"),
        ("{{count cells | where dirty}}", "no condition"),
        ("{{median cells}}", "no clause `by`"),
        ("{{sum cells}}", "no such command"),
    ] {
        let error = render(template, &data()).unwrap_err();
        assert!(error.contains(part), "{template}: {error}");
    }
}

/// The checked-in pages equal the checked-in grids rendered by the templates.
#[test]
fn each_page_matches_its_grids() {
    assert_eq!(stale_pages(&root()), Ok(Vec::new()), "help: {RENDER}");
}

/// A page differs from its grids when the figures of one grid that it shows differ.
#[test]
fn a_changed_figure_is_a_difference() {
    for page in PAGES {
        let path = page.path(&root());
        let checked_in = std::fs::read_to_string(&path).unwrap();
        let data = Data::read(&page.data_folder(&path)).unwrap();
        for nth in 0..data.0.len() {
            let name = &data.0[nth].name;
            let shown = ["table", "count", "median"].map(|command| format!("{{{{{command} {name}"));
            if !shown.iter().any(|place| page.template.contains(place)) {
                continue;
            }
            let mut planted = data.clone();
            let cells = planted.0[nth].rows.iter_mut().flatten();
            for cell in cells.filter(|cell| cell.contains(|one: char| one.is_ascii_digit())) {
                *cell = "987654321".into();
            }
            let text = render(page.template, &planted).unwrap();
            assert_ne!(text, checked_in, "{}: {name}", page.study);
        }
    }
}

#[test]
fn pages_are_short_and_name_their_grids() {
    for page in PAGES {
        let path = page.path(&root());
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text.lines().count();
        assert!(lines <= MOST_LINES, "{}: {lines} lines", page.study);
        for grid in Data::read(&page.data_folder(&path)).unwrap().0 {
            let link = format!("(data/{}/{}.csv)", page.study, grid.name);
            let small = ["values", "claims", "speed-values"].contains(&grid.name.as_str());
            assert!(
                small || text.contains(&link),
                "{}: no link {link}",
                page.study
            );
        }
        let long = |line: &&str| line.chars().count() > 100 && !line.contains("](");
        let prose = text.lines().filter(|line| !line.starts_with('|'));
        let long: Vec<&str> = prose.filter(long).collect();
        assert!(
            long.is_empty(),
            "{}: over 100 columns: {long:#?}",
            page.study
        );
    }
}
