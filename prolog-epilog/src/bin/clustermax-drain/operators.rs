//! What operators ask and say: list, explain, exempt, domains.

use std::fmt::Write as _;
use std::io::Write as _;
use std::os::unix::net::UnixDatagram;
use std::process::ExitCode;

use healthcheck::catalogue::CATALOGUE;
use healthcheck::config::{Config, Enforcement, is_node_name, nearest};
use healthcheck::exempt::{ALL, Exemption, Exemptions, LONGEST};
use healthcheck::pass::unix_time;
use healthcheck::verdict::{Action, ascii};
use prolog_epilog::node_state::{FAIL, Node, RESERVED, protecting, state_text};
use prolog_epilog::notify::Kind;
use prolog_epilog::outcome::{Outcome, Report};
use prolog_epilog::reason::{self, Reason};
use prolog_epilog::{files, until};
use serde::Serialize;

use crate::call::Drainer;
use crate::worker::{Answer, Work};
use crate::{now, print};

/// Longest `--why`, in bytes.
const WHY_MAX: usize = 200;
/// Longest operators.log, in bytes: the older half goes then.
const LOG_MAX: usize = 256 * 1024;

/// Prints a line; a reader that went away changes nothing.
macro_rules! out {
    ($($text:tt)*) => {{ let _ = writeln!(std::io::stdout(), $($text)*); }};
}

