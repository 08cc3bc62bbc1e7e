//! `clustermax suite reboot` against a Slurm that is played by two scripts.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};

/// `scontrol` shows the node's state file, and a reboot walks through the states in the file `next`, one a look.
const SCONTROL: &str = r#"#!/bin/bash
cd "$(dirname "$0")"
echo "$*" >>calls
if [ "$1" = reboot ]; then touch asked; exit 0; fi
if [ -e asked ] && [ -s next ]; then head -n1 next >state; sed -i 1d next; fi
read -r state boot cpus <state
echo "NodeName=n1 CPUAlloc=$cpus State=$state BootTime=$boot SlurmdStartTime=$boot"
"#;

fn run(dir: &Path, args: &[&str]) -> Output {
    for (name, text) in
        [("scontrol", SCONTROL), ("srun", "#!/bin/bash\necho \"srun $*\" >>\"$(dirname \"$0\")/calls\"\n")]
    {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap_or_default());
    Command::new(env!("CARGO_BIN_EXE_clustermax"))
        .args(["suite", "reboot", "n1", "--poll", "0.05"])
        .args(args)
        .env("PATH", path)
        .output()
        .unwrap()
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn a_reboot_is_asked_for_twice_and_timed_until_a_command_ran() {
    let dir = tempfile::tempdir().unwrap();
    let state = |text: &str| fs::write(dir.path().join("state"), text).unwrap();
    let calls = || fs::read_to_string(dir.path().join("calls")).unwrap_or_default();
    state("ALLOCATED 100 4\n");
    let busy = run(dir.path(), &["--confirm", "n1"]);
    assert!(busy.status.code() == Some(2) && said(&busy).contains("4 CPUs in use"), "{}", said(&busy));
    state("IDLE 100 0\n");
    let dry = run(dir.path(), &[]);
    assert!(dry.status.success() && said(&dry).contains("add --confirm n1"), "{}", said(&dry));
    let wrong = run(dir.path(), &["--confirm", "n2"]);
    assert!(wrong.status.code() == Some(2) && said(&wrong).contains("nothing was done"), "{}", said(&wrong));
    assert!(!calls().contains("reboot"), "{}", calls());

    if !rustix::process::geteuid().is_root() {
        let refused = run(dir.path(), &["--confirm", "n1"]);
        assert_eq!(refused.status.code(), Some(3), "{}", said(&refused));
        return;
    }
    fs::write(
        dir.path().join("next"),
        "IDLE+REBOOT_REQUESTED 100 0\nREBOOT* 100 0\nDOWN 200 0\nIDLE 200 0\n",
    )
    .unwrap();
    let good = run(dir.path(), &["--confirm", "n1"]);
    assert!(good.status.success(), "{}", said(&good));
    for word in ["booted", "idle", "srun true ran"] {
        assert!(said(&good).contains(word), "{}", said(&good));
    }
    assert!(calls().contains("reboot ASAP nextstate=RESUME") && calls().contains("srun -N1"), "{}", calls());

    // One that does not come back.
    fs::remove_file(dir.path().join("asked")).unwrap();
    fs::write(dir.path().join("next"), "REBOOT* 200 0\n").unwrap();
    let lost = run(dir.path(), &["--confirm", "n1", "--seconds", "1"]);
    assert!(
        lost.status.code() == Some(1) && said(&lost).contains("not usable again within 1 s"),
        "{}",
        said(&lost)
    );
    assert!(said(&lost).contains("REBOOT*"), "{}", said(&lost));
}
