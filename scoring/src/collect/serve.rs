//! vLLM or SGLang under the load of its own bench client: `serve.json` says what was run, `serve-CASE.json` is the client's.

use serde::Deserialize;

use super::{Draft, Raw};
use crate::read::tools;
use crate::record::{Record, State};

/// Loads of the payload.
const CASES: [&str; 3] = ["prefill", "decode", "tensor_parallel"];

#[derive(Debug, Deserialize)]
struct Document {
    program: String,
    node: String,
    gpus: i64,
    model: String,
    data: String,
    started: String,
    ready_seconds: Option<f64>,
    error: Option<String>,
    runs: Vec<Run>,
}

#[derive(Debug, Deserialize)]
struct Run {
    case: String,
    command: Vec<String>,
    code: i64,
    client_cpu: f64,
    saturated: bool,
}

/// The servers' part of stage `inference`.
pub fn read(raw: &Raw) -> Vec<Record> {
    const SPEED: &str = "output_tokens_per_second";
    let nothing = |state: State, why: &str| -> Vec<Record> {
        CASES.iter().map(|case| raw.missing(SPEED, "1/s", state, why).param("case", *case).done()).collect()
    };
    if let Some(file) = raw.file("serve.unavailable.txt") {
        return nothing(State::Unavailable, file.text.trim());
    }
    let Some(file) = raw.file("serve.json") else { return nothing(raw.missing_state(), &raw.marker.why()) };
    let document: Document = match file.json() {
        Ok(document) => document,
        Err(why) => return nothing(State::Unknown, &why),
    };
    let mut records = Vec::new();
    if let Some(seconds) = document.ready_seconds {
        let draft = raw.measured("server_ready_seconds", "s", seconds, file.at("/ready_seconds"));
        records.push(draft.param("program", document.program.as_str()).on(&document.node).done());
    }
    for case in CASES {
        let Some((at, run)) = document.runs.iter().enumerate().find(|(_, run)| run.case == case) else {
            let why = document.error.clone().unwrap_or_else(|| raw.marker.why());
            records.push(raw.missing(SPEED, "1/s", State::Unknown, why).param("case", case).done());
            continue;
        };
        let finish = |draft: Draft| {
            let mut record = draft
                .param("case", case)
                .param("program", document.program.as_str())
                .param("parts", document.gpus)
                .tool(&document.program)
                .command(&run.command.join(" "))
                .started(&document.started)
                .done();
            // The folder's path says nothing.
            record.params.insert("model".to_owned(), document.model.as_str().into());
            record
        };
        let client = raw.file(&format!("serve-{case}.json")).filter(|_| run.code == 0);
        let Some(client) = client else {
            let why = match run.code {
                124 => "the bench client was stopped at its limit".to_owned(),
                0 => "the bench client left no result".to_owned(),
                code => format!("the bench client ended with code {code}"),
            };
            records.push(finish(raw.missing(SPEED, "1/s", State::Unknown, why)));
            continue;
        };
        for found in tools::vllm(&client.text).found {
            let mut said = document.data.clone();
            if run.saturated {
                said = format!(
                    "the client computed for {:.0} % of its time and may be slower than the server; {said}",
                    run.client_cpu * 100.0
                );
            }
            let mut draft = match found.value {
                Some(value) => raw
                    .measured(found.metric, found.unit, value, client.at(found.pointer.unwrap_or_default()))
                    .detail(said),
                None => raw.missing(
                    found.metric,
                    found.unit,
                    found.state,
                    found.detail.unwrap_or_else(|| "no value".to_owned()),
                ),
            };
            draft.0.params.extend(found.params);
            records.push(finish(draft));
        }
        let draft = raw.measured(
            "bench_client_cpu",
            "percent",
            run.client_cpu * 100.0,
            file.at(format!("/runs/{at}/client_cpu")),
        );
        records.push(finish(draft));
    }
    records
}