/// Keeps what an operator did in `STATE_DIR/operators.log`, in the system's log and on standard error.
pub fn note(config: &Config, sentence: &str) {
    let who = who();
    let line = format!("{} {} by {who}: {sentence}", now(), config.node);
    eprintln!("clustermax-drain: {sentence}");
    let path = config.paths.state_dir.join("operators.log");
    let kept = files::read(&path).and_then(|old| {
        let mut text = old.unwrap_or_default();
        if text.len() > LOG_MAX {
            let middle =
                (text.len() / 2..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
            let half = text.split_off(middle);
            text = half.split_once('\n').map_or(String::new(), |(_, rest)| rest.to_string());
        }
        let _ = writeln!(text, "{line}");
        files::write_text(&path, &text)
    });
    if let Err(e) = kept {
        eprintln!("clustermax-drain: {e}");
    }
    // <85>: authpriv.notice. A machine without syslog has the file.
    let _ = UnixDatagram::unbound().and_then(|s| {
        // A syslog that reads nothing must not hold the operator.
        s.set_nonblocking(true)?;
        s.send_to(format!("<85>clustermax-drain: {line}").as_bytes(), "/dev/log")
    });
}

/// Who gave the command: the user behind sudo, else root.
fn who() -> String {
    let name = std::env::var("SUDO_USER").unwrap_or_default();
    let plain = !name.is_empty() && name.len() <= 64 && is_node_name(&name);
    if plain { name } else { "root".into() }
}

/// `exempt`: `Err` is a sentence about what was asked.
pub fn exempt(
    drainer: &Drainer,
    name: &str,
    check: Option<&str>,
    until_text: Option<&str>,
    why: Option<&str>,
    end: bool,
) -> Result<(), String> {
    if name != drainer.node {
        return Err(format!(
            "exemptions are kept on the node they are for: run this on {name}, this is {}",
            drainer.node
        ));
    }
    let config = &drainer.config;
    if let Some(check) = check {
        let site = check.strip_prefix("site.").is_some_and(|n| config.command.iter().any(|c| c.name == n));
        if !site && !CATALOGUE.iter().any(|c| c.id == check) {
            let near = nearest(check, CATALOGUE.iter().map(|c| c.id));
            return Err(format!(
                "\"{check}\" is no check{near}; `clustermax-healthcheck list` shows them all"
            ));
        }
    }
    let key = check.unwrap_or(ALL);
    let what = check.unwrap_or("every check");
    let state = &config.paths.state_dir;
    let mut all = Exemptions::read(state, unix_time()).or_else(|why| {
        eprintln!("clustermax-drain: {why}");
        Ok::<_, String>(Exemptions::default())
    })?;
    let sentence = if end {
        if all.0.remove(key).is_none() {
            return Err(format!("{what} is not exempt on {name}: `clustermax-drain status` shows what is"));
        }
        format!("{what} may drain this node again")
    } else {
        let why = ascii(why.unwrap_or_default());
        let why = why.trim();
        if why.is_empty() || why.len() > WHY_MAX {
            return Err(format!("--why \"{why}\": give 1 to {WHY_MAX} characters for whoever asks later"));
        }
        let text = until_text.unwrap_or_default();
        #[allow(clippy::cast_precision_loss, reason = "seconds since 1970 are exact in an f64")]
        let until = until::parse(text, &jiff::Zoned::now())? as f64;
        let left = until - unix_time();
        if left <= 0.0 || left > LONGEST {
            return Err(format!(
                "--until \"{text}\" is {}: give a time within the next 90 days; what is to last longer belongs into \
                 the configuration, [checks.\"{key}\"] state = \"observe\"",
                if left <= 0.0 { "over" } else { "too far" }
            ));
        }
        let exemption = Exemption { until, why: why.to_string(), since: now(), by: who() };
        all.0.insert(key.to_string(), exemption);
        format!("{what} drains nothing on this node until {}: {why}", time_text(until))
    };
    all.write(state)?;
    note(config, &sentence);
    drainer.tell(Kind::Exempt, "", &sentence);
    Ok(())
}

/// UTC, RFC 3339, whole seconds.
fn time_text(seconds: f64) -> String {
    #[allow(clippy::cast_possible_truncation, reason = "within 90 days of now")]
    jiff::Timestamp::from_second(seconds as i64).map_or_else(|_| "?".into(), |t| t.to_string())
}

/// The answer of a worker that said no more than a report, or nothing.
fn no_answer(drainer: &Drainer, answer: Answer) -> ExitCode {
    let report = match answer {
        Answer::Report(report) => report,
        Answer::Unreached(why) => Report::new(Outcome::Unreadable, &drainer.node, "").detail(why),
        Answer::Nodes { .. } | Answer::Domains { .. } | Answer::Stays(_) => {
            Report::new(Outcome::Unreadable, &drainer.node, "").detail("the worker answered something else")
        }
    };
    eprintln!("clustermax-drain: {}", report.detail);
    print(report.outcome, &report)
}

/// A node in the list.
#[derive(Serialize)]
struct Row {
    node: String,
    state: String,
    /// Since when, UTC, RFC 3339.
    since: String,
    reason: String,
    token: String,
    action: String,
}

/// `list`: every node that this suite drained.
pub fn list(drainer: &Drainer, json: bool) -> ExitCode {
    let (via, nodes) = match drainer.ask(Work::Nodes { node: None }, drainer.deadline) {
        Answer::Nodes { via, nodes, .. } => (via, nodes),
        other => return no_answer(drainer, other),
    };
    let mut ours: Vec<&Node> = nodes.iter().filter(|n| n.drained_by_us()).collect();
    ours.sort_by_key(|n| (n.reason_time, n.name.as_str()));
    let rows: Vec<Row> = ours
        .iter()
        .map(|n| {
            let parts = Reason::parse(&n.reason);
            Row {
                node: n.name.clone(),
                state: state_text(n.state),
                since: jiff::Timestamp::from_second(n.reason_time)
                    .map_or_else(|_| "?".into(), |t| t.to_string()),
                reason: n.reason.clone(),
                token: parts.map_or("?", |r| r.token).to_string(),
                action: parts.and_then(|r| r.action).map_or("?", Action::word).to_string(),
            }
        })
        .collect();
    if json {
        let rows = serde_json::json!({"schema": "clustermax-drains/1", "via": via, "nodes": nodes.len(), "drained": rows});
        return print(Outcome::Status, &rows);
    }
    if rows.is_empty() {
        out!("none of {} nodes is drained by this suite (via {via})", nodes.len());
        return ExitCode::SUCCESS;
    }
    let mut text = vec![["NODE", "STATE", "SINCE", "ACTION", "REASON"].map(str::to_string).to_vec()];
    text.extend(rows.into_iter().map(|r| vec![r.node, r.state, r.since, r.action, ascii(&r.reason)]));
    for line in columns(&text) {
        out!("{line}");
    }
    out!("{} of {} nodes (via {via})", text.len() - 1, nodes.len());
    ExitCode::SUCCESS
}

/// Lines with columns as wide as their widest cell; the last one as it is.
fn columns(rows: &[Vec<String>]) -> Vec<String> {
    let width = |at: usize| rows.iter().filter_map(|r| r.get(at)).map(String::len).max().unwrap_or(0);
    rows.iter()
        .map(|row| {
            let mut line = String::new();
            for (at, cell) in row.iter().enumerate() {
                if at + 1 == row.len() {
                    line.push_str(cell);
                } else {
                    let _ = write!(line, "{cell:<width$}  ", width = width(at));
                }
            }
            line
        })
        .collect()
}

/// Answer of `explain`.
#[derive(Serialize)]
struct Explanation {
    schema: &'static str,
    node: String,
    state: String,
    partitions: Vec<String>,
    reason: String,
    /// `ours`, `other_version`, `slurm`, `operator` or `none`.
    whose: &'static str,
    /// Check that stands behind it.
    check: Option<&'static str>,
    action: Option<String>,
    /// What there is to know, one sentence a line.
    says: Vec<String>,
    /// What gives the node back.
    next: String,
    via: String,
}

/// `explain`: `Err` is a sentence about what was asked.
pub fn explain(drainer: &Drainer, name: Option<&str>, json: bool) -> Result<ExitCode, String> {
    let name = name.unwrap_or(&drainer.node);
    if !is_node_name(name) {
        return Err(format!("\"{name}\" is no node name: give one name, not a list"));
    }
    let (via, nodes, partitions) =
        match drainer.ask(Work::Nodes { node: Some(name.to_string()) }, drainer.deadline) {
            Answer::Nodes { via, nodes, partitions } => (via, nodes, partitions),
            other => return Ok(no_answer(drainer, other)),
        };
    let Some(node) = nodes.first() else {
        let why = format!("Slurm does not know a node {name}: `sinfo -N` shows them all");
        return Ok(no_answer(
            drainer,
            Answer::Report(Report::new(Outcome::Unreadable, name, "").detail(why)),
        ));
    };
    let e = explanation(drainer, node, partitions, via);
    if json {
        return Ok(print(Outcome::Status, &e));
    }
    let of = if e.partitions.is_empty() { "no partition".to_string() } else { e.partitions.join(", ") };
    out!("{}: {}, in {of} (via {})", e.node, e.state, e.via);
    out!("reason: {}", if e.reason.is_empty() { "none".to_string() } else { ascii(&e.reason) });
    for line in &e.says {
        out!("  {line}");
    }
    out!("next: {}", e.next);
    Ok(ExitCode::SUCCESS)
}

/// The check whose reasons begin with this token; `xidN` in the table stands for any number.
fn check_of(token: &str) -> Option<&'static healthcheck::catalogue::CheckInfo> {
    let fits = |known: &&str| {
        let stem = known.strip_suffix('N').unwrap_or(known);
        *known == token
            || stem != *known
                && token
                    .strip_prefix(stem)
                    .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
    };
    CATALOGUE.iter().find(|c| c.tokens.iter().any(fits))
}

