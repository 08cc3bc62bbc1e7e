//! The GPU checks on simulated nodes: the product's program reads the simulated NVML library as it reads the real one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::process::Command;
use std::time::Duration;

use harness::{Cluster, run};
use serde_json::Value;

/// One pass on node n1. `periodic`, `prolog` and `epilog` keep state, as the hooks do.
fn pass(cluster: &Cluster, mode: &str) -> Value {
    let said = run(&mut cluster.on_node("n1", "clustermax-healthcheck", &["run", "--json", "--mode", mode]));
    serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{mode}: {e}: {} {}", said.out, said.err))
}

fn findings(verdict: &Value) -> Vec<String> {
    let one = |f: &Value| {
        let word = |key: &str| f[key].as_str().unwrap_or("-").to_string();
        let device = f["device"]["name"].as_str().unwrap_or("-").to_string();
        format!("{} {} {device} {} {}", word("check"), word("token"), word("status"), word("action"))
    };
    verdict["findings"].as_array().unwrap().iter().map(one).collect()
}

#[test]
fn healthy_nodes_of_every_model_have_no_findings() {
    for model in ["h100-sxm", "a100-sxm", "h200-sxm", "b200"] {
        let cluster = Cluster::up(&["--nodes", "1", "--model", model, "--health-interval", "3600"]);
        for mode in ["deep", "prolog", "periodic", "epilog", "periodic", "prolog"] {
            let verdict = pass(&cluster, mode);
            assert_eq!(findings(&verdict), Vec::<String>::new(), "{model} {mode}");
        }
        // What a healthy node teaches fits it.
        let mut learn = cluster.on_node("n1", "clustermax-healthcheck", &["learn"]);
        let learned = run(&mut learn);
        assert_eq!(learned.code, 0, "{}", learned.err);
        for key in ["[profile.gpu]", "nvlink_mbps = ", "power_limit_watts = ", "mig = false", "vbios = "] {
            assert!(learned.out.contains(key), "{model}: no {key} in\n{}", learned.out);
        }
    }
}

#[test]
fn processes_that_no_job_owns_are_told_and_jobs_are_left_alone() {
    let cluster = Cluster::up(&["--nodes", "1", "--health-interval", "3600"]);
    let mut stray = Command::new("/bin/sleep").arg("600").spawn().unwrap();
    let fault = format!("gpu-process:{}", stray.id());
    cluster.sim_ok(&["inject", &fault, "--node", "n1", "--gpu", "1"]);
    assert_eq!(findings(&pass(&cluster, "prolog")), Vec::<String>::new(), "it may be ending");
    std::thread::sleep(Duration::from_millis(1050));
    let seen = findings(&pass(&cluster, "prolog"));
    stray.kill().unwrap();
    stray.wait().unwrap();
    assert_eq!(seen, ["gpu.leftover strayproc g1 warn none"]);
}

/// A libcuda with two devices at the addresses of this node's GPUs 0 and 1; it remembers what was copied to it, spoils
/// it on device 1 with SPOIL, and refuses a context there with REFUSE.
const LIBCUDA: &str = r#"
#include <string.h>
#include <stdlib.h>
static int current;
int cuInit(unsigned flags) { (void)flags; return 0; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *d, int n) { *d = n; return 0; }
int cuDeviceGetPCIBusId(char *text, int size, int d) {
    strncpy(text, d ? PCI1 : PCI0, size); return 0;
}
int cuCtxCreate_v2(void **c, unsigned flags, int d) {
    (void)flags; current = d; *c = &current;
#ifdef REFUSE
    if (d == 1) return 214;
#endif
    return 0;
}
int cuCtxDestroy_v2(void *c) { (void)c; return 0; }
int cuMemAlloc_v2(unsigned long long *m, size_t n) { *m = (unsigned long long)malloc(n); return *m ? 0 : 2; }
int cuMemFree_v2(unsigned long long m) { free((void *)m); return 0; }
int cuMemcpyHtoD_v2(unsigned long long m, const void *from, size_t n) { memcpy((void *)m, from, n); return 0; }
int cuMemcpyDtoH_v2(void *to, unsigned long long m, size_t n) {
    memcpy(to, (void *)m, n);
#ifdef SPOIL
    if (current == 1) ((char *)to)[n / 2] ^= 1;
#endif
    return 0;
}
"#;

#[test]
fn cuda_is_tried_on_every_gpu_where_it_is_installed() {
    let cluster = Cluster::up(&["--nodes", "1", "--gpus", "2", "--health-interval", "3600"]);
    let facts = run(&mut cluster.on_node("n1", "clustermax-healthcheck", &["facts"]));
    let facts: Value = serde_json::from_str(&facts.out).unwrap();
    let deep = pass(&cluster, "deep");
    let usable = deep["checks"].as_array().unwrap().iter().find(|c| c["check"] == "gpu.usable").unwrap();
    assert_eq!(usable["status"], "unsupported", "no libcuda");
    // CUDA writes hexadecimal digits in capitals, as NVML does.
    let pci: Vec<String> = facts["nvml"]["value"]["gpus"]
        .as_array()
        .unwrap()
        .iter()
        .map(|g| g["pci"]["value"].as_str().unwrap().to_uppercase())
        .collect();
    let source = cluster.scratch().join("cuda.c");
    std::fs::write(&source, LIBCUDA).unwrap();
    for (flag, wanted) in [
        ("WORKS", vec![]),
        ("REFUSE", vec!["gpu.usable cuda g1 fail reset_gpu"]),
        ("SPOIL", vec!["gpu.usable cuda g1 fail reset_gpu"]),
    ] {
        let library = cluster.node_dir("n1").join("libcuda.so.1");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-D", flag])
            .args([format!("-DPCI0=\"{}\"", pci[0]), format!("-DPCI1=\"{}\"", pci[1])])
            .arg("-o")
            .args([&library, &source]);
        let said = run(&mut cc);
        assert_eq!(said.code, 0, "cc: {}", said.err);
        let verdict = pass(&cluster, "deep");
        assert_eq!(findings(&verdict), wanted, "{flag}: {verdict}");
    }
    assert_eq!(findings(&pass(&cluster, "periodic")), Vec::<String>::new(), "never outside of deep passes");
}

