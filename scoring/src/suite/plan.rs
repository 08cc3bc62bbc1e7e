//! What the suite would run: its stages in order, how long each may take, and what counts as success.
//!
//! `clustermax suite plan` prints this before anything runs, so that nobody has to guess afterwards what was meant.

use serde_json::{Value, json};

use super::bench::{Bench, Stop};
use super::{burnin, collectives, inference, lifecycle, network, stages, storage, train};
use crate::methodology::Methodology;

/// How long and how thoroughly the suite measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Profile {
    /// Small sizes, a minute or two
    Demo,
    /// Longer, with a burn-in of two minutes; below ten minutes in all
    Smoke,
    /// What a day's visit needs: full sizes, a burn-in of half an hour
    Quick,
    /// What reviewers run: full sizes, a burn-in of eight hours
    Full,
    /// Full sizes and a burn-in of an hour, judged line by line by --contract
    Acceptance,
}

/// Sizes that depend on the profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Largest message of torch.distributed, bytes.
    pub message: u64,
    /// Largest message of nccl-tests, in its own notation.
    pub nccl_message: &'static str,
    /// Seconds of matrix products.
    pub gemm: u32,
    /// Training steps.
    pub steps: u32,
    /// Seconds a fio job runs.
    pub fio: u32,
    /// Client counts of the shared file system.
    pub clients: &'static [u32],
    /// MiB of a client's file, where there is room.
    pub file_mib: u32,
    /// Seconds of lasting writes, and of lasting reads; 0: none.
    pub endurance: u32,
    /// Small files a node.
    pub files: u32,
    /// Seconds of burn-in; 0: none.
    pub burnin: u32,
}

impl Profile {
    /// As on the command line and in `run.json`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Demo => "demo",
            Self::Smoke => "smoke",
            Self::Quick => "quick",
            Self::Full => "full",
            Self::Acceptance => "acceptance",
        }
    }

    /// The profile's sizes. nccl-tests to 16 GiB, 8 hours: what reviewers run.
    pub fn sizes(self) -> Sizes {
        const CLIENTS: &[u32] = &[1, 2, 4, 8, 16, 32];
        let of = |message, nccl_message, gemm, steps, fio, burnin| Sizes {
            message,
            nccl_message,
            gemm,
            steps,
            fio,
            clients: &[],
            file_mib: 32,
            endurance: 0,
            files: 200,
            burnin,
        };
        let shared = |clients, file_mib, endurance, files, sizes| Sizes {
            clients,
            file_mib,
            endurance,
            files,
            ..sizes
        };
        match self {
            Self::Demo => of(16 << 20, "16M", 2, 20, 1, 0),
            Self::Smoke => shared(&[1, 8], 32, 5, 1000, of(64 << 20, "1G", 55, 60, 2, 120)),
            Self::Quick => shared(CLIENTS, 256, 120, 10_000, of(1 << 30, "16G", 120, 200, 30, 1800)),
            // 7.5 minutes of writes and of reads: what reviewers take.
            Self::Acceptance => shared(CLIENTS, 1024, 450, 20_000, of(1 << 30, "16G", 300, 500, 60, 3600)),
            Self::Full => shared(CLIENTS, 1024, 450, 20_000, of(1 << 30, "16G", 600, 1000, 60, 28800)),
        }
    }

    /// Its stages, in order.
    pub fn stages(self) -> impl Iterator<Item = &'static Stage> {
        STAGES.iter().filter(move |stage| stage.limit(self) > 0)
    }
}

impl Sizes {
    /// The same profile in less time, to see that it runs to its end: every size and time by `by`, but never nothing.
    #[must_use]
    pub fn shrunk(self, by: u32) -> Self {
        let by = by.max(1);
        let of = |size: u32| if size == 0 { 0 } else { (size / by).max(1) };
        Self {
            message: (self.message / u64::from(by)).max(1 << 20),
            nccl_message: if by == 1 { self.nccl_message } else { "16M" },
            gemm: of(self.gemm).max(self.gemm.min(2)),
            steps: of(self.steps).max(self.steps.min(10)),
            fio: of(self.fio),
            file_mib: of(self.file_mib).max(self.file_mib.min(32)),
            endurance: of(self.endurance).max(self.endurance.min(5)),
            files: of(self.files).max(self.files.min(200)),
            burnin: of(self.burnin).max(self.burnin.min(30)),
            ..self
        }
    }
}

/// One measurement of the suite.
pub struct Stage {
    /// As on the command line; the folder below `raw/`.
    pub name: &'static str,
    /// What it measures, half a sentence.
    pub measures: &'static str,
    /// Without these it is unavailable.
    pub needs: &'static str,
    /// Longest time in seconds with demo, smoke, quick, acceptance and full; 0: not part of the profile.
    limits: [u32; 5],
    /// Metrics that decide whether it went well, and the rule for each.
    pub success: &'static [(&'static str, &'static str)],
    /// Runs it.
    pub body: fn(&mut Bench) -> Result<(), Stop>,
}

