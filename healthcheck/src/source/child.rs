//! Children under a deadline.
//!
//! A source that can hang runs in a process group of its own. When it misses its deadline the group gets SIGTERM,
//! a short grace, then SIGKILL; a child stuck in the kernel is left behind, never waited for, and remembered
//! so that no second one is started beside it: one outstanding child per source.

use std::cell::RefCell;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::sys;

/// Search path of every child. Slurm gives its programs none, and a user's must not count.
pub const CHILD_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Time between SIGTERM and SIGKILL: ending an NVML client hard can freeze the GPU.
const GRACE: Duration = Duration::from_millis(200);
/// Time a child gets to be reaped after SIGKILL.
const REAP: Duration = Duration::from_millis(100);
/// How often a child that says nothing is asked whether it has ended: a process that it left behind may keep its
/// output open for ever.
const LOOK: Duration = Duration::from_millis(50);
/// Last line of each answer of a [`Resident`].
pub const END_OF_ANSWER: &str = "\"End\"\n";
/// Most output kept of one child.
const OUTPUT_LIMIT: usize = 4 << 20;

/// How a child ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ended {
    /// Exit code, or `None` when a signal ended it.
    Exit(Option<i32>),
    /// It missed its deadline.
    Deadline(String),
    /// It could not be started.
    NotStarted(String),
}

/// What a child printed and how it ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Standard output up to the deadline, complete lines or not.
    pub stdout: String,
    /// How it ended.
    pub ended: Ended,
}

/// A running child of one source.
pub struct Probe {
    name: String,
    started: Result<Running, Ended>,
}

struct Running {
    child: Child,
    deadline: Instant,
    output: Vec<u8>,
    eof: bool,
    exited: bool,
    late: bool,
    marker: Option<PathBuf>,
    /// Where a resident child goes back to after its answer.
    home: Option<Rc<RefCell<Option<Child>>>>,
}

/// A child that stays and answers again and again: each line on its standard input is a question, each answer ends with
/// [`END_OF_ANSWER`]. One that misses a deadline is ended as any other late child, and the next question starts another.
#[derive(Debug, Default)]
pub struct Resident {
    home: Rc<RefCell<Option<Child>>>,
}

/// What a caller does while it waits for children.
pub struct Meanwhile<'a> {
    /// Descriptors that wake it.
    pub fds: Vec<RawFd>,
    /// The work: done at least every 50 ms, must not block for long.
    pub work: &'a mut dyn FnMut(),
}

/// Starts `command` for the source `name`, with a clean environment, nothing on standard input and
/// standard error closed (slurmd waits until the last holder of its pipe is gone).
///
/// `outstanding` is a folder for the mark of a child that had to be left behind; `None` keeps none.
pub fn start(name: &str, command: &mut Command, limit: Duration, outstanding: Option<&Path>) -> Probe {
    spawn(name, command, limit, outstanding, Stdio::null())
}

fn spawn(
    name: &str,
    command: &mut Command,
    limit: Duration,
    outstanding: Option<&Path>,
    stdin: Stdio,
) -> Probe {
    let marker = outstanding.map(|dir| dir.join(format!("{name}.pid")));
    if let Some(pid) = marker.as_deref().and_then(still_stuck) {
        let why = format!("an earlier probe (pid {pid}) is still stuck; no second one is started");
        return Probe { name: name.into(), started: Err(Ended::Deadline(why)) };
    }
    command
        .env_clear()
        .env("PATH", CHILD_PATH)
        .env("LC_ALL", "C")
        .current_dir("/")
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0);
    let started = command.spawn().map(|child| Running::new(child, limit, marker)).map_err(|e| {
        Ended::NotStarted(format!("{} cannot be started: {e}", command.get_program().to_string_lossy()))
    });
    Probe { name: name.into(), started }
}