fn explanation(drainer: &Drainer, node: &Node, partitions: Vec<String>, via: String) -> Explanation {
    let text = node.reason.as_str();
    let parts = Reason::parse(text);
    let resume = format!("scontrol update nodename={} state=resume", node.name);
    let out = node.drained() || node.down();
    let mut says = Vec::new();
    let (whose, next) = if let Some(r) = parts {
        let mend = match r.action {
            Some(Action::Reboot) => "reboot the node",
            Some(Action::Repair) => "have the hardware repaired or replaced",
            Some(Action::ResetGpu) => "reset the GPU (nvidia-smi --gpu-reset -i N) with no job on it",
            Some(Action::RestartService) => "restart the service that the text names",
            _ => "see what the text names",
        };
        if let Some(was) = r.was {
            says.push(format!("it replaced: {was}"));
        }
        (
            "ours",
            if out { format!("{mend}; then {resume}") } else { "nothing: the node is in service".into() },
        )
    } else if reason::is_of_other_version(text) {
        says.push("written by another version of this suite, in a grammar that this one does not read: left as it is".into());
        ("other_version", format!("ask the clustermax-drain that wrote it; or {resume}"))
    } else if reason::is_slurms_own(text) {
        says.push("Slurm wrote it by itself; a fault of ours would replace it and keep it as `was:`".into());
        ("slurm", format!("look into slurmd's log on the node; then {resume}"))
    } else if text.is_empty() && !out {
        ("none", "nothing: the node is in service".into())
    } else {
        says.push("an operator's: this suite never changes it".into());
        ("operator", "ask who wrote it (scontrol show node)".into())
    };
    let check = parts.and_then(|r| check_of(r.token));
    if let Some(check) = check {
        says.insert(0, format!("{}: {}", check.id, check.rule));
    }
    if let Some(flag) = protecting(node.state) {
        says.push(format!("{flag}: whatever is found, this suite writes nothing on it"));
    }
    if node.state & RESERVED != 0 {
        says.push("reserved: it may be drained, and is not given back by itself".into());
    }
    if node.state & FAIL != 0 {
        says.push("FAIL: an operator says that it is failing".into());
    }
    if node.resume_after {
        says.push(
            "Slurm resumes it later by itself (ResumeAfter), since an operator said so; left alone".into(),
        );
    }
    let config = &drainer.config;
    let of = &config.enforce.partitions;
    if config.enforcement == Enforcement::Observe
        || !of.is_empty() && !partitions.iter().any(|p| of.contains(p))
    {
        says.push("enforcement is observe here: faults drain nothing".into());
    }
    if node.name == drainer.node {
        own(drainer, &mut says);
    }
    Explanation {
        schema: "clustermax-explain-node/1",
        node: node.name.clone(),
        state: state_text(node.state),
        partitions,
        reason: node.reason.clone(),
        whose,
        check: check.map(|c| c.id),
        action: parts.and_then(|r| r.action).map(|a| a.word().to_string()),
        says,
        next,
        via,
    }
}

