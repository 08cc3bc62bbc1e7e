//! The built plugin, loaded by a C program that looks like Slurm (`host.c`).

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::io::{BufRead, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// Group and user id that is not root's: `nobody` on Debian. Any number does.
const NOBODY: u32 = 65_534;

/// What the tests load and run. The plugin is built into a folder of its own: other programs use the one in the
/// usual place meanwhile.
struct Built {
    plugin: PathBuf,
    panicking: PathBuf,
    newer: PathBuf,
    host: PathBuf,
    host_without_spank_log: PathBuf,
    bare_host: PathBuf,
}

/// The release whose plugin is looked at: that of the Slurm in CLUSTERMAX_SLURM_ROOT, as in the end-to-end tests, else 22.05.
fn release() -> &'static (String, Option<PathBuf>) {
    static FOUND: OnceLock<(String, Option<PathBuf>)> = OnceLock::new();
    FOUND.get_or_init(find_release)
}

fn find_release() -> (String, Option<PathBuf>) {
    let Some(root) = std::env::var_os("CLUSTERMAX_SLURM_ROOT").filter(|r| !r.is_empty()).map(PathBuf::from)
    else {
        return ("22.05".into(), std::env::var_os("SLURM_INCLUDE_DIR").map(PathBuf::from));
    };
    let mark = fs::read_to_string(root.join("etc/clustermax-slurm-root")).unwrap();
    let found = mark.split_whitespace().last().unwrap().rsplit_once('.').unwrap().0.to_owned();
    // Slurm's headers alone: the C library's are those of this machine's compiler.
    let include = tmp().join(format!("include-{found}"));
    fs::create_dir_all(&include).unwrap();
    let _ = fs::remove_file(include.join("slurm"));
    symlink(root.join("usr/include/slurm"), include.join("slurm")).unwrap();
    (found, Some(include))
}

fn built() -> &'static Built {
    static BUILT: OnceLock<Built> = OnceLock::new();
    let build = |release: &str| Built {
        plugin: plugin("plugin.so", &[], release),
        panicking: plugin("panicking.so", &["--features", "test-panic"], release),
        newer: plugin("newer.so", &[], "25.05"),
        host: host("host", &[]),
        host_without_spank_log: host("host-without-spank-log", &["-DNO_SPANK_LOG"]),
        bare_host: host("bare-host", &["-DBARE"]),
    };
    BUILT.get_or_init(|| build(&release().0))
}

fn tmp() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn plugin(name: &str, options: &[&str], release: &str) -> PathBuf {
    // For each of CLUSTERMAX_SLURM_ROOT: tests on two releases may run at once.
    let target = tmp().join(format!("spank-{}", self::release().0));
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--quiet", "--package", "spank-clustermax", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .args(options)
        .env("CLUSTERMAX_SLURM_VERSION", release);
    if let Some(include) = &self::release().1 {
        cargo.env("SLURM_INCLUDE_DIR", include);
    }
    assert!(cargo.status().unwrap().success(), "{cargo:?}");
    let to = tmp().join(format!("{}-{name}", self::release().0));
    fs::copy(target.join("debug/libspank_clustermax.so"), &to).unwrap();
    to
}

fn host(name: &str, options: &[&str]) -> PathBuf {
    let to = tmp().join(format!("{}-{name}", release().0));
    let mut cc = Command::new("cc");
    if let Some(dir) = &release().1 {
        cc.arg("-I").arg(dir);
    }
    cc.args(["-rdynamic", "-Wall", "-o"])
        .arg(&to)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/host.c"))
        .args(options)
        .arg("-ldl");
    assert!(cc.status().unwrap().success(), "{cc:?}");
    to
}

/// Runs a host with a plugin; what it printed, without the line about the load.
fn drive(host: &Path, plugin: &Path, script: &str) -> String {
    let mut child = Command::new(host)
        .arg(plugin)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{script}: {output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "nothing goes to the host's stderr");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().filter(|line| !line.starts_with("loaded")).map(|line| format!("{line}\n")).collect()
}

