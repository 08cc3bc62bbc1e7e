//! Slurm's own records: `sacctmgr show event` (when a node was out of service) and `sacct` (what ran).

use std::io::{Read, Seek, SeekFrom};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::hostlist;

/// Longest time that slurmdbd may take for one answer.
const ANSWER: Duration = Duration::from_secs(120);
/// Columns of `sacctmgr show event`, the free text last: it may hold the separator.
pub const EVENT_COLUMNS: &str = "Cluster,NodeName,TimeStart,TimeEnd,StateRaw,State,User,Reason";
/// Columns of `sacct`, the free text last.
pub const JOB_COLUMNS: &str = "JobIDRaw,User,State,Submit,Eligible,Start,End,NodeList,JobName";

/// A node was out of service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// NodeName.
    pub node: String,
    /// Seconds since the epoch.
    pub from: i64,
    /// Nothing while it lasts.
    pub to: Option<i64>,
    /// `down`, `drain`, `fail`, `maint` ...: base state and flags.
    pub states: Vec<String>,
    /// Slurm's Reason.
    pub reason: String,
}

impl Event {
    /// Slurm rebooted the node because somebody asked it to: `BOOT^` and `... : reboot issued`, until the node registered again.
    pub fn reboot(&self) -> bool {
        self.reason.ends_with("reboot issued")
    }
}

/// One attempt of a job: a requeued job has several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// JobIDRaw.
    pub job: String,
    /// Job name.
    pub name: String,
    /// User.
    pub user: String,
    /// `COMPLETED`, `NODE_FAIL` ..., without what follows the first word.
    pub state: String,
    /// When this attempt was submitted or requeued.
    pub submit: i64,
    /// Start.
    pub start: i64,
    /// Nothing while it runs.
    pub end: Option<i64>,
    /// Its nodes.
    pub nodes: Vec<String>,
}

/// Asks one of Slurm's programs, with times in UTC.
///
/// # Errors
/// A sentence with the mend: the program is missing, does not answer or complains.
pub fn ask(program: &str, args: &[&str]) -> Result<String, String> {
    let file =
        |error: std::io::Error| format!("cannot keep the answer of {program}: {error}; free space in TMPDIR");
    let mut out = tempfile::tempfile().map_err(file)?;
    let mut err = tempfile::tempfile().map_err(file)?;
    let mut child = Command::new(program)
        .args(args)
        .env("TZ", "UTC")
        .env("SLURM_TIME_FORMAT", "standard")
        .env_remove("SACCT_FORMAT")
        .stdin(Stdio::null())
        .stdout(out.try_clone().map_err(file)?)
        .stderr(err.try_clone().map_err(file)?)
        .spawn()
        .map_err(|error| {
            format!("{program} cannot be started: {error}; run it where Slurm's commands work, or give files with --events and --jobs")
        })?;
    let deadline = Instant::now() + ANSWER;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!(
                    "{program} gave no answer within {} s; is slurmdbd well? `sacctmgr show cluster` tells",
                    ANSWER.as_secs()
                ));
            }
        }
    };
    let text = |file: &mut std::fs::File| -> Result<String, String> {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0))
            .and_then(|_| file.read_to_end(&mut bytes))
            .map_err(|error| format!("cannot read the answer of {program}: {error}"))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let (out, err) = (text(&mut out)?, text(&mut err)?);
    if status.success() {
        return Ok(out);
    }
    let why =
        err.lines().chain(out.lines()).find(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    Err(format!(
        "{program} failed: {}; accounting needs slurmdbd (AccountingStorageType=accounting_storage/slurmdbd)",
        why.trim()
    ))
}

/// `2026-11-30T20:50:00`, in UTC as [`ask`] has it. `Unknown` and `None` are no time.
fn time(text: &str) -> Result<Option<i64>, String> {
    match text {
        "" | "Unknown" | "None" | "N/A" => Ok(None),
        _ => text
            .parse::<jiff::civil::DateTime>()
            .ok()
            .and_then(|at| at.to_zoned(jiff::tz::TimeZone::UTC).ok())
            .map(|at| Some(at.timestamp().as_second()))
            .ok_or_else(|| format!("{text:?} is no time like 2026-11-30T20:50:00")),
    }
}