impl Stage {
    /// Longest time with a profile, seconds; 0: not part of it.
    pub fn limit(&self, profile: Profile) -> u32 {
        let [demo, smoke, quick, acceptance, full] = self.limits;
        match profile {
            Profile::Demo => demo,
            Profile::Smoke => smoke,
            Profile::Quick => quick,
            Profile::Acceptance => acceptance,
            Profile::Full => full,
        }
    }
}

/// All stages, in the order the suite runs them. `lifecycle` comes first: it measures the job's first step.
pub static STAGES: &[Stage] = &[
    Stage {
        name: "lifecycle",
        measures: "the job's first step against later ones, our own prolog, start of containers, import of torch cold and warm, \
                   install of a package, boot to slurmd",
        needs: "",
        limits: [60, 60, 300, 300, 300],
        success: &[("prolog_seconds", "measured on every node")],
        body: lifecycle::lifecycle,
    },
    Stage {
        name: "preflight",
        measures: "what would make the figures mislead: GPUs, limits, devices, other jobs, heat and clocks of every node",
        needs: "",
        limits: [60, 60, 120, 120, 120],
        success: &[("guard", "= 1 on every node")],
        body: stages::preflight,
    },
    Stage {
        name: "inventory",
        measures: "processors, memory, GPUs, PCIe widths and versions of every node",
        needs: "",
        limits: [60, 60, 120, 120, 120],
        success: &[("gpu_missing", "= 0 on every node")],
        body: stages::inventory,
    },
    Stage {
        name: "audit",
        measures: "set-up of every node and of Slurm",
        needs: "",
        limits: [90, 90, 300, 300, 300],
        success: &[],
        body: stages::audit,
    },
    Stage {
        name: "network",
        measures: "copies between host and GPUs, RDMA of every device, TCP and ping between neighbouring nodes",
        needs: "nvbandwidth, perftest, iperf3 or ping",
        limits: [60, 120, 900, 900, 900],
        success: &[("ping_loss", "= 0"), ("rdma_bandwidth", "measured for every active device")],
        body: network::network,
    },
    Stage {
        name: "collectives",
        measures: "bus bandwidth over message sizes, on 1, 2, 4 ... nodes and in pairs, every result checked",
        needs: "torch with gloo or NCCL, or nccl-tests",
        limits: [120, 240, 3600, 3600, 7200],
        success: &[
            ("wrong_values", "= 0"),
            ("busbw", "measured for every collective that the library has"),
            ("stragglers", "= 0"),
        ],
        body: collectives::collectives,
    },
    Stage {
        name: "gemm",
        measures: "matrix products, memory bandwidth and copies between host and GPU, bit for bit the same each time",
        needs: "torch",
        limits: [60, 150, 600, 900, 1200],
        success: &[
            ("gemm", "measured on every rank"),
            ("gemm_wrong", "= 0"),
            ("memory_bandwidth", "measured on every rank"),
            ("memory_wrong", "= 0"),
            ("stragglers", "= 0"),
        ],
        body: stages::gemm,
    },
    Stage {
        name: "train",
        measures: "data-parallel training of a Llama, dense and as a mixture of experts, on seeded tokens",
        needs: "torch",
        limits: [120, 240, 1800, 3600, 3600],
        success: &[
            ("tokens_per_second", "measured"),
            ("loss_in_band", "= 1"),
            ("ranks_out_of_band", "= 0"),
            ("replicas_differing", "= 0"),
            ("stragglers", "= 0"),
        ],
        body: train::train,
    },
    Stage {
        name: "inference",
        measures: "prefill, decode and tensor-parallel decode of a Llama, by torch alone; on GPUs vLLM or SGLang as well",
        needs: "torch",
        limits: [60, 300, 1200, 1800, 1800],
        success: &[("inference_tokens_per_second", "measured for prefill, decode and tensor_parallel")],
        body: inference::inference,
    },
    Stage {
        name: "storage",
        measures: "fio in the results folder (shared) and the temporary folder (local); the shared one by 1 to 32 clients, under \
                   lasting load, with small files and by imports of torch on a growing number of nodes",
        needs: "fio",
        limits: [120, 180, 1800, 3600, 3600],
        success: &[
            ("fio_bandwidth", "measured on every node and target"),
            ("metadata_rate", "measured on every node"),
        ],
        body: storage::storage,
    },
    Stage {
        name: "checkpoint",
        measures: "a training checkpoint cut over all ranks, saved to the results folder and loaded back, bit for bit",
        needs: "torch; its torch.distributed.checkpoint for the way that training takes",
        limits: [60, 120, 600, 1800, 1800],
        success: &[("checkpoint_wrong", "= 0"), ("checkpoint_bandwidth", "measured for save and load")],
        body: stages::checkpoint,
    },
    Stage {
        name: "s3",
        measures: "PUT and GET of small and large objects, from every node at once, every object checked",
        needs: "AWS_ENDPOINT_URL_S3, CLUSTERMAX_S3_BUCKET, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        limits: [60, 120, 600, 900, 900],
        success: &[("s3_errors", "= 0"), ("s3_wrong_objects", "= 0")],
        body: stages::s3,
    },
    Stage {
        name: "burnin",
        measures: "products and a collective at the same time on all ranks, every result checked; heat, power, clocks, links and \
                   kernel lines of every second",
        needs: "torch",
        limits: [0, 240, 2400, 4200, 30000],
        success: &[("burnin_wrong", "= 0"), ("stragglers", "= 0")],
        body: burnin::burnin,
    },
    Stage {
        name: "faults",
        measures: "how long an injected fault takes to be seen, drained, alerted and repaired",
        needs: "clustermax inject, run by root in the meantime or before --resume",
        limits: [10, 10, 10, 10, 10],
        success: &[("fault_drained", "= 1"), ("fault_control_quiet", "= 1")],
        body: stages::faults,
    },
];

