//! The command line accepts what its help and the documentation describe.

use super::*;
use clap::CommandFactory as _;
use forebay_terminal::size::Size;

fn parse(line: &str) -> Result<Arguments, clap::Error> {
    super::parse(line.split_whitespace())
}

fn refused(line: &str) -> String {
    parse(line).expect_err(line).to_string()
}

#[test]
fn the_definition_is_sound() {
    Arguments::command().debug_assert();
}

#[test]
fn every_command_of_the_documentation_is_taken() {
    for line in [
        "forebay format --cache /dev/x",
        "forebay format --cache c --metadata m --block-size 64K --create 1G",
        "forebay format --cache c --force --discard-dirty",
        "forebay format --cache c --metadata /dev/dax0.0 --pmem",
        "forebay format --btt /dev/dax0.0",
        "forebay format --btt f --btt-version 1.1 --block-size 512 --create 1G --force",
        "forebay serve forebay.toml",
        "forebay serve forebay.toml --without-cache db --without-cache logs --adopt x",
        "forebay status --watch",
        "forebay status --json --control /run/c.sock",
        "forebay --control /run/c.sock flush",
        "forebay flush db --json",
        "forebay secret generate",
        "forebay secret generate --hash sha512",
        "forebay mode db wb",
        "forebay mode db write-through",
        "forebay cleaning nop --json",
        "forebay detach db",
        "forebay grow db",
        "forebay check forebay.toml",
        "forebay check --cache /dev/x --metadata /dev/y --json",
        "forebay bench --seconds 1 --json",
        "forebay bench --seconds 0.3",
        "forebay trace stats a.csv b.csv --json --volume NAME --page-size 512 --memory 1G",
        "forebay trace stats a --format msr --skip-bad --sort-window 100 --top 3",
        "forebay trace convert a b c.csv.zst --from alibaba --to msr --force",
        "forebay trace generate --preset alibaba out --requests 1000 --seed 2",
        "forebay trace generate --volumes 2 --requests 1000000 --reads 70 --sizes 4K:60,64K:40 \
         --working-set 10G --zipf 0.9 --sequential 20 --rate 1000 --seed 1 out",
        "forebay trace record out.fbt --volume db --duration 60s --max-size 1G --force --control \
         c.sock",
        "forebay replay a.fbt b.fbt --on forebay.toml --map a=db --destroy-data --verify --depth 8",
        "forebay replay a --on nbd://127.0.0.1:10809/db --on nbd://h/e --skip-writes --speed 0.5",
        "forebay replay a --on c.toml --speed max --past-end skip --limit 1000 --volume v --json",
    ] {
        parse(line).expect(line);
    }
}

/// The long help of a command, not only its line in the list of commands.
#[test]
fn the_help_of_a_command_says_all_there_is_to_say() {
    let mut command = Arguments::command();
    command.build();
    for (name, said) in [
        ("serve", "FOREBAY_LOG"),
        ("check", "3 if the cache has damage"),
        ("format", "--discard-dirty is given too"),
        ("grow", "shrunk is refused"),
        ("replay", "REPLACES THE DATA OF THE VOLUME"),
        ("replay", "forebay replay monday.fbt --on forebay.toml"),
    ] {
        let found = command.find_subcommand_mut(name).expect("there is one");
        let help = found.render_long_help().to_string();
        let words: Vec<_> = help.split_whitespace().collect();
        assert!(words.join(" ").contains(said), "{said} in {help}");
    }
}

#[test]
fn values_are_parsed_with_their_units() {
    let arguments = parse("forebay format --cache c --block-size 64K").expect("right");
    let Command::Format(format) = arguments.command else {
        panic!("it is format");
    };
    assert_eq!(format.block_size, [Size(64 << 10)]);
    let arguments = parse("forebay format --cache c --block-size 32K,256K").expect("right");
    let Command::Format(format) = arguments.command else {
        panic!("it is format");
    };
    assert_eq!(format.block_size, [Size(32 << 10), Size(256 << 10)]);
    let arguments = parse("forebay mode db wo --control c").expect("right");
    assert_eq!(arguments.control, Some("c".into()));
    let Command::Mode(mode) = arguments.command else {
        panic!("it is mode");
    };
    assert_eq!(mode.mode, crate::config::Mode::WriteOnly);
}

