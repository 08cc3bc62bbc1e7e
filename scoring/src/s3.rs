//! `clustermax s3-bench`: an S3 endpoint as one node sees it: PUT and GET of small and large objects, by several clients.
//!
//! The client is rusty-s3 (signatures) over ureq (HTTP): one connection a client thread, presigned URLs, whole objects. The
//! objects lie below `clustermax-bench/` in the bucket, a few dozen a client, and are deleted at the end. What comes back
//! is compared with what was sent.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rusty_s3::{Bucket, Credentials, S3Action as _, UrlStyle};
use serde::{Deserialize, Serialize};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem};

use crate::{Failure, run};

/// The schema of the document.
pub const SCHEMA: &str = "clustermax-s3/1";
/// Objects of one client: enough that a GET seldom meets the one before, few enough for 1 GiB of 8 MiB objects.
const OBJECTS: u64 = 16;
/// Longest time of one request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Requests that fail one after the other before a test is given up.
const IN_A_ROW: u32 = 5;
/// How long a presigned URL holds.
const SIGNED: Duration = Duration::from_secs(900);

/// `clustermax s3-bench`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// The JSON document to write; %n becomes the node's name
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// http(s) address of the service [default: AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL]
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// Bucket that the credentials may write to [default: CLUSTERMAX_S3_BUCKET]
    #[arg(long)]
    pub bucket: Option<String>,
    /// Region [default: AWS_REGION, AWS_DEFAULT_REGION, us-east-1]
    #[arg(long)]
    pub region: Option<String>,
    /// Clients at the same time
    #[arg(long, default_value = "8", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub clients: u32,
    /// Seconds of each test
    #[arg(long, default_value = "2", value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Longest time in seconds until the service takes a connection, and answers the first request of all
    #[arg(long, default_value = "10", value_parser = clap::value_parser!(u32).range(1..=30))]
    pub patience: u32,
    /// Object sizes in bytes
    #[arg(long, value_delimiter = ',', default_values_t = [4096, 8 << 20])]
    pub sizes: Vec<u64>,
}

/// What was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// NodeName.
    pub node: String,
    /// The service; credentials are never written.
    pub endpoint: String,
    /// The bucket.
    pub bucket: String,
    /// UTC, RFC 3339.
    pub started: String,
    /// All tests ended.
    pub complete: bool,
    /// Why not, or the first error of any test.
    pub detail: Option<String>,
    /// Object sizes that were to be tested.
    #[serde(default)]
    pub sizes: Vec<u64>,
    /// One operation and size each.
    pub rows: Vec<Row>,
}

/// One test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// `put` or `get`.
    pub op: String,
    /// Bytes of an object.
    pub size: u64,
    /// Clients at the same time.
    pub clients: u32,
    /// From the first request's start to the last one's end.
    pub seconds: f64,
    /// Requests that succeeded.
    pub requests: u64,
    /// Requests that did not.
    pub errors: u64,
    /// Objects that came back with other bytes.
    pub wrong: u64,
    /// Of the requests that succeeded: 50th, 90th, 99th and 99.9th percentile (nearest rank) and maximum, milliseconds.
    pub ms: Option<[f64; 5]>,
}

impl Row {
    /// A test in which nothing succeeded.
    fn of(op: Op, clients: &[Client<'_>], errors: u64) -> Self {
        Self {
            op: if op == Op::Put { "put" } else { "get" }.to_owned(),
            size: clients.first().map_or(0, |client| client.size),
            clients: clients.len() as u32,
            seconds: 0.0,
            requests: 0,
            errors,
            wrong: 0,
            ms: None,
        }
    }
}

/// Where the objects go.
pub struct Target {
    /// The bucket.
    pub bucket: Bucket,
    credentials: Credentials,
    roots: Option<RootCerts>,
}

/// The authorities of a PEM file, which AWS_CA_BUNDLE names for S3's own tools too.
fn authorities(path: &str) -> Result<RootCerts, String> {
    let text =
        std::fs::read(path).map_err(|error| format!("AWS_CA_BUNDLE names {path}: {error}; mend it"))?;
    let found: Vec<Certificate<'static>> = parse_pem(&text)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if found.is_empty() {
        return Err(format!("AWS_CA_BUNDLE names {path}, which holds no certificate in PEM; mend it"));
    }
    Ok(RootCerts::new_with_certs(&found))
}

fn env(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| std::env::var(name).ok().filter(|text| !text.is_empty()))
}

