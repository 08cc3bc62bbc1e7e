//! `sacct --parsable` or `--parsable2`, with its head.

use std::collections::BTreeMap;

use super::{Imported, flag};
use crate::read::Found;

#[derive(Default)]
struct State {
    jobs: u32,
    gpu_hours: f64,
    /// Jobs whose GPUs or length a column does not say.
    open: u32,
}

/// Jobs and GPU-hours by state.
pub fn read(text: &str) -> Result<Imported, String> {
    let mut lines = text.lines().enumerate();
    let (_, head) = lines.next().ok_or("is empty; run sacct again")?;
    let names: Vec<&str> = head.trim_end_matches('|').split('|').collect();
    let column = |wanted: &[&str]| names.iter().position(|name| wanted.contains(name));
    let missing = |name: &str| {
        format!(
            "line 1: there is no column {name}; run sacct --parsable2 -o JobID,State,AllocTRES,ElapsedRaw,Start,End,NodeList"
        )
    };
    let id = column(&["JobID", "JobIDRaw"]).ok_or_else(|| missing("JobID"))?;
    let state = column(&["State"]).ok_or_else(|| missing("State"))?;
    let tres = column(&["AllocTRES", "AllocTres"]);
    let elapsed = column(&["ElapsedRaw"]);
    let mut states: BTreeMap<String, State> = BTreeMap::new();
    let mut jobs = 0;
    for (index, line) in lines {
        if line.trim().is_empty() {
            continue;
        }
        let mut fields: Vec<&str> = line.split('|').collect();
        // --parsable ends each line with the delimiter, --parsable2 does not.
        if fields.len() == names.len() + 1 && fields.last() == Some(&"") {
            fields.pop();
        }
        if fields.len() < names.len() {
            return Err(format!(
                "line {}: {} fields instead of {}; it is cut short, run sacct again",
                index + 1,
                fields.len(),
                names.len()
            ));
        }
        if fields.len() > names.len() {
            return Err(format!(
                "line {}: {} fields instead of {}; a name may hold the delimiter: use --delimiter with a character that none has, or leave JobName out",
                index + 1,
                fields.len(),
                names.len()
            ));
        }
        // Steps (7.batch, 7.0) are parts of their job.
        if fields[id].is_empty() || fields[id].contains('.') {
            continue;
        }
        jobs += 1;
        // CANCELLED by 1000
        let word = fields[state].split_whitespace().next().unwrap_or("UNKNOWN").trim_end_matches('+');
        let entry = states.entry(word.to_owned()).or_default();
        entry.jobs += 1;
        let gpus = tres.and_then(|at| gpus(fields[at]));
        let seconds = elapsed.map(|at| {
            fields[at].parse::<f64>().map_err(|_| {
                format!("line {}: ElapsedRaw {:?} is no number of seconds; run sacct again and leave its columns as they are", index + 1, fields[at])
            })
        });
        match (gpus, seconds.transpose()?) {
            (Some(gpus), Some(seconds)) => entry.gpu_hours += gpus * seconds / 3600.0,
            _ => entry.open += 1,
        }
    }
    let mut found = vec![flag("slurm_accounting", jobs > 0).remark(format!("sacct returns {jobs} jobs"))];
    let mut open = 0;
    for (word, state) in states {
        found.push(
            Found::value("import", "job_count", "", f64::from(state.jobs)).param("state", word.clone()),
        );
        if state.open == 0 {
            found.push(Found::value("import", "job_gpu_hours", "h", state.gpu_hours).param("state", word));
        }
        open += state.open;
    }
    let mut notes =
        vec!["sacct says no version; the columns of 22.05 to 26.05 are known by their names".to_owned()];
    if open > 0 {
        notes.push(format!(
            "{open} jobs say no GPUs or no length (AllocTRES, ElapsedRaw): their states have no GPU-hours"
        ));
    }
    Ok(Imported { tool: "sacct".to_owned(), found, notes })
}

/// `billing=8,cpu=8,gres/gpu:h100=4,gres/gpu=4,node=1` is 4; without a GPU 0; nothing allocated: none.
fn gpus(tres: &str) -> Option<f64> {
    if tres.is_empty() {
        return None;
    }
    let all = tres.split(',').find_map(|part| part.strip_prefix("gres/gpu=")?.parse().ok());
    let typed: f64 = tres
        .split(',')
        .filter_map(|part| part.strip_prefix("gres/gpu:")?.split_once('=')?.1.parse::<f64>().ok())
        .sum();
    Some(all.unwrap_or(typed))
}
