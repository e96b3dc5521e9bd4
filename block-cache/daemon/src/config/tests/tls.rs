use super::*;

const NBD: &str = "nbd = \"127.0.0.1:10809\"";
const FILES: &str = "tls_certificate = \"nbd.pem\"\ntls_key = \"/etc/forebay/nbd.key\"";

fn with(lines: &str) -> Result<Config> {
    parse(&GOOD.replace(NBD, lines))
}

fn nbd(lines: &str) -> Nbd {
    let config = with(lines).expect("it is right");
    let Protocol::Nbd(nbd) = &config.exports[0].protocol else {
        panic!("an NBD export");
    };
    nbd.clone()
}

#[test]
fn an_nbd_export_may_have_tls() {
    assert_eq!(nbd(NBD).tls, None);
    let tls = nbd(&format!("{NBD}\n{FILES}\ntls_client_ca = \"clients.pem\"")).tls;
    let all = Tls {
        certificate: "/etc/nbd.pem".into(),
        key: "/etc/forebay/nbd.key".into(),
        client_ca: Some("/etc/clients.pem".into()),
        required: true,
    };
    assert_eq!(tls, Some(all), "required, if nothing else is said");
    let offered = nbd(&format!("{NBD}\ntls = \"offered\"\n{FILES}")).tls;
    assert!(offered.is_some_and(|tls| !tls.required && tls.client_ca.is_none()));
    let required = nbd(&format!("{NBD}\n{FILES}\ntls = \"required\"")).tls;
    assert!(required.is_some_and(|tls| tls.required));
}

#[test]
fn required_tls_opens_the_door_and_offered_does_not() {
    let open = NBD.replace("127.0.0.1", "192.0.2.1");
    let report = with(&open).unwrap_err().report();
    assert!(report.contains("set tls = \"required\""), "{report}");
    let authenticated = format!("{open}\n{FILES}\ntls_client_ca = \"ca.pem\"");
    assert_eq!(with(&authenticated).expect("safe").warnings, [""; 0]);
    // Eavesdropping is impossible, but any client may connect: this is a warning.
    let warnings = with(&format!("{open}\n{FILES}")).expect("safe").warnings;
    assert!(
        warnings[0].contains("tls_client_ca") && warnings[0].starts_with("/etc/forebay.toml:"),
        "{warnings:?}"
    );
    let meant = with(&format!("{open}\n{FILES}\ninsecure = true"));
    assert_eq!(meant.expect("meant").warnings, [""; 0]);
    let offered = format!("{open}\n{FILES}\ntls = \"offered\"");
    let report = with(&offered).unwrap_err().report();
    assert!(report.contains("insecure = true"), "{report}");
    assert!(with(&format!("{offered}\ninsecure = true")).is_ok());
}

#[test]
fn contradictions_of_tls_are_reported_with_their_line() {
    for (lines, said) in [
        (
            format!("{NBD}\ntls = \"required\""),
            "`tls` needs a certificate with its key",
        ),
        (
            format!("{NBD}\ntls_certificate = \"a.pem\""),
            "`tls_certificate` needs",
        ),
        (format!("{NBD}\ntls_key = \"a.key\""), "`tls_key` needs"),
        (
            format!("{NBD}\ntls_client_ca = \"ca.pem\""),
            "add tls_certificate = ",
        ),
        (
            format!("{NBD}\n{FILES}\ntls = \"maybe\""),
            "unknown variant `maybe`",
        ),
        (
            format!("{NBD}\n{FILES}\ntls = \"offered\"\ntls_client_ca = \"ca.pem\""),
            "excludes no client",
        ),
        (
            "vhost-user-blk = \"vm2.sock\"\ntls = \"required\"".to_owned(),
            "`tls` means something to an NBD export only",
        ),
        (
            format!("nvme-tcp = \"127.0.0.1:4420\"\nnqn = \"nqn.2026-11.io.forebay:db\"\n{FILES}"),
            "`tls_key` means something to an NBD export only",
        ),
        // Without a wildcard address there must be only one report.
        (
            format!(
                "{}\ntls = \"required\"",
                NBD.replace("127.0.0.1", "0.0.0.0")
            ),
            "1 problem",
        ),
    ] {
        let report = with(&lines).unwrap_err().report();
        let problems = report.matches("help: ").count();
        match said {
            "1 problem" => assert_eq!(problems, 1, "{report}"),
            said => assert!(report.contains(said), "{said} in {report}"),
        }
        assert!(report.contains("/etc/forebay.toml:"), "{report}");
        assert!(problems > 0, "{report}");
    }
}

#[test]
fn exports_of_one_address_agree_on_tls() {
    let second = "\n[[export]]\nvolume = \"db\"\n";
    for port in ["10809", "0"] {
        let here = NBD.replace("10809", port);
        let differ = format!("{here}\n{FILES}\n{second}{here}");
        let report = with(&differ).unwrap_err().report();
        assert!(report.contains("differ in TLS"), "{report}");
    }
    // Exports of another address may differ.
    let differ = format!("{NBD}\n{FILES}\n{second}{}", NBD.replace("10809", "10810"));
    assert!(with(&differ).is_ok());
}