/// What only the node itself knows. Users cannot read it.
fn own(drainer: &Drainer, says: &mut Vec<String>) {
    if let Ok(Some(engaged)) = drainer.brake.read() {
        says.push(format!("the brake is engaged since {}: {}", engaged.since, engaged.why));
        for refused in &engaged.refused {
            says.push(format!("held back at {}: {}", refused.time, refused.reason));
        }
    }
    let listing = drainer.spool.list().unwrap_or_default();
    for (_, spooled) in listing.waiting {
        says.push(format!("waits for the controller since {}: {}", spooled.created, spooled.reason));
    }
    for (check, e) in Exemptions::read(&drainer.config.paths.state_dir, unix_time()).unwrap_or_default().0 {
        let what = if check == ALL { "every check" } else { check.as_str() };
        says.push(format!("{what} is exempt until {} by {}: {}", time_text(e.until), e.by, e.why));
    }
}

/// `domains`.
pub fn domains(drainer: &Drainer, json: bool, follow: bool) -> ExitCode {
    let follow = follow && drainer.config.enforcement == Enforcement::Enforce;
    let (via, domains) = match drainer.ask(Work::Domains { node: None, follow }, drainer.deadline) {
        Answer::Domains { via, mut domains, drained } => {
            // One wait for all: each is looked at when every other drain of this moment can be seen.
            drainer.second_looks(&mut domains, drained, drainer.config.deadlines.drain());
            (via, domains)
        }
        other => return no_answer(drainer, other),
    };
    if json {
        let all = serde_json::json!({"schema": "clustermax-domains/1", "via": via, "domains": domains});
        return print(Outcome::Status, &all);
    }
    if domains.is_empty() {
        out!("no rack-scale domain is known: see [rack] in {}", drainer.config.file.display());
        return ExitCode::SUCCESS;
    }
    let mut text = vec![["DOMAIN", "TRAYS", "SICK", "STATE", ""].map(str::to_string).to_vec()];
    text.extend(domains.into_iter().map(|d| {
        let state = if d.degraded { "degraded" } else { "ok" };
        let more = [d.sick.join(","), d.followed].join(" ");
        vec![d.name, d.trays.to_string(), d.sick.len().to_string(), state.into(), more.trim().to_string()]
    }));
    for line in columns(&text) {
        out!("{}", line.trim_end());
    }
    ExitCode::SUCCESS
}
