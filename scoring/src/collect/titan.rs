//! torchtitan's runs: `raw/train/titan-MODEL.json` says what was run, `titan-MODEL.log` is its log.

use serde::Deserialize;

use super::torch::dtype;
use super::{Draft, Raw};
use crate::read::tools;
use crate::record::{Record, State};

/// Dense bf16 peaks, TFLOP/s, by a part of the GPU's name; the longer names come first. As torchtitan's own table.
const PEAKS: [(&str, f64); 12] = [
    ("GB200", 2500.0),
    ("GB300", 2500.0),
    ("B200", 2250.0),
    ("B300", 2250.0),
    ("GH200", 989.0),
    ("H200", 989.0),
    ("H100", 989.0),
    ("A100", 312.0),
    ("MI355X", 2500.0),
    ("MI325X", 1300.0),
    ("MI300X", 1300.0),
    ("MI250X", 191.5),
];

/// What the GPU can do at most, TFLOP/s. PCIe and NVL forms of the H100 have other peaks: none is known for them here.
pub fn peak(gpu: &str) -> Option<f64> {
    if gpu.contains("PCIe") || gpu.contains("NVL") {
        return None;
    }
    PEAKS.iter().find(|(name, _)| gpu.contains(name)).map(|(_, peak)| *peak)
}

#[derive(Debug, Deserialize)]
struct Document {
    torchtitan: String,
    model: String,
    ranks: i64,
    seq: i64,
    batch: i64,
    dtype: String,
    compile: bool,
    data: String,
    started: String,
    command: String,
    flops_per_token: Option<f64>,
    flops_formula: String,
}

/// One model's run.
pub fn read(raw: &Raw, kind: &str, model: &str) -> Vec<Record> {
    const SPEED: &str = "tokens_per_second_per_rank";
    let nothing = |state: State, why: &str| {
        vec![
            raw.missing(SPEED, "1/s", state, why).param("model", model).param("program", "torchtitan").done(),
        ]
    };
    if let Some(file) = raw.file("titan.unavailable.txt") {
        return nothing(State::Unavailable, file.text.trim());
    }
    let Some(file) = raw.file(&format!("titan-{kind}.json")) else {
        return nothing(raw.missing_state(), &raw.marker.why());
    };
    let document: Document = match file.json() {
        Ok(document) => document,
        Err(why) => return nothing(State::Unknown, &why),
    };
    let Some(log) = raw.file(&format!("titan-{kind}.log")) else {
        return nothing(State::Unknown, "torchtitan left no log");
    };
    let Some(reading) = tools::torchtitan(&log.text) else {
        let last = log.text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it wrote nothing");
        let last: String = last.chars().take(300).collect();
        return nothing(State::Unknown, &format!("torchtitan logged no step: {last}"));
    };
    let tool = format!("torchtitan {}", document.torchtitan);
    let finish = |draft: Draft| {
        draft
            .param("model", document.model.as_str())
            .param("program", "torchtitan")
            .param("ranks", document.ranks)
            .param("nodes", raw.folder.run.nodes.len() as i64)
            .param("device", "gpu")
            .param("dtype", dtype(&document.dtype))
            .param("seq", document.seq)
            .param("batch", document.batch)
            .param("compile", if document.compile { "yes" } else { "no" })
            .tool(&tool)
            .command(&document.command)
            .started(&document.started)
            .done()
    };
    let mut records = Vec::new();
    for found in &reading.found {
        let said = match &found.detail {
            Some(detail) => format!("{detail}; {}", document.data),
            None => document.data.clone(),
        };
        let pointer = found.pointer.clone().unwrap_or_default();
        let draft = match found.value {
            Some(value) => raw.measured(found.metric, found.unit, value, log.at(pointer)).detail(said),
            None => raw.missing(found.metric, found.unit, found.state, said),
        };
        records.push(finish(draft));
        // Under one formula for every program, so that two runs can be compared.
        if let (SPEED, Some(speed), Some(flops)) = (found.metric, found.value, document.flops_per_token) {
            let draft =
                raw.measured("training_flops", "TFLOP/s", flops * speed / 1e12, file.at("/flops_per_token"));
            records.push(finish(draft.detail(&document.flops_formula)));
        }
    }
    records
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_belongs_to_one_gpu() {
        for (gpu, expected) in [
            ("NVIDIA H100 80GB HBM3", Some(989.0)),
            ("NVIDIA GB200", Some(2500.0)),
            ("NVIDIA B200", Some(2250.0)),
            ("AMD Instinct MI300X", Some(1300.0)),
            ("NVIDIA H100 PCIe", None),
            ("NVIDIA A10", None),
            ("", None),
        ] {
            assert_eq!(peak(gpu), expected, "{gpu}");
        }
    }
}
