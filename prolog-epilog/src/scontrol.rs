//! The way through `scontrol`, for when libslurm is of another release than the one we were built for.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::node_state::{Node, parse_state};
use crate::slurm::{Job, Slurm, SlurmError};

/// Slurm by way of its command, run by absolute path with a fixed environment.
#[derive(Debug)]
pub struct Scontrol {
    program: PathBuf,
    conf: PathBuf,
}

impl Scontrol {
    /// `program` is scontrol's absolute path, `conf` the slurm.conf it is to use.
    #[must_use]
    pub fn new(program: &Path, conf: &Path) -> Self {
        Scontrol { program: program.to_path_buf(), conf: conf.to_path_buf() }
    }

    fn run<S: AsRef<OsStr>>(&self, args: &[S]) -> Result<String, SlurmError> {
        let output = Command::new(&self.program)
            .args(args)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("SLURM_CONF", &self.conf)
            // Times are printed as local ones.
            .env("TZ", "UTC")
            .stdin(Stdio::null())
            .output()
            .map_err(|e| SlurmError::NoAnswer(format!("{} cannot be run: {e}", self.program.display())))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        // scontrol prints some of its errors on stdout.
        let said = format!(
            "{} {}",
            String::from_utf8_lossy(&output.stderr),
            String::from_utf8_lossy(&output.stdout)
        );
        Err(classify(&said))
    }
}

/// Sorts an error message of scontrol: what is not a plain "no" may go better later.
fn classify(said: &str) -> SlurmError {
    const FINAL: [&str; 8] = [
        "not found",
        "Invalid node name",
        "Invalid job id",
        "Invalid node state",
        "denied",
        "permission",
        "already completed",
        "not yet running",
    ];
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let message = format!("scontrol: {}", said.chars().take(200).collect::<String>());
    if FINAL.iter().any(|f| said.contains(f)) {
        SlurmError::Refused(message)
    } else {
        SlurmError::NoAnswer(message)
    }
}

impl Scontrol {
    /// Name and nodes of the blocks of topology/block, which are in topology.conf, topology.yaml or the controller's memory;
    /// none under another topology.
    ///
    /// # Errors
    /// [`SlurmError`].
    pub fn blocks(&self) -> Result<Vec<(String, String)>, SlurmError> {
        Ok(parse_blocks(&self.run(&["show", "topology"])?))
    }
}

/// Reads `scontrol show topology`.
fn parse_blocks(text: &str) -> Vec<(String, String)> {
    text.lines()
        .filter_map(|line| {
            let name = field(line.trim_start(), "BlockName")?;
            let nodes = field(line, "Nodes").filter(|n| *n != "(null)")?;
            Some((name.to_string(), nodes.to_string()))
        })
        .collect()
}

