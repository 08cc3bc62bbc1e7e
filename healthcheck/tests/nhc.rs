//! `import-nhc`: what becomes of NHC's configuration.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

use healthcheck::config::{Config, SiteCommand};
use healthcheck::nhc::{Imported, import};
use proptest::prelude::*;

fn sample(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/nhc").join(name)).unwrap()
}

fn config(imported: &Imported) -> Config {
    let text = imported.render("nhc.conf", "n17");
    Config::parse(&text, Path::new("x")).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

fn left(imported: &Imported) -> Vec<usize> {
    imported.left.iter().map(|r| r.line).collect()
}

#[test]
fn what_corresponds_is_turned_and_the_rest_is_listed() {
    let imported = import(&sample("gpu-cluster.conf"), "n17");
    let c = config(&imported);
    // 2 TiB with 5 % tolerance, and ours fails below 99 % of the key.
    let limit = c.profile.memory_total_kib.unwrap() as f64 * 0.99;
    assert!((limit - 2048.0 * 1024.0 * 1024.0 * 0.95).abs() < 2.0, "{limit}");
    let ports: Vec<_> = c.profile.ib_port.iter().map(|p| (p.device.as_str(), p.port, p.rate_gbps)).collect();
    assert_eq!(ports, [("mlx5_0", 1, 400.0), ("mlx5_1", 1, 400.0)]);
    let mounts: Vec<_> = c
        .profile
        .mount
        .iter()
        .map(|m| (m.path.to_str().unwrap(), m.fstype.as_deref(), m.writable, m.network))
        .collect();
    assert_eq!(
        mounts,
        [
            ("/", None, true, false),
            ("/home", Some("nfs4"), true, true),
            ("/scratch", Some("lustre"), false, true),
            ("/tmp", Some("tmpfs"), true, false),
            ("/dev/shm", Some("tmpfs"), true, false),
        ]
    );
    let space: Vec<_> =
        c.profile.space.iter().map(|s| (s.path.to_str().unwrap(), s.warn_percent, s.fail_percent)).collect();
    assert_eq!(space, [("/", 85.0, 95.0), ("/tmp", 80.0, 80.0)]);
    let names: Vec<_> = c.command.iter().map(|c| (c.name.as_str(), c.token.as_str(), c.timeout)).collect();
    assert_eq!(
        names,
        [
            ("eno1", "eno1", 5000),
            ("biosversion", "biosversio", 5000),
            ("sshd", "sshd", 5000),
            ("nfslock", "nfslock", 5000),
            ("selinuxenabled", "selinuxena", 1000),
            ("tmp", "tmp", 5000),
        ]
    );
    assert_eq!(imported.covered.len(), 2);
    // Settings, cores, free memory, any port, DMI with a pattern, sizes, users' processes, output, shell code.
    assert_eq!(left(&imported), [2, 3, 6, 8, 11, 16, 26, 27, 32, 34, 36]);
    let text = imported.render("nhc.conf", "n17");
    for (line, what) in [(20, "source nas:/home is not checked"), (31, "not restarted")] {
        assert!(
            imported.notes.iter().any(|r| r.line == line && r.why.contains(what)),
            "{line} {what}\n{text}"
        );
    }
    assert!(text.contains("# NOT turned:\n#   line 2: * || export MARK_OFFLINE=1"), "{text}");
}

#[test]
fn only_lines_of_this_node_count() {
    let imported = import(&sample("targets.conf"), "n17");
    let paths: Vec<_> =
        config(&imported).profile.mount.iter().map(|m| m.path.display().to_string()).collect();
    assert_eq!(paths, ["/glob", "/range", "/list"]);
    // The regular expression, and what is no line, has no mount point, is not closed or is empty.
    assert_eq!(left(&imported), [6, 8, 9, 10, 11]);
    let login = import(&sample("targets.conf"), "login");
    let paths: Vec<_> = config(&login).profile.mount.iter().map(|m| m.path.display().to_string()).collect();
    assert_eq!(paths, ["/not-n17", "/list", "/other-range", "/login"]);
}

fn exit(command: &SiteCommand) -> (Option<i32>, String) {
    let out = Command::new(&command.path).args(&command.args).output().unwrap();
    (out.status.code(), String::from_utf8_lossy(&out.stdout).trim().to_string())
}

/// The commands are run as a pass runs them: Nagios exit codes have to come out.
#[test]
fn turned_commands_say_ok_and_critical() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("it's a file");
    std::fs::write(&file, "").unwrap();
    let file = file.display();
    for (line, code, said) in [
        ("check_cmd_status -t 5 -r 1 false".to_string(), 0, ""),
        ("check_cmd_status -t 5 -r 0 false".into(), 2, "false ended with 1, not 0"),
        ("check_cmd_status -r 0 /nonexistent/x y".into(), 2, "/nonexistent/x ended with 127, not 0"),
        (format!("check_file_test -e -f \"{file}\" /etc/passwd"), 0, ""),
        (format!("check_file_test -e -s \"{file}\""), 2, &format!("{file}: test -s fails")),
        ("check_ps_service -u root no-such-daemon".into(), 2, "no-such-daemon of root is not running"),
        ("check_hw_eth nonexistent0".into(), 2, "nonexistent0 is not up"),
        (
            "check_dmi_data_match \"BIOS Information: Version: no such version\"".into(),
            2,
            "not no such version",
        ),
    ] {
        let c = config(&import(&format!("* || {line}\n"), "n17"));
        let (got, text) = exit(&c.command[0]);
        assert_eq!(got, Some(code), "{line}: {text}");
        assert!(text.contains(said), "{line}: {text}");
    }
}