/// Rows of a table with `|` between the columns; the last column is what is left of the line.
fn table<'a>(
    source: &'a str,
    text: &'a str,
    columns: &str,
    command: &'a str,
) -> Result<impl Iterator<Item = Result<(usize, Vec<&'a str>), String>>, String> {
    let header = columns.replace(',', "|");
    let count = columns.split(',').count();
    let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim_end_matches('\r')));
    match lines.find(|(_, line)| !line.is_empty()) {
        Some((_, line)) if line == header => {}
        Some((line, found)) => {
            return Err(format!(
                "{source}: line {line} is {found:?} instead of the columns {header}; make the file with `{command}`"
            ));
        }
        None => return Err(format!("{source} is empty; make it with `{command}`")),
    }
    Ok(lines.filter(|(_, line)| !line.is_empty()).map(move |(line, row)| {
        let fields: Vec<&str> = row.splitn(count, '|').collect();
        if fields.len() == count {
            Ok((line, fields))
        } else {
            Err(format!(
                "{source}: line {line} has {} columns instead of {count}; make the file with `{command}`",
                fields.len()
            ))
        }
    }))
}

/// How to make a file of events.
pub fn event_command(from: &str, to: &str) -> String {
    format!("TZ=UTC sacctmgr -P show event start={from} end={to} format={EVENT_COLUMNS}")
}

/// How to make a file of jobs.
pub fn job_command(from: &str, to: &str) -> String {
    format!("TZ=UTC sacct -D -a -X -P -S {from} -E {to} -o {JOB_COLUMNS}")
}

/// Reads what `sacctmgr show event` printed. Events of the cluster as a whole (its size changed) are left out.
///
/// # Errors
/// One sentence with source, line and mend.
pub fn events(source: &str, text: &str) -> Result<Vec<Event>, String> {
    let command = event_command("FROM", "TO");
    let mut events = Vec::new();
    for row in table(source, text, EVENT_COLUMNS, &command)? {
        let (line, row) = row?;
        let bad = |what: String| format!("{source}: line {line}: {what}; make the file with `{command}`");
        if row[1].is_empty() {
            continue;
        }
        let from = time(row[2]).map_err(bad)?.ok_or_else(|| bad("TimeStart is missing".to_owned()))?;
        let to = time(row[3]).map_err(bad)?;
        if to.is_some_and(|to| to < from) {
            return Err(bad(format!("TimeEnd {} is before TimeStart {}", row[3], row[2])));
        }
        let raw: u64 = row[4].parse().map_err(|_| bad(format!("StateRaw {:?} is no number", row[4])))?;
        let mut states: Vec<String> = row[5]
            .split('+')
            .map(|word| word.trim_end_matches(['*', '~', '#', '$', '@', '!', '%', '-', '^']).to_lowercase())
            .collect();
        // A node that is both prints DRAIN alone; the low four bits are the base state, 1 is DOWN.
        if raw & 0xf == 1 && !states.iter().any(|state| state == "down") {
            states.push("down".to_owned());
        }
        events.push(Event { node: row[1].to_owned(), from, to, states, reason: row[7].to_owned() });
    }
    Ok(events)
}

