//! Stage `network`: copies inside a node, RDMA and TCP between neighbours. One pair after the other, as tests at the same
//! time could measure each other; on large jobs as few pairs at the same time as the stage's length allows.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::process::Command;
use std::time::{Duration, Instant};

use super::bench::{Bench, Stop};
use super::slurm;
use crate::collect::network::{Outcome, Test, Tool};
use crate::run;

/// Turns of one pair after the other. Larger jobs measure several pairs in a turn, far from each other in the list of nodes.
const TURNS: usize = 32;
/// Kept free before the stage's end, for srun itself.
const MARGIN: Duration = Duration::from_secs(5);

/// Tells what a node has: `cmx-net NODE KEY VALUES`. The tag: a SPANK plug-in may print lines of its own.
const FACTS: &str = r#"
PATH=$PATH:/usr/local/bin:/usr/sbin:/sbin:/usr/local/cuda/bin
say() { echo "cmx-net $SLURMD_NODENAME $*"; }
say here
for name in nvbandwidth ib_write_bw ib_write_lat iperf3 ping; do
    for file in "$(command -v "$name")" /opt/*/"$name" /opt/*/bin/"$name" /opt/*/build/"$name" \
        /usr/local/*/"$name" /usr/local/*/bin/"$name"; do
        [ -f "$file" ] && [ -x "$file" ] || continue
        say program "$name" "$file"
        "$file" --help 2>&1 </dev/null | grep -q -e --use_cuda && say cuda "$name"
        break
    done
done
for port in /sys/class/infiniband/*/ports/*; do
    [ -r "$port/state" ] || continue
    device=${port%/ports/*}
    say port "${device##*/}" "${port##*/}" "$(cut -d: -f1 "$port/state")" "$(readlink -f "$device/device")"
done
[ -e /dev/nvidiactl ] || exit 0
for gpu in /sys/bus/pci/devices/*; do
    [ "$(cat "$gpu/vendor" 2>/dev/null)" = 0x10de ] || continue
    case $(cat "$gpu/class" 2>/dev/null) in 0x0300* | 0x0302*) say gpu "$(readlink -f "$gpu")" ;; esac
done
exit 0
"#;

/// One task on each node of a pair: the server under a time limit; the client tries again while that is not there yet.
const PAIR: &str = r#"
server=$1 limit=$2 count=$3
shift 3
if [ "$SLURMD_NODENAME" = "$server" ]; then exec timeout "$limit" "${@:1:count}" >&2; fi
shift "$count"
while :; do
    said=$(timeout "$limit" "$@")
    code=$?
    # iperf3 -J says so in its document and ends with 0.
    case $said in *"unable to connect to server"*) code=1 ;; esac
    case $code in 0 | 124 | 127) break ;; esac
    [ "$SECONDS" -lt "$limit" ] || break
    sleep 0.3
done
printf '%s\n' "$said"
exit "$code"
"#;

/// One task a node; its exit code is told as a fact, as a node that fails must not end the others.
const COPIES: &str = r#"
program=$(command -v nvbandwidth)
out=$1 limit=$2
shift 2
for pair in "$@"; do [ "${pair%%=*}" = "$SLURMD_NODENAME" ] && program=${pair#*=}; done
[ -x "$program" ] || exit 0
timeout "$limit" "$program" -j -t host_to_device_memcpy_ce device_to_host_memcpy_ce device_to_device_memcpy_read_ce \
    >"$out/nvbandwidth-$SLURMD_NODENAME.json"
echo "cmx-net $SLURMD_NODENAME code $?"
"#;

/// What a node has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Node {
    /// Name to path.
    programs: BTreeMap<String, String>,
    /// Programs that can use GPU memory.
    cuda: Vec<String>,
    /// RDMA devices with an active port: port and place in sysfs.
    devices: BTreeMap<String, (String, String)>,
    /// Places in sysfs, in the order of their PCI addresses.
    gpus: Vec<String>,
    /// nvbandwidth's exit code.
    code: Option<i32>,
}

fn facts(text: &str) -> BTreeMap<String, Node> {
    let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
    for line in text.lines() {
        let Some((name, fact)) = line.strip_prefix("cmx-net ").and_then(|line| line.split_once(' ')) else {
            continue;
        };
        let node = nodes.entry(name.to_owned()).or_default();
        match fact.splitn(3, ' ').collect::<Vec<_>>()[..] {
            ["program", name, path] => {
                node.programs.insert(name.to_owned(), path.to_owned());
            }
            ["cuda", name] => node.cuda.push(name.to_owned()),
            ["gpu", path] => node.gpus.push(path.to_owned()),
            ["code", code] => node.code = code.parse().ok(),
            ["port", device, rest] => {
                // State 4 is ACTIVE. The first active port stands for the device.
                if let [port, "4", path] = rest.splitn(3, ' ').collect::<Vec<_>>()[..]
                    && !device.starts_with('-')
                {
                    node.devices
                        .entry(device.to_owned())
                        .or_insert_with(|| (port.to_owned(), path.to_owned()));
                }
            }
            _ => {}
        }
    }
    nodes
}

/// Index of the GPU that shares most of a device's PCI path, in the order of PCI addresses.
fn nearest(device: &str, gpus: &[String]) -> Option<usize> {
    let shared = |gpu: &str| device.split('/').zip(gpu.split('/')).take_while(|(a, b)| a == b).count();
    // Of several as near the first one: max_by_key takes the last.
    (0..gpus.len()).rev().max_by_key(|index| shared(&gpus[*index]))
}

/// Each node with the next one, the last with the first; two nodes are one pair.
fn ring(nodes: &[String]) -> Vec<(&str, &str)> {
    let count = match nodes.len() {
        0 | 1 => 0,
        2 => 1,
        many => many,
    };
    (0..count).map(|at| (nodes[at].as_str(), nodes[(at + 1) % nodes.len()].as_str())).collect()
}

/// Numbers of the pairs of a ring that are measured at the same time, turn by turn: no node is in two of one turn.
fn turns(pairs: usize) -> Vec<Vec<usize>> {
    let Some(last) = pairs.checked_sub(1) else { return Vec::new() };
    // The last pair closes the ring: it shares a node with the first one.
    let count = (TURNS.min(pairs)..=pairs).find(|count| !last.is_multiple_of(*count) || pairs <= *count);
    let count = count.unwrap_or(pairs);
    (0..count).map(|turn| (turn..pairs).step_by(count).collect()).collect()
}

/// NodeAddr of each node in `scontrol show node --oneliner`.
fn addresses(shown: &str) -> BTreeMap<String, String> {
    let field = |line: &str, key: &str| {
        line.split_whitespace().find_map(|word| word.strip_prefix(key)).map(str::to_owned)
    };
    shown
        .lines()
        .filter_map(|line| Some((field(line, "NodeName=")?, field(line, "NodeAddr=")?)))
        .filter(|(_, address)| !address.starts_with('-'))
        .collect()
}

/// A test with its two command lines; the server's is empty for ping.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Job {
    test: Test,
    server: Vec<String>,
    client: Vec<String>,
    limit: u32,
}

/// Port of the tests: jobs on nodes that share one machine do not meet.
fn port(job: &str) -> u32 {
    20000 + job.parse::<u32>().unwrap_or(0) % 10000
}

/// Everything between two nodes: ping, iperf3, then each RDMA device that both have.
fn between(
    (server, client): (&str, &str),
    nodes: &BTreeMap<String, Node>,
    addresses: &BTreeMap<String, String>,
    (seconds, port, gid): (u32, u32, Option<&str>),
) -> Vec<Job> {
    let job = |tool: Tool| Job {
        test: Test {
            tool,
            node: client.to_owned(),
            peer: Some(server.to_owned()),
            device: None,
            memory: None,
            outcome: Outcome::Left,
            why: None,
            file: None,
            code: None,
            command: None,
            beside: 0,
        },
        server: Vec::new(),
        client: Vec::new(),
        limit: 0,
    };
    let without = |tool: Tool, outcome: Outcome, why: String| {
        let mut job = job(tool);
        job.test.outcome = outcome;
        job.test.why = Some(why);
        job
    };
    const TOOLS: [Tool; 4] = [Tool::Ping, Tool::Iperf3, Tool::IbWriteBw, Tool::IbWriteLat];
    let (Some(a), Some(b)) = (nodes.get(server), nodes.get(client)) else {
        let silent = if nodes.contains_key(server) { client } else { server };
        let why = format!("{silent} did not tell what it has");
        return TOOLS.map(|tool| without(tool, Outcome::Left, why.clone())).into();
    };
    let Some(address) = addresses.get(server) else {
        let why = format!("`scontrol show node` gives no NodeAddr of {server}");
        return TOOLS.map(|tool| without(tool, Outcome::Left, why.clone())).into();
    };
    let absent = |tool: Tool, node: &str| {
        without(tool, Outcome::Unavailable, format!("{} is not installed on {node}", tool.name()))
    };
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut jobs = Vec::new();
    jobs.push(match b.programs.get("ping") {
        None => absent(Tool::Ping, client),
        Some(program) => {
            let mut job = job(Tool::Ping);
            job.client =
                [vec![program.clone()], words("-n -c 10 -i 0.2 -w 8"), vec![address.clone()]].concat();
            job.limit = 12;
            job
        }
    });
    let both = |tool: Tool| match (a.programs.get(tool.name()), b.programs.get(tool.name())) {
        (Some(a), Some(b)) => Ok((a.clone(), b.clone())),
        (None, _) => Err(server),
        _ => Err(client),
    };
    jobs.push(match both(Tool::Iperf3) {
        Err(node) => absent(Tool::Iperf3, node),
        Ok((at_server, at_client)) => {
            let mut job = job(Tool::Iperf3);
            job.server = [vec![at_server], words(&format!("-s -1 -p {port}"))].concat();
            job.client = [
                vec![at_client, "-c".to_owned(), address.clone()],
                words(&format!("-p {port} -t {seconds} -J")),
            ]
            .concat();
            job.limit = seconds + 10;
            job
        }
    });
    let devices: Vec<&String> = a.devices.keys().filter(|device| b.devices.contains_key(*device)).collect();
    for tool in [Tool::IbWriteBw, Tool::IbWriteLat] {
        let programs = match both(tool) {
            Err(node) => {
                jobs.push(absent(tool, node));
                continue;
            }
            Ok(programs) => programs,
        };
        if devices.is_empty() {
            let why = format!("{server} and {client} have no active RDMA device of the same name");
            jobs.push(without(tool, Outcome::Unavailable, why));
        }
        for device in &devices {
            let (at_server, at_client) = (&a.devices[*device], &b.devices[*device]);
            let gpus = (nearest(&at_server.1, &a.gpus), nearest(&at_client.1, &b.gpus));
            let line = |program: &str, rdma_port: &str, gpu: Option<usize>| {
                let size = if tool == Tool::IbWriteBw {
                    "-s 8388608 -n 1000 --report_gbits"
                } else {
                    "-s 2 -n 5000"
                };
                let mut line = vec![program.to_owned(), "-d".to_owned(), (*device).clone()];
                line.extend(words(&format!("-i {rdma_port} -p {port} -F {size}")));
                line.extend(gid.iter().flat_map(|gid| ["-x".to_owned(), (*gid).to_owned()]));
                line.extend(gpu.map(|gpu| format!("--use_cuda={gpu}")));
                line
            };
            let with = |memory: &str, gpus: (Option<usize>, Option<usize>)| {
                let mut job = job(tool);
                job.test.device = Some((*device).clone());
                job.test.memory = Some(memory.to_owned());
                job.server = line(&programs.0, &at_server.0, gpus.0);
                job.client = line(&programs.1, &at_client.0, gpus.1);
                job.client.push(address.clone());
                job.limit = 30;
                job
            };
            jobs.push(with("host", (None, None)));
            // Latency is that of host memory: small writes to a GPU measure its PCIe path, which nvbandwidth tells.
            if tool == Tool::IbWriteBw {
                let can = [a, b].iter().all(|node| node.cuda.iter().any(|name| name == tool.name()));
                if can && gpus.0.is_some() && gpus.1.is_some() {
                    jobs.push(with("gpu", gpus));
                } else if gpus.0.is_some() && gpus.1.is_some() {
                    let why = format!("{} was built without CUDA (it has no --use_cuda)", tool.name());
                    let mut job = without(tool, Outcome::Unavailable, why);
                    job.test.device = Some((*device).clone());
                    job.test.memory = Some("gpu".to_owned());
                    jobs.push(job);
                }
            }
        }
    }
    jobs
}

fn save(bench: &Bench, tests: &[&Test]) -> Result<(), Stop> {
    let path = bench.raw().join("tests.json");
    let failed = |what: String| Stop::Failed(2, Some(what));
    let text = serde_json::to_string_pretty(tests).map_err(|error| failed(error.to_string()))?;
    run::write_atomic(&path, text.as_bytes()).map_err(|error| {
        failed(format!("cannot write {}: {error}; give --results a folder you may write to", path.display()))
    })
}

/// Whether a test that may take `limit` seconds ends before the stage does.
fn fits(bench: &Bench, limit: u32) -> bool {
    Instant::now() + Duration::from_secs(limit.into()) + MARGIN < bench.deadline
}

/// nvbandwidth on every node at once, then the pairs.
///
/// # Errors
/// When a step cannot start or has to be stopped, or when no node has any of the programs.
pub fn network(bench: &mut Bench) -> Result<(), Stop> {
    let raw = bench.raw();
    let answer = raw.join("facts.txt");
    let mut step = bench.srun(1);
    step.args(["--mpi=none", "bash", "-c", FACTS]);
    let code = bench.run(step, Some(&answer))?;
    if code != 0 {
        return Err(Stop::Failed(code, None));
    }
    let found = facts(&fs::read_to_string(&answer).unwrap_or_default());
    let mut copies = copies(bench, &found)?;
    let show: Vec<String> = bench.nodes.clone();
    let shown = slurm::output("scontrol", &["show", "node", "-o", &show.join(",")], Duration::from_secs(30));
    let addresses = addresses(&shown.unwrap_or_default());
    let seconds = bench.sizes().fio.clamp(2, 10);
    let gid = std::env::var("NCCL_IB_GID_INDEX").ok().filter(|text| text.parse::<u8>().is_ok());
    let pairs = ring(&show);
    let mut jobs: Vec<Job> = Vec::new();
    // Which jobs each pair has, in their order.
    let mut of_pair: Vec<Range<usize>> = Vec::new();
    let turns = turns(pairs.len());
    for (number, (a, b)) in pairs.iter().enumerate() {
        // Simulated nodes share a machine, whose ports differ by what runs in the same turn.
        let port = port(&bench.job.id) + (number / turns.len()) as u32;
        let these = between((a, b), &found, &addresses, (seconds, port, gid.as_deref()));
        of_pair.push(jobs.len()..jobs.len() + these.len());
        jobs.extend(these);
    }
    if pairs.is_empty() {
        let node = show.first().map_or("", String::as_str);
        for tool in [Tool::Ping, Tool::Iperf3, Tool::IbWriteBw, Tool::IbWriteLat] {
            copies.push(Test {
                outcome: Outcome::Unavailable,
                why: Some("the job has one node, which has no neighbour".to_owned()),
                ..on(tool, node)
            });
        }
    }
    let all = |copies: &[Test], jobs: &[Job], bench: &Bench| {
        let tests: Vec<&Test> = copies.iter().chain(jobs.iter().map(|job| &job.test)).collect();
        save(bench, &tests)
    };
    all(&copies, &jobs, bench)?;
    for turn in &turns {
        let longest = turn.iter().map(|pair| of_pair[*pair].len()).max().unwrap_or(0);
        for step in 0..longest {
            let now = turn.iter().filter_map(|pair| of_pair[*pair].clone().nth(step));
            let now =
                now.filter(|at| jobs[*at].test.outcome == Outcome::Left && jobs[*at].test.why.is_none());
            let now: Vec<usize> = now.collect();
            together(bench, &mut jobs, &now)?;
            if !now.is_empty() {
                all(&copies, &jobs, bench)?;
            }
        }
    }
    all(&copies, &jobs, bench)?;
    let mut tests = copies.iter().chain(jobs.iter().map(|job| &job.test));
    if tests.all(|test| test.outcome == Outcome::Unavailable) {
        let why = "no node has a neighbour and nvbandwidth, perftest, ping or iperf3 to measure with";
        return Err(Stop::Unavailable(why.to_owned()));
    }
    Ok(())
}

/// Runs these tests at the same time.
fn together(bench: &mut Bench, jobs: &mut [Job], now: &[usize]) -> Result<(), Stop> {
    let mut running = Vec::new();
    for at in now {
        let job = &jobs[*at];
        if !fits(bench, job.limit) {
            let why = format!("the stage's time was up before this test (it may take {} s)", job.limit);
            jobs[*at].test.why = Some(why);
            continue;
        }
        let file = format!("{:03}-{}.out", at, job.test.tool.name());
        let child = bench.spawn(pair(bench, job), Some(&bench.raw().join(&file)))?;
        running.push((*at, file, child));
    }
    let beside = running.len().saturating_sub(1);
    for (at, file, child) in running {
        let code = bench.wait(child)?;
        let command = jobs[at].client.join(" ");
        let test = &mut jobs[at].test;
        (test.outcome, test.code, test.file, test.command, test.beside) =
            (Outcome::Ran, Some(code), Some(file), Some(command), beside);
    }
    Ok(())
}

fn on(tool: Tool, node: &str) -> Test {
    Test {
        tool,
        node: node.to_owned(),
        peer: None,
        device: None,
        memory: None,
        outcome: Outcome::Left,
        why: None,
        file: None,
        code: None,
        command: None,
        beside: 0,
    }
}

fn copies(bench: &mut Bench, found: &BTreeMap<String, Node>) -> Result<Vec<Test>, Stop> {
    let mut tests: Vec<Test> = bench.nodes.iter().map(|node| on(Tool::Nvbandwidth, node)).collect();
    let mut programs = Vec::new();
    for test in &mut tests {
        let node = found.get(&test.node);
        match node.map(|node| (node.programs.get("nvbandwidth"), node.gpus.len())) {
            None => test.why = Some(format!("{} did not tell what it has", test.node)),
            Some((None, _)) => {
                test.outcome = Outcome::Unavailable;
                test.why = Some(format!("nvbandwidth is not installed on {}", test.node));
            }
            Some((_, 0)) => {
                test.outcome = Outcome::Unavailable;
                test.why = Some(format!("{} has no NVIDIA GPU that nvbandwidth could use", test.node));
            }
            Some((Some(path), _)) => programs.push(format!("{}={path}", test.node)),
        }
    }
    save(bench, &tests.iter().collect::<Vec<_>>())?;
    if programs.is_empty() {
        return Ok(tests);
    }
    // Half of the stage's time at most: the pairs come after it.
    let limit = bench.deadline.saturating_duration_since(Instant::now()).as_secs() / 2;
    let answer = bench.raw().join("nvbandwidth.txt");
    let mut step = bench.srun(1);
    step.args(["--mpi=none", "bash", "-c", COPIES, "nvbandwidth"])
        .arg(bench.raw())
        .arg(limit.to_string())
        .args(&programs);
    bench.run(step, Some(&answer))?;
    let codes = facts(&fs::read_to_string(&answer).unwrap_or_default());
    for test in tests.iter_mut().filter(|test| test.outcome == Outcome::Left && test.why.is_none()) {
        test.outcome = Outcome::Ran;
        test.code = codes.get(&test.node).and_then(|node| node.code);
        test.file = Some(format!("nvbandwidth-{}.json", test.node));
        test.command = Some(
            "nvbandwidth -j -t host_to_device_memcpy_ce device_to_host_memcpy_ce \
             device_to_device_memcpy_read_ce"
                .to_owned(),
        );
    }
    Ok(tests)
}

/// The step of one test.
fn pair(bench: &Bench, job: &Job) -> Command {
    let client = job.test.node.clone();
    let mut step = match &job.test.peer {
        Some(server) if !job.server.is_empty() => {
            let mut step = bench.srun_on(&[server.clone(), client], 1);
            step.args(["--mpi=none", "bash", "-c", PAIR, job.test.tool.name(), server])
                .args([job.limit.to_string(), job.server.len().to_string()])
                .args(&job.server);
            step
        }
        _ => {
            let mut step = bench.srun_on(&[client], 1);
            step.args(["--mpi=none", "timeout", &job.limit.to_string()]);
            step
        }
    };
    // perftest counts GPUs as CUDA does; by PCI address it is the order in which they were listed.
    step.args(&job.client).env("CUDA_DEVICE_ORDER", "PCI_BUS_ID").env("LC_ALL", "C");
    step
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAIL: &str = "/sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0";

    fn node(name: &str, extra: &str) -> String {
        let programs: String = ["ping", "iperf3", "ib_write_bw", "ib_write_lat"]
            .iter()
            .map(|program| format!("cmx-net {name} program {program} /usr/bin/{program}\n"))
            .collect();
        format!(
            "a plug-in's line\ncmx-net {name} here\n{programs}\
             cmx-net {name} port mlx5_0 1 4 {RAIL}/0000:19:00.0\n\
             cmx-net {name} port mlx5_1 1 1 /sys/devices/pci0000:37/0000:38:00.0\n{extra}"
        )
    }

    fn gpus(name: &str) -> String {
        format!(
            "cmx-net {name} cuda ib_write_bw\n\
             cmx-net {name} gpu /sys/devices/pci0000:07/0000:07:01.0/0000:0a:00.0\n\
             cmx-net {name} gpu {RAIL}/0000:18:00.0\n"
        )
    }

    fn jobs(text: &str) -> Vec<Job> {
        let addresses = addresses(
            "NodeName=a Arch=x86_64 State=IDLE NodeAddr=10.0.0.1 NodeHostName=a Comment=NodeAddr=6.6.6.6\n\
             NodeName=b NodeAddr=10.0.0.2\n",
        );
        between(("a", "b"), &facts(text), &addresses, (5, 20007, None))
    }

    fn brief(jobs: &[Job]) -> Vec<String> {
        jobs.iter()
            .map(|job| match &job.test.why {
                Some(why) => format!("{:?} {why}", job.test.outcome),
                None => format!("{} <- {}", job.server.join(" "), job.client.join(" ")),
            })
            .collect()
    }

    #[test]
    fn only_active_devices_and_the_gpu_beside_them() {
        let text = [node("a", &gpus("a")), node("b", &gpus("b"))].concat();
        assert_eq!(
            brief(&jobs(&text)),
            [
                " <- /usr/bin/ping -n -c 10 -i 0.2 -w 8 10.0.0.1",
                "/usr/bin/iperf3 -s -1 -p 20007 <- /usr/bin/iperf3 -c 10.0.0.1 -p 20007 -t 5 -J",
                "/usr/bin/ib_write_bw -d mlx5_0 -i 1 -p 20007 -F -s 8388608 -n 1000 --report_gbits <- \
                 /usr/bin/ib_write_bw -d mlx5_0 -i 1 -p 20007 -F -s 8388608 -n 1000 --report_gbits 10.0.0.1",
                "/usr/bin/ib_write_bw -d mlx5_0 -i 1 -p 20007 -F -s 8388608 -n 1000 --report_gbits --use_cuda=1 <- \
                 /usr/bin/ib_write_bw -d mlx5_0 -i 1 -p 20007 -F -s 8388608 -n 1000 --report_gbits --use_cuda=1 \
                 10.0.0.1",
                "/usr/bin/ib_write_lat -d mlx5_0 -i 1 -p 20007 -F -s 2 -n 5000 <- \
                 /usr/bin/ib_write_lat -d mlx5_0 -i 1 -p 20007 -F -s 2 -n 5000 10.0.0.1",
            ]
        );
    }

    #[test]
    fn what_is_absent_is_named_with_its_node() {
        let plain = "cmx-net a here\ncmx-net b here\ncmx-net b program ping /usr/bin/ping\n";
        assert_eq!(
            brief(&jobs(plain))[1..],
            [
                "Unavailable iperf3 is not installed on a",
                "Unavailable ib_write_bw is not installed on a",
                "Unavailable ib_write_lat is not installed on a"
            ]
        );
        let text = [node("a", ""), node("b", "").replace("mlx5_0 1 4", "mlx5_0 1 2")].concat();
        assert_eq!(brief(&jobs(&text))[2], "Unavailable a and b have no active RDMA device of the same name");
        assert_eq!(brief(&jobs(&node("a", "")))[0], "Left b did not tell what it has");
    }

    #[test]
    fn a_build_without_cuda_says_so() {
        let without = |name: &str| gpus(name).replace("cuda ib_write_bw", "here");
        let text = [node("a", &without("a")), node("b", &without("b"))].concat();
        assert_eq!(
            brief(&jobs(&text))[3],
            "Unavailable ib_write_bw was built without CUDA (it has no --use_cuda)"
        );
    }

    #[test]
    fn a_client_that_is_refused_and_ends_with_0_tries_again() {
        let folder = tempfile::tempdir().unwrap();
        // As iperf3 3.12 -J: exit code 0 whether or not the server was there.
        let client = "if [ -e there ]; then echo measured; else touch there; \
                      echo 'unable to connect to server: Connection refused'; fi";
        let said = Command::new("bash")
            .args(["-c", PAIR, "pair", "a", "20", "1", "false", "sh", "-c", client])
            .env("SLURMD_NODENAME", "b")
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&said.stdout), "measured\n");
        assert!(said.status.success());
    }

    #[test]
    fn two_nodes_are_one_pair_and_more_are_a_ring() {
        let names: Vec<String> = ["a", "b", "c"].map(str::to_owned).into();
        assert_eq!(ring(&names[..1]), []);
        assert_eq!(ring(&names[..2]), [("a", "b")]);
        assert_eq!(ring(&names), [("a", "b"), ("b", "c"), ("c", "a")]);
    }

    /// The first 32 pairs alone were measured: at 100 nodes 68 had no figure of their way to the next one.
    #[test]
    fn every_pair_of_a_large_ring_has_its_turn_and_no_node_is_in_two_at_once() {
        assert_eq!(turns(0), [] as [Vec<usize>; 0]);
        assert_eq!(turns(1), [[0]]);
        for nodes in [3, 4, 31, 32, 33, 34, 64, 65, 100, 1000, 1057, 5000] {
            let turns = turns(nodes);
            let mut all: Vec<usize> = turns.iter().flatten().copied().collect();
            all.sort_unstable();
            assert_eq!(all, (0..nodes).collect::<Vec<_>>(), "{nodes}");
            assert!(turns.len() <= TURNS + 2, "{nodes} nodes in {} turns", turns.len());
            for turn in &turns {
                let mut seen: Vec<usize> = turn.iter().flat_map(|pair| [*pair, (pair + 1) % nodes]).collect();
                let ends = seen.len();
                seen.sort_unstable();
                seen.dedup();
                assert_eq!(seen.len(), ends, "{nodes} nodes: {turn:?}");
                assert!(nodes > TURNS || turn.len() == 1, "{nodes}: one pair after the other");
            }
        }
    }
}
