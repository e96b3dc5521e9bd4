//! Addresses of exports, their names, and who may connect.

use super::*;

#[test]
fn a_virtual_machines_disk_is_alone_on_its_socket() {
    let disk = "vhost-user-blk = \"vm.sock\"";
    let whole = "volume = \"db\"\nvhost-user-blk = \"vm.sock\"";
    let report = broken(whole, &whole.replace("vm.sock", "/run/forebay/db.sock"));
    assert!(report.contains("cannot both be listened on"), "{report}");
    let report = broken(disk, "vhost-user-blk = \"vm.sock\"\ninsecure = true");
    assert!(report.contains("that no network reaches"), "{report}");
}

#[test]
fn an_open_door_needs_a_word() {
    let report = broken("\"127.0.0.1:10809\"", "\"0.0.0.0:10809\"");
    assert!(report.contains("insecure = true"), "{report}");
    let text = GOOD.replace(
        "nbd = \"127.0.0.1:10809\"",
        "nbd = \"0.0.0.0:10809\"\ninsecure = true",
    );
    assert!(parse(&text).is_ok());
    assert!(broken("\"127.0.0.1:10809\"", "\"localhost\"").contains("IP address with a port"));
    assert!(broken("io = \"threads\"", "metrics = \"0.0.0.0:9\"").contains("loopback"));
    let fuse = "fuse = \"/run/forebay/db\"";
    let none = parse(&GOOD.replace(fuse, "insecure = true")).unwrap_err();
    assert!(none.report().contains("names no protocol"), "{none:?}");
    let both = format!("{fuse}\nnbd = \"127.0.0.1:1\"");
    assert!(parse(&GOOD.replace(fuse, &both)).is_err());
}

#[test]
fn an_nvme_export_needs_an_nqn_and_access_control() {
    let nbd = "nbd = \"127.0.0.1:10809\"";
    let with = |lines: &str| parse(&GOOD.replace(nbd, lines));
    let good = "nvme-tcp = \"127.0.0.1:4420\"\nnqn = \"nqn.2026-11.io.forebay:db\"";
    let config = with(&format!(
        "{good}\nallow_hosts = [\"nqn.2014-08.org.nvmexpress:uuid:1\"]"
    ));
    let Protocol::NvmeTcp(target) = &config.expect("it is right").exports[0].protocol else {
        panic!("an NVMe/TCP export");
    };
    assert_eq!(target.listen, "127.0.0.1:4420".parse().expect("an address"));
    assert_eq!(target.nqn, "nqn.2026-11.io.forebay:db");
    assert_eq!(target.allow_hosts.as_ref().map(Vec::len), Some(1));
    let open = good.replace("127.0.0.1", "0.0.0.0");
    assert!(with(&format!("{open}\ninsecure = true")).is_ok());
    // A name that a host claims proves nothing.
    for address in ["0.0.0.0", "192.0.2.7", "[::]", "[::ffff:127.0.0.1]"] {
        let open = good.replace("127.0.0.1", address);
        let named = format!("{open}\nallow_hosts = [\"nqn.2014-08.org.nvmexpress:uuid:1\"]");
        let report = with(&named).expect_err("others reach it").report();
        assert!(report.contains("or add insecure = true"), "{report}");
    }
    // A server that authenticates hosts may be reachable.
    let config = with(&format!("{open}\nsecrets = \"nvme.secrets\"")).expect("it is right");
    let Protocol::NvmeTcp(target) = &config.exports[0].protocol else {
        panic!("an NVMe/TCP export");
    };
    assert_eq!(target.secrets, Some("/etc/nvme.secrets".into()));
    for (lines, said) in [
        (open.as_str(), "add secrets"),
        (
            "nvme-tcp = \"127.0.0.1:4420\"",
            "such as nqn = \"nqn.2026-11.io.forebay:db\"",
        ),
        (
            "nvme-tcp = \"unix:/s\"\nnqn = \"nqn.a:b\"",
            "IP address with a port",
        ),
        (
            &good.replace("nqn.2026", "2026"),
            "is no NVMe qualified name",
        ),
        (
            &format!("{good}\nallow_hosts = []"),
            "no host could connect",
        ),
        (
            &format!("{good}\nallow_hosts = [\"host\"]"),
            "/etc/nvme/hostnqn",
        ),
        (&format!("{good}\n{nbd}"), "names two protocols"),
        (
            &format!("{nbd}\nnqn = \"nqn.a:b\""),
            "`nqn` means something to an NVMe/TCP export only",
        ),
        (&good.replace("127.0.0.1:4420", "127.0.0.1:9809"), "metrics"),
        (
            &format!(
                "{good}\n[[export]]\nvolume = \"db\"\n{}",
                good.replace("4420", "4421\"\nallow_hosts = [\"nqn.a:b\"]#")
            ),
            "do not allow the same hosts",
        ),
        (
            &format!(
                "{good}\n[[export]]\nvolume = \"db\"\n{}",
                good.replace("4420", "4421\"\nsecrets = \"s\"#")
            ),
            "do not allow the same hosts",
        ),
        (
            &format!("{nbd}\nsecrets = \"s\""),
            "`secrets` means something to an NVMe/TCP export only",
        ),
        (
            &format!("{good}\n[[export]]\nvolume = \"db\"\nnbd = \"127.0.0.1:4420\""),
            "cannot both be listened on",
        ),
        (
            &format!("{good}\n[[export]]\nvolume = \"db\"\n{good}"),
            "is in the same place",
        ),
    ] {
        let report = with(lines).expect_err(lines).report();
        assert!(report.contains(said), "{lines}\n{report}");
    }
}

#[test]
fn addresses_that_clash_are_named_where_they_stand() {
    let tcp = "volume = \"db\"\nnbd = \"127.0.0.1:10809\"";
    let report = broken("io = \"threads\"", "metrics = \"127.0.0.1:10809\"");
    assert!(
        report.contains("`metrics` is 127.0.0.1:10809, and so is the export in line 38"),
        "{report}"
    );
    // The default is used as well.
    let report = broken(tcp, &tcp.replace("10809", "9809"));
    assert!(
        report.contains("where 127.0.0.1:9809 is the default"),
        "{report}"
    );
    let report = broken(
        "control = \"/run/x.sock\"",
        "control = \"/run/forebay/db.sock\"",
    );
    assert!(
        report.contains("`control` is unix:/run/forebay/db.sock"),
        "{report}"
    );
    let all = "0.0.0.0:10809\"\ninsecure = true #";
    let unix = "volume = \"db\"\nnbd = \"unix:/run/forebay/db.sock";
    let report = broken(unix, &format!("volume = \"db\"\nnbd = \"{all}"));
    assert!(report.contains("cannot both be listened on"), "{report}");
    let six = GOOD.replace("unix:/run/forebay/db.sock", "[::1]:10809");
    assert!(parse(&six).is_ok(), "another address, the same port");
    let any = GOOD.replace("127.0.0.1:10809", "127.0.0.1:0");
    assert!(parse(&any.replace("io =", "metrics = \"127.0.0.1:0\"\nio =")).is_ok());
}