/// A stage by its name.
pub fn stage(name: &str) -> Option<&'static Stage> {
    STAGES.iter().find(|stage| stage.name == name)
}

/// Criteria of the rating that a stage's metrics decide.
pub fn criteria<'a>(stage: &'a Stage, methodology: &'a Methodology) -> impl Iterator<Item = &'a str> {
    methodology
        .criteria
        .iter()
        .filter(move |criterion| {
            criterion.measures.iter().any(|measure| {
                methodology.metrics.get(&measure.metric).is_some_and(|metric| metric.stage == stage.name)
            })
        })
        .map(|criterion| criterion.id.as_str())
}

/// Longest time of all these stages together, seconds.
pub fn longest<'a>(profile: Profile, stages: impl IntoIterator<Item = &'a Stage>) -> u32 {
    stages.into_iter().map(|stage| stage.limit(profile)).sum()
}

/// `suite plan --json`
pub fn to_json(profile: Profile, stages: &[&Stage], methodology: &Methodology) -> Value {
    let sizes = profile.sizes();
    json!({
        "schema": "clustermax-plan/1",
        "profile": profile.word(),
        "longest_seconds": longest(profile, stages.iter().copied()),
        "sizes": {
            "message_bytes": sizes.message, "nccl_tests_message": sizes.nccl_message, "gemm_seconds": sizes.gemm,
            "train_steps": sizes.steps, "fio_seconds": sizes.fio,
            "storage_clients": sizes.clients, "endurance_seconds": sizes.endurance, "small_files": sizes.files,
            "burnin_seconds": sizes.burnin,
        },
        "stages": stages.iter().map(|stage| json!({
            "stage": stage.name,
            "measures": stage.measures,
            "needs": stage.needs,
            "longest_seconds": stage.limit(profile),
            "success": stage.success.iter().map(|(metric, rule)| json!({"metric": metric, "rule": rule})).collect::<Vec<_>>(),
            "criteria": criteria(stage, methodology).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
    })
}

/// `suite plan` for a person.
pub fn to_text(profile: Profile, stages: &[&Stage], methodology: &Methodology) -> String {
    let mut text = format!(
        "profile {}: {} stages, at most {} in all; submit it with --time={}\n",
        profile.word(),
        stages.len(),
        length(longest(profile, stages.iter().copied())),
        longest(profile, stages.iter().copied()).div_ceil(60) + 5
    );
    for stage in stages {
        text.push_str(&format!(
            "\n{} (at most {}): {}\n",
            stage.name,
            length(stage.limit(profile)),
            stage.measures
        ));
        for line in criteria_lines(stage) {
            text.push_str(&format!("{}\n", line.strip_prefix("  ").unwrap_or(&line)));
        }
        let criteria: Vec<&str> = criteria(stage, methodology).collect();
        if !criteria.is_empty() {
            text.push_str(&format!("  decides  {}\n", criteria.join(" ")));
        }
    }
    text
}

/// What a stage needs and what counts as success, for a person, before it runs.
pub fn criteria_lines(stage: &Stage) -> Vec<String> {
    let mut lines = Vec::new();
    if !stage.needs.is_empty() {
        lines.push(format!("    needs    {}; without: unavailable, never zero", stage.needs));
    }
    if stage.success.is_empty() {
        lines.push("    success  it ends; what it finds is judged criterion by criterion".to_owned());
    }
    lines.extend(stage.success.iter().map(|(metric, rule)| format!("    success  {metric} {rule}")));
    lines
}

/// Seconds for a person: `45 s`, `12 min`, `8 h 20 min`.
pub fn length(seconds: u32) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{} h {} min", seconds / 3600, (seconds % 3600).div_ceil(60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;

    #[test]
    fn every_stage_can_be_collected_and_its_success_names_known_metrics() {
        let methodology = Methodology::built_in().unwrap();
        for stage in STAGES {
            assert!(crate::collect::STAGES.contains(&stage.name), "{} has no reader", stage.name);
            for (metric, _) in stage.success {
                assert!(methodology.metrics.contains_key(*metric), "{}: unknown metric {metric}", stage.name);
            }
        }
        for name in crate::collect::STAGES {
            assert!(stage(name).is_some(), "{name} is collected and never run");
        }
    }

    #[test]
    fn every_stage_has_a_script_of_its_own_and_they_differ_in_its_name_only() {
        let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../batch-scripts"));
        let read = |name: &str| std::fs::read_to_string(folder.join(format!("{name}.sbatch"))).unwrap();
        let plain = |name: &str| -> Vec<String> {
            let text = read(name);
            assert!(text.ends_with(&format!("\nexec clustermax stage {name} \"$@\"\n")), "{text}");
            let about = format!("# Stage {name}: ");
            let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with(&about)).collect();
            assert_eq!(lines.len() + 1, text.lines().count(), "{name}.sbatch says once what it measures");
            lines.iter().map(|line| line.replace(name, "STAGE")).collect()
        };
        let scripts = std::fs::read_dir(folder).unwrap().flatten();
        let count =
            scripts.filter(|entry| entry.path().extension().is_some_and(|end| end == "sbatch")).count();
        assert_eq!(count, STAGES.len());
        for stage in STAGES {
            assert_eq!(plain(stage.name), plain("gemm"), "{}", stage.name);
        }
    }

    #[test]
    fn a_longer_profile_never_leaves_out_a_stage() {
        for stage in STAGES {
            for pair in Profile::value_variants().windows(2) {
                assert!(
                    stage.limit(pair[0]) == 0 || stage.limit(pair[1]) > 0,
                    "{} is in {} and not in {}",
                    stage.name,
                    pair[0].word(),
                    pair[1].word()
                );
            }
        }
    }

    #[test]
    fn a_burn_in_fits_its_limit() {
        let limit = |profile| stage("burnin").map_or(0, |stage| stage.limit(profile));
        for profile in Profile::value_variants() {
            let burnin = profile.sizes().burnin;
            assert!(burnin == 0 || burnin + 60 <= limit(*profile), "{}", profile.word());
        }
    }

    /// What a profile may take is the sum of its stages, each with a deadline.
    #[test]
    fn every_stage_of_a_profile_has_a_deadline_and_the_plan_adds_them_up() {
        let methodology = Methodology::built_in().unwrap();
        for (profile, hours) in [(Profile::Quick, 5.0), (Profile::Acceptance, 8.0), (Profile::Full, 16.0)] {
            let stages: Vec<&Stage> = profile.stages().collect();
            assert_eq!(stages.len(), STAGES.len(), "{}: all stages", profile.word());
            let plan = to_json(profile, &stages, &methodology);
            let rows = plan["stages"].as_array().unwrap();
            let limits: Vec<u64> = rows.iter().map(|row| row["longest_seconds"].as_u64().unwrap()).collect();
            assert!(limits.iter().all(|limit| *limit > 0), "{plan}");
            assert_eq!(plan["longest_seconds"].as_u64().unwrap(), limits.iter().sum::<u64>());
            assert!((limits.iter().sum::<u64>() as f64) < hours * 3600.0, "{}", profile.word());
            assert!(rows.iter().all(|row| {
                row["success"].as_array().is_some_and(|rules| !rules.is_empty() || row["stage"] == "audit")
            }));
        }
    }

    #[test]
    fn a_shrunk_profile_measures_everything_briefly() {
        let full = Profile::Full.sizes();
        assert_eq!(full.shrunk(1), full);
        let small = full.shrunk(1000);
        assert_eq!((small.gemm, small.steps, small.fio, small.endurance, small.burnin), (2, 10, 1, 5, 30));
        assert_eq!(Profile::Demo.sizes().shrunk(1000).burnin, 0, "what a profile lacks stays away");
    }

    #[test]
    fn lengths_read_well() {
        for (seconds, text) in
            [(0, "0 s"), (119, "119 s"), (120, "2 min"), (601, "11 min"), (30000, "8 h 20 min")]
        {
            assert_eq!(length(seconds), text);
        }
    }
}
