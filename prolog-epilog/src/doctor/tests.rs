//! `clustermax-doctor` on installations in a folder.

use super::*;
use crate::brake::Record;
use crate::spool::Spool;

/// An installation in a folder: programs are small scripts.
struct Site {
    dir: tempfile::TempDir,
}

impl Site {
    /// Everything as it should be, in `enforce`, with Slurm 22.05 and without the plugin.
    fn good() -> Self {
        let site = Site { dir: tempfile::tempdir().unwrap() };
        site.script("scontrol", "echo slurm-wlm 22.05.8");
        site.script(
            "clustermax-drain",
            r#"echo '{"program":"clustermax-drain","slurm":"22.05","via":"libslurm"}'"#,
        );
        site.script("clustermax-prolog", "true");
        site.script("clustermax-epilog", "true");
        site.script(
            "healthcheckprogram",
            "exec /usr/libexec/clustermax/clustermax-healthcheck run --mode periodic",
        );
        site.file(
            "clustermax.toml",
            &format!(
                "enforcement = \"enforce\"\n[paths]\ndrain = \"{0}/clustermax-drain\"\nstate_dir = \"{0}/state\"\n\
                 run_dir = \"{0}/run\"\n\
                 [slurm]\nconf = \"{0}/slurm.conf\"\nscontrol = \"{0}/scontrol\"\n",
                site.path("").display()
            ),
        );
        site.conf(&[]);
        site.file("plugstack.conf", "");
        std::fs::create_dir(site.path("run")).unwrap();
        site.passed(5, jiff::Timestamp::now().as_second());
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What the periodic passes left.
    fn passed(&self, count: u64, time: i64) {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
        let text = format!(
            r#"{{"boot_id":"{}","passes":{{"periodic":{{"count":{count},"time":{time}.5,"seconds":0.1}}}}}}"#,
            boot.trim()
        );
        self.file("run/checks.json", &text);
    }

    fn file(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
        std::fs::set_permissions(self.path(name), PermissionsExt::from_mode(0o644)).unwrap();
    }

    fn script(&self, name: &str, text: &str) {
        self.file(name, &format!("#!/bin/sh\n{text}\n"));
        std::fs::set_permissions(self.path(name), PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// slurm.conf with some keys changed; an empty value takes the key out.
    fn conf(&self, changes: &[(&str, &str)]) {
        let here = |name: &str| self.path(name).display().to_string();
        let keys = [
            ("Prolog", here("clustermax-prolog")),
            ("Epilog", here("clustermax-epilog")),
            ("PrologFlags", "Contain".into()),
            ("HealthCheckProgram", here("healthcheckprogram")),
            ("HealthCheckInterval", "60".into()),
            ("UnkillableStepTimeout", "180".into()),
            ("SchedulerParameters", "bf_interval=30,nohold_on_prolog_fail".into()),
        ];
        let changed = |key: &str| changes.iter().find(|(k, _)| *k == key).map(|(_, v)| (*v).to_string());
        let mut text = String::new();
        for (key, value) in keys.iter().map(|(k, v)| (*k, changed(k).unwrap_or(v.clone()))) {
            if !value.is_empty() {
                text += &format!("{key}={value}\n");
            }
        }
        for (key, value) in changes.iter().filter(|(k, _)| keys.iter().all(|(known, _)| known != k)) {
            text += &format!("{key}={value}\n");
        }
        self.file("slurm.conf", &text);
    }

    fn diagnose(&self) -> Diagnosis {
        diagnose(&Options {
            config: self.path("clustermax.toml"),
            node: "n1".into(),
            plugin: None,
            slurm_conf: None,
            cluster: false,
        })
    }

    /// The worst item of a check.
    fn item(&self, check: &str) -> Item {
        let all = self.diagnose().checks;
        all.iter()
            .filter(|i| i.check == check)
            .max_by_key(|i| i.status)
            .cloned()
            .unwrap_or_else(|| panic!("{check}: {all:#?}"))
    }
}

#[test]
fn a_good_installation_passes_but_for_the_plugin() {
    let site = Site::good();
    let diagnosis = site.diagnose();
    assert_eq!(diagnosis.slurm.as_deref(), Some("22.05"));
    let not_passed: Vec<&str> =
        diagnosis.checks.iter().filter(|i| i.status != Status::Pass).map(|i| i.check.as_str()).collect();
    assert_eq!(not_passed, ["plugstack.conf"]);
    assert_eq!(site.item("plugstack.conf").mend, "optional spank_clustermax.so");
}

#[test]
fn each_missing_or_wrong_key_is_named_with_its_line() {
    let site = Site::good();
    let here = |name: &str| site.path(name).display().to_string();
    let with_arguments = format!("{} --all", here("healthcheckprogram"));
    site.script("other", "# clustermax-prolog clustermax-healthcheck\ntrue");
    let other = here("other");
    let rows: &[(&str, &str, &str, Status, &str)] = &[
        ("Prolog", "", "slurm.conf Prolog", Status::Fail, "is not set: add Prolog=/"),
        ("Prolog", &other, "slurm.conf Prolog", Status::Fail, "no Prolog script runs clustermax-prolog"),
        ("Prolog", "/nonexistent/p", "slurm.conf Prolog", Status::Fail, "missing or cannot be executed"),
        ("Epilog", "", "slurm.conf Epilog", Status::Warn, "is not set"),
        ("PrologFlags", "", "slurm.conf PrologFlags", Status::Warn, "lacks Alloc"),
        ("HealthCheckProgram", "", "slurm.conf HealthCheckProgram", Status::Fail, "is not set"),
        (
            "HealthCheckProgram",
            &with_arguments,
            "slurm.conf HealthCheckProgram",
            Status::Fail,
            "has arguments",
        ),
        ("HealthCheckProgram", &other, "slurm.conf HealthCheckProgram", Status::Fail, "does not run"),
        ("HealthCheckInterval", "0", "slurm.conf HealthCheckInterval", Status::Fail, "never runs"),
        ("HealthCheckInterval", "900", "slurm.conf HealthCheckInterval", Status::Warn, "900 s"),
        ("PrologEpilogTimeout", "5", "slurm.conf PrologEpilogTimeout", Status::Warn, "is 5 s"),
        ("MessageTimeout", "7", "slurm.conf MessageTimeout", Status::Warn, "is 7 s"),
        ("SlurmdTimeout", "0", "slurm.conf SlurmdTimeout", Status::Warn, "never set DOWN"),
        ("SlurmdTimeout", "900", "slurm.conf SlurmdTimeout", Status::Warn, "is 900 s"),
        ("SlurmdTimeout", "30", "slurm.conf SlurmdTimeout", Status::Warn, "HealthCheckInterval 60 s"),
        ("UnkillableStepTimeout", "", "slurm.conf UnkillableStepTimeout", Status::Warn, "is 60 s"),
        ("SchedulerParameters", "x", "slurm.conf SchedulerParameters", Status::Warn, "lacks nohold"),
        ("HealthCheckNodeState", "IDLE", "slurm.conf HealthCheckNodeState", Status::Warn, "leaves out"),
        ("HealthCheckNodeState", "ANY,START_ONLY", "slurm.conf HealthCheckNodeState", Status::Warn, "leaves"),
    ];
    for (key, value, check, status, text) in rows {
        site.conf(&[(key, value)]);
        let item = site.item(check);
        assert_eq!(item.status, *status, "{item:?}");
        assert!(item.text.contains(text) && !item.why.is_empty(), "{item:?}");
    }
}

#[test]
fn that_the_health_check_program_ran_is_proved_by_its_last_pass() {
    let site = Site::good();
    let now = jiff::Timestamp::now().as_second();
    let seen = || site.item("HealthCheckProgram ran");
    assert_eq!(seen().status, Status::Pass, "{:?}", seen());
    assert!(seen().text.starts_with("5 passes, the last one "), "{:?}", seen());
    site.passed(5, now - 400);
    assert_eq!(seen().status, Status::Fail);
    assert!(seen().text.contains("HealthCheckInterval is 60 s"), "{:?}", seen());
    site.file("run/checks.json", r#"{"boot_id":"another","passes":{"periodic":{"count":1,"time":1.0}}}"#);
    assert!(seen().text.contains("no periodic pass since this node was booted"), "{:?}", seen());
    site.file("run/checks.json", "{");
    assert!(seen().text.contains("is not readable"), "{:?}", seen());
    std::fs::remove_file(site.path("run/checks.json")).unwrap();
    assert!(seen().text.contains("does not exist"), "{:?}", seen());
    assert_eq!(seen().status, Status::Warn);
}

#[test]
fn a_prolog_that_never_fails_needs_no_requeue() {
    let site = Site::good();
    site.conf(&[("SchedulerParameters", ""), ("HealthCheckNodeState", "CYCLE")]);
    let config = std::fs::read_to_string(site.path("clustermax.toml")).unwrap();
    site.file("clustermax.toml", &config.replace("enforce\"", "observe\""));
    let item = site.item("slurm.conf SchedulerParameters");
    assert_eq!(item.status, Status::Pass);
    assert!(item.text.ends_with("SchedulerParameters=nohold_on_prolog_fail"), "{item:?}");
    assert_eq!(site.item("slurm.conf HealthCheckNodeState").status, Status::Pass);
}

#[test]
fn unsafe_files_fail() {
    let site = Site::good();
    std::fs::set_permissions(site.path("clustermax-prolog"), PermissionsExt::from_mode(0o777)).unwrap();
    assert!(site.item("slurm.conf Prolog").text.contains("writable by others"));
    std::fs::create_dir(site.path("state")).unwrap();
    std::fs::set_permissions(site.path("state"), PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(site.item("state folder").status, Status::Fail);
    std::fs::set_permissions(site.dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    assert_eq!(site.item("configuration folder").status, Status::Fail);
    std::fs::set_permissions(site.dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
    site.file("clustermax.toml", "enforcemnt = 1\n");
    assert!(site.item("configuration").text.contains("did you mean"));
}

#[test]
fn another_release_is_told_in_one_sentence() {
    let site = Site::good();
    site.script("scontrol", "echo slurm 24.11.5");
    site.script(
        "clustermax-drain",
        r#"echo '{"program":"clustermax-drain","slurm":"22.05","via":"scontrol","detail":"no libslurm.so.38"}'"#,
    );
    let item = site.item("clustermax-drain");
    assert_eq!(item.status, Status::Warn);
    assert!(item.text.contains("built for Slurm 22.05 but Slurm 24.11 is installed"), "{item:?}");
    site.script("scontrol", "exec sleep 1");
    site.script("clustermax-drain", "echo hello");
    assert_eq!(site.item("clustermax-drain").status, Status::Fail);
    site.file("p.so", "no plugin");
    site.file("plugstack.conf", &format!("required {}/p_spank_clustermax.so\n", site.path("").display()));
    let item = site.item("plugstack.conf");
    assert_eq!(item.status, Status::Fail);
    assert!(item.why.contains("every srun"), "{item:?}");
}

#[test]
fn an_engaged_brake_and_waiting_drains_are_shown() {
    let site = Site::good();
    Record::new(&site.path("state")).engage("n1", "2 of 2", "cmx:x", "then").unwrap();
    assert!(site.item("brake").mend.ends_with("clustermax-drain release"));
    let waiting = crate::spool::Spooled::new("n1", "cmx:x t", &[], "t", "b", "");
    Spool::new(&site.path("state")).keep(&waiting).unwrap();
    assert_eq!(site.item("spool").status, Status::Warn);
}

/// 22.05 runs the last of several Prolog lines only, seen on a cluster; 24.11 runs them all.
#[test]
fn of_several_prolog_lines_an_old_slurm_takes_the_last() {
    let site = Site::good();
    site.script("other", "true");
    let ours = site.path("clustermax-prolog").display().to_string();
    let both = format!("{ours}\nProlog={}", site.path("other").display());
    site.conf(&[("Prolog", &both)]);
    let item = site.item("slurm.conf Prolog");
    assert!(
        item.status == Status::Fail && item.text.contains("no Prolog script runs clustermax-prolog"),
        "{item:?}"
    );
    site.script("scontrol", "echo slurm-wlm 24.11.5");
    assert_eq!(site.item("slurm.conf Prolog").status, Status::Pass);
}