impl Target {
    /// From options and the environment variables that S3's own tools read.
    ///
    /// # Errors
    /// Names what is missing or malformed.
    pub fn of(endpoint: Option<&str>, bucket: Option<&str>, region: Option<&str>) -> Result<Self, String> {
        let given = |option: Option<&str>, names: &[&str]| option.map(str::to_owned).or_else(|| env(names));
        let need = |value: Option<String>, what: &str| {
            value.ok_or_else(|| {
                format!("no S3 service is given: {what} (needed: AWS_ENDPOINT_URL_S3, CLUSTERMAX_S3_BUCKET, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)")
            })
        };
        let address = need(
            given(endpoint, &["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]),
            "set AWS_ENDPOINT_URL_S3 (or, of s3-bench, --endpoint)",
        )?;
        let name = need(
            given(bucket, &["CLUSTERMAX_S3_BUCKET"]),
            "set CLUSTERMAX_S3_BUCKET (or, of s3-bench, --bucket)",
        )?;
        let key = need(env(&["AWS_ACCESS_KEY_ID"]), "set AWS_ACCESS_KEY_ID")?;
        let secret = need(env(&["AWS_SECRET_ACCESS_KEY"]), "set AWS_SECRET_ACCESS_KEY")?;
        let region =
            given(region, &["AWS_REGION", "AWS_DEFAULT_REGION"]).unwrap_or_else(|| "us-east-1".to_owned());
        let url = address.parse().map_err(|error| {
            format!("S3 endpoint {address:?} is no address ({error}); give https://HOST[:PORT]")
        })?;
        let bucket = Bucket::new(url, UrlStyle::Path, name, region).map_err(|error| {
            format!("S3 endpoint {address:?} cannot be used ({error}); give https://HOST[:PORT]")
        })?;
        let credentials = match env(&["AWS_SESSION_TOKEN"]) {
            Some(token) => Credentials::new_with_token(key, secret, token),
            None => Credentials::new(key, secret),
        };
        let roots = env(&["AWS_CA_BUNDLE"]).map(|path| authorities(&path)).transpose()?;
        Ok(Self { bucket, credentials, roots })
    }

    /// A connection of its own.
    fn agent(&self, connect: Duration, timeout: Duration) -> ureq::Agent {
        let mut tls = TlsConfig::builder();
        if let Some(roots) = &self.roots {
            tls = tls.root_certs(roots.clone());
        }
        ureq::Agent::config_builder()
            .tls_config(tls.build())
            .timeout_connect(Some(connect))
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            // S3's redirects are to another region, for which nothing is signed.
            .max_redirects(0)
            .build()
            .into()
    }
}

/// What to do about an answer that is none, by S3's error code or the client's words.
fn mend(error: &str) -> &'static str {
    const MENDS: [(&[&str], &str); 10] = [
        (&["NoSuchBucket"], "create the bucket, or set CLUSTERMAX_S3_BUCKET to one that is there"),
        (
            &["InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken"],
            "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN",
        ),
        (
            &[
                "AuthorizationHeaderMalformed",
                "AuthorizationQueryParametersError",
                "PermanentRedirect",
                "HTTP 301",
            ],
            "set AWS_REGION to the bucket's region",
        ),
        (
            &["RequestTimeTooSkewed", "RequestExpired"],
            "set this node's clock: S3 takes 15 minutes of difference",
        ),
        (
            &["HTTP 403"],
            "let these credentials put, get and delete objects in the bucket, and check the node's clock",
        ),
        (&["SlowDown", "HTTP 503", "HTTP 429"], "the service limits its requests: ask for a higher limit"),
        (
            &["UnknownIssuer", "certificate", "Certificate"],
            "name the file of the service's authority in AWS_CA_BUNDLE, and check the certificate's host and dates",
        ),
        (&["timeout"], "see that nodes reach the address and that the service answers"),
        (&["refused", "resolve", "lookup", "host", "unreachable"], "check AWS_ENDPOINT_URL_S3"),
        (&["HTTP 507", "InsufficientStorage", "QuotaExceeded"], "free space in the bucket"),
    ];
    MENDS
        .iter()
        .find(|(words, _)| words.iter().any(|word| error.contains(word)))
        .map_or("see the service's log", |(_, mend)| *mend)
}

/// What a client does to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Put,
    Get,
    Delete,
}

/// One client: its connection and its objects.
struct Client<'a> {
    target: &'a Target,
    agent: ureq::Agent,
    prefix: String,
    size: u64,
}