fn run(script: &str) -> String {
    drive(&built().host, &built().plugin, script)
}

fn root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// A run folder of node n2.
struct Node(tempfile::TempDir);

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir_all(dir.path().join("n2/jobs")).unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join("n2").join(name)
    }

    fn write(&self, name: &str, content: &str) {
        fs::write(self.path(name), content).unwrap();
    }

    /// The start of every script: slurmstepd on n2.
    fn stepd(&self) -> String {
        format!(
            "context remote\nenv SLURMD_NODENAME n2\nargs run_dir={}/%n\ninit\nuser_init\n",
            self.0.path().display()
        )
    }

    /// What `task_init` of job 123, task 0 prints.
    fn task_init(&self) -> String {
        after_init(&run(&format!("{}task_init 0\n", self.stepd())))
    }
}

fn after_init(output: &str) -> String {
    let rest = output.split_once("init 0\n").unwrap().1;
    rest.strip_prefix("user_init 0\n").unwrap_or(rest).to_owned()
}

/// RFC 3339 for so many seconds from now.
fn time(offset: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let output = Command::new("date")
        .args(["-u", "+%Y-%m-%dT%H:%M:%SZ", "-d"])
        .arg(format!("@{}", i64::try_from(now).unwrap() + offset))
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn verdict(scope: &str) -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    format!(
        r#"{{"schema":"clustermax-verdict/1","node":"n2","boot_id":"{}","mode":"periodic","enforcement":"enforce",
        "time":"{}","status":"fail","action":"reboot","drain":true,"findings":[{{"check":"gpu.xid","token":"xid79",
        "status":"fail","device":{{"kind":"gpu","name":"g3","index":3,"pci":"0000:5d:00.0"}},"scope":"{scope}",
        "action":"reboot","drain":true,"fault":"hardware","evidence":"NVRM: Xid 79 %s%n","text":"GPU fell off the bus",
        "mend":"reboot","synthetic":true,"observe":false}}]}}"#,
        boot.trim(),
        time(0)
    )
}

fn job(gpu: u32, events: &str) -> String {
    format!(
        r#"{{"schema":"clustermax-job/1","job":"123","uid":1000,"gid":1000,"node":"n2","started":"{0}","as_of":"{0}",
        "gpus":[{{"index":{gpu},"pci":"0000:5{gpu}:00.0"}}],"events":[{events}]}}"#,
        time(5)
    )
    .replace("0000:53:00.0", "0000:5d:00.0")
}

fn xid13() -> String {
    format!(
        r#"{{"time":"{}","check":"gpu.xid","token":"xid13","device":"g3","fault":"program","action":"tell_user",
        "drain":false,"text":"Xid 13: graphics engine exception, usually an error in the program"}}"#,
        time(5)
    )
}

const REFUSED: &str = "user: clustermax: node n2, GPU 3: GPU fell off the bus (cmx:xid79: NVRM: Xid 79 %s%n). \
    The node is being taken out of service. \
    This step is not started here; submit again and Slurm will use other nodes.\ntask ended with status 1\n";

const REGISTERED: &str = "registered clustermax-report=off|brief|full\nregistered clustermax-strict\n\
    registered clustermax-tags=KEY=VALUE[,...]\n";

#[test]
fn init_registers_the_option_where_users_are_and_says_nothing() {
    for context in ["local", "allocator", "remote"] {
        // A bad argument of the site must not spoil `srun --help`.
        let args = if context == "remote" { "" } else { "args reprot=full\n" };
        assert_eq!(
            run(&format!("context {context}\n{args}init\n")),
            format!("{REGISTERED}init 0\n"),
            "{context}"
        );
    }
    assert_eq!(run("context slurmd\ninit\n"), "init 0\n");
}

