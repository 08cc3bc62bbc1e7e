//! Stage `inference`: torch alone on every rank, and on GPUs vLLM or SGLang under the load of its own client.

use std::fs;

use super::bench::{Bench, Device, Stop};
use super::plan::Profile;

/// Prefill, decode and tensor-parallel decode.
///
/// # Errors
/// Without torch, or when a part fails.
pub fn inference(bench: &mut Bench) -> Result<(), Stop> {
    let seconds = (bench.sizes().gemm / 5).clamp(2, 60).to_string();
    bench.payload("inference.py", &["--seconds".to_owned(), seconds])?;
    if bench.torch.device == Device::Cpu {
        return unavailable(
            bench,
            "vLLM and SGLang are measured on GPUs: torch alone decodes in their place",
        );
    }
    if bench.profile < Profile::Quick {
        return unavailable(bench, "starting a server takes minutes: profile quick and longer ones do it");
    }
    serve(bench)
}

fn unavailable(bench: &Bench, why: &str) -> Result<(), Stop> {
    let path = bench.raw().join("serve.unavailable.txt");
    fs::write(&path, format!("{why}\n")).map_err(|error| {
        Stop::Failed(2, Some(format!("cannot write {}: {error}; make it writable", path.display())))
    })
}

/// One server over the GPUs of the first node. The model's files lie beside `raw/`, where nothing is read as evidence.
fn serve(bench: &mut Bench) -> Result<(), Stop> {
    let folder = bench.results.join("serve.tmp");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder)
        .map_err(|error| Stop::Failed(2, Some(format!("cannot make {}: {error}", folder.display()))))?;
    let first: Vec<String> = bench.nodes.iter().take(1).cloned().collect();
    let mut step = bench.srun_on(&first, 1);
    step.arg("--mpi=none")
        .arg(&bench.python)
        .arg(bench.parts.join("payload/serve.py"))
        .arg("--out")
        .arg(bench.raw())
        .arg("--folder")
        .arg(&folder)
        .args(["--gpus", &bench.torch.gpus.to_string(), "--ready", "300", "--limit", "120"]);
    let ended = bench.run(step, None);
    let _ = fs::remove_dir_all(&folder);
    match ended? {
        0 => Ok(()),
        3 => unavailable(bench, "neither vLLM nor SGLang is installed: torch alone decodes in their place"),
        code => Err(Stop::Failed(code, None)),
    }
}
