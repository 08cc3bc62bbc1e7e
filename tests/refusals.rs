//! Every refusal of `clustermax-drain`, seen once on a real cluster. What was said becomes `docs/refusals.md`: the test fails
//! when that page says something else, and writes it when `CLUSTERMAX_BLESS` is set.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use harness::{Cluster, Said, USER, run, slurm_root};
use serde_json::Value;

const REASON: &str = "cmx:xid79 g3 GPU fell off the bus; act=reboot id=3f2a91bc";

/// One row of the page.
struct Row {
    section: &'static str,
    when: &'static str,
    command: String,
    says: String,
    outcome: String,
    code: i32,
}

struct Book {
    c: Cluster,
    rows: Vec<Row>,
}

impl Book {
    /// `clustermax-drain` as slurmd would start it on a node.
    fn on(&self, node: &str, args: &[&str]) -> Command {
        self.c.on_node(node, "clustermax-drain", args)
    }

    /// The same with another configuration file.
    fn with(&self, config: &str, args: &[&str]) -> Said {
        let path = self.c.dir().join("etc").join(config);
        let mut drain = self.drain();
        drain.args(["--node", "n1", "--config"]).arg(path).args(args);
        run(&mut drain)
    }

    fn drain(&self) -> Command {
        self.c.command(&[&self.program()])
    }

    /// The program that this cluster's release needs.
    fn program(&self) -> String {
        let text = std::fs::read_to_string(self.c.config()).expect("configuration");
        let line = text.lines().find_map(|l| l.strip_prefix("drain = ")).expect("paths.drain");
        line.trim_matches('"').to_string()
    }

    /// Writes a variant of the configuration.
    fn variant(&self, name: &str, change: impl Fn(String) -> String) {
        let text = std::fs::read_to_string(self.c.config()).expect("configuration");
        std::fs::write(self.c.dir().join("etc").join(name), change(text)).expect("variant");
    }

    /// Keeps a row, after its outcome and exit code were what they should be.
    fn row(
        &mut self,
        section: &'static str,
        when: &'static str,
        command: &str,
        said: &Said,
        outcome: &str,
        code: i32,
    ) {
        assert_eq!(said.code, code, "{when}: {said:?}");
        let answer: Value =
            said.out.lines().last().and_then(|l| serde_json::from_str(l).ok()).unwrap_or_default();
        let word = answer["outcome"].as_str().unwrap_or_default();
        assert_eq!(word, outcome, "{when}: {said:?}");
        let detail = answer["detail"].as_str().unwrap_or_default().to_string();
        let first = said.err.lines().find(|l| l.starts_with("clustermax-drain: ")).unwrap_or_default();
        let says = if detail.is_empty() {
            first.trim_start_matches("clustermax-drain: ").to_string()
        } else {
            detail
        };
        assert!(!says.trim().is_empty(), "{when} says nothing: {said:?}");
        let says = self.plain(&says);
        let command = command.replace(REASON, "REASON");
        self.rows.push(Row { section, when, command, says, outcome: outcome.to_string(), code });
    }

    /// Takes out what differs from run to run: folders and times.
    fn plain(&self, text: &str) -> String {
        let dir = self.c.dir().display().to_string();
        let text = text.replace(&format!("{dir}/etc"), "/etc/clustermax").replace(&dir, "DIR");
        let mut out = String::new();
        for word in text.split(' ') {
            let bare = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
            let is_time =
                bare.len() >= 19 && bare.starts_with("20") && bare.as_bytes().get(10) == Some(&b'T');
            let tail = word.get(bare.len()..).unwrap_or_default();
            let _ = write!(out, "{}{} ", if is_time { "TIME" } else { bare }, tail);
        }
        out.trim_end().to_string()
    }