#[test]
fn amd_gpus_are_read_from_amdgpus_sysfs() {
    let cluster = Cluster::up(&["--nodes", "1", "--gpus", "0", "--health-interval", "3600"]);
    let sys = cluster.node_dir("n1").join("sys");
    std::fs::create_dir_all(sys.join("module/amdgpu")).unwrap();
    let device = |n: u32| sys.join(format!("bus/pci/devices/0000:{:02x}:00.0", 5 + n));
    let put = |n: u32, file: &str, text: &str| {
        let path = device(n).join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    for n in 0..2 {
        put(n, "vendor", "0x1002\n");
        put(n, "class", "0x120000\n");
        put(n, "current_link_width", "16\n");
        put(n, "max_link_width", "16\n");
        put(n, "config", &"\x02\x10".repeat(32));
        put(n, "ras/umc_err_count", "ue: 0\nce: 0\n");
        put(n, "ras/gfx_err_count", "ue: 0\nce: 0\n");
        put(n, "ras/gpu_vram_bad_pages", "");
        put(n, "hwmon/hwmon1/temp2_label", "junction\n");
        put(n, "hwmon/hwmon1/temp2_input", "45000\n");
        put(n, "hwmon/hwmon1/temp2_crit", "110000\n");
        put(n, "xgmi_hive_info/xgmi_hive_id", "77\n");
        std::os::unix::fs::symlink("../../../bus/pci/drivers/amdgpu", device(n).join("driver")).unwrap();
    }
    let learned = run(&mut cluster.on_node("n1", "clustermax-healthcheck", &["learn"])).out;
    assert!(learned.contains("[profile.amd]\ngpu_count = 2\npcie_width = 16\nxgmi = true\n"), "{learned}");
    let mut config = std::fs::read_to_string(cluster.config()).unwrap();
    config.push_str("\n[profile.amd]\ngpu_count = 2\npcie_width = 16\nxgmi = true\n");
    std::fs::write(cluster.config(), config).unwrap();
    assert_eq!(findings(&pass(&cluster, "periodic")), Vec::<String>::new());
    for (file, bad, good, wanted) in [
        ("ras/gfx_err_count", "ue: 1\nce: 0\n", "ue: 0\nce: 0\n", "amd.ras_ue amdue g1 fail reboot"),
        ("ras/gpu_vram_bad_pages", "0x1 : 0x1000 : F\n", "", "amd.bad_pages amdpages g1 fail repair"),
        ("current_link_width", "8\n", "16\n", "amd.links amdlink g1 fail repair"),
        ("xgmi_hive_info/xgmi_hive_id", "78\n", "77\n", "amd.links amdxgmi g1 fail reboot"),
        ("hwmon/hwmon1/temp2_input", "108000\n", "45000\n", "amd.temp amdtemp g1 warn repair"),
    ] {
        put(1, file, bad);
        // Of two GPUs each is alone when their hives differ.
        let seen = findings(&pass(&cluster, "periodic"));
        assert!(seen.iter().any(|f| f == wanted), "{file}: {seen:#?}");
        put(1, file, good);
        assert_eq!(findings(&pass(&cluster, "periodic")), Vec::<String>::new(), "{file}");
    }
    // The firmware's counts, layout 1.8: slowed by heat of the memory in all of its cycles since the pass before.
    let metrics = |cycles: u32, hbm: u32| {
        let mut bytes = vec![0xffu8; 3872];
        bytes[..4].copy_from_slice(&[0x20, 0x0f, 1, 8]);
        bytes[40..64].copy_from_slice(&[cycles, 0, 0, 0, 0, hbm].map(u32::to_le_bytes).concat());
        std::fs::write(device(1).join("gpu_metrics"), bytes).unwrap();
    };
    for pass_number in 0..4 {
        metrics(pass_number * 1000, pass_number * 1000);
        let seen = findings(&pass(&cluster, "periodic"));
        let wanted = if pass_number == 3 { vec!["amd.throttle amdslow g1 warn repair"] } else { vec![] };
        assert_eq!(seen, wanted, "pass {pass_number}");
        // Two passes within a second are one read.
        std::thread::sleep(Duration::from_millis(1100));
    }
    std::fs::remove_file(device(1).join("gpu_metrics")).unwrap();
    std::fs::write(device(1).join("config"), [0xff; 64]).unwrap();
    assert_eq!(findings(&pass(&cluster, "prolog")), ["amd.bus amdbus g1 fail reboot"]);
    std::fs::write(device(1).join("config"), "\x02\x10".repeat(32)).unwrap();
    let lost = "3,0,1000000,-;amdgpu 0000:06:00.0: amdgpu: device lost from bus!\n";
    std::fs::write(cluster.node_dir("n1").join("kmsg"), lost).unwrap();
    assert_eq!(findings(&pass(&cluster, "periodic")), ["amd.kernel amdlost g1 fail reboot"]);
    std::fs::remove_dir_all(device(1)).unwrap();
    let seen = findings(&pass(&cluster, "prolog"));
    assert!(seen.contains(&"amd.count amdcount - fail reboot".to_string()), "{seen:#?}");
}