impl Client<'_> {
    fn key(&self, number: u64) -> String {
        format!("{}/{}-{}", self.prefix, self.size, number % OBJECTS)
    }

    /// Content that depends on the object and the place in it, and does not compress.
    fn content(&self, number: u64) -> Vec<u8> {
        let mut state = (number % OBJECTS).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.size;
        let mut bytes = Vec::with_capacity(self.size as usize + 8);
        while (bytes.len() as u64) < self.size {
            // splitmix64
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = state;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            bytes.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
        }
        bytes.truncate(self.size as usize);
        bytes
    }

    /// The first request of all: one object is put, in less time than a service that hangs takes.
    fn probe(&self, patience: Duration) -> Result<(), String> {
        let first = Client {
            target: self.target,
            agent: self.target.agent(patience, patience),
            prefix: self.prefix.clone(),
            size: self.size,
        };
        first.request(Op::Put, 0, &self.content(0)).map(|_| ())
    }

    /// One request; true when a GET's bytes are right.
    fn request(&self, op: Op, number: u64, content: &[u8]) -> Result<bool, String> {
        let key = self.key(number);
        let (bucket, credentials) = (&self.target.bucket, Some(&self.target.credentials));
        let answer = match op {
            Op::Put => {
                self.agent.put(bucket.put_object(credentials, &key).sign(SIGNED).as_str()).send(content)
            }
            Op::Get => self.agent.get(bucket.get_object(credentials, &key).sign(SIGNED).as_str()).call(),
            Op::Delete => {
                self.agent.delete(bucket.delete_object(credentials, &key).sign(SIGNED).as_str()).call()
            }
        };
        let mut answer = answer.map_err(|error| error.to_string())?;
        let status = answer.status();
        let limit = if status.is_success() { self.size + 1 } else { 4096 };
        let body = answer.body_mut().with_config().limit(limit).read_to_vec();
        if !status.is_success() {
            let body = body.unwrap_or_default();
            let text = String::from_utf8_lossy(&body);
            // The service's own word: <Code>AccessDenied</Code>.
            let code = text
                .split_once("<Code>")
                .and_then(|(_, rest)| rest.split_once("</Code>"))
                .map(|(code, _)| code);
            return Err(format!(
                "HTTP {}{}",
                status.as_u16(),
                code.map(|code| format!(", {code}")).unwrap_or_default()
            ));
        }
        let body = body.map_err(|error| error.to_string())?;
        Ok(op != Op::Get || body == content)
    }
}

/// What one client saw.
#[derive(Default)]
struct Seen {
    ms: Vec<f64>,
    errors: u64,
    wrong: u64,
    first_error: Option<String>,
    /// A service that refuses everything is not asked ten thousand times.
    in_a_row: u32,
    /// A request timed out: what it did is not known, and the next one may hang as long.
    hung: bool,
}

fn test(clients: &[Client<'_>], op: Op, seconds: u32) -> (Row, Option<String>) {
    let begin = Instant::now();
    let end = begin + Duration::from_secs(u64::from(seconds));
    let hopeless = AtomicBool::new(false);
    let seen: Vec<Seen> = thread::scope(|scope| {
        let handles: Vec<_> = clients
            .iter()
            .map(|client| {
                let hopeless = &hopeless;
                scope.spawn(move || {
                    let mut seen = Seen::default();
                    let contents: Vec<Vec<u8>> = (0..OBJECTS).map(|number| client.content(number)).collect();
                    for number in 0.. {
                        // Every object is there before it is read.
                        let all_written = op != Op::Put || number >= OBJECTS;
                        if hopeless.load(Ordering::Relaxed) || (all_written && Instant::now() >= end) {
                            break;
                        }
                        let started = Instant::now();
                        match client.request(op, number, &contents[(number % OBJECTS) as usize]) {
                            Ok(right) => {
                                seen.ms.push(started.elapsed().as_secs_f64() * 1e3);
                                seen.wrong += u64::from(!right);
                                seen.in_a_row = 0;
                            }
                            Err(error) => {
                                seen.errors += 1;
                                seen.in_a_row += 1;
                                seen.hung |= error.starts_with("timeout");
                                seen.first_error.get_or_insert(error);
                                if seen.in_a_row >= IN_A_ROW || (seen.hung && seen.ms.is_empty()) {
                                    hopeless.store(true, Ordering::Relaxed);
                                }
                            }
                        }
                    }
                    seen
                })
            })
            .collect();
        handles.into_iter().filter_map(|handle| handle.join().ok()).collect()
    });
    let elapsed = begin.elapsed().as_secs_f64();
    let mut ms: Vec<f64> = seen.iter().flat_map(|one| one.ms.iter().copied()).collect();
    ms.sort_by(f64::total_cmp);
    let row = Row {
        seconds: elapsed,
        requests: ms.len() as u64,
        wrong: seen.iter().map(|one| one.wrong).sum(),
        ms: (!ms.is_empty()).then(|| {
            let rank = |share: f64| ms[((share * ms.len() as f64).ceil() as usize).clamp(1, ms.len()) - 1];
            [rank(0.5), rank(0.9), rank(0.99), rank(0.999), ms[ms.len() - 1]]
        }),
        ..Row::of(op, clients, seen.iter().map(|one| one.errors).sum())
    };
    (row, seen.into_iter().find_map(|one| one.first_error))
}

fn write(out: &Path, document: &Document) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(document).map_err(Failure::input)?;
    text.push('\n');
    run::write_atomic(out, text.as_bytes()).map_err(|error| {
        Failure::input(format!("cannot write {}: {error}; give a writable folder", out.display()))
    })
}