impl Slurm for Scontrol {
    fn via(&self) -> &'static str {
        "scontrol"
    }

    fn node(&mut self, name: &str) -> Result<Option<Node>, SlurmError> {
        match self.run(&["-o", "show", "node", name]) {
            Ok(text) => Ok(parse_nodes(&text)?.into_iter().find(|n| n.name == name)),
            Err(SlurmError::Refused(why)) if why.contains("not found") => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn nodes(&mut self) -> Result<Vec<Node>, SlurmError> {
        parse_nodes(&self.run(&["-a", "-o", "show", "node"])?)
    }

    fn partitions(&mut self, node: &str) -> Result<Vec<String>, SlurmError> {
        let text = self.run(&["-a", "-o", "show", "node", node])?;
        let list = text.lines().find(|l| l.starts_with("NodeName=")).and_then(|l| field(l, "Partitions"));
        Ok(list.unwrap_or_default().split(',').filter(|p| !p.is_empty()).map(str::to_string).collect())
    }

    fn drain(&mut self, name: &str, reason: &str) -> Result<(), SlurmError> {
        let node = format!("NodeName={name}");
        self.run(&["update", &node, "State=DRAIN", &format!("Reason={reason}")]).map(drop)
    }

    fn undrain(&mut self, name: &str) -> Result<(), SlurmError> {
        self.run(&["update", &format!("NodeName={name}"), "State=UNDRAIN"]).map(drop)
    }

    fn set_reason(&mut self, name: &str, reason: &str) -> Result<(), SlurmError> {
        self.run(&["update", &format!("NodeName={name}"), &format!("Reason={reason}")]).map(drop)
    }

    fn set_comment(&mut self, name: &str, comment: &str) -> Result<(), SlurmError> {
        self.run(&["update", &format!("NodeName={name}"), &format!("Comment={comment}")]).map(drop)
    }

    fn job(&mut self, id: u32) -> Result<Option<Job>, SlurmError> {
        match self.run(&["-o", "show", "job", &id.to_string()]) {
            Ok(text) => Ok(parse_job(&text, id)),
            Err(SlurmError::Refused(why)) if why.contains("Invalid job id") => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn notify(&mut self, job: &Job, text: &str) -> Result<(), SlurmError> {
        self.run(&["notify", &job.number.to_string(), text]).map(drop)
    }

    fn set_admin_comment(&mut self, job: &Job, text: &str) -> Result<(), SlurmError> {
        let job = format!("JobId={}", job.id);
        self.run(&["update", &job, &format!("AdminComment={text}")]).map(drop)
    }
}

/// Reads `scontrol -o show node`: one node a line, `KEY=VALUE` words; `Reason` runs to its ` [user@time]`.
///
/// # Errors
/// A line whose state is not understood, so that it is never acted upon.
pub fn parse_nodes(text: &str) -> Result<Vec<Node>, SlurmError> {
    let mut nodes = Vec::new();
    for line in text.lines().filter(|l| l.starts_with("NodeName=")) {
        let name = field(line, "NodeName").unwrap_or_default().to_string();
        let state_word = field(line, "State").unwrap_or_default();
        let state = parse_state(state_word).ok_or_else(|| {
            SlurmError::Refused(format!("node {name}: the state {state_word:?} is not understood"))
        })?;
        let (reason, reason_time, behind) = reason(line);
        let comment = behind
            .split_once(" Comment=")
            .map(|(_, rest)| until_next_field(rest).trim().to_string())
            .unwrap_or_default();
        let hostname = field(line, "NodeHostName").unwrap_or_default().to_string();
        let resume_after = field(line, "ResumeAfterTime").is_some_and(|t| seconds(t).is_some());
        nodes.push(Node { name, state, reason, reason_time, hostname, comment, resume_after });
    }
    Ok(nodes)
}

/// Value of the first `KEY=` word; it must come before the free text of `Reason=`.
fn field<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    line.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
}

/// The reason, when it was set, and what stands behind it, or the whole line where there is none.
fn reason(line: &str) -> (String, i64, &str) {
    let Some((_, rest)) = line.split_once(" Reason=") else { return (String::new(), 0, line) };
    // The first ` [user@time]` ends the reason; anything behind it is another field.
    let mut from = 0;
    while let Some(open) = rest.get(from..).and_then(|r| r.find(" [")).map(|at| from + at) {
        let inner = rest.get(open + 2..).unwrap_or_default();
        if let Some((stamp, behind)) = inner.split_once(']')
            && let Some((_, time)) = stamp.split_once('@')
            && let Some(time) = seconds(time)
        {
            return (rest.get(..open).unwrap_or_default().to_string(), time, behind);
        }
        from = open + 2;
    }
    (rest.trim_end().to_string(), 0, "")
}

/// `2026-03-03T02:11:20`, UTC, in seconds since 1970.
fn seconds(time: &str) -> Option<i64> {
    let time: jiff::civil::DateTime = time.parse().ok()?;
    Some(time.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp().as_second())
}

/// Reads `scontrol -o show job`. The job's name, and what stands behind it, is the user's free text: what says which job it is
/// is read before the name only, and a line that says twice what is to be known of the job is not understood.
fn parse_job(text: &str, id: u32) -> Option<Job> {
    let wanted = id.to_string();
    let line = text.lines().find(|l| field(l, "JobId") == Some(&wanted))?;
    let (head, _) = line.split_once(" JobName=")?;
    let doubtful =
        [" AdminComment=", " BatchFlag=", " JobState="].iter().any(|key| line.matches(key).count() > 1);
    if doubtful {
        return None;
    }
    let id = match (field(head, "ArrayJobId"), field(head, "ArrayTaskId")) {
        (Some(array), Some(task)) if task.bytes().all(|b| b.is_ascii_digit()) => format!("{array}_{task}"),
        _ => wanted.clone(),
    };
    let admin_comment = line
        .split_once(" AdminComment=")
        .map(|(_, rest)| until_next_field(rest).to_string())
        .unwrap_or_default();
    Some(Job {
        id,
        number: wanted.parse().ok()?,
        batch: field(line, "BatchFlag") == Some("1"),
        running: field(line, "JobState") == Some("RUNNING"),
        admin_comment,
    })
}

/// Cuts free text before the next ` Key=`.
fn until_next_field(text: &str) -> &str {
    let mut at = 0;
    for word in text.split(' ') {
        let key = word.split_once('=').map(|(key, _)| key);
        if at > 0
            && key.is_some_and(|k| {
                k.starts_with(|c: char| c.is_ascii_uppercase())
                    && k.bytes().all(|b| b.is_ascii_alphanumeric())
            })
        {
            return text.get(..at - 1).unwrap_or(text);
        }
        at += word.len() + 1;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node_state::{DRAIN, state_text};

    const SAMPLE: &str = include_str!("../tests/data/scontrol-show-node.txt");

    /// As root, the comment would have gone to task 1 of somebody else's array 5.
    #[test]
    fn a_job_by_its_name_passed_for_a_task_of_another_users_array() {
        let line = |name: &str| {
            format!(
                "JobId=7 JobName={name} UserId=eve(1000) JobState=RUNNING Comment=x BatchFlag=1 AdminComment=kept Power="
            )
        };
        let job = parse_job(&line("x ArrayJobId=5 ArrayTaskId=1"), 7).unwrap();
        assert_eq!((job.id.as_str(), job.number, job.admin_comment.as_str()), ("7", 7, "kept"));
        let task = line("x").replace("JobId=7 ", "JobId=7 ArrayJobId=5 ArrayTaskId=1 ");
        assert_eq!(parse_job(&task, 7).unwrap().id, "5_1");
        // What an operator wrote there would be lost.
        for name in ["x AdminComment=forged Power=", "x JobState=PENDING", "x BatchFlag=0"] {
            assert_eq!(parse_job(&line(name), 7), None, "{name}");
        }
        assert_eq!(
            parse_job(&line("x\nJobId=8 ArrayJobId=5 ArrayTaskId=1 JobName=y"), 7).map(|j| j.id),
            Some("7".into())
        );
    }

    #[test]
    fn nodes_are_read_from_scontrols_lines() {
        let nodes = parse_nodes(SAMPLE).unwrap();
        let rows: Vec<(&str, String, &str)> =
            nodes.iter().map(|n| (n.name.as_str(), state_text(n.state), n.reason.as_str())).collect();
        let expected = [
            (
                "gpu-node-01",
                "IDLE+DRAIN",
                "hc:gpu.xid fail 0000:86:00 Xid 79 fallen off bus; act=reboot id=3f2a",
            ),
            ("gpu-node-02", "MIXED+DRAIN", "maintenance ticket 1234"),
            ("gpu-node-03", "DOWN+DRAIN+NOT_RESPONDING", "Not responding"),
            ("gpu-node-04", "IDLE+CLOUD+POWERED_DOWN", ""),
            (
                "gpu-node-05",
                "DOWN+DRAIN+INVALID_REG",
                "gres/gpu count reported lower than configured (7 < 8)",
            ),
            ("gpu-node-06", "IDLE+DRAIN+REBOOT_REQUESTED", "reboot ASAP : hc:gpu.remap"),
            ("gpu-node-07", "IDLE+DRAIN", "Prolog error"),
            ("gpu-node-08", "IDLE+DRAIN", "Kill task failed"),
            ("gpu-node-09", "ALLOCATED+DRAIN+COMPLETING", "Epilog error"),
            ("gpu-node-10", "IDLE+PLANNED", ""),
            (
                "gpu-node-11",
                "UNKNOWN+RESERVED+MAINTENANCE",
                "[node_problem] gpu_health_check: 8xH100 [prolog]",
            ),
        ];
        assert_eq!(rows.len(), expected.len());
        for (row, (name, state, reason)) in rows.iter().zip(expected) {
            assert_eq!((row.0, row.1.as_str(), row.2), (name, state, reason));
        }
        assert_eq!(nodes[0].reason_time, 1_772_503_880, "2026-03-03T02:11:20 UTC");
        assert_eq!(nodes[3].reason_time, 0);
    }

    #[test]
    fn an_operators_timer_and_the_host_are_seen() {
        for (line, resume_after) in [
            (
                "NodeName=a NodeHostName=a.x State=DOWN+DRAIN ResumeAfterTime=2026-12-01T05:00:00 Reason=x",
                true,
            ),
            (
                "NodeName=a NodeHostName=a.x State=DOWN+DRAIN ResumeAfterTime=None Reason=ResumeAfterTime=2026",
                false,
            ),
        ] {
            let node = parse_nodes(line).unwrap().remove(0);
            assert_eq!((node.resume_after, node.hostname.as_str()), (resume_after, "a.x"), "{line}");
        }
    }

    #[test]
    fn a_nodes_comment_is_what_stands_behind_its_reason() {
        for (tail, comment) in [
            ("Reason=a Comment=no [root@2026-03-03T02:11:20] Comment=new switch Extra=x", "new switch"),
            (
                "Comment=cmx:rack r1 3 of 9 trays sick; act=tell_user id=00000000 Extra=x",
                "cmx:rack r1 3 of 9 trays sick; act=tell_user id=00000000",
            ),
            ("Comment=alone", "alone"),
            ("Extra=x", ""),
        ] {
            let node = parse_nodes(&format!("NodeName=a State=IDLE {tail}\n")).unwrap().remove(0);
            assert_eq!(node.comment, comment, "{tail}");
        }
    }

    #[test]
    fn blocks_are_read_from_scontrols_lines() {
        let text = "BlockName=b1 BlockIndex=0 Nodes=tray[01-18] BlockSize=18\n\
                    BlockName=b2 BlockIndex=1 Nodes=tray[19-36] BlockSize=18\n\
                    AggregatedBlock=b[1-2] BlockIndex=2 Nodes=tray[01-36] BlockSize=36\n\
                    SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-4]\n";
        let blocks = parse_blocks(text);
        assert_eq!(
            blocks,
            [("b1".into(), "tray[01-18]".into()), ("b2".into(), "tray[19-36]".into())]
                as [(String, String); 2]
        );
    }

    #[test]
    fn odd_reasons_end_where_slurm_ends_them() {
        for (tail, reason) in [
            (" Reason=a [b] c=d [root@2026-03-03T02:11:20]", "a [b] c=d"),
            (" Reason=a [root@2026-03-03T02:11:20] Comment=x [y@2026-03-03T02:11:21]", "a"),
            (" Reason=a [x@y] [root@2026-03-03T02:11:20]", "a [x@y]"),
            (" Reason=no stamp", "no stamp"),
            ("", ""),
        ] {
            let nodes = parse_nodes(&format!("NodeName=n1 State=IDLE+DRAIN{tail} \n")).unwrap();
            assert_eq!(nodes[0].reason, reason, "{tail}");
            assert_eq!(nodes[0].state & DRAIN, DRAIN);
        }
        assert!(matches!(parse_nodes("NodeName=n1 State=NEWSTATE\n"), Err(SlurmError::Refused(_))));
        assert!(matches!(parse_nodes("NodeName=n1\n"), Err(SlurmError::Refused(_))));
        assert_eq!(parse_nodes("Node n1 not found\n").unwrap(), []);
    }

    #[test]
    fn jobs_are_read_from_scontrols_line() {
        let line = "JobId=12 ArrayJobId=10 ArrayTaskId=2 JobName=x JobState=RUNNING Reason=None BatchFlag=1 \
                    AdminComment=a = b; act=reboot WorkDir=/tmp";
        let job = parse_job(line, 12).unwrap();
        assert_eq!(
            job,
            Job {
                id: "10_2".into(),
                number: 12,
                batch: true,
                running: true,
                admin_comment: "a = b; act=reboot".into()
            }
        );
        let job = parse_job("JobId=7 JobName=x JobState=PENDING BatchFlag=0", 7).unwrap();
        assert_eq!((job.id.as_str(), job.batch, job.running), ("7", false, false));
        assert_eq!(parse_job(line, 13), None);
        assert_eq!(parse_job(&format!("{line} AdminComment=fake"), 12), None);
    }

    #[test]
    fn errors_are_final_only_when_slurm_said_no() {
        for (said, last) in [
            ("slurm_load_node error: Unable to contact slurm controller (connect failure)", false),
            ("Zero Bytes were transmitted or received", false),
            ("slurm_update error: Protocol authentication error", false),
            ("Node nosuch not found", true),
            ("slurm_update error: Invalid node name specified", true),
            ("slurm_update error: Access/permission denied", true),
        ] {
            assert_eq!(matches!(classify(said), SlurmError::Refused(_)), last, "{said}");
        }
    }
}
