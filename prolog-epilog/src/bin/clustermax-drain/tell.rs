//! Runs the command of `[notify]`: one at a time, within its deadline and the rate limit, in a process of its own. A command
//! that hangs or fails delays nothing; what became of it is shown by `clustermax-drain status`.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use healthcheck::config::{Config, check_trusted};
use prolog_epilog::files::{self, FileError};
use prolog_epilog::notify::{Event, Ledger};

use crate::sys;

/// Name of the hidden subcommand.
pub const SUBCOMMAND: &str = "tell-operators";
/// Longest wait for another event of this node that is being told.
pub const LOCK_WAIT: Duration = Duration::from_secs(120);
/// Longest event, in bytes: far beyond one that names every tray of a domain.
const EVENT_MAX: u64 = 1 << 20;

/// Starts a process that tells the operators, if there is a command that does.
pub fn start(config: &Config, event: &Event) {
    if config.notify.path.is_none() {
        return;
    }
    let started = std::env::current_exe().and_then(|exe| {
        let mut command = Command::new(exe);
        command.arg(SUBCOMMAND).arg("--config").arg(&config.file).args(["--node", &config.node]).env_clear();
        // Not an argument: every user can read those, and an exemption's reason is for operators.
        sys::detach(&mut command, sys::handed(&serde_json::to_vec(event)?)?)
    });
    if let Err(e) = started {
        eprintln!("clustermax-drain: the operators could not be told: {e}");
    }
}

/// The process itself; the event is on its standard input.
pub fn run(config: &Config) -> ExitCode {
    let mut event = Vec::new();
    let event = std::io::stdin().take(EVENT_MAX).read_to_end(&mut event).map(|_| event);
    let event = event.ok().and_then(|text| serde_json::from_slice::<Event>(&text).ok());
    let (Some(path), Some(mut event)) = (&config.notify.path, event) else {
        eprintln!("clustermax-drain: `{SUBCOMMAND}` is for clustermax-drain's own use");
        return ExitCode::from(2);
    };
    let state = &config.paths.state_dir;
    let told = |event: &mut Event| -> Result<(), FileError> {
        let _lock = lock(state)?;
        let mut ledger = Ledger::read(state)?;
        let admitted = ledger.admit(config.notify.per_hour, jiff::Timestamp::now().as_second());
        ledger.write(state)?;
        let Some(left_out) = admitted else { return Ok(()) };
        event.left_out = left_out;
        let failed = call(config, path, event).err();
        if failed.is_some() {
            ledger.failures = ledger.failures.saturating_add(1);
        }
        ledger.failed = failed.unwrap_or_default();
        // Told already: what cannot be noted is not told twice.
        if let Err(e) = ledger.write(state) {
            eprintln!("clustermax-drain: {e}");
        }
        Ok(())
    };
    let Err(e) = told(&mut event) else { return ExitCode::SUCCESS };
    // The disk that takes no ledger may be why the node drains: told without a count rather than not at all.
    eprintln!(
        "clustermax-drain: {e}; the operators are told all the same, without the limit of notify.per_hour"
    );
    ExitCode::from(u8::from(call(config, path, &event).is_err()))
}

/// Waits for the right to tell; without it after [`LOCK_WAIT`], since an event told twice at once is better than none.
fn lock(state: &Path) -> Result<File, FileError> {
    files::make_private_dir(state)?;
    let path = state.join("notify.lock");
    let failed = |source| FileError { path: path.clone(), verb: "locked", source };
    let file = File::options().create(true).append(true).open(&path).map_err(failed)?;
    let end = Instant::now() + LOCK_WAIT;
    while !healthcheck::sys::try_lock(&file).map_err(failed)? && Instant::now() < end {
        thread::sleep(Duration::from_millis(50));
    }
    Ok(file)
}

/// Calls the command; `Err` is a sentence.
fn call(config: &Config, path: &Path, event: &Event) -> Result<(), String> {
    check_trusted(path, true).map_err(|e| e.to_string())?;
    let failed = |e: std::io::Error| format!("{} (notify.path): {e}", path.display());
    let mut line = serde_json::to_vec(event).map_err(|e| e.to_string())?;
    line.push(b'\n');
    let mut command = Command::new(path);
    command
        .args(&config.notify.args)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .current_dir("/")
        .stdin(sys::handed(&line).map_err(failed)?)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = sys::contain(&mut command).spawn().map_err(failed)?;
    let end = Instant::now() + config.notify.timeout();
    let ended = loop {
        match child.try_wait().map_err(failed)? {
            Some(status) => break Some(status),
            None if Instant::now() >= end => break None,
            None => thread::sleep(Duration::from_millis(20)),
        }
    };
    // What it left running is not ours to keep.
    sys::kill_group(&child);
    match ended {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(format!("{} (notify.path) ended with {status}", path.display())),
        None => Err(format!(
            "{} (notify.path) did not end within {} ms and was killed",
            path.display(),
            config.notify.timeout
        )),
    }
}