    fn page(&self) -> String {
        let mut out = String::from(
            "# What clustermax-drain refuses, and how it says so\n\n\
             Every row was seen on a real cluster: this page is written by `CLUSTERMAX_BLESS=1 cargo test -p clustermax-tests --test refusals`, \
             and the test fails when the programs say something else. `REASON` stands for a reason in the suite's grammar, `TIME` for a point \
             in time; the file names are those of an installation.\n\n\
             An outcome is the word in the JSON object on standard output; `-` means that there is none: one sentence on standard error says what is \
             wrong with the command line or the configuration. A prolog or epilog exits with 0 for each of these but `foreign` and \
             `spooled`, so that Slurm drains nobody for our own troubles.\n",
        );
        let mut section = "";
        for row in &self.rows {
            if row.section != section {
                section = row.section;
                let _ = write!(
                    out,
                    "\n## {section}\n\n| when | command | what it says | outcome | exit code |\n|---|---|---|---|---|\n"
                );
            }
            let cell = |text: &str| text.replace('|', "\\|");
            let outcome = if row.outcome.is_empty() { "-" } else { &row.outcome };
            let _ = writeln!(
                out,
                "| {} | `{}` | {} | {outcome} | {} |",
                row.when,
                cell(&row.command),
                cell(&row.says),
                row.code
            );
        }
        out
    }
}

#[test]
fn every_refusal_says_why_in_one_sentence() {
    let c = Cluster::up(&[
        "--nodes",
        "4",
        "--gpus",
        "0",
        "--ib-ports",
        "0",
        "--enforcement",
        "enforce",
        "--health-interval",
        "600",
    ]);
    let mut b = Book { c, rows: Vec::new() };
    command_line_and_configuration(&mut b);
    permissions(&mut b);
    nodes(&mut b);
    ways_to_slurm(&mut b);
    brake_and_controller(&mut b);

    // Slurm's own words differ from release to release; the page has those of this machine's.
    if slurm_root().is_some() {
        harness::skipped(
            "docs/refusals.md has the sentences of this machine's Slurm; every row but that comparison ran",
        );
        return;
    }
    let path: PathBuf = harness::project().join("docs/refusals.md");
    let page = b.page();
    if std::env::var_os("CLUSTERMAX_BLESS").is_some() {
        std::fs::write(&path, &page).expect("docs/refusals.md");
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    for (is, should) in written.lines().zip(page.lines()) {
        assert_eq!(is, should, "docs/refusals.md is old: CLUSTERMAX_BLESS=1 writes it anew");
    }
    assert_eq!(written.len(), page.len(), "docs/refusals.md is old: CLUSTERMAX_BLESS=1 writes it anew");
}

fn command_line_and_configuration(b: &mut Book) {
    const IN: &str = "Command line and configuration";
    let drain = ["drain", "--reason", REASON];
    let said = b.with("none.toml", &drain);
    b.row(IN, "the configuration is missing", "drain --reason REASON", &said, "", 2);
    b.variant("typo.toml", |t| t.replace("enforcement = ", "enforcment = "));
    let said = b.with("typo.toml", &drain);
    b.row(IN, "a key is misspelt", "drain --reason REASON", &said, "", 2);
    b.variant("open.toml", |t| t);
    let open = b.c.dir().join("etc/open.toml");
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o666)).expect("mode");
    let said = b.with("open.toml", &drain);
    b.row(IN, "others can write the configuration", "drain --reason REASON", &said, "", 2);
    let said = run(&mut b.on("n1", &["drain", "--reason", "broken"]));
    b.row(IN, "the reason is not in the suite's grammar", "drain --reason broken", &said, "", 2);
    let said = run(&mut b.on("n1", &["--node", "n[1-4]", "drain", "--reason", REASON]));
    b.row(IN, "a list where one name is asked for", "--node n[1-4] drain --reason REASON", &said, "", 2);
    fn exempt<'a>(args: &[&'a str]) -> Vec<&'a str> {
        [&["exempt"], args].concat()
    }
    for (when, args) in [
        ("an exemption for another node", &["n2", "--until", "2h", "--why", "cable"][..]),
        ("an exemption for a check that is none", &["n1", "gpu.xidd", "--until", "2h", "--why", "cable"][..]),
        ("an exemption that is over", &["n1", "--until", "2026-01-01", "--why", "cable"][..]),
        ("an exemption without an end to speak of", &["n1", "--until", "52w", "--why", "cable"][..]),
        ("an end that is no time", &["n1", "--until", "soon", "--why", "cable"][..]),
        ("an exemption that is not there is ended", &["n1", "--end"][..]),
    ] {
        let said = run(&mut b.on("n1", &exempt(args)));
        b.row(IN, when, &exempt(args).join(" "), &said, "", 2);
    }
    b.variant("observe.toml", |t| t.replace("\"enforce\"", "\"observe\""));
    let said = b.with("observe.toml", &drain);
    b.row(IN, "enforcement is observe", "drain --reason REASON", &said, "observe", 15);
    b.variant("batch.toml", |t| format!("{t}\n[enforce]\npartitions = [\"batch\"]\n"));
    let said = b.with("batch.toml", &drain);
    b.row(
        IN,
        "the node is outside of the partitions that are enforced",
        "drain --reason REASON",
        &said,
        "observe",
        15,
    );
}

