//! A remote store: with a real S3 server, and with servers that answer wrongly.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use forebay_block::{ErrorKind, Result};
use forebay_io::rt;
use forebay_object::store::{Creation, Store};
use forebay_object::stores::address::{Address, Provider, Settings};
use forebay_object::stores::credentials::Credentials;
use forebay_object::stores::{self, Use};
use forebay_testkit::s3_server::{S3Server, SECRET, credentials};

use crate::{contract, here, run};

async fn open(url: &str, endpoint: &str, text: &str) -> Result<Rc<dyn Store>> {
    let settings = Settings {
        endpoint: Some(endpoint),
        region: Some("us-east-1"),
        ..Settings::default()
    };
    let address = Address::parse(url, here(), settings)?;
    let credentials = Credentials::parse(Provider::S3, text)?;
    stores::open(&address, Some(&credentials), Use::Write).await
}

#[test]
fn a_real_s3_server_keeps_the_contract() {
    let Some(server) = S3Server::start("s3-contract") else {
        return;
    };
    let endpoint = server.endpoint();
    run(async move {
        let store = open("s3://bucket/volumes/db", &endpoint, &credentials()).await;
        contract::check(&*store.expect("open")).await;
        // Folders do not see each other.
        let other = open("s3://bucket/volumes/d", &endpoint, &credentials())
            .await
            .expect("open");
        assert!(other.list("map/").await.expect("listed").is_empty());
        let error = other.read("volume", 0..1).await.expect_err("none");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    });
}

#[test]
fn a_server_that_refuses_is_named_with_the_remedy_and_without_secrets() {
    let Some(server) = S3Server::start("s3-refusals") else {
        return;
    };
    let endpoint = server.endpoint();
    run(async move {
        let wrong = format!("aws_access_key_id = unknown-user\naws_secret_access_key = {SECRET}");
        let cases = [
            (
                "s3://bucket/db",
                &wrong,
                ErrorKind::Permission,
                "InvalidAccessKeyId",
            ),
            (
                "s3://none-here/db",
                &credentials(),
                ErrorKind::InvalidInput,
                "NoSuchBucket",
            ),
        ];
        for (url, text, kind, code) in cases {
            let store = open(url, &endpoint, text).await.expect("nothing is asked");
            // A server that has just started may not know its users yet.
            let mut attempts = 0;
            let error = loop {
                let content = Bytes::from_static(b"x");
                let error = store.create("volume", content).await.expect_err(url);
                attempts += 1;
                if attempts == 100 || !error.report().contains("IAMNotInitialized") {
                    break error;
                }
                rt::sleep(Duration::from_millis(100)).await;
            };
            let report = error.report();
            assert_eq!(error.kind(), kind, "{report}");
            assert!(
                report.starts_with(&format!("{url} at {endpoint}: creating volume: ")),
                "{report}"
            );
            assert!(
                report.contains(code) && report.contains("help: "),
                "{report}"
            );
            assert!(!report.contains(SECRET), "{report}");
        }
    });
}

#[test]
fn a_server_that_is_killed_and_started_answers_as_before() {
    let Some(mut server) = S3Server::start("s3-away") else {
        return;
    };
    run(async move {
        let store = open("s3://bucket/db", &server.endpoint(), &credentials())
            .await
            .expect("open");
        let content = Bytes::from(vec![7; 1 << 20]);
        let created = store.create("log/a", content.clone()).await;
        assert_eq!(created.expect("created"), Creation::Created);
        server.kill();
        let begin = Instant::now();
        let error = store
            .create("log/b", content.clone())
            .await
            .expect_err("it is away");
        assert_eq!(error.kind(), ErrorKind::Disconnected, "{}", error.report());
        assert!(
            error.report().contains("Connection refused"),
            "{}",
            error.report()
        );
        assert!(
            begin.elapsed() < Duration::from_secs(15),
            "{:?}",
            begin.elapsed()
        );
        server.restart();
        let created = store.create("log/b", content.clone()).await;
        assert_eq!(created.expect("created"), Creation::Created);
        let read = store.read("log/a", 0..2 << 20).await.expect("there");
        assert!(read == content, "an acknowledged object survives the kill");
    });
}