/// Runs the tests and writes the document, also when the service fails: then it says why.
///
/// # Errors
/// No service given (3), a document that cannot be written (2). Exit code 1: the service failed.
pub fn run(args: &Args) -> Result<u8, Failure> {
    let target = Target::of(args.endpoint.as_deref(), args.bucket.as_deref(), args.region.as_deref())
        .map_err(Failure::missing)?;
    let node = env(&["SLURMD_NODENAME"]).unwrap_or_else(|| {
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim().split('.').next().unwrap_or_default().to_owned()
    });
    let out = PathBuf::from(args.out.to_string_lossy().replace("%n", &node));
    let mut document = Document {
        schema: SCHEMA.to_owned(),
        node: node.clone(),
        endpoint: target.bucket.base_url().origin().ascii_serialization(),
        bucket: target.bucket.name().to_owned(),
        started: crate::audit::now(),
        complete: false,
        detail: None,
        sizes: args.sizes.clone(),
        rows: Vec::new(),
    };
    let run_id = format!("clustermax-bench/{}-{}", node, std::process::id());
    // Stands when this program is killed.
    document.detail = Some(format!(
        "it was stopped before its end: objects below {run_id}/ may be left in bucket {}; delete them",
        document.bucket
    ));
    write(&out, &document)?;
    document.detail = None;
    let patience = Duration::from_secs(args.patience.into());
    let mut left = false;
    for (index, &size) in args.sizes.iter().enumerate() {
        let clients: Vec<Client<'_>> = (0..args.clients)
            .map(|number| Client {
                target: &target,
                agent: target.agent(patience, TIMEOUT),
                prefix: format!("{run_id}/{number}"),
                size,
            })
            .collect();
        let (mut put, mut failed) = (false, false);
        for op in [Op::Put, Op::Get] {
            // A service that does not work at all is told by one request.
            let probed = match clients.first().filter(|_| index == 0 && op == Op::Put) {
                Some(client) => client.probe(patience),
                None => Ok(()),
            };
            let (row, error) = match probed {
                Ok(()) => test(&clients, op, args.seconds),
                Err(error) => (Row::of(op, &clients, 1), Some(error)),
            };
            failed = row.requests == 0;
            put |= op == Op::Put && !failed;
            if let Some(error) = error {
                let first = format!(
                    "{} of {size} bytes at {}, bucket {}: {error}; {}",
                    row.op,
                    document.endpoint,
                    document.bucket,
                    mend(&error)
                );
                document.detail.get_or_insert(first);
            }
            document.rows.push(row);
            if failed {
                break;
            }
        }
        let mut objects = clients.iter().flat_map(|client| (0..OBJECTS).map(move |number| (client, number)));
        // One that cannot be deleted is enough to tell: each may take the longest time of a request.
        left |= put && !objects.all(|(client, number)| client.request(Op::Delete, number, &[]).is_ok());
        if failed {
            break;
        }
    }
    if left {
        let more = format!(
            "objects below {run_id}/ in bucket {} could not be deleted: delete them",
            document.bucket
        );
        document.detail =
            Some(document.detail.take().map(|first| format!("{first}; {more}")).unwrap_or(more));
    }
    document.complete =
        document.rows.len() == args.sizes.len() * 2 && document.rows.iter().all(|row| row.requests > 0);
    write(&out, &document)?;
    if !document.complete {
        eprintln!("clustermax: {}", document.detail.as_deref().unwrap_or("the S3 service did not answer"));
    }
    Ok(u8::from(!document.complete))
}
