//! Starting a container from srun (Pyxis), with an image that the operator names: a local squashfs, or one of a registry, which
//! enroot imports first.

use std::time::{Duration, Instant};

use super::system;
use super::{Item, Verdict};

const S: &str = "audit";
/// Longest time for import and start.
const LIMIT: Duration = Duration::from_secs(300);

/// Whether an image lies in a file: then nothing is imported.
fn is_file(image: &str) -> bool {
    image.starts_with(['/', '.'])
}

/// One step of `true` in the image, on one node. `options` choose node and partition.
pub fn start(image: &str, node: &str, options: &[String]) -> Vec<Item> {
    let mut command = std::process::Command::new("srun");
    command.args(["--quiet", "--mpi=none", "-N1", "-n1", "-w", node]).args(options);
    command.arg(format!("--container-image={image}")).args(["--", "true"]);
    let begin = Instant::now();
    let ran = system::run_command(&mut command, LIMIT, None);
    items(image, node, ran, begin.elapsed().as_secs_f64())
}

fn items(image: &str, node: &str, ran: Result<system::Ran, String>, seconds: f64) -> Vec<Item> {
    let by = format!("srun -N1 -w {node} --container-image={image} true");
    let ended = match &ran {
        Ok(ran) if ran.ok() => Ok(()),
        Ok(ran) if ran.code.is_none() => Err(format!("no container within {} s", LIMIT.as_secs())),
        Ok(ran) => Err(ran.complaint()),
        Err(why) => Err(why.clone()),
    };
    let seen = match &ended {
        Ok(()) => format!("{image} started on {node} in {seconds:.1} s"),
        Err(why) => format!("{image} did not start on {node}: {why}"),
    };
    let mend = "install Pyxis and enroot, with a cache that users can write to (ENROOT_CACHE_PATH, ENROOT_DATA_PATH)";
    let flag = |metric: &str| Item::flag(S, metric, ended.is_ok(), true, Verdict::Fail, seen.clone());
    let mut items = vec![flag("slurm_container_option").param("by", "start")];
    items.push(
        match &ended {
            Ok(()) => {
                Item::value(S, "container_start_seconds", seconds, seen.clone()).param("cache", "first")
            }
            Err(_) => Item::unknown(S, "container_start_seconds", seen.clone()).param("cache", "first"),
        }
        .unit("s")
        .on(node),
    );
    if !is_file(image) {
        items.push(flag("tool_present").param("tool", "enroot").param("by", "import").on(node));
    }
    items.into_iter().map(|item| item.by(&by).mend(mend)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::State;

    fn ran(code: i32, err: &str) -> Result<system::Ran, String> {
        Ok(system::Ran { code: Some(code), out: String::new(), err: err.to_owned() })
    }

    #[test]
    fn a_container_that_starts_proves_pyxis_and_an_image_of_a_registry_enroots_import() {
        let found = items("docker://ubuntu:24.04", "n1", ran(0, ""), 12.5);
        let values: Vec<(&str, Option<f64>)> =
            found.iter().map(|item| (item.metric.as_str(), item.value)).collect();
        assert_eq!(
            values,
            [
                ("slurm_container_option", Some(1.0)),
                ("container_start_seconds", Some(12.5)),
                ("tool_present", Some(1.0))
            ]
        );
        assert_eq!(items("/images/u.sqsh", "n1", ran(0, ""), 1.0).len(), 2, "nothing was imported");
    }

    #[test]
    fn a_container_that_does_not_start_says_why() {
        let found = items(
            "/images/u.sqsh",
            "n1",
            ran(255, "srun: unrecognized option '--container-image=/images/u.sqsh'"),
            0.1,
        );
        assert_eq!((found[0].value, found[0].verdict), (Some(0.0), Verdict::Fail));
        assert!(found[0].observed.contains("unrecognized option"), "{:?}", found[0]);
        assert_eq!(found[1].state, State::Unknown);
    }
}
