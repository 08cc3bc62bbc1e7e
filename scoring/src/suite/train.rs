//! Stage `train`: our own models on all nodes and on fewer, their loss, and torchtitan on GPUs.

use std::fs;
use std::path::Path;

use super::bench::{Bench, Device, Stop};
use super::plan::Profile;

/// Numbers of nodes below all of them that show how training scales: powers of two, the largest first and few of them.
fn parts(nodes: usize, most: usize) -> Vec<usize> {
    let mut found: Vec<usize> =
        (0..usize::BITS).map(|bit| 1usize << bit).take_while(|count| *count < nodes).collect();
    // One node is what the others are compared with.
    while found.len() > most.max(1) {
        found.remove(1);
    }
    found
}

/// The most nodes for whose ranks there is a reference curve; all when there is none for any.
fn compared(nodes: usize, per_node: u32, known: &[i64]) -> usize {
    let ranks = |count: usize| count as i64 * i64::from(per_node);
    (1..=nodes).rev().find(|count| known.contains(&ranks(*count))).unwrap_or(nodes)
}

/// Steps of torchtitan and the number of smaller runs.
fn length(profile: Profile) -> (u32, usize) {
    match profile {
        Profile::Demo => (10, 0),
        Profile::Smoke => (10, 2),
        Profile::Quick => (50, 3),
        Profile::Acceptance | Profile::Full => (100, 6),
    }
}

/// Data-parallel training steps of a Llama, dense and with experts.
///
/// # Errors
/// Without torch, or when a run fails; torchtitan's failure is kept until all others have run.
pub fn train(bench: &mut Bench) -> Result<(), Stop> {
    let steps = bench.sizes().steps;
    let all = bench.nodes.clone();
    let args = |model: &str, steps: u32| -> Vec<String> {
        ["--model", model, "--steps", &steps.to_string()].map(str::to_owned).into()
    };
    for model in ["llama", "moe"] {
        let alone = ["--alone", "10"].map(str::to_owned);
        bench.payload("train.py", &[&args(model, steps)[..], &alone[..]].concat())?;
    }
    let cuda = bench.torch.device == Device::Cuda;
    // The model that GPUs are measured with is too large for a reference curve; on CPUs the measured one has it. Together the ranks
    // prove the mean that the collectives take; that each of them computes rightly was proven above, alone.
    if cuda {
        for (model, name) in [("llama", "loss"), ("moe", "loss-moe")] {
            let more = ["--shape", "tiny", "--name", name].map(str::to_owned);
            let count = compared(all.len(), bench.ranks_per_node(), &crate::collect::loss::ranks());
            let few = all.get(..count).unwrap_or(&all).to_vec();
            bench.payload_on(&few, "train.py", &[&args(model, 10)[..], &more[..]].concat())?;
        }
    }
    let (titan, smaller) = length(bench.profile);
    if smaller > 0 {
        for count in parts(all.len(), smaller) {
            let more = ["--name", &format!("nodes-{count}")].map(str::to_owned);
            let few = all.get(..count).unwrap_or(&all).to_vec();
            bench.payload_on(&few, "train.py", &[&args("llama", steps.min(60))[..], &more[..]].concat())?;
        }
    }
    if !cuda {
        return write(bench, "torchtitan has no CPU path: the suite's own models stand in its place\n");
    }
    torchtitan(bench, titan)
}

fn write(bench: &Bench, why: &str) -> Result<(), Stop> {
    let path = bench.raw().join("titan.unavailable.txt");
    fs::write(&path, why).map_err(|error| {
        Stop::Failed(2, Some(format!("cannot write {}: {error}; make it writable", path.display())))
    })
}

/// torchtitan as one task a GPU. It runs beside `raw/`, where nothing is read as evidence.
fn torchtitan(bench: &mut Bench, steps: u32) -> Result<(), Stop> {
    let python = bench.python.display().to_string();
    if !super::slurm::has_module(&python, "torchtitan") {
        let why =
            format!("torchtitan is not installed for {python}: the suite's own models stand in its place\n");
        return write(bench, &why);
    }
    let folder = bench.results.join("titan.tmp");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder)
        .map_err(|error| Stop::Failed(2, Some(format!("cannot make {}: {error}", folder.display()))))?;
    let mut ended = Ok(());
    for model in ["llama", "moe"] {
        let one = bench.payload("titan.py", &titan_args(model, &folder, steps));
        match one {
            // What the program lacks is said in its log; the other model may run all the same.
            Err(Stop::Failed(..)) => ended = one,
            Err(_) => {
                ended = one;
                break;
            }
            Ok(()) => {}
        }
    }
    let _ = fs::remove_dir_all(&folder);
    ended
}

/// Options of `titan.py`. NCCL's set-up and the first compilation take minutes.
fn titan_args(model: &str, folder: &Path, steps: u32) -> Vec<String> {
    let folder = folder.display().to_string();
    let steps = steps.to_string();
    ["--model", model, "--folder", &folder, "--steps", &steps, "--timeout", "600"].map(str::to_owned).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loss_is_compared_on_as_many_nodes_as_have_a_curve() {
        let known = [1, 2, 3, 4, 8, 16];
        assert_eq!(compared(1, 8, &known), 1);
        assert_eq!(compared(100, 8, &known), 2);
        assert_eq!(compared(4, 4, &known), 4);
        assert_eq!(compared(3, 5, &known), 3);
    }

    #[test]
    fn scaling_begins_at_one_node_and_ends_below_all() {
        assert_eq!(parts(1, 6), [0usize; 0]);
        assert_eq!(parts(4, 6), [1, 2]);
        assert_eq!(parts(8, 6), [1, 2, 4]);
        assert_eq!(parts(6, 6), [1, 2, 4]);
        // 1,000 nodes: the smallest and the largest.
        assert_eq!(parts(1000, 3), [1, 256, 512]);
        assert_eq!(parts(1000, 0), [1]);
    }
}
