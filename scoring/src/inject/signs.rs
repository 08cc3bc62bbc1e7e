//! Where a fault may show besides Slurm: our verdict file, a log, a metrics endpoint, alerts.
//!
//! Each source is looked at by a thread of its own, so that one which is slow to answer does not coarsen the others'
//! times. A sign lies between the last look that did not show it and the first that did. What a source shows before the
//! injection is its baseline and no sign.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::Failure;
use crate::audit::run_for;

/// Longest time of one command or request.
const ANSWER: Duration = Duration::from_secs(10);
/// Commands and endpoints are not asked more often than this.
const SPARE: Duration = Duration::from_secs(1);
/// Largest body of a webhook, and largest answer that is read, bytes.
const LARGEST: u64 = 16 << 20;

/// Options of `clustermax inject` about them.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Options {
    /// A log that the cluster's checker writes: a new line in it about the fault is a sign of detection
    #[arg(long, value_name = "FILE")]
    pub events: Option<PathBuf>,
    /// An exporter's address (or textfile): a new or changed series about the fault is a sign of detection
    #[arg(long, value_name = "URL|FILE")]
    pub metrics: Option<String>,
    /// A series counts when its line holds this, in any case [default: xid, for Xids]
    #[arg(long, value_name = "TEXT", requires = "metrics")]
    pub metrics_match: Option<String>,
    /// A file that alerts are appended to, such as a mail folder
    #[arg(long, value_name = "FILE")]
    pub alert_file: Option<PathBuf>,
    /// A command that prints the present alerts, such as `amtool alert`; asked each second at most
    #[arg(long, value_name = "COMMAND")]
    pub alert_command: Option<String>,
    /// Receive webhooks at this address of this machine: point Alertmanager's webhook_configs to http://ADDRESS/
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub alert_listen: Option<std::net::SocketAddr>,
    /// Alertmanager: its /api/v2/alerts is asked each second at most
    #[arg(long, value_name = "URL")]
    pub alertmanager: Option<String>,
    /// An event or alert counts when it holds this [default: the node's name, the GPU's PCI address or the
    /// injection's id, as a whole word]
    #[arg(long, value_name = "TEXT")]
    pub alert_match: Option<String>,
}

impl Options {
    /// Alerts are watched.
    #[must_use]
    pub fn alerts(&self) -> bool {
        self.alert_file.is_some()
            || self.alert_command.is_some()
            || self.alert_listen.is_some()
            || self.alertmanager.is_some()
    }

    /// What is watched, for the plan.
    #[must_use]
    pub fn describe(&self) -> Vec<String> {
        let mut all = Vec::new();
        let mut add = |what: &str, value: Option<String>| {
            all.extend(value.map(|value| format!("{what} {value}")));
        };
        add("the log", self.events.as_ref().map(|path| path.display().to_string()));
        add("the series of", self.metrics.clone());
        add("alerts in", self.alert_file.as_ref().map(|path| path.display().to_string()));
        add("alerts printed by", self.alert_command.as_ref().map(|command| format!("`{command}`")));
        add("webhooks at", self.alert_listen.map(|address| format!("http://{address}/")));
        add("Alertmanager at", self.alertmanager.clone());
        all
    }
}

/// A sign of the fault.
#[derive(Debug, Clone)]
pub struct Sign {
    /// verdict, events, metrics or alert.
    pub event: &'static str,
    /// Which alert source, or the event.
    pub by: &'static str,
    /// First look that showed it.
    pub at: Instant,
    /// Last look that did not.
    pub not_before: Instant,
    /// What was seen, one line.
    pub detail: String,
}

/// What a look found: text, and when it came where that is known better than by the look itself.
type Found = Option<(String, Option<Instant>)>;

/// One source.
struct Source {
    event: &'static str,
    by: &'static str,
    every: Duration,
    look: Box<dyn FnMut() -> Result<Found, String> + Send>,
}

/// What an event or alert about this injection has in it.
#[derive(Debug, Clone)]
pub struct Words(Vec<String>);

impl Words {
    /// The node, its GPU and the injection, unless other words were asked for.
    #[must_use]
    pub fn of(options: &Options, node: &str, host: Option<&str>, pci: &str, id: &str) -> Self {
        if let Some(text) = &options.alert_match {
            return Self(vec![text.clone()]);
        }
        let slot = pci.rsplit_once('.').map_or(pci, |(slot, _)| slot);
        let all = [node, host.unwrap_or_default(), slot, id];
        Self(all.iter().filter(|word| !word.is_empty()).map(|&word| word.to_owned()).collect())
    }

    /// One of them stands in the text as a whole word: `n1` is not in `n10`, nor in `gpu-n1`.
    #[must_use]
    pub fn are_in(&self, text: &str) -> bool {
        let inside = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        self.0.iter().any(|word| {
            text.match_indices(word.as_str())
                .any(|(at, _)| !text[..at].ends_with(inside) && !text[at + word.len()..].starts_with(inside))
        })
    }
}