#[test]
fn a_bad_plugstack_argument_is_named_in_the_daemons_log() {
    assert_eq!(
        run("context slurmd\nargs reprot=full\ninit\n"),
        "error: clustermax: plugstack argument \"reprot=full\" is not known and is ignored; \
         use report=, run_dir=, procfs=, max_age= or on_fault=\ninit 0\n"
    );
}

#[test]
fn a_bad_option_is_refused_on_the_command_line_only() {
    let bad = "error: clustermax: --clustermax-report=loud is not known; use off, brief or full\noption -1\n";
    assert_eq!(
        run("init\noption clustermax-report 0 loud\noption clustermax-report 0 full\n\
             option clustermax-report 1 loud\n"),
        format!("{REGISTERED}init 0\n{bad}option 0\noption 0\n")
    );
    assert!(run("init\noption clustermax-report 0\n").ends_with("option -1\n"), "no argument at all");
}

#[test]
fn a_fault_of_the_node_refuses_the_step_and_is_told_once() {
    let node = Node::new();
    node.write("verdict.json", &verdict("node"));
    let tasks = run(&format!("{}item ntasks 2\ntask_init 0\ntask_init 1\n", node.stepd()));
    assert_eq!(after_init(&tasks), format!("{REFUSED}task ended with status 1\n"));
}

/// A host that calls the hook in the daemon itself must not lose the daemon.
#[test]
fn only_a_process_of_its_own_is_ended() {
    let node = Node::new();
    node.write("verdict.json", &verdict("node"));
    let output = run(&format!("{}task_init_here 0\ntask_exit 0\n", node.stepd()));
    assert!(output.ends_with("use other nodes.\ntask_init -1\ntask_exit 0\n"), "{output}");
}

#[test]
fn a_faulty_gpu_refuses_only_the_job_that_holds_it() {
    let node = Node::new();
    node.write("verdict.json", &verdict("device"));
    assert_eq!(node.task_init(), "task_init 0\n", "no record of the job");
    node.write("jobs/123.json", &job(2, ""));
    assert_eq!(node.task_init(), "task_init 0\n", "another GPU");
    node.write("jobs/123.json", &job(3, ""));
    assert_eq!(node.task_init(), REFUSED);
    let other = run(&format!("{}item job 124\ntask_init 0\n", node.stepd()));
    assert_eq!(after_init(&other), "task_init 0\n", "another job");
}

fn warning() -> String {
    verdict("device").replace("\"status\":\"fail\",\"device\"", "\"status\":\"warn\",\"device\"")
}

#[test]
fn strict_refuses_on_a_warning_and_only_then() {
    let node = Node::new();
    node.write("verdict.json", &warning());
    node.write("jobs/123.json", &job(3, ""));
    assert_eq!(node.task_init(), "task_init 0\n", "not asked for");
    let strict = |node: &Node| {
        let script =
            format!("{}option clustermax-strict 1\nitem ntasks 2\ntask_init 0\ntask_init 1\n", node.stepd());
        after_init(&run(&script)).strip_prefix("option 0\n").unwrap().to_owned()
    };
    assert_eq!(
        strict(&node),
        "user: clustermax: node n2, GPU 3: GPU fell off the bus (cmx:xid79: NVRM: Xid 79 %s%n). \
         --clustermax-strict was asked for, so this step is not started here; submit again with --exclude=n2, or \
         without that option.\ntask ended with status 1\ntask ended with status 1\n"
    );
    node.write("jobs/123.json", &job(2, ""));
    assert_eq!(strict(&node), "task_init 0\ntask_init 0\n", "another GPU's warning");
    node.write("verdict.json", &verdict("node"));
    assert!(strict(&node).contains("The node is being taken out of service."), "a fault is told as a fault");
    fs::remove_file(node.path("verdict.json")).unwrap();
    assert_eq!(
        strict(&node),
        "user: clustermax: node n2: no health check of the last 600 s is known here, so --clustermax-strict cannot \
         be applied; the step starts.\ntask_init 0\ntask_init 0\n"
    );
}