/// Reads what `sacct -D -X` printed. Attempts that never started are left out.
///
/// # Errors
/// One sentence with source, line and mend.
pub fn attempts(source: &str, text: &str) -> Result<Vec<Attempt>, String> {
    let command = job_command("FROM", "TO");
    let mut attempts = Vec::new();
    for row in table(source, text, JOB_COLUMNS, &command)? {
        let (line, row) = row?;
        let bad = |what: String| format!("{source}: line {line}: {what}; make the file with `{command}`");
        let Some(start) = time(row[5]).map_err(bad)? else { continue };
        if row[7].is_empty() || row[7] == "None assigned" {
            continue;
        }
        let submit = time(row[3]).map_err(bad)?.ok_or_else(|| bad("Submit is missing".to_owned()))?;
        let end = time(row[6]).map_err(bad)?;
        if end.is_some_and(|end| end < start) {
            return Err(bad(format!("End {} is before Start {}", row[6], row[5])));
        }
        attempts.push(Attempt {
            job: row[0].to_owned(),
            name: row[8].to_owned(),
            user: row[1].to_owned(),
            state: row[2].split_whitespace().next().unwrap_or_default().to_owned(),
            submit,
            start,
            end,
            nodes: hostlist::expand(row[7]).map_err(bad)?,
        });
    }
    Ok(attempts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Slurm 22.05 printed it.
    const EVENTS: &str = "Cluster|NodeName|TimeStart|TimeEnd|StateRaw|State|User|Reason
acct||2026-12-01T00:06:55|Unknown|0|||Cluster Registered TRES
acct|n1|2026-12-01T00:07:40|2026-12-01T00:07:44|514|DRAIN|root(0)|cmx:xid79 g0 fell|x; act=reboot id=3f2a91bc
acct|n1|2026-12-01T00:07:44|2026-12-01T00:07:45|513|DRAIN|root(0)|replaced
acct|n2|2026-12-01T00:07:42|Unknown|1|DOWN*|root(0)|bad cable
acct|n3|2026-12-01T00:08:26|2026-12-01T00:08:33|1049089|BOOT^|root(0)|kernel update : reboot issued
";
    const JOBS: &str = "JobIDRaw|User|State|Submit|Eligible|Start|End|NodeList|JobName
1|root|NODE_FAIL|2026-12-01T00:07:40|2026-12-01T00:07:40|2026-12-01T00:07:40|2026-12-01T00:07:45|n[3-4]|train|a
1|root|CANCELLED by 0|2026-12-01T00:07:45|2026-12-01T00:07:51|2026-12-01T00:07:51|Unknown|n[3-4]|train
2|root|PENDING|2026-12-01T00:07:45|Unknown|Unknown|Unknown|None assigned|train
";

    #[test]
    fn events_as_slurm_prints_them() {
        let found = events("events", EVENTS).unwrap();
        let shown: Vec<(&str, Option<i64>, String, &str)> = found
            .iter()
            .map(|one| {
                (one.node.as_str(), one.to.map(|to| to - one.from), one.states.join("+"), one.reason.as_str())
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("n1", Some(4), "drain".to_owned(), "cmx:xid79 g0 fell|x; act=reboot id=3f2a91bc"),
                ("n1", Some(1), "drain+down".to_owned(), "replaced"),
                ("n2", None, "down".to_owned(), "bad cable"),
                ("n3", Some(7), "boot+down".to_owned(), "kernel update : reboot issued"),
            ]
        );
        assert_eq!(found.iter().map(Event::reboot).collect::<Vec<_>>(), [false, false, false, true]);
    }

    #[test]
    fn attempts_as_slurm_prints_them() {
        let found = attempts("jobs", JOBS).unwrap();
        assert_eq!(found.len(), 2, "one never started");
        assert_eq!((found[0].name.as_str(), found[0].nodes.join(" ").as_str()), ("train|a", "n3 n4"));
        assert_eq!((found[1].state.as_str(), found[1].end), ("CANCELLED", None));
    }

    #[test]
    fn a_bad_table_is_named_by_its_line() {
        type Read = fn(&str, &str) -> Result<(), String>;
        let read_events: Read = |source, text| events(source, text).map(|_| ());
        let read_jobs: Read = |source, text| attempts(source, text).map(|_| ());
        for (read, text, from, to, expected) in [
            (read_events, EVENTS, EVENTS, "", "is empty"),
            (read_events, EVENTS, "Cluster|Node", "Node", "line 1 is"),
            (read_events, EVENTS, "|514|DRAIN|root(0)|", "|514", "line 3 has"),
            (
                read_events,
                EVENTS,
                "00:07:40|2026",
                "yesterday|2026",
                "line 3: \"2026-12-01Tyesterday\" is no time",
            ),
            (read_events, EVENTS, "2026-12-01T00:07:40|", "Unknown|", "line 3: TimeStart is missing"),
            (
                read_events,
                EVENTS,
                "00:07:44|514",
                "00:07:04|514",
                "line 3: TimeEnd 2026-12-01T00:07:04 is before",
            ),
            (read_events, EVENTS, "|514|", "|x|", "line 3: StateRaw \"x\""),
            (read_jobs, JOBS, "n[3-4]|train|a", "n[3-|train", "line 2: \"n[3-\""),
            (read_jobs, JOBS, "00:07:45|n[3-4]|train|a", "00:07:05|n3|a", "line 2: End"),
            (
                read_jobs,
                JOBS,
                "NODE_FAIL|2026-12-01T00:07:40",
                "NODE_FAIL|Unknown",
                "line 2: Submit is missing",
            ),
        ] {
            assert!(text.contains(from), "{from}");
            let error = read("FILE", &text.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(expected) && error.starts_with("FILE"), "{error}\nlacks {expected}");
            assert!(error.contains("make"), "{error}");
        }
    }
}