#[test]
fn names_and_tokens_stay_unique() {
    let text = "* || check_cmd_status -r 0 /a/long-command-name\n".repeat(13);
    let c = config(&import(&text, "n17"));
    let tokens: std::collections::BTreeSet<_> = c.command.iter().map(|c| c.token.clone()).collect();
    let names: std::collections::BTreeSet<_> = c.command.iter().map(|c| c.name.clone()).collect();
    assert_eq!((tokens.len(), names.len()), (13, 13));
}

proptest! {
    /// Whatever the file holds, what comes out is valid configuration and every line is accounted for.
    #[test]
    fn any_file_gives_valid_configuration(text in "(([*!n{/] ?\\|\\| ?check_[a-z_]{1,12}[ -~]{0,40}|[ -~\\t]{0,60}|\\PC{0,40})\n){0,12}", node in "[a-z0-9.-]{1,12}") {
        let imported = import(&text, &node);
        Config::parse(&imported.render(&text, &node), Path::new("x")).unwrap();
        prop_assert!(imported.turned + imported.covered.len() + imported.left.len() <= text.lines().count());
    }

    /// Real checks with any arguments.
    #[test]
    fn any_arguments_give_valid_configuration(
        check in prop::sample::select(vec![
            "check_fs_mount_rw", "check_fs_mount", "check_fs_free", "check_fs_used", "check_hw_physmem", "check_hw_ib",
            "check_hw_eth", "check_ps_service", "check_cmd_status", "check_file_test", "check_dmi_data_match",
        ]),
        args in prop::collection::vec(prop_oneof![
            "-[a-zA-Z0]", "[/a-z0-9.%:_*-]{1,12}", "\"[ -~&&[^\"$`\\\\]]{0,12}\"", "'[ -~&&[^']]{0,12}'", "[0-9.]{1,20}[kmgtKMGT%]?b?",
        ], 0..6),
    ) {
        let imported = import(&format!("* || {check} {}\n", args.join(" ")), "n1");
        let text = imported.render("f", "n1");
        prop_assert!(Config::parse(&text, Path::new("x")).is_ok(), "{text}");
        prop_assert_eq!(imported.turned + imported.covered.len() + imported.left.len(), 1);
    }
}