/// Received webhooks.
#[derive(Clone, Default)]
pub struct Inbox(Arc<Mutex<Vec<(Instant, String)>>>);

impl Inbox {
    /// Opens the address, for the life of this process.
    ///
    /// # Errors
    /// An address that is not this machine's, or not free.
    pub fn open(address: std::net::SocketAddr) -> Result<Self, Failure> {
        if address.ip().is_unspecified() {
            return Err(Failure::input(format!(
                "--alert-listen {address} would listen on every network; give one address of this machine, such as 127.0.0.1:{}",
                address.port()
            )));
        }
        let listener = TcpListener::bind(address).map_err(|error| {
            Failure::input(format!(
                "--alert-listen {address} cannot be used: {error}; give an address of this machine and a free port"
            ))
        })?;
        let inbox = Self::default();
        let post = inbox.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let post = post.clone();
                thread::spawn(move || receive(stream, &post));
            }
        });
        Ok(inbox)
    }

    /// From this many on.
    fn from(&self, at: usize) -> Vec<(Instant, String)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().skip(at).cloned().collect()
    }

    fn len(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

/// One HTTP request with a body: kept, then answered with 200.
fn receive(mut stream: TcpStream, inbox: &Inbox) -> Option<()> {
    stream.set_read_timeout(Some(ANSWER)).ok()?;
    let mut reader = BufReader::new(stream.try_clone().ok()?.take(LARGEST));
    let mut length = 0_u64;
    let mut first = String::new();
    reader.read_line(&mut first).ok()?;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 || line.trim().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = Vec::new();
    let whole = length <= LARGEST && first.starts_with("POST ");
    if whole {
        reader.take(length).read_to_end(&mut body).ok()?;
    }
    if whole {
        let body = String::from_utf8_lossy(&body).into_owned();
        inbox.0.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), body));
    }
    let status = if whole { "200 OK" } else { "405 Method Not Allowed" };
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").ok()
}

/// All sources of one phase; they end with it.
pub struct Watch {
    stop: Arc<AtomicBool>,
    signs: Receiver<Sign>,
}

impl Watch {
    /// Takes every source's baseline, then starts to look.
    ///
    /// # Errors
    /// A source that does not answer: better before the injection than after it.
    pub fn start(
        options: &Options,
        series: &str,
        verdict: Option<&Path>,
        inbox: Option<&Inbox>,
        words: &Words,
        id: &str,
        poll: Duration,
    ) -> Result<Self, Failure> {
        let (sender, signs) = std::sync::mpsc::channel();
        let watch = Self { stop: Arc::new(AtomicBool::new(false)), signs };
        for mut source in sources(options, series, verdict, inbox, words, id, poll) {
            // The first look makes the baseline.
            (source.look)().map_err(|why| {
                Failure::missing(format!("nothing was done: {} ({}) {why}", source.event, source.by))
            })?;
            let (stop, sender) = (Arc::clone(&watch.stop), sender.clone());
            thread::spawn(move || follow(source, &stop, &sender));
        }
        Ok(watch)
    }

