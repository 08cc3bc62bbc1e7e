//! The library as a client sees it that has nothing of ours: NVIDIA's Python bindings, nvidia-ml-py.
#![allow(clippy::unwrap_used)] // Clippy takes helpers of tests for ordinary code.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::{env, fs};

use common::Node;
use nvidia_ml_sim::model::{ClockEvent, NvLinkErrors, Process, ProcessKind, RecoveryAction};
use nvidia_ml_sim::{GPUS_ENV, GpuFile};

/// Major release the script's names are from.
const PACKAGE: &str = "nvidia-ml-py>=13,<14";

/// The folder that holds pynvml.py, found or filled once for all tests.
fn bindings() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(find_bindings)
}

/// `CLUSTERMAX_NVIDIA_ML_PY`, else `py` in cargo's target folder, filled by pip.
fn find_bindings() -> PathBuf {
    if let Some(folder) = env::var_os("CLUSTERMAX_NVIDIA_ML_PY") {
        let folder = PathBuf::from(folder);
        assert!(
            folder.join("pynvml.py").exists(),
            "CLUSTERMAX_NVIDIA_ML_PY={} holds no pynvml.py; fill it with: \
             python3 -m pip install --target {0} '{PACKAGE}'",
            folder.display()
        );
        return folder;
    }
    let target = env::current_exe().unwrap().ancestors().nth(3).unwrap().to_path_buf();
    let folder = target.join("py");
    if !folder.join("pynvml.py").exists() {
        // Into a folder of our own first: an interrupted installation must not pass for a whole one.
        let fresh = tempfile::TempDir::with_prefix_in(".py", &target).unwrap();
        let pip = Command::new("python3")
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target"])
            .arg(fresh.path().join("py"))
            .arg(PACKAGE)
            .output();
        let told = match &pip {
            Ok(output) if output.status.success() => String::new(),
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            Err(error) => error.to_string(),
        };
        assert!(
            told.is_empty(),
            "python3 -m pip could not install {PACKAGE}, which this test needs; install it where there is a \
             network and name its folder in CLUSTERMAX_NVIDIA_ML_PY. It said: {told}"
        );
        fs::create_dir_all(&folder).unwrap();
        fs::rename(fresh.path().join("py/pynvml.py"), folder.join("pynvml.py")).unwrap();
    }
    folder
}

/// The node that nvidia_ml_py.py describes.
fn node() -> Node {
    let mut file = GpuFile::h100_sxm(8, 0x3a1c, 1);
    file.driver_version = "580.95.05".to_owned();
    file.nvml_version = "13.580.95.05".to_owned();
    file.cuda_version = "13.0".to_owned();
    file.gpus[5].lost = true;
    let sick = &mut file.gpus[1];
    sick.memory.used = 5 << 30;
    sick.temperature.gpu = 88;
    sick.clock_events = [ClockEvent::HwSlowdown, ClockEvent::HwThermalSlowdown].into();
    sick.clock_event_ns.insert(ClockEvent::HwThermalSlowdown, 1500);
    sick.recovery_action = RecoveryAction::NodeReboot;
    sick.utilization.gpu = 97;
    sick.pcie.width = 8;
    sick.ecc.since_load.sram_parity = 2;
    sick.ecc.since_load.dram_uncorrected = 1;
    let rows = sick.remapped_rows.as_mut().unwrap();
    (rows.uncorrectable, rows.pending) = (1, true);
    let nvlink = sick.nvlink.as_mut().unwrap();
    nvlink.down.insert(4);
    nvlink.errors.push(NvLinkErrors { link: 3, replay: 12, ..NvLinkErrors::default() });
    sick.processes.push(Process { pid: 4711, used_memory: 5 << 30, kind: ProcessKind::Compute });
    Node::new(&file)
}

fn python(library_folder: &Path) -> Command {
    let mut command = Command::new("python3");
    command
        .env_remove(GPUS_ENV)
        .env("PYTHONPATH", bindings())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("LD_LIBRARY_PATH", library_folder);
    command
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}{stderr}");
    format!("{stdout}{stderr}")
}

#[test]
fn nvidia_ml_py_reads_what_the_file_says() {
    let node = node();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/nvidia_ml_py.py");
    let told = run(python(node.path()).arg(script).arg(node.path()));
    assert!(told.contains("Ran 12 tests"), "{told}");
}

const COUNT: &str = "import pynvml; pynvml.nvmlInit(); print('GPUs:', pynvml.nvmlDeviceGetCount())";

#[test]
fn the_environment_can_name_another_file() {
    let (node, other) = (node(), Node::new(&GpuFile::h100_sxm(3, 1, 0)));
    assert_eq!(run(python(node.path()).args(["-c", COUNT])), "GPUs: 8\n");
    assert_eq!(run(python(node.path()).args(["-c", COUNT]).env(GPUS_ENV, other.gpus())), "GPUs: 3\n");
}

#[test]
fn a_symbolic_link_leads_to_the_file_beside_the_library() {
    let node = node();
    let elsewhere = tempfile::tempdir().unwrap();
    let link = elsewhere.path().join("libnvidia-ml.so.1");
    std::os::unix::fs::symlink(node.library(), link).unwrap();
    assert_eq!(run(python(elsewhere.path()).args(["-c", COUNT])), "GPUs: 8\n");
    // A file beside the link is nearer.
    GpuFile::h100_sxm(2, 1, 0).save_atomic(&elsewhere.path().join("gpus.toml")).unwrap();
    assert_eq!(run(python(elsewhere.path()).args(["-c", COUNT])), "GPUs: 2\n");
}

#[test]
fn one_sentence_says_what_is_wrong_with_the_file() {
    let node = Node::without_file();
    fs::write(node.gpus(), "gpus = []\ndriver = 5\n").unwrap();
    let output = python(node.path()).args(["-c", COUNT]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let path = node.gpus();
    let wanted = format!("the GPU file {} is malformed: line 2: unknown field `driver`", path.display());
    assert!(stderr.contains(&wanted), "{stderr}");
    assert!(stderr.contains("NVMLError_Unknown: Unknown Error"), "{stderr}");
}