/// Answers each request with `answer`, until the test ends.
fn serve(answer: &'static str) -> String {
    serve_each(move |_, stream| {
        let _ = stream.write_all(answer.as_bytes());
    })
}

/// Answers each request by `answer`, which gets the begin of the request, until the test ends.
fn serve_each(answer: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("its number"));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 1 << 16];
            let len = stream.read(&mut head).unwrap_or(0);
            answer(&String::from_utf8_lossy(&head[..len]), &mut stream);
        }
    });
    endpoint
}

#[test]
fn a_conflict_without_an_object_is_a_failed_request() {
    run(async {
        // S3 answers so while another creation of the same name is in progress.
        let endpoint = serve_each(|request, stream| {
            let answer = match request.starts_with("PUT") {
                true => "HTTP/1.1 409 Conflict",
                false => "HTTP/1.1 404 Not Found",
            };
            let answer = format!("{answer}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
            let _ = stream.write_all(answer.as_bytes());
        });
        let store = open("s3://bucket/db", &endpoint, &credentials())
            .await
            .expect("open");
        let created = store.create("volume", Bytes::from_static(b"x")).await;
        let error = created.expect_err("no object exists");
        assert_eq!(error.kind(), ErrorKind::Io, "{}", error.report());
        assert!(error.report().contains("status 409"), "{}", error.report());
    });
}

#[test]
fn an_answer_of_a_server_is_shown_as_its_status_alone() {
    const DENIED: &str = "HTTP/1.1 403 Forbidden\r\nconnection: close\r\n\
        content-length: 119\r\n\r\n\
        <Error><Code>SignatureDoesNotMatch</Code><StringToSign>not-to-be-shown-anywhere\
        </StringToSign><Message>x</Message></Error>";
    const SLOW: &str = "HTTP/1.1 503 Slow Down\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    const MOVED: &str =
        "HTTP/1.1 301 Moved Permanently\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    const CONFLICT: &str =
        "HTTP/1.1 409 Conflict\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    const TOO_LONG: &str =
        "HTTP/1.1 413 Payload Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    run(async {
        for (answer, kind, cause) in [
            (
                DENIED,
                ErrorKind::Permission,
                "status 403, SignatureDoesNotMatch",
            ),
            (SLOW, ErrorKind::Io, "status 503"),
            (MOVED, ErrorKind::InvalidInput, "status 301"),
            // A conflict is no proof that the object exists.
            (CONFLICT, ErrorKind::Io, "status 409"),
            (TOO_LONG, ErrorKind::Unsupported, "status 413"),
            ("no HTTP\r\n\r\n", ErrorKind::Disconnected, "invalid HTTP"),
        ] {
            let endpoint = serve(answer);
            let store = open("s3://bucket/db", &endpoint, &credentials())
                .await
                .expect("open");
            let error = store
                .create("volume", Bytes::from_static(b"x"))
                .await
                .expect_err(cause);
            let report = error.report();
            assert!(report.contains(cause), "{report}");
            assert_eq!(error.kind(), kind, "{report}");
            assert!(
                report.contains("help: ") && !report.contains(SECRET),
                "{report}"
            );
            assert!(report.lines().all(|line| line.len() <= 120), "{report}");
        }
    });
}

#[test]
fn a_server_of_ones_own_needs_credentials() {
    run(async {
        let settings = Settings {
            endpoint: Some("http://127.0.0.1:9"),
            ..Settings::default()
        };
        let address = Address::parse("s3://bucket/db", here(), settings).expect("complete");
        let google = Credentials::parse(Provider::Google, "{}").expect("it is JSON");
        let error = stores::open(&address, Some(&google), Use::Write).await;
        let error = error.err().expect("another provider's").report();
        assert!(error.contains("another provider"), "{error}");
    });
}