#[test]
fn wrong_arguments_are_refused_with_a_remedy() {
    assert!(refused("forebay mode db xx").contains("write wb (write-back)"));
    assert!(refused("forebay format --cache c --block-size 32kb").contains("powers of 1024"));
    assert!(refused("forebay format").contains("--cache"));
    assert!(refused("forebay format --cache c --discard-dirty").contains("--force"));
    for line in ["forebay format /dev/x", "forebay format --force /dev/x"] {
        let said = refused(line);
        assert!(
            said.contains("tip: ") && said.contains("`--cache /dev/x`"),
            "{said}"
        );
    }
    assert!(!refused("forebay format --cash x").contains("tip: name"));
    assert!(!refused("forebay status db").contains("--cache"));
    assert!(refused("forebay check").contains("CONFIG"));
    assert!(refused("forebay check a.toml --cache c").contains("cannot be used"));
    for wrong in ["0", "-1", "NaN", "3601", "1s"] {
        let said = refused(&format!("forebay bench --seconds={wrong}"));
        assert!(said.contains("from 0.01 to 3600"), "{said}");
    }
    assert!(refused("forebay replay t --on c --speed fast").contains("write max, or a number"));
    assert!(refused("forebay replay t --on c --map db").contains("host0.1=db"));
    assert!(
        refused("forebay replay t --on c --past-end wrap").contains("write fold, skip or refuse")
    );
    assert!(refused("forebay replay t --on c --verify --skip-writes").contains("cannot be used"));
    assert!(refused("forebay").contains("Usage"));
}

/// Calls `each` with each command of `command`, and its words.
fn walk(command: &clap::Command, path: &str, each: &mut impl FnMut(&clap::Command, &str)) {
    let path = format!("{path} {}", command.get_name());
    each(command, path.trim());
    for inner in command.get_subcommands() {
        walk(inner, &path, each);
    }
}

#[test]
fn a_negative_value_is_refused_in_one_line_with_option_and_range() {
    let mut command = Arguments::command();
    command.build();
    let mut numbers = 0;
    walk(&command, "", &mut |command, path| {
        let options = command.get_arguments();
        for option in options.filter(|option| option.get_action().takes_values()) {
            let Some(name) = option.get_long() else {
                continue;
            };
            for value in ["-5", "-5s", "-5M"] {
                let line = format!("{path} --{name} {value}");
                let error = match parse(&line) {
                    Err(error) if !command.has_subcommands() => error,
                    // It takes text.
                    _ => continue,
                };
                let said = error.to_string();
                assert!(!said.contains("unexpected argument"), "{line}: {said}");
                if error.kind() != clap::error::ErrorKind::ValueValidation {
                    continue;
                }
                let first = said.lines().next().expect("a line");
                let begin = format!("error: invalid value '{value}' for '--{name}");
                assert!(first.starts_with(&begin), "{line}: {said}");
                for no_range in ["invalid digit", "invalid float", "does not begin with"] {
                    assert!(!said.contains(no_range), "{line}: {said}");
                }
                numbers += usize::from(value == "-5");
            }
        }
    });
    assert!(numbers >= 40, "{numbers} options");
    // After `--`, and after a word that is no option, it is a word of its own.
    assert!(refused("forebay grow db -5").contains("unexpected argument '-5'"));
    parse("forebay grow -- -5").expect("a name");
}

#[test]
fn a_block_size_that_no_cache_has_is_refused_before_anything_is_opened() {
    for size in ["3000", "2K", "2M", "12K"] {
        let line = format!("forebay format --cache /nonexistent --block-size {size}");
        let error = run(parse(&line).expect("parses")).expect_err(size);
        assert!(error.report().contains("power of two"), "{size}: {error:?}");
    }
}