fn permissions(b: &mut Book) {
    const IN: &str = "Permissions";
    let program = b.program();
    let config = b.c.config().display().to_string();
    let user = |b: &Book, args: &[&str]| {
        run(&mut b.c.user_command(&[&[program.as_str(), "--config", &config, "--node", "n1"], args].concat()))
    };
    let said = user(b, &["release"]);
    b.row(IN, "a user releases the brake", "release", &said, "denied", 17);
    let said = user(b, &["exempt", "n1", "--until", "2h", "--why", "mine"]);
    b.row(IN, "a user exempts a node", "exempt n1 --until 2h --why mine", &said, "denied", 17);
    let said = user(b, &["drain", "--reason", REASON]);
    b.row(IN, "a user drains a node: Slurm says no", "drain --reason REASON", &said, "unreadable", 14);
    assert_eq!(USER, "nobody");
    assert!(!b.c.node("n1").drained());
}

fn nodes(b: &mut Book) {
    const IN: &str = "The node";
    let drain = ["drain", "--reason", REASON];
    let said = run(&mut b.on("n9", &drain));
    b.row(IN, "Slurm does not know it", "--node n9 drain --reason REASON", &said, "unreadable", 14);
    b.c.slurm(&["scontrol", "update", "nodename=n2", "state=drain", "reason=ticket 1234"]);
    let said = run(&mut b.on("n2", &drain));
    b.row(IN, "an operator drained it", "drain --reason REASON", &said, "foreign", 10);
    assert_eq!(b.c.node("n2").reason, "ticket 1234");
    let said = run(&mut b.on("n2", &["return", "--id", "3f2a91bc"]));
    b.row(IN, "nothing of ours was ever written on it", "return --id 3f2a91bc", &said, "foreign", 10);
    let reserve = "scontrol create reservation ReservationName=m starttime=now duration=60 user=root \
                   flags=maint,ignore_jobs nodes=n3";
    b.c.slurm(&reserve.split(' ').collect::<Vec<_>>());
    b.c.wait(20, "n3 in maintenance", || b.c.node("n3").state.contains("MAINT"));
    let said = run(&mut b.on("n3", &drain));
    b.row(IN, "it is in a maintenance reservation", "drain --reason REASON", &said, "protected", 11);
    assert!(!b.c.node("n3").drained());

    if slurm_root().is_some() {
        // 23.02 and newer: a reason of Slurm's own, and an operator's timer that any update would stop.
        let timed = "scontrol update nodename=n4 state=drain resumeafter=3600";
        b.c.slurm(&timed.split(' ').chain(["reason=Prolog error"]).collect::<Vec<_>>());
        let said = run(&mut b.on("n4", &drain));
        b.row(IN, "an operator had Slurm resume it later", "drain --reason REASON", &said, "foreign", 10);
        assert!(said.out.contains("ResumeAfter"), "{said:?}");
        b.c.slurm(&["scontrol", "update", "nodename=n4", "state=resume"]);
        b.c.wait(30, "n4 in service", || b.c.node("n4").state == "IDLE");
    }

    // Ours, then an operator's word over it.
    assert_eq!(run(&mut b.on("n1", &drain)).code, 0);
    let said = run(&mut b.on("n1", &["return", "--id", "00000000"]));
    b.row(IN, "our drain is for another fault", "return --id 00000000", &said, "foreign", 10);
    b.c.slurm(&["scontrol", "update", "nodename=n1", "state=drain", "reason=mine now"]);
    let said = run(&mut b.on("n1", &["return", "--id", "3f2a91bc"]));
    b.row(IN, "an operator changed the reason since", "return --id 3f2a91bc", &said, "foreign", 10);
    b.c.slurm(&["scontrol", "update", "nodename=n1", "state=resume"]);
    b.c.wait(30, "n1 in service", || b.c.node("n1").state == "IDLE");
}