/// Waits for all probes together, each until its own deadline; results come in the order given. Late ones are
/// ended together, so that many cost no more time than one.
pub fn finish(probes: Vec<Probe>) -> Vec<(String, Outcome)> {
    finish_with(probes, &mut Meanwhile { fds: Vec::new(), work: &mut || {} })
}

/// As [`finish`], while other work goes on.
pub fn finish_with(probes: Vec<Probe>, meanwhile: &mut Meanwhile<'_>) -> Vec<(String, Outcome)> {
    let mut probes = probes;
    loop {
        let now = Instant::now();
        let mut fds = Vec::new();
        let mut wait = LOOK;
        for running in probes.iter_mut().filter_map(|p| p.started.as_mut().ok()) {
            // In this order: what an ended child said is all in the pipe.
            running.look();
            running.read();
            if !running.eof && !running.exited && !running.answered() && now < running.deadline {
                wait = wait.min(running.deadline - now);
                fds.extend(running.child.stdout.as_ref().map(AsRawFd::as_raw_fd));
            }
        }
        if fds.is_empty() {
            break;
        }
        fds.extend(&meanwhile.fds);
        sys::poll_readable(&fds, wait);
        (meanwhile.work)();
    }
    let mut late = Vec::new();
    for running in probes.iter_mut().filter_map(|p| p.started.as_mut().ok()) {
        if !running.answered() && !running.exited_by(running.deadline) {
            running.late = true;
            late.push(running);
        }
    }
    for (signal, grace) in [(libc::SIGTERM, GRACE), (libc::SIGKILL, REAP)] {
        late.iter().for_each(|r| r.signal(signal));
        let until = Instant::now() + grace;
        for running in &mut late {
            running.exited_by(until);
        }
    }
    probes.into_iter().map(|p| (p.name, p.started.map_or_else(Outcome::failed, Running::end))).collect()
}

impl Outcome {
    fn failed(ended: Ended) -> Self {
        Outcome { stdout: String::new(), ended }
    }
}

impl Resident {
    /// Asks the child, or starts it with `command` first.
    pub fn ask(
        &mut self,
        name: &str,
        command: &mut Command,
        limit: Duration,
        outstanding: Option<&Path>,
    ) -> Probe {
        if let Some(mut child) = self.home.borrow_mut().take()
            && matches!(child.try_wait(), Ok(None))
            && question(&mut child)
        {
            let marker = outstanding.map(|dir| dir.join(format!("{name}.pid")));
            let home = Some(self.home.clone());
            return Probe {
                name: name.into(),
                started: Ok(Running { home, ..Running::new(child, limit, marker) }),
            };
        }
        let mut probe = spawn(name, command, limit, outstanding, Stdio::piped());
        if let Ok(running) = &mut probe.started {
            running.home = Some(self.home.clone());
            // A child that is gone already shows in the answer.
            question(&mut running.child);
        }
        probe
    }

    /// Lets the child go: it ends when its standard input does.
    pub fn release(&mut self) {
        let Some(mut child) = self.home.borrow_mut().take() else { return };
        drop(child.stdin.take());
        let mut running = Running::new(child, Duration::ZERO, None);
        for (signal, grace) in [(0, GRACE), (libc::SIGTERM, GRACE), (libc::SIGKILL, REAP)] {
            if signal != 0 {
                running.signal(signal);
            }
            if running.exited_by(Instant::now() + grace) {
                break;
            }
        }
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        self.release();
    }
}

/// One question; false when the child does not listen any more.
fn question(child: &mut Child) -> bool {
    child.stdin.as_mut().is_some_and(|stdin| stdin.write_all(b"\n").is_ok())
}

impl Running {
    fn new(mut child: Child, limit: Duration, marker: Option<PathBuf>) -> Self {
        if let Some(out) = child.stdout.as_mut() {
            // Without it a read could outlast the deadline; poll still works if this fails.
            let _ = sys::set_nonblocking(out);
        }
        let deadline = Instant::now() + limit;
        Running {
            child,
            deadline,
            output: Vec::new(),
            eof: false,
            exited: false,
            late: false,
            marker,
            home: None,
        }
    }