/// `on_fault=warn` is the site's leniency, strict the user's wish.
#[test]
fn strict_goes_before_the_sites_leniency() {
    let node = Node::new();
    node.write("verdict.json", &verdict("node"));
    let stepd = node.stepd().replace("/%n", "/%n on_fault=warn");
    let output = run(&format!("{stepd}option clustermax-strict 1 (null)\ntask_init 0\n"));
    assert!(output.ends_with(&format!("option 0\n{REFUSED}")), "{output}");
}

#[test]
fn tags_are_checked_before_the_job_is_submitted() {
    let give = |remote: u32, text: &str| {
        let output = run(&format!("context allocator\ninit\noption clustermax-tags {remote} {text}\n"));
        after_init(&output)
    };
    assert_eq!(give(0, "project=llm,run=7"), "option 0\n");
    assert_eq!(
        give(0, "project=$(reboot)"),
        "error: clustermax: --clustermax-tags cannot be taken: the value of tag \"project\" is none; it takes \
         letters, digits and . _ : / @ + -, 1 to 64 characters\noption -1\n"
    );
    assert_eq!(give(1, "project=$(reboot)"), "option 0\n", "in slurmstepd nothing is made of them");
    let long = format!("a={}", "x".repeat(10_000));
    assert!(give(0, &long).ends_with("option -1\n"));
}

#[test]
fn on_fault_warn_tells_and_lets_the_step_start() {
    let node = Node::new();
    node.write("verdict.json", &verdict("node"));
    let script = node.stepd().replace("/%n", "/%n on_fault=warn") + "task_init 0\n";
    let output = after_init(&run(&script));
    assert!(output.contains("This step is started all the same, but may fail;"), "{output}");
    assert!(output.ends_with("task_init 0\n"), "{output}");
}

/// The user's process reads what the prolog wrote for the job's group.
#[test]
fn root_the_users_own_process_can_read_the_record() {
    if !root() {
        eprintln!("skipped: needs root");
        return;
    }
    let node = Node::new();
    node.write("verdict.json", &verdict("device"));
    node.write("jobs/123.json", &job(3, ""));
    chown(node.path("jobs/123.json"), Some(0), Some(NOBODY)).unwrap();
    fs::set_permissions(node.path("jobs/123.json"), fs::Permissions::from_mode(0o640)).unwrap();
    let as_user = |uid: u32| after_init(&run(&format!("{}user {uid}\ntask_init 0\n", node.stepd())));
    assert_eq!(as_user(NOBODY), REFUSED);
    assert_eq!(as_user(NOBODY - 1), "task_init 0\n", "another group cannot read it: not refused");
}