/// Hides every libslurm from one call, in a mount namespace of its own: as after an upgrade of Slurm.
fn without_libslurm(b: &Book, config: &str, args: &str) -> Said {
    let program = b.program();
    let etc = b.c.dir().join("etc");
    let script = format!(
        "for f in /usr/lib/*/libslurm.so.[0-9]*; do [ -L \"$f\" ] || mount --bind /dev/null \"$f\"; done; \
         exec '{program}' --node n1 --config '{}/{config}' {args}",
        etc.display()
    );
    run(&mut b.c.command(&["unshare", "-m", "/bin/sh", "-c", &script]))
}

fn ways_to_slurm(b: &mut Book) {
    const IN: &str = "The way to Slurm";
    let said = without_libslurm(b, "clustermax.toml", "list --json");
    let list: Value = serde_json::from_str(&said.out).expect("a list");
    assert_eq!(list["via"], "scontrol", "{said:?}");
    b.variant("away.toml", |t| {
        t.replace("scontrol = \"/usr/bin/scontrol\"", "scontrol = \"/nonexistent/scontrol\"")
    });
    let said = without_libslurm(b, "away.toml", &format!("drain --reason '{REASON}'"));
    let mut said = said;
    said.out =
        said.out.replace(&numbered(&said.out), "libslurm.so.N").replace(&release(&said.out), "RELEASE");
    b.row(
        IN,
        "libslurm is of another release, and there is no scontrol",
        "drain --reason REASON",
        &said,
        "wrong_release",
        16,
    );
    b.variant("noconf.toml", |t| {
        t.lines()
            .map(|l| if l.starts_with("conf = ") { "conf = \"/nonexistent/slurm.conf\"" } else { l })
            .fold(String::new(), |all, line| all + line + "\n")
    });
    let said = b.with("noconf.toml", &["drain", "--reason", REASON]);
    b.row(IN, "there is no slurm.conf", "drain --reason REASON", &said, "spooled", 13);
    let spooled = b.c.node_dir("n1").join("state/spool");
    std::fs::remove_dir_all(spooled).expect("spool");
    assert!(!b.c.node("n1").drained());
}

/// `libslurm.so.38` of a text.
fn numbered(text: &str) -> String {
    let at = text.find("libslurm.so.").expect("a library");
    text[at..].split([' ', '"']).next().unwrap_or_default().to_string()
}

/// `22.05` of a text.
fn release(text: &str) -> String {
    let at = text.find("Slurm ").expect("a release") + "Slurm ".len();
    text[at..].split([' ', ',']).next().unwrap_or_default().to_string()
}

fn brake_and_controller(b: &mut Book) {
    const IN: &str = "Brake and controller";
    let drain = ["drain", "--reason", REASON];
    // Ours holds n1, one of four: no more is allowed.
    assert_eq!(run(&mut b.on("n1", &drain)).code, 0);
    let said = run(&mut b.on("n4", &drain));
    b.row(
        IN,
        "as many nodes as the brake allows are drained by us",
        "drain --reason REASON",
        &said,
        "brake",
        12,
    );
    let said = run(&mut b.on("n4", &drain));
    b.row(
        IN,
        "the brake is engaged on the node, until `release`",
        "drain --reason REASON",
        &said,
        "brake",
        12,
    );
    assert!(!b.c.node("n4").drained());
    assert_eq!(run(&mut b.on("n4", &["release"])).code, 0);
    b.c.sim_ok(&["stop", "slurmctld"]);
    let said = run(&mut b.on("n4", &drain));
    b.row(IN, "the controller does not answer", "drain --reason REASON", &said, "spooled", 13);
    let said = run(&mut b.on("n4", &["return", "--id", "3f2a91bc"]));
    b.row(IN, "the same, and nothing of ours was written", "return --id 3f2a91bc", &said, "foreign", 10);
    let said = run(&mut b.on("n4", &["deliver"]));
    b.row(IN, "the same when the spool is delivered", "deliver", &said, "spooled", 13);
}
