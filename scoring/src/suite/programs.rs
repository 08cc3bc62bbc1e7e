//! Where nccl-tests and rccl-tests are, how they were built, and every setting that they will meet.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::launch::Container;
use super::nccl::Inspector;

/// Where the programs are: what `payload/nccl-facts.sh` said on each node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// By node and collective: the file, and whether it was built with MPI.
    pub programs: BTreeMap<String, BTreeMap<String, (PathBuf, bool)>>,
    /// NCCL Inspector's library by node.
    pub inspectors: BTreeMap<String, PathBuf>,
    /// Some node has a GPU's device file.
    pub gpus: bool,
    /// Node, name, value and origin: a file, or `environment`.
    pub settings: Vec<[String; 4]>,
}

impl Facts {
    /// Lines `cmx-nccl NODE KEY VALUES`, parted by tabs; anything else is another program's.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let mut facts = Self::default();
        for line in text.lines() {
            match line.split('\t').collect::<Vec<_>>()[..] {
                ["cmx-nccl", node, "program", collective, file, built] => {
                    let of_node = facts.programs.entry(node.to_owned()).or_default();
                    of_node.insert(collective.to_owned(), (PathBuf::from(file), built == "mpi"));
                }
                ["cmx-nccl", node, "inspector", file] => {
                    facts.inspectors.insert(node.to_owned(), PathBuf::from(file));
                }
                ["cmx-nccl", _, "device", device] => facts.gpus |= device != "none",
                ["cmx-nccl", node, "setting", name, value, origin] => {
                    facts.settings.push([node, name, value, origin].map(str::to_owned));
                }
                _ => {}
            }
        }
        facts
    }

    /// The program of a collective: the same file on every node.
    ///
    /// # Errors
    /// The clause that says where it is not.
    pub fn program(&self, collective: &str, nodes: &[String]) -> Result<(PathBuf, bool), String> {
        let on = |node: &String| self.programs.get(node).and_then(|all| all.get(collective));
        let found = nodes.iter().find_map(on).ok_or_else(|| format!("there is no {collective}_perf"))?;
        let without: Vec<&str> =
            nodes.iter().filter(|node| on(node) != Some(found)).map(String::as_str).collect();
        if without.is_empty() {
            Ok(found.clone())
        } else {
            Err(format!(
                "{} is not the same on all nodes, or not there ({})",
                found.0.display(),
                without.join(",")
            ))
        }
    }

    /// NCCL Inspector's library: the same file on every node.
    #[must_use]
    pub fn inspector(&self, nodes: &[String]) -> Inspector {
        let Some(found) = nodes.iter().find_map(|node| self.inspectors.get(node)) else {
            return Inspector::None(
                "there is no libnccl-profiler-inspector.so among the library folders, and NCCL_PROFILER_PLUGIN names none"
                    .to_owned(),
            );
        };
        let without: Vec<&str> = nodes
            .iter()
            .filter(|node| self.inspectors.get(*node) != Some(found))
            .map(String::as_str)
            .collect();
        if without.is_empty() {
            Inspector::At(found.clone())
        } else {
            Inspector::None(format!(
                "{} is not the same on all nodes, or not there ({})",
                found.display(),
                without.join(",")
            ))
        }
    }

    /// Lines of `nccl-settings.tsv`: name, value, origin, and the nodes, unless it is all of them. `own` is the job's
    /// environment, `container` where the programs run.
    #[must_use]
    pub fn settings(
        &self,
        nodes: &[String],
        own: impl Fn(&str) -> Option<String>,
        container: Option<&Container>,
    ) -> String {
        let mut all: BTreeMap<(&str, &str, String), BTreeSet<&str>> = BTreeMap::new();
        for [node, name, value, origin] in &self.settings {
            let origin = match (origin.as_str(), container) {
                ("environment", _) if own(name).as_ref() == Some(value) => "the job's environment".to_owned(),
                ("environment", None) => "TaskProlog or a SPANK plug-in".to_owned(),
                ("environment", Some(_)) => "the container's image, TaskProlog or a SPANK plug-in".to_owned(),
                (file, None) => file.to_owned(),
                (file, Some(_)) => format!("{file} in the container"),
            };
            all.entry((name, value, origin)).or_default().insert(node);
        }
        all.into_iter()
            .map(|((name, value, origin), on)| {
                let everywhere = nodes.iter().all(|node| on.contains(node.as_str()));
                let on =
                    if everywhere { String::new() } else { on.into_iter().collect::<Vec<_>>().join(",") };
                format!("{name}\t{value}\t{origin}\t{on}\n")
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::launch::Runtime;
    use super::*;

    fn nodes(count: usize) -> Vec<String> {
        (1..=count).map(|n| format!("n{n}")).collect()
    }

    const FACTS: &str = "clustermax: a plug-in's line\n\
        cmx-nccl\tn1\tprogram\tall_reduce\t/opt/a/all_reduce_perf_mpi\tmpi\n\
        cmx-nccl\tn1\tprogram\tgather\t/opt/a/gather_perf\tplain\n\
        cmx-nccl\tn1\tdevice\tnvidia\n\
        cmx-nccl\tn1\tsetting\tNCCL_IB_HCA\tmlx5\t/etc/nccl.conf\n\
        cmx-nccl\tn1\tsetting\tNCCL_ALGO\tRing\tenvironment\n\
        cmx-nccl\tn2\tprogram\tall_reduce\t/opt/a/all_reduce_perf_mpi\tmpi\n\
        cmx-nccl\tn2\tdevice\tnvidia\n\
        cmx-nccl\tn2\tsetting\tNCCL_IB_HCA\tmlx5\t/etc/nccl.conf\n\
        cmx-nccl\tn2\tsetting\tNCCL_TOPO_FILE\t/t.xml\tenvironment\n";

    #[test]
    fn programs_are_the_same_on_all_nodes_or_not_used() {
        let (facts, both) = (Facts::of(FACTS), nodes(2));
        assert_eq!(
            facts.program("all_reduce", &both),
            Ok((PathBuf::from("/opt/a/all_reduce_perf_mpi"), true))
        );
        assert!(facts.program("gather", &both).unwrap_err().contains("(n2)"));
        assert_eq!(facts.program("alltoallv", &both).unwrap_err(), "there is no alltoallv_perf");
        assert!(facts.gpus && !Facts::of("cmx-nccl\tn1\tdevice\tnone\n").gpus);
        assert_eq!(Facts::of("cmx-nccl\tn1\tprogram\ncmx-nccl\n\t\t\n"), Facts::default());
    }

    #[test]
    fn the_inspector_is_the_same_file_on_all_nodes_or_not_used() {
        let library = "/opt/nccl/lib/libnccl-profiler-inspector.so";
        let on = |node: &str, file: &str| format!("cmx-nccl\t{node}\tinspector\t{file}\n");
        let both = nodes(2);
        let all = Facts::of(&(on("n1", library) + &on("n2", library)));
        assert_eq!(all.inspector(&both), Inspector::At(PathBuf::from(library)));
        for (text, words) in [
            (FACTS.to_owned(), "there is no libnccl-profiler-inspector.so"),
            (on("n1", library), "not there (n2)"),
            (on("n1", library) + &on("n2", "/else.so"), "(n2)"),
        ] {
            let Inspector::None(why) = Facts::of(&text).inspector(&both) else { panic!("{text}") };
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn every_setting_has_its_origin_and_where_it_is_not_everywhere_its_nodes() {
        let facts = Facts::of(FACTS);
        let own = |name: &str| (name == "NCCL_ALGO").then(|| "Ring".to_owned());
        assert_eq!(
            facts.settings(&nodes(2), own, None),
            "NCCL_ALGO\tRing\tthe job's environment\tn1\n\
             NCCL_IB_HCA\tmlx5\t/etc/nccl.conf\t\n\
             NCCL_TOPO_FILE\t/t.xml\tTaskProlog or a SPANK plug-in\tn2\n"
        );
        // A topology file that came with the image is the best-known trap of all.
        let container = Container {
            image: "x".to_owned(),
            runtime: Runtime::Pyxis,
            name: "clustermax-7-nccl".to_owned(),
            mounts: None,
        };
        let inside = facts.settings(&nodes(2), own, Some(&container));
        assert!(
            inside.contains("/t.xml\tthe container's image, TaskProlog or a SPANK plug-in\tn2"),
            "{inside}"
        );
        assert!(inside.contains("mlx5\t/etc/nccl.conf in the container\t"), "{inside}");
    }
}