#[test]
fn files_that_cannot_be_believed_refuse_nobody() {
    let node = Node::new();
    let path = node.path("verdict.json");
    let good = verdict("node");
    node.write("verdict.json", &good);
    assert_eq!(node.task_init(), REFUSED);

    node.write("verdict.json", "");
    assert_eq!(node.task_init(), "task_init 0\n", "0 bytes");
    node.write("verdict.json", &good[..good.len() / 2]);
    assert_eq!(node.task_init(), "task_init 0\n", "half-written");
    node.write(
        "verdict.json",
        &good.replace("\"findings\":", &format!("\"pad\":\"{}\",\"findings\":", "x".repeat(70_000))),
    );
    assert_eq!(node.task_init(), "task_init 0\n", "longer than 64 KiB");
    node.write("verdict.json", &good.replace("enforcement\":\"enforce", "enforcement\":\"observe"));
    assert_eq!(node.task_init(), "task_init 0\n", "observe");
    node.write("verdict.json", &good.replace(&time(0)[..4], "2001"));
    assert_eq!(node.task_init(), "task_init 0\n", "stale");

    fs::remove_file(&path).unwrap();
    assert_eq!(node.task_init(), "task_init 0\n", "absent");
    node.write("real.json", &good);
    symlink(node.path("real.json"), &path).unwrap();
    assert_eq!(node.task_init(), "task_init 0\n", "symbolic link");
    fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert_eq!(node.task_init(), "task_init 0\n", "FIFO");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(node.task_init(), "task_init 0\n", "folder");
    fs::remove_dir(&path).unwrap();

    node.write("verdict.json", &good);
    if root() {
        chown(&path, Some(NOBODY), None).unwrap();
        assert_eq!(node.task_init(), "task_init 0\n", "foreign owner");
        chown(&path, Some(0), None).unwrap();
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(node.task_init(), "task_init 0\n", "writable by others");
}

#[test]
fn the_report_comes_after_the_last_local_task() {
    let node = Node::new();
    node.write("jobs/123.json", &job(3, &xid13()));
    let output = run(&format!("{}item ntasks 3\ntask_exit 1\ntask_exit 0\ntask_exit 2\n", node.stepd()));
    let output = after_init(&output);
    assert!(
        output.starts_with(
            "task_exit 0\ntask_exit 0\nuser: clustermax: node n2, GPU 3: Xid 13: graphics engine exception, \
             usually an error in the program ("
        ),
        "{output}"
    );
    assert_eq!(output.lines().count(), 5, "{output}");
    let record = node.path("jobs/123.json");
    let conclusion = format!(
        "user: clustermax: node n2: This is usually an error in the program, not in the hardware. \
         The record, while the job is here: {}\n",
        record.display()
    );
    assert!(output.contains(&conclusion), "{output}");
}

/// A job's record as `docs/interfaces.md` has it, with what GPU 3 counted.
fn counted(ecc_dram_ue: u32) -> String {
    job(3, "").replace(
        "\"events\":[]",
        &format!(
            "\"events\":[],\"delta\":{{\"gpus\":[{{\"index\":3,\"rises\":{{\"ecc_dram_ue\":{ecc_dram_ue}}}}}]}},\
             \"blame\":\"hardware\",\"sentence\":\"The hardware failed, not the program: GPU 3.\""
        ),
    )
}

#[test]
fn a_step_is_told_what_came_since_it_began() {
    let node = Node::new();
    node.write("jobs/123.json", &counted(2));
    let output = run(&format!("{}task_exit 0\n", node.stepd()));
    assert_eq!(after_init(&output), "task_exit 0\n", "an earlier step's errors");
    // Brought up to date while the step runs: the host waits for the next line of its script.
    let mut child = Command::new(&built().host)
        .arg(&built().plugin)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    stdin.write_all(node.stepd().as_bytes()).unwrap();
    let mut line = String::new();
    while line != "user_init 0\n" {
        line.clear();
        assert_ne!(stdout.read_line(&mut line).unwrap(), 0);
    }
    node.write("jobs/123.json", &counted(5));
    stdin.write_all(b"task_exit 0\n").unwrap();
    drop(stdin);
    let mut output = String::new();
    stdout.read_to_string(&mut output).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(
        output.starts_with(
            "user: clustermax: node n2, GPU 3: 3 uncorrected memory errors since the step began.\n"
        ),
        "{output}"
    );
    assert!(output.contains("node n2: The hardware failed, not the program: GPU 3. The record"), "{output}");
}

#[test]
fn the_report_says_that_the_node_leaves_service() {
    let node = Node::new();
    node.write("verdict.json", &verdict("device"));
    node.write("jobs/123.json", &job(3, &xid13()));
    let output = run(&format!("{}task_exit 0\n", node.stepd()));
    assert!(output.contains("what runs here goes on, and Slurm starts nothing more here."), "{output}");
    node.write("verdict.json", &verdict("device").replace("\"enforce\"", "\"observe\""));
    let output = run(&format!("{}task_exit 0\n", node.stepd()));
    assert!(output.contains("Xid 13") && !output.contains("out of service"), "{output}");
}

#[test]
fn the_report_obeys_option_and_site() {
    let node = Node::new();
    node.write("jobs/123.json", &job(3, ""));
    let script = |site: &str, option: &str| {
        let stepd = node.stepd().replace("/%n", &format!("/%n {site}"));
        after_init(&run(&format!("{stepd}{option}task_exit 0\n")))
    };
    assert_eq!(script("", ""), "task_exit 0\n", "brief is silent when nothing happened");
    assert!(script("report=full", "").contains("nothing wrong seen with GPU 3 as of"));
    assert!(script("", "option clustermax-report 1 full\n").contains("nothing wrong seen with GPU 3 as of"));
    assert_eq!(
        script("report=full", "option clustermax-report 1 off\n"),
        "option 0\ntask_exit 0\n",
        "the user's word wins"
    );
    assert_eq!(
        script("report=full", "item step 0xfffffffc\n"),
        "task_exit 0\n",
        "the extern step has no user's output"
    );
}

#[test]
fn loaded_twice_it_speaks_once() {
    let node = Node::new();
    node.write("verdict.json", &verdict("node"));
    node.write("jobs/123.json", &job(3, &xid13()));
    let output =
        run(&format!("load\n{}item ntasks 2\ntask_init 0\ntask_exit 0\ntask_exit 1\n", node.stepd()));
    assert_eq!(output.matches("registered").count(), 3, "{output}");
    assert_eq!(output.matches("fell off the bus").count(), 1, "{output}");
    assert_eq!(output.matches("Xid 13").count(), 1, "{output}");
}

#[test]
fn a_host_without_the_optional_symbols_still_loads_it() {
    let node = Node::new();
    node.write("verdict.json", &verdict("node"));
    let script = format!("{}task_init 0\n", node.stepd());
    let output = drive(&built().host_without_spank_log, &built().plugin, &script);
    assert_eq!(after_init(&output), REFUSED.replace("user: ", "error: "));
    let bare = drive(&built().bare_host, &built().plugin, "init\ntask_init 0\ntask_exit 0\n");
    assert_eq!(bare, "init 0\ntask_init 0\ntask_exit 0\n");
}

#[test]
fn long_and_hostile_names_do_no_harm() {
    let node = Node::new();
    node.write("verdict.json", &verdict("node"));
    for env in [
        "SLURM_JOB_NODELIST =10000",
        "SLURMD_NODENAME =10000",
        "SLURMD_NODENAME ../n2",
        "SLURMD_NODENAME n2/.",
    ] {
        let script = node.stepd().replace("SLURMD_NODENAME n2", env) + "task_init 0\ntask_exit 0\n";
        assert_eq!(after_init(&run(&script)), "task_init 0\ntask_exit 0\n", "{env}");
    }
}

#[test]
fn a_panic_stays_inside() {
    for hook in ["init", "user_init", "task_init", "task_exit"] {
        let script =
            format!("context remote\nargs panic={hook}\ninit\nuser_init\ntask_init 0\ntask_exit 0\n");
        let output = drive(&built().host, &built().panicking, &script);
        assert!(
            output.contains(&format!("error: clustermax: internal error in {hook}: told to panic in {hook}")),
            "{output}"
        );
        for rc in ["init 0", "user_init 0", "task_init 0", "task_exit 0"] {
            assert!(output.contains(&format!("{rc}\n")), "{hook}: {output}");
        }
    }
    let shipped = drive(&built().host, &built().plugin, "context remote\nargs panic=init\ninit\n");
    assert!(shipped.contains("\"panic=init\" is not known"), "{shipped}");
}

/// A script that takes every way through the plugin.
fn every_way(node: &Node, steps: u32) -> String {
    node.write("verdict.json", &warning());
    node.write("jobs/123.json", &counted(3).replace("\"events\":[]", &format!("\"events\":[{}]", xid13())));
    format!(
        "context allocator\ninit\noption clustermax-report 0 loud\noption clustermax-tags 0 a=1,b=2\n\
         option clustermax-tags 0 a=b=c\n{}option clustermax-report 1 full\nmeasure\nrepeat {steps}\nmeasure\n\
         repeat {steps}\nmeasure\noption clustermax-strict 1\ntask_init 0\n",
        node.stepd()
    )
}

/// A slurmstepd serves one step; here one process serves two thousand.
#[test]
fn a_thousand_steps_leave_nothing_behind() {
    let node = Node::new();
    let output = run(&every_way(&node, 1000));
    let measures: Vec<&str> = output.lines().filter(|line| line.starts_with("threads")).collect();
    println!("{measures:#?}");
    assert_eq!(measures.len(), 3, "{output}");
    let state = |measure: &str| measure.split(" grown").next().unwrap().to_owned();
    for measure in &measures {
        assert!(measure.starts_with("threads 1 files "), "{measures:?}");
        assert_eq!(state(measure), state(measures[0]), "no file is left open");
    }
    let grown: i64 = measures[2].split(' ').nth(5).and_then(|n| n.parse().ok()).unwrap();
    assert!(grown < 64, "resident KiB over the second thousand: {measures:?}");
}

#[test]
fn valgrind_has_nothing_to_say() {
    let node = Node::new();
    let panicking = every_way(&node, 3).replace("/%n", "/%n panic=task_exit");
    for (plugin, script) in [(&built().plugin, every_way(&node, 20)), (&built().panicking, panicking)] {
        let mut child = Command::new("valgrind")
            .args([
                "-q",
                "--error-exitcode=9",
                "--leak-check=full",
                "--errors-for-leak-kinds=definite,indirect",
            ])
            .args(["--show-leak-kinds=definite,indirect", "--log-fd=2"])
            .arg(&built().host)
            .arg(plugin)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("valgrind is installed (./run-tests installs it)");
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(told.ends_with("task ended with status 1\n"), "{told}");
        assert_eq!(said, "", "{told}");
    }
}

/// Names that the dynamic symbol table defines, by `nm`.
fn exports(plugin: &Path) -> Vec<String> {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(plugin).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let mut names: Vec<_> =
        text.lines().filter_map(|line| line.split_whitespace().nth(2)).map(str::to_owned).collect();
    names.sort();
    names
}

#[test]
fn only_what_slurm_looks_for_is_exported() {
    let hooks =
        ["slurm_spank_init", "slurm_spank_task_exit", "slurm_spank_task_init", "slurm_spank_user_init"];
    let data = ["plugin_name", "plugin_type", "plugin_version"];
    let mut newer = [&data[..], &hooks[..], &["slurm_spank_init_failure_mode"]].concat();
    newer.sort_unstable();
    assert_eq!(exports(&built().newer), newer);
    let wanted = if *release().0 < *"25.05" { [&data[..], &hooks[..]].concat() } else { newer };
    assert_eq!(exports(&built().plugin), wanted);
}

#[test]
fn it_needs_no_symbol_of_slurm_to_load_and_is_never_unloaded() {
    let output = Command::new("nm").args(["-D", "--undefined-only"]).arg(&built().plugin).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("spank") && !text.contains("slurm"), "{text}");
    let output = Command::new("readelf").args(["-dW"]).arg(&built().plugin).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("NODELETE"), "{text}");
}

#[test]
fn the_release_is_the_one_it_was_built_for() {
    let child = Command::new(&built().host).arg(&built().newer).stdin(Stdio::null()).output().unwrap();
    assert_eq!(String::from_utf8(child.stdout).unwrap(), "loaded clustermax spank 0x190500\n");
    let child = Command::new(&built().host).arg(&built().plugin).stdin(Stdio::null()).output().unwrap();
    let (found, _) = release();
    let (major, minor) = found.split_once('.').unwrap();
    let number = format!("0x{:02x}{:02x}00", major.parse::<u8>().unwrap(), minor.parse::<u8>().unwrap());
    assert_eq!(String::from_utf8(child.stdout).unwrap(), format!("loaded clustermax spank {number}\n"));
}
