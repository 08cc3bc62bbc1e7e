//! What each stage starts. What it writes is read by [`crate::collect`].

use std::fs;
use std::path::Path;
use std::process::Command;

use super::bench::{Bench, Device, Stop};
use super::plan::Profile;
use super::slurm;

fn write(path: &Path, text: &str) -> Result<(), Stop> {
    fs::write(path, text).map_err(|error| {
        Stop::Failed(
            2,
            Some(format!(
                "cannot write {}: {error}; give --results a folder you may write to",
                path.display()
            )),
        )
    })
}

/// What every node is like before anything is measured, and what Slurm says of it.
pub fn preflight(bench: &mut Bench) -> Result<(), Stop> {
    let raw = bench.raw();
    if bench.torch.missing.is_none() {
        let device = if bench.torch.device == Device::Cuda { "cuda" } else { "cpu" };
        write(&raw.join("torch.txt"), &format!("{device} {}\n", bench.torch.gpus))?;
    }
    if let Some(text) = slurm::neighbours(&bench.job, &bench.nodes) {
        write(&raw.join("slurm.txt"), &text)?;
    }
    let script = bench.parts.join("payload/preflight.sh").display().to_string();
    let healthcheck = bench.clustermax.with_file_name("clustermax-healthcheck").display().to_string();
    let out = raw.display().to_string();
    let mut step = bench.srun(1);
    // Where the payloads will run: inside of a container, where there is one.
    step.arg("--mpi=none").args(bench.launch.enter(&[&bench.results, &bench.parts], &bench.parts));
    if bench.launch.container.is_some() {
        step.args(["bash", &script, &out, "", "yes"]);
        // The program that reads NVML is not in the image.
        let mut gpus = bench.srun(1);
        gpus.args(["--mpi=none", "bash", &script, &out, &healthcheck, "gpus"]);
        bench.run(gpus, None)?;
    } else {
        step.args(["bash", &script, &out, &healthcheck, "no"]);
    }
    match bench.run(step, Some(&raw.join("facts.txt")))? {
        0 => Ok(()),
        code => Err(Stop::Failed(code, None)),
    }
}

/// The program itself, one task a node.
pub fn inventory(bench: &mut Bench) -> Result<(), Stop> {
    let out = bench.raw().join("%n.json").display().to_string();
    bench.on_every_node(&bench.clustermax.clone(), &["audit", "--scope", "inventory", "--out", &out])
}

/// Of the cluster here, of the nodes by one task a node, at the same time.
pub fn audit(bench: &mut Bench) -> Result<(), Stop> {
    let mut command = Command::new(&bench.clustermax);
    command
        .args(["audit", "--scope", "cluster", "--nodes", &bench.nodes.join(","), "--out"])
        .arg(bench.raw().join("cluster.json"));
    bench.configure(&mut command);
    let cluster = bench.spawn(command, None)?;
    let out = bench.raw().join("node-%n.json").display().to_string();
    let nodes = bench.on_every_node(&bench.clustermax.clone(), &["audit", "--scope", "node", "--out", &out]);
    match bench.wait(cluster)? {
        0 => nodes,
        code => Err(Stop::Failed(code, None)),
    }
}

/// Dense matrix multiplication on every rank, then its memory. Memory needs all cores of the node.
pub fn gemm(bench: &mut Bench) -> Result<(), Stop> {
    let seconds = bench.sizes().gemm;
    bench.payload("gemm.py", &["--seconds".to_owned(), seconds.to_string()])?;
    let seconds = format!("{:.1}", (f64::from(seconds) / 20.0).clamp(0.2, 5.0));
    bench.payload("memory.py", &["--threads", "0", "--seconds", &seconds].map(str::to_owned))
}

/// A checkpoint that is cut over all ranks. It lies beside `raw/`, where nothing is read as evidence.
pub fn checkpoint(bench: &mut Bench) -> Result<(), Stop> {
    let folder = bench.results.join("checkpoint.tmp");
    let (megabytes, repeats, seconds) = match bench.profile {
        Profile::Demo => (16, "1", "10"),
        Profile::Smoke => (32, "2", "20"),
        Profile::Quick => (1000, "3", "300"),
        Profile::Acceptance | Profile::Full => (4000, "3", "600"),
    };
    let megabytes = (megabytes / bench.shrink).max(16).to_string();
    let failed = |what: String| Stop::Failed(2, Some(what));
    // A killed run may have left one.
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .map_err(|error| failed(format!("cannot remove {}: {error}", folder.display())))?;
    }
    fs::create_dir(&folder).map_err(|error| {
        failed(format!("cannot make {}: {error}; give --results a folder you may write to", folder.display()))
    })?;
    let args = ["--folder", &folder.display().to_string(), "--megabytes", &megabytes, "--repeats", repeats]
        .map(str::to_owned);
    let more = ["--seconds", seconds, "--timeout", "300"].map(str::to_owned);
    let ended = bench.payload("checkpoint.py", &[&args[..], &more[..]].concat());
    let _ = fs::remove_dir_all(&folder);
    ended
}

/// PUT and GET of objects on every node at once. Credentials reach the steps by their environment.
pub fn s3(bench: &mut Bench) -> Result<(), Stop> {
    crate::s3::Target::of(None, None, None).map_err(Stop::Unavailable)?;
    let out = bench.raw().join("%n.json").display().to_string();
    let seconds = bench.sizes().fio.to_string();
    bench.on_every_node(&bench.clustermax.clone(), &["s3-bench", "--out", &out, "--seconds", &seconds])
}

/// Faults need root and a place outside of this job: what `clustermax inject` left is read, nothing is injected here.
pub fn faults(bench: &mut Bench) -> Result<(), Stop> {
    let left = fs::read_dir(bench.raw()).into_iter().flatten().flatten();
    if left.map(|entry| entry.path()).any(|path| path.extension().is_some_and(|end| end == "json")) {
        return Ok(());
    }
    Err(Stop::Unavailable(format!(
        "nothing was injected: that needs root and a node without this job: clustermax inject xid79 --node {} --results {}",
        bench.nodes.first().map_or("NODE", String::as_str),
        bench.results.display()
    )))
}