    /// Signs that came since the last call.
    pub fn new_signs(&self) -> Vec<Sign> {
        self.signs.try_iter().collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Looks until there is something, and then no more.
fn follow(mut source: Source, stop: &AtomicBool, sender: &Sender<Sign>) {
    let mut last = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        thread::sleep(source.every);
        let before = Instant::now();
        match (source.look)() {
            Ok(Some((detail, at))) => {
                let sign = Sign {
                    event: source.event,
                    by: source.by,
                    at: at.unwrap_or_else(Instant::now),
                    not_before: at.unwrap_or(last),
                    detail: line(&detail),
                };
                let _ = sender.send(sign);
                return;
            }
            // Whatever came after the look began was not in it.
            Ok(None) => last = before,
            // Asked again; the time between stays in the bounds.
            Err(_) => {}
        }
    }
}

/// One line, not too long.
fn line(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    text.chars().take(300).collect()
}

fn sources(
    options: &Options,
    series: &str,
    verdict: Option<&Path>,
    inbox: Option<&Inbox>,
    words: &Words,
    id: &str,
    poll: Duration,
) -> Vec<Source> {
    let mut all = Vec::new();
    let seldom = poll.max(SPARE);
    if let Some(path) = verdict {
        let (path, id) = (path.to_owned(), id.to_owned());
        let look = move || {
            let Ok(text) = std::fs::read_to_string(&path) else { return Ok(None) };
            let of = |value: serde_json::Value| value["reason"].as_str().map(str::to_owned);
            Ok(text
                .contains(&id)
                .then(|| (serde_json::from_str(&text).ok().and_then(of).unwrap_or_default(), None)))
        };
        all.push(Source { event: "verdict", by: "verdict", every: poll, look: Box::new(look) });
    }
    for (path, event, by) in [(&options.events, "events", "events"), (&options.alert_file, "alert", "file")] {
        if let Some(path) = path {
            all.push(Source { event, by, every: poll, look: appended(path.clone(), words.clone()) });
        }
    }
    if let Some(from) = &options.metrics {
        let from = from.clone();
        let text = options.metrics_match.clone().unwrap_or_else(|| series.to_owned()).to_lowercase();
        let read = move || {
            let page = if from.contains("://") {
                get(&from)?
            } else {
                std::fs::read_to_string(&from).map_err(|error| format!("{from} cannot be read: {error}"))?
            };
            let fits = |line: &&str| !line.starts_with('#') && line.to_lowercase().contains(&text);
            Ok(page.lines().filter(fits).map(str::to_owned).collect())
        };
        all.push(Source { event: "metrics", by: "metrics", every: seldom, look: differs(read, None) });
    }
    if let Some(command) = &options.alert_command {
        let command = command.clone();
        let read = move || {
            let ran = run_for("sh", &["-c", &command], ANSWER)?;
            if !ran.ok() {
                return Err(format!("`{command}`: {}", ran.complaint()));
            }
            Ok(ran.out.lines().map(str::to_owned).collect())
        };
        let look = differs(read, Some(words.clone()));
        all.push(Source { event: "alert", by: "command", every: seldom, look });
    }
    if let Some(inbox) = inbox {
        let (inbox, words) = (inbox.clone(), words.clone());
        let begin = inbox.len();
        let look = move || {
            let fits = |post: &(Instant, String)| words.are_in(&post.1);
            Ok(inbox.from(begin).into_iter().find(fits).map(|(at, body)| (body, Some(at))))
        };
        all.push(Source { event: "alert", by: "listen", every: poll, look: Box::new(look) });
    }
    if let Some(url) = &options.alertmanager {
        let address = format!("{}/api/v2/alerts", url.trim_end_matches('/'));
        let read = move || {
            let value: serde_json::Value = serde_json::from_str(&get(&address)?)
                .map_err(|error| format!("{address} answers no JSON: {error}"))?;
            let alerts = value.as_array().ok_or_else(|| format!("{address} answers no list of alerts"))?;
            Ok(alerts.iter().map(labels).collect())
        };
        let look = differs(read, Some(words.clone()));
        all.push(Source { event: "alert", by: "alertmanager", every: seldom, look });
    }
    all
}

/// An alert as its labels and start, which tell it apart from an older one.
fn labels(alert: &serde_json::Value) -> String {
    let mut text = String::new();
    for (key, value) in alert["labels"].as_object().into_iter().flatten() {
        text.push_str(&format!("{key}={} ", value.as_str().unwrap_or_default()));
    }
    text.push_str(&format!("since {}", alert["startsAt"].as_str().unwrap_or_default()));
    text
}

/// What is appended to a file, a line at a time; a file that is not there yet begins empty.
fn appended(path: PathBuf, words: Words) -> Box<dyn FnMut() -> Result<Found, String> + Send> {
    let mut at: Option<u64> = None;
    let mut rest = String::new();
    Box::new(move || {
        let unreadable = |error: std::io::Error| format!("{} cannot be read: {error}", path.display());
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                at = Some(0);
                return Ok(None);
            }
            Err(error) => return Err(unreadable(error)),
        };
        let length = file.metadata().map_err(unreadable)?.len();
        let Some(begin) = at else {
            at = Some(length);
            return Ok(None);
        };
        // Rotated: from its beginning.
        let begin = if length < begin { 0 } else { begin };
        file.seek(SeekFrom::Start(begin)).map_err(unreadable)?;
        let mut bytes = Vec::new();
        let read = file.take(LARGEST).read_to_end(&mut bytes).map_err(unreadable)?;
        at = Some(begin + read as u64);
        rest.push_str(&String::from_utf8_lossy(&bytes));
        let found = rest.lines().find(|line| words.are_in(line)).map(|line| (line.to_owned(), None));
        // A line that is not whole yet is looked at again.
        let whole = rest.rfind('\n').map_or(0, |end| end + 1);
        rest.drain(..whole);
        Ok(found)
    })
}

/// A line that was not there at the first look.
fn differs(
    read: impl Fn() -> Result<BTreeSet<String>, String> + Send + 'static,
    words: Option<Words>,
) -> Box<dyn FnMut() -> Result<Found, String> + Send> {
    let mut before: Option<BTreeSet<String>> = None;
    Box::new(move || {
        let now = read()?;
        let Some(before) = &before else {
            before = Some(now);
            return Ok(None);
        };
        let fits = |line: &&String| words.as_ref().is_none_or(|words| words.are_in(line));
        Ok(now.difference(before).find(fits).map(|line| (line.clone(), None)))
    })
}

/// A page by HTTP or HTTPS.
fn get(url: &str) -> Result<String, String> {
    let agent: ureq::Agent = ureq::Agent::config_builder().timeout_global(Some(ANSWER)).build().into();
    let mut answer = agent.get(url).call().map_err(|error| format!("{url} does not answer: {error}"))?;
    answer
        .body_mut()
        .with_config()
        .limit(LARGEST)
        .read_to_string()
        .map_err(|error| format!("{url} cannot be read: {error}"))
}
