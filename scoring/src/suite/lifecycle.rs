//! Stage `lifecycle`: how soon a node is of use. The job's first step comes first: it is the one that waits for a prolog.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::bench::{Bench, Stop};
use super::slurm;
use crate::run::write_atomic;

/// Steps after the first one.
const LATER: u32 = 3;

fn epoch() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

fn write(path: &Path, text: &str) -> Result<(), Stop> {
    write_atomic(path, text.as_bytes()).map_err(|error| {
        let why =
            format!("cannot write {}: {error}; give --results a folder you may write to", path.display());
        Stop::Failed(2, Some(why))
    })
}

/// A step on every node that tells the time in its task: lines of `steps.tsv` (LABEL, node, epoch seconds before srun, epoch
/// seconds in the task), and how long srun took.
///
/// # Errors
/// When the step fails or has to be stopped.
pub fn step(bench: &mut Bench, label: &str, options: &[String]) -> Result<(String, f64), Stop> {
    let answer = bench.raw().join("step.tmp");
    let mut step = bench.srun(1);
    // The tag: a SPANK plug-in may print lines of its own.
    step.arg("--mpi=none").args(options);
    step.args(["bash", "-c", r#"echo "cmx-step $SLURMD_NODENAME $EPOCHREALTIME $SLURM_STEP_ID""#]);
    let (before, begin) = (epoch(), Instant::now());
    let code = bench.run(step, Some(&answer))?;
    let took = begin.elapsed().as_secs_f64();
    let said = fs::read_to_string(&answer).unwrap_or_default();
    let _ = fs::remove_file(&answer);
    if code != 0 {
        return Err(Stop::Failed(code, None));
    }
    let batch = std::env::var("ENVIRONMENT").is_ok_and(|text| text == "BATCH");
    Ok((lines_of(&said, label, before, batch), took))
}

/// Lines of `steps.tsv`; where step 0 is not the first of a fresh allocation, `stale` and why stand before them.
fn lines_of(said: &str, label: &str, before: f64, batch: bool) -> String {
    let mut lines = String::new();
    for line in said.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["cmx-step", node, inside, id] = words[..] else { continue };
        if label == "0" && lines.is_empty() {
            if !batch {
                lines.push_str(
                    "stale\tthe suite was not started by sbatch, so the allocation may have waited for it\n",
                );
            } else if id != "0" {
                lines.push_str(&format!("stale\tthe job had {id} steps before the suite's first one\n"));
            }
        }
        lines.push_str(&format!("{label}\t{node}\t{before:.6}\t{inside}\n"));
    }
    lines
}

/// The stage.
///
/// # Errors
/// When a step fails or has to be stopped; without torch its import is left out.
pub fn lifecycle(bench: &mut Bench) -> Result<(), Stop> {
    let raw = bench.raw();
    // With a container the first step was taken before torch was looked for in it.
    let mut steps = std::mem::take(&mut bench.first_step);
    if steps.is_empty() {
        steps = step(bench, "0", &[])?.0;
    }
    let mut launch = String::new();
    for number in 1..=LATER {
        let (lines, took) = step(bench, &number.to_string(), &[])?;
        steps.push_str(&lines);
        launch.push_str(&format!("{number}\t{took:.6}\n"));
        write(&raw.join("steps.tsv"), &steps)?;
        write(&raw.join("launch.tsv"), &launch)?;
    }
    // With PrologFlags=Alloc the prolog runs between the job's start and its script.
    if let Some(start) = bench.job.start {
        write(&raw.join("begin.tsv"), &format!("{start} {:.6}\n", bench.begin))?;
    }
    if let Some(text) = boots(&bench.nodes) {
        write(&raw.join("boots.tsv"), &text)?;
    }
    let script = bench.parts.join("payload/prologs.sh").display().to_string();
    let mut prologs = bench.srun(1);
    prologs.args(["--mpi=none", "bash", &script]);
    bench.run(prologs, Some(&raw.join("prologs.txt")))?;
    if bench.launch.container.is_some() {
        let words = bench.launch.enter(&[&bench.results], &bench.parts);
        // The first start was taken before torch was looked for in it.
        let mut lines = std::mem::take(&mut bench.first_container);
        lines.push_str(&step(bench, "again", &words)?.0);
        write(&raw.join("container.tsv"), &lines)?;
    }
    bench.need_torch()?;
    for payload in ["import_time.py", "install_time.py"] {
        let mut step = bench.srun(1);
        step.arg("--mpi=none");
        bench.python_command(&mut step, payload);
        step.arg("--out").arg(&raw);
        let code = bench.run(step, None)?;
        if code != 0 {
            return Err(Stop::Failed(code, None));
        }
    }
    Ok(())
}

/// `NODE BOOT SLURMD`: epoch seconds of the node's boot and of its slurmd's start, as Slurm has them.
fn boots(nodes: &[String]) -> Option<String> {
    let shown =
        slurm::output("scontrol", &["show", "node", "-o", &nodes.join(",")], Duration::from_secs(30))?;
    Some(boot_times(&shown))
}

fn boot_times(shown: &str) -> String {
    let mut text = String::new();
    for line in shown.lines() {
        let field = |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key));
        let time = |key: &str| field(key).filter(|value| value.parse::<u64>().is_ok());
        if let (Some(node), Some(boot), Some(slurmd)) =
            (field("NodeName="), time("BootTime="), time("SlurmdStartTime="))
        {
            text.push_str(&format!("{node}\t{boot}\t{slurmd}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_step_that_is_not_the_allocations_first_is_said_to_be_stale() {
        let said = "a plug-in's line\ncmx-step n1 12.5 0\ncmx-step n2 12.6 0\n";
        let fresh = "0\tn1\t10.000000\t12.5\n0\tn2\t10.000000\t12.6\n";
        assert_eq!(lines_of(said, "0", 10.0, true), fresh);
        let later = lines_of(&said.replace(" 0\n", " 3\n"), "0", 10.0, true);
        assert_eq!(later, format!("stale\tthe job had 3 steps before the suite's first one\n{fresh}"));
        assert!(lines_of(said, "0", 10.0, false).starts_with("stale\tthe suite was not started by sbatch"));
        assert_eq!(lines_of(&said.replace(" 0\n", " 3\n"), "1", 10.0, false), fresh.replace("0\tn", "1\tn"));
    }

    #[test]
    fn boots_are_read_as_slurm_shows_them() {
        let shown = "NodeName=n1 Arch=x BootTime=1796070405 SlurmdStartTime=1796070465 Reason=BootTime=5\n\
                     NodeName=n2 BootTime=None SlurmdStartTime=None\n";
        assert_eq!(boot_times(shown), "n1\t1796070405\t1796070465\n");
    }
}