    /// A resident child has said all it had to say.
    fn answered(&self) -> bool {
        self.home.is_some() && self.output.ends_with(END_OF_ANSWER.as_bytes())
    }

    fn read(&mut self) {
        let Some(out) = self.child.stdout.as_mut() else {
            self.eof = true;
            return;
        };
        let mut buffer = [0u8; 16384];
        // A child that never stops talking is left when its time is over.
        while Instant::now() < self.deadline {
            match out.read(&mut buffer) {
                Ok(0) => {
                    self.eof = true;
                    return;
                }
                Ok(n) => {
                    let room = OUTPUT_LIMIT.saturating_sub(self.output.len());
                    self.output.extend_from_slice(&buffer[..n.min(room)]);
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.eof = true;
                    return;
                }
            }
        }
    }

    fn look(&mut self) {
        self.exited = self.exited || matches!(self.child.try_wait(), Ok(Some(_)));
    }

    fn exited_by(&mut self, deadline: Instant) -> bool {
        loop {
            self.look();
            if self.exited || Instant::now() >= deadline {
                return self.exited;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap_or(0)
    }

    /// To the child and all that it started in its group.
    fn signal(&self, signal: i32) {
        sys::kill_group(self.pid(), signal);
    }

    fn end(mut self) -> Outcome {
        if self.answered() {
            let stdout = String::from_utf8_lossy(&self.output).into_owned();
            if let Some(home) = self.home.take().filter(|_| !self.exited) {
                home.replace(Some(self.child));
            }
            return Outcome { stdout, ended: Ended::Exit(Some(0)) };
        }
        let ended = match self.child.try_wait() {
            Ok(Some(s)) if !self.late => Ended::Exit(s.code()),
            // It finished in the very moment of the deadline.
            Ok(Some(s)) if s.signal().is_none() && self.eof => Ended::Exit(s.code()),
            Ok(Some(_)) => Ended::Deadline("no answer in time".into()),
            _ => {
                let pid = self.pid();
                if let Some(marker) = &self.marker {
                    let text = format!("{pid} {}", start_time(pid).unwrap_or(0));
                    // If the mark cannot be kept the next pass starts one more child; nothing worse.
                    let _ = std::fs::write(marker, text);
                }
                Ended::Deadline(format!("no answer in time; pid {pid} is stuck in the kernel"))
            }
        };
        Outcome { stdout: String::from_utf8_lossy(&self.output).into_owned(), ended }
    }
}

/// The pid in a mark, when that very process (by start time) still exists. A stale mark is removed.
fn still_stuck(marker: &Path) -> Option<i32> {
    let text = std::fs::read_to_string(marker).ok()?;
    let alive = text.split_once(' ').and_then(|(pid, started)| {
        let pid: i32 = pid.parse().ok()?;
        let started: u64 = started.trim().parse().ok()?;
        let (dead, _) = stat(pid).filter(|(_, since)| *since == started)?;
        if dead {
            // A resident process whose child it was would keep its remains.
            sys::reap(pid);
        }
        (!dead).then_some(pid)
    });
    if alive.is_none() {
        // Half-written or of a process that is gone: either way it says nothing any more.
        let _ = std::fs::remove_file(marker);
    }
    alive
}

/// Start time of a process in clock ticks since boot; `None` for a zombie or none.
fn start_time(pid: i32) -> Option<u64> {
    stat(pid).filter(|(dead, _)| !dead).map(|(_, started)| started)
}

/// From `/proc/PID/stat`: whether it is a zombie, and its start time in clock ticks since boot.
/// Always the real /proc: our own children are never simulated.
fn stat(pid: i32) -> Option<(bool, u64)> {
    let mut text = String::new();
    File::open(format!("/proc/{pid}/stat")).ok()?.read_to_string(&mut text).ok()?;
    // The command name may hold spaces and brackets; fields count from the last bracket.
    let rest = text.rsplit_once(')')?.1;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    Some((fields.first() == Some(&"Z"), fields.get(19)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        let mut c = Command::new("/bin/sh");
        c.args(["-c", script]);
        c
    }

    #[test]
    fn output_and_exit_code_come_back() {
        let out = finish(vec![
            start("a", &mut sh("echo one; exit 3"), Duration::from_secs(20), None),
            start("b", &mut sh("echo two"), Duration::from_secs(20), None),
        ]);
        assert_eq!(out[0].1.stdout, "one\n");
        assert_eq!(out[0].1.ended, Ended::Exit(Some(3)));
        assert_eq!(out[1].1.ended, Ended::Exit(Some(0)));
    }

    #[test]
    fn a_resident_child_answers_again_and_is_replaced_when_it_hangs() {
        let script = "while read -r line; do n=$((n+1)); echo $n $$; echo '\"End\"'; [ $n = 2 ] && exec sleep 60; done";
        let mut resident = Resident::default();
        let ask = |resident: &mut Resident, limit| {
            let probe = resident.ask("r", &mut sh(script), Duration::from_millis(limit), None);
            finish(vec![probe]).remove(0).1
        };
        let first = ask(&mut resident, 20_000);
        assert!(first.stdout.starts_with("1 "), "{first:?}");
        assert_eq!(first.ended, Ended::Exit(Some(0)));
        let second = ask(&mut resident, 20_000);
        assert!(second.stdout.starts_with("2 "), "{second:?}");
        assert_eq!(first.stdout.lines().next().unwrap()[2..], second.stdout.lines().next().unwrap()[2..]);
        assert!(matches!(ask(&mut resident, 300).ended, Ended::Deadline(_)));
        let other = ask(&mut resident, 20_000);
        assert!(other.stdout.starts_with("1 "), "{other:?}");
        resident.release();
        assert!(resident.home.borrow().is_none());
    }

    #[test]
    fn work_goes_on_while_children_are_slow() {
        let mut rounds = 0;
        let mut meanwhile = Meanwhile { fds: Vec::new(), work: &mut || rounds += 1 };
        let slow = start("s", &mut sh("sleep 0.5; echo done"), Duration::from_secs(20), None);
        assert_eq!(finish_with(vec![slow], &mut meanwhile)[0].1.stdout, "done\n");
        assert!(rounds >= 2, "{rounds}");
    }

    #[test]
    fn pitfall_2_a_late_child_hears_sigterm_and_has_time_before_sigkill() {
        let dir = tempfile::tempdir().unwrap();
        let said = dir.path().join("said");
        // Ends well when it is asked to.
        let script =
            format!("trap 'echo term > {}; exit 0' TERM; while :; do sleep 0.01; done", said.display());
        let out = finish(vec![start("nvml", &mut sh(&script), Duration::from_millis(300), None)]);
        assert!(matches!(out[0].1.ended, Ended::Deadline(_)), "{:?}", out[0].1.ended);
        assert_eq!(std::fs::read_to_string(&said).unwrap(), "term\n");
    }

    #[test]
    fn pitfall_3_a_late_child_ends_alone_and_keeps_what_it_said() {
        let out = finish(vec![
            start(
                "late",
                &mut sh("trap '' TERM; echo partial; while :; do sleep 60; done"),
                Duration::from_millis(300),
                None,
            ),
            start("fine", &mut sh("echo ok"), Duration::from_secs(20), None),
        ]);
        assert_eq!(out[0].1.stdout, "partial\n");
        assert!(matches!(out[0].1.ended, Ended::Deadline(_)));
        assert_eq!(out[1].1.ended, Ended::Exit(Some(0)));
    }

    #[test]
    fn a_child_that_closes_its_output_but_stays_is_late_too() {
        let out = finish(vec![start("x", &mut sh("exec >&-; sleep 60"), Duration::from_millis(200), None)]);
        assert!(matches!(out[0].1.ended, Ended::Deadline(_)));
    }

    /// Waits until the process named in the file is gone.
    fn gone(pid_file: &Path) -> bool {
        let pid: i32 = std::fs::read_to_string(pid_file).unwrap().trim().parse().unwrap();
        let until = Instant::now() + Duration::from_secs(10);
        while start_time(pid).is_some() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        start_time(pid).is_none()
    }

    #[test]
    fn what_a_late_child_started_ends_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        // A script in front of a slow program, as site checks are.
        let script = format!("sleep 600 & echo $! > {}; wait", file.display());
        let out = finish(vec![start("x", &mut sh(&script), Duration::from_millis(500), None)]);
        assert!(matches!(out[0].1.ended, Ended::Deadline(_)));
        assert!(gone(&file), "a process is left behind at every pass");
    }

    #[test]
    fn a_daemon_that_keeps_the_output_open_does_not_make_its_starter_late() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let script = format!("sleep 600 & echo $! > {}; echo started; exit 2", file.display());
        let out = finish(vec![start("x", &mut sh(&script), Duration::from_secs(60), None)]);
        assert_eq!((out[0].1.stdout.as_str(), &out[0].1.ended), ("started\n", &Ended::Exit(Some(2))));
        let pid: i32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
        sys::kill(pid, libc::SIGKILL);
    }

    #[test]
    fn a_child_that_never_stops_talking_is_late() {
        let out = finish(vec![start("x", &mut sh("exec yes"), Duration::from_millis(300), None)]);
        assert!(matches!(out[0].1.ended, Ended::Deadline(_)));
        assert!(out[0].1.stdout.len() <= OUTPUT_LIMIT);
    }

    #[test]
    fn a_missing_program_is_named() {
        let out =
            finish(vec![start("x", &mut Command::new("/nonexistent/prog"), Duration::from_secs(1), None)]);
        let Ended::NotStarted(why) = &out[0].1.ended else { panic!("{:?}", out[0].1.ended) };
        assert!(why.contains("/nonexistent/prog"));
    }

    #[test]
    #[allow(clippy::zombie_processes, reason = "that its remains are taken away is what is tested")]
    fn one_outstanding_child_per_source() {
        let dir = tempfile::tempdir().unwrap();
        let me = i32::try_from(std::process::id()).unwrap();
        std::fs::write(dir.path().join("nvml.pid"), format!("{me} {}", start_time(me).unwrap())).unwrap();
        let out = finish(vec![start("nvml", &mut sh("echo no"), Duration::from_secs(5), Some(dir.path()))]);
        assert!(matches!(&out[0].1.ended, Ended::Deadline(w) if w.contains("still stuck")));
        // Its remains are taken away, and another is started.
        let mut child = sh("exit 0").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        while !stat(pid).unwrap().0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::write(dir.path().join("nvml.pid"), format!("{pid} {}", stat(pid).unwrap().1)).unwrap();
        let out = finish(vec![start("nvml", &mut sh("echo yes"), Duration::from_secs(20), Some(dir.path()))]);
        assert_eq!((out[0].1.stdout.as_str(), stat(pid)), ("yes\n", None));
        assert!(child.wait().is_err(), "nothing is left to wait for");
        // Another start time: the pid was reused, the mark is stale.
        std::fs::write(dir.path().join("nvml.pid"), format!("{me} 1")).unwrap();
        let out = finish(vec![start("nvml", &mut sh("echo yes"), Duration::from_secs(20), Some(dir.path()))]);
        assert_eq!(out[0].1.stdout, "yes\n");
    }

    #[test]
    fn the_environment_is_fixed() {
        let out = finish(vec![start(
            "e",
            &mut sh("env | cut -d= -f1 | sort | tr '\\n' ' '"),
            Duration::from_secs(20),
            None,
        )]);
        assert_eq!(out[0].1.stdout.replace("PWD ", "").replace("_ ", ""), "LC_ALL PATH ");
    }
}
