//! The program on the node that writes: a shell by itself, or as a Slurm step when the node is another machine.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use super::fault::{Fault, Way};
use super::slurm::Node;
use crate::Failure;

/// Lists GPUs of a vendor in bus order, then does what each line of its standard input says. One write(2) a record; what
/// was written is looked for in the log.
pub(super) const AGENT: &str = r#"
for d in "$1"/bus/pci/devices/*; do
    [ -r "$d/class" ] && [ -r "$d/vendor" ] || continue
    read -r class <"$d/class"; read -r vendor <"$d/vendor"
    case $class in 0x0302* | 0x0300* | 0x0380* | 0x1200*) [ "$vendor" = "$3" ] && echo "gpu ${d##*/}" ;; esac
done
case $2 in
dcgm) command -v dcgmi >/dev/null || echo "refuse there is no dcgmi in PATH" ;;
*)
    read -r mode </proc/sys/kernel/printk_devkmsg || mode=
    [ "$mode" != off ] || echo "refuse /proc/sys/kernel/printk_devkmsg is off: what root writes to the log is dropped"
    [ -w /dev/kmsg ] || echo "refuse /dev/kmsg cannot be written"
    ;;
esac
echo ready
while read -r id rest; do
    case $2 in
    dcgm) dcgmi $rest >&2 && echo "written" || echo "failed dcgmi ended with code $?" ;;
    *)
        read -r up _ </proc/uptime
        printf '<3>[%s0000] %s\n' "$up" "$rest" >/dev/kmsg && echo written || echo "failed /dev/kmsg refused the line"
        if command -v dmesg >/dev/null; then
            dmesg | grep -qF "$id" && echo seen || echo unseen
        else
            echo unseen
        fi
        ;;
    esac
done
"#;

/// The program on the node.
pub struct Agent {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    /// PCI addresses of the GPUs, in bus order.
    pub gpus: Vec<String>,
    /// Why it cannot be done there, sentences without an end.
    pub refused: Vec<String>,
    logs: bool,
}

impl Agent {
    /// Starts it and hears what is there.
    ///
    /// # Errors
    /// When it cannot be started or does not answer.
    pub fn start(fault: Fault, node: &Node, local: bool, sysfs: &Path) -> Result<Self, Failure> {
        let sysfs = if local { sysfs } else { Path::new("/sys") };
        let kind = if fault.way() == Way::Dcgm { "dcgm" } else { "kernel" };
        let mut command = Command::new(if local { "sh" } else { "srun" });
        if !local {
            command.args([
                "-w",
                &node.name,
                "-N1",
                "-n1",
                "--immediate=30",
                "--time=60",
                "--quiet",
                "--job-name=clustermax-inject",
                "sh",
            ]);
        }
        command.args(["-c", AGENT, "clustermax-inject"]).arg(sysfs).arg(kind);
        command.arg(fault.vendor().unwrap_or("0x10de"));
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map_err(
                |error| Failure::missing(format!("the program on {} cannot be started: {error}", node.name)),
            )?;
        let (sender, lines) = std::sync::mpsc::channel();
        if let Some(out) = child.stdout.take() {
            std::thread::spawn(move || {
                for line in BufReader::new(out).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        break;
                    }
                }
            });
        }
        let stdin = child.stdin.take();
        let mut agent =
            Self { child, stdin, lines, gpus: Vec::new(), refused: Vec::new(), logs: kind == "kernel" };
        loop {
            let line = agent.line(Duration::from_secs(45), &node.name)?;
            if let Some(gpu) = line.strip_prefix("gpu ") {
                agent.gpus.push(gpu.to_owned());
            } else if let Some(why) = line.strip_prefix("refuse ") {
                agent.refused.push(why.to_owned());
            } else if line == "ready" {
                return Ok(agent);
            }
        }
    }

    fn line(&mut self, limit: Duration, node: &str) -> Result<String, Failure> {
        match self.lines.recv_timeout(limit) {
            Ok(line) => Ok(line),
            Err(RecvTimeoutError::Timeout) => Err(Failure::missing(format!(
                "the program on {node} does not answer within {} s; look at the node",
                limit.as_secs()
            ))),
            Err(RecvTimeoutError::Disconnected) => {
                let mut said = String::new();
                if let Some(err) = self.child.stderr.take() {
                    let _ = err.take(4096).read_to_string(&mut said);
                }
                let said = said.lines().last().unwrap_or("it said nothing").to_owned();
                Err(Failure::missing(format!("the program on {node} ended: {said}; look at the node")))
            }
        }
    }

    /// Has one line written; `id` is a word of it. Whether it was found in the log again, for the kernel log.
    ///
    /// # Errors
    /// When it was not written.
    pub fn send(&mut self, id: &str, line: &str) -> Result<Option<bool>, Failure> {
        let gone =
            |error: std::io::Error| Failure::missing(format!("the program on the node is gone: {error}"));
        let stdin =
            self.stdin.as_mut().ok_or_else(|| Failure::missing("the program on the node has ended"))?;
        stdin.write_all(format!("{id} {line}\n").as_bytes()).and_then(|()| stdin.flush()).map_err(gone)?;
        let answer = self.line(Duration::from_secs(30), "the node")?;
        if answer != "written" {
            let why = answer.strip_prefix("failed ").unwrap_or(&answer).to_owned();
            return Err(Failure::missing(format!("the fault was not injected: {why}")));
        }
        if !self.logs {
            return Ok(None);
        }
        // It is written: a log that cannot be read back in time is no reason not to watch.
        Ok(Some(self.line(Duration::from_secs(30), "the node").is_ok_and(|line| line == "seen")))
    }

    /// Lets it end; a job on the node ends with it.
    pub fn end(&mut self) {
        self.stdin = None;
        let until = Instant::now() + Duration::from_secs(5);
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end();
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
