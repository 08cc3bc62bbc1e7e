//! Files of sysfs and procfs: the input's pieces, split at NUL bytes, become the files' contents in turn.

#![no_main]

use std::cell::RefCell;
use std::path::Path;

use healthcheck::config::Config;
use healthcheck::mode::Mode;
use healthcheck::state::State;
use healthcheck::verdict::REASON_MAX;
use healthcheck::{check, source};
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

const FILES: &[&str] = &[
    "sys/class/infiniband/mlx5_0/ports/1/state",
    "sys/class/infiniband/mlx5_0/ports/1/phys_state",
    "sys/class/infiniband/mlx5_0/ports/1/rate",
    "sys/class/infiniband/mlx5_0/ports/1/link_layer",
    "sys/class/infiniband/mlx5_0/ports/1/counters/link_downed",
    "sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error",
    "sys/bus/pci/devices/0000:3a:00.0/vendor",
    "sys/bus/pci/devices/0000:3a:00.0/class",
    "sys/bus/pci/devices/0000:3a:00.0/config",
    "sys/bus/pci/devices/0000:3a:00.0/current_link_width",
    "sys/bus/pci/devices/0000:3a:00.0/max_link_width",
    "sys/bus/pci/devices/0000:3a:00.0/aer_dev_correctable",
    "sys/bus/pci/devices/0000:3a:00.0/aer_dev_fatal",
    "sys/bus/pci/devices/0000:3a:00.0/max_link_speed",
    "sys/class/infiniband/mlx5_0/ports/1/hw_counters/local_ack_timeout_err",
    "sys/class/net/eth0/operstate",
    "sys/class/net/eth0/carrier",
    "sys/class/net/eth0/speed",
    "sys/class/net/eth0/mtu",
    "sys/class/net/bond0/bonding/slaves",
    "sys/class/nvme/nvme0/state",
    "sys/block/md0/md/level",
    "sys/block/md0/md/array_state",
    "sys/block/md0/md/degraded",
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    "sys/devices/system/edac/mc/mc0/ce_count",
    "sys/devices/system/edac/mc/mc0/ue_count",
    "sys/module/amdgpu/version",
    "sys/bus/pci/devices/0000:05:00.0/vendor",
    "sys/bus/pci/devices/0000:05:00.0/class",
    "sys/bus/pci/devices/0000:05:00.0/device",
    "sys/bus/pci/devices/0000:05:00.0/config",
    "sys/bus/pci/devices/0000:05:00.0/current_link_width",
    "sys/bus/pci/devices/0000:05:00.0/current_link_speed",
    "sys/bus/pci/devices/0000:05:00.0/max_link_width",
    "sys/bus/pci/devices/0000:05:00.0/ras/umc_err_count",
    "sys/bus/pci/devices/0000:05:00.0/ras/gfx_err_count",
    "sys/bus/pci/devices/0000:05:00.0/ras/gpu_vram_bad_pages",
    "sys/bus/pci/devices/0000:05:00.0/hwmon/hwmon1/temp2_label",
    "sys/bus/pci/devices/0000:05:00.0/hwmon/hwmon1/temp2_input",
    "sys/bus/pci/devices/0000:05:00.0/hwmon/hwmon1/temp2_crit",
    "sys/bus/pci/devices/0000:05:00.0/xgmi_hive_info/xgmi_hive_id",
    "sys/class/infiniband/mlx5_0/ports/1/hw_counters/np_cnp_sent",
    "dev/nvme0",
    "proc/7/stat",
    "proc/mdstat",
    "proc/cpuinfo",
    "proc/self/mounts",
    "proc/meminfo",
    "proc/uptime",
    "proc/sys/kernel/random/boot_id",
    // Binary, so it takes the rest of the input, NUL bytes and all.
    "sys/bus/pci/devices/0000:05:00.0/gpu_metrics",
];

/// A node that should have what the files may show.
const PROFILE: &str = "[profile]\npcie_speed_gts = 32.0\nnvme_count = 1\n[profile.amd]\ngpu_count = 1\nxgmi = true\nxgmi_links = 7\n\
    [[profile.ib_port]]\ndevice = \"mlx5_0\"\nport = 1\nrate_gbps = 400.0\n";

thread_local! {
    static TREE: RefCell<Option<(TempDir, State)>> = const { RefCell::new(None) };
}

fuzz_target!(|data: &[u8]| {
    TREE.with_borrow_mut(|slot| {
        // In memory: a run makes millions of files.
        let (dir, state) = slot.get_or_insert_with(|| {
            let shm = Path::new("/dev/shm");
            let dir = if shm.is_dir() { tempfile::tempdir_in(shm) } else { tempfile::tempdir() };
            (dir.unwrap_or_else(|e| panic!("no temporary folder: {e}")), State::default())
        });
        // What passes before read must not pile up: a crash would not be found again.
        *state = State::default();
        let mut pieces = data.splitn(FILES.len(), |b| *b == 0);
        for file in FILES {
            let path = dir.path().join(file);
            let parent = path.parent().unwrap_or(Path::new("/"));
            let written = std::fs::create_dir_all(parent)
                .and_then(|()| std::fs::write(&path, pieces.next().unwrap_or_default()));
            assert!(written.is_ok(), "{}", path.display());
        }
        let facts = source::read_tree(dir.path());
        let before = facts.counters.iter().map(|(name, n)| (name.clone(), n / 2)).collect();
        state.counters.record(&before, 0.5);
        state.counters.record(&facts.counters, 700.0);
        let Ok(config) = Config::parse(PROFILE, Path::new("x")) else { panic!("the profile is valid") };
        let found = check::run(&facts, &config, state, Mode::Periodic, 700.0);
        for f in &found.findings {
            let reason = f.reason();
            assert!(reason.len() <= REASON_MAX && reason.is_ascii() && !reason.contains('\n'), "{reason}");
        }
    });
});
