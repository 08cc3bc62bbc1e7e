//! Control run, injection, watching, return: one fault on one node.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::agent::Agent;
use super::bus;
use super::guard::Guard;
use super::signs::{Inbox, Sign, Watch, Words};
use super::slurm::{self, Node};
use super::timeline::{Control, Document, Event, keep};
use super::{Args, Fault};
use crate::Failure;
use crate::audit::{now, run_for};
use crate::run::Folder;

/// How the fault is done.
pub enum Hand {
    /// By the program on the node.
    Agent(Agent),
    /// By the bridge above the GPU, here.
    Bus(Box<bus::Plan>),
}

/// One injection.
pub struct Injection<'a> {
    /// Options.
    pub args: &'a Args,
    /// The fault; one of a ladder's.
    pub fault: Fault,
    /// What does it.
    pub hand: Hand,
    /// What is known of it so far.
    pub document: Document,
    /// The node's verdict file, when it can be read here.
    pub verdict: Option<PathBuf>,
    /// Received webhooks.
    pub inbox: Option<&'a Inbox>,
    /// NodeHostName, where it is not this machine's.
    pub host: Option<String>,
    /// Seconds of each control run.
    pub control: u64,
    /// Results folder.
    pub folder: Option<&'a Folder>,
}

/// What came of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// What the fault's class asks for.
    Right,
    /// Not seen within the limit, or drained for a program's own error.
    Wrong,
    /// A control run was not quiet: nothing was injected.
    FalseAlarm,
}

impl Injection<'_> {
    fn poll(&self) -> Duration {
        Duration::from_millis(self.args.poll)
    }

    fn watch(&self, id: &str) -> Result<Watch, Failure> {
        let args = self.args;
        let words =
            Words::of(&args.signs, &args.node, self.host.as_deref(), &self.document.pci, &self.document.id);
        let verdict = self.verdict.as_deref();
        Watch::start(&args.signs, self.fault.series(), verdict, self.inbox, &words, id, self.poll())
    }

    /// Does it all; the document is written whatever came of it, once a control run or the injection has begun.
    ///
    /// # Errors
    /// What could not be done, before or while injecting.
    pub fn perform(mut self) -> Result<Outcome, Failure> {
        let begin = Instant::now();
        let done = self.all(begin);
        if let Err(failure) = &done
            && (self.document.quiet.is_some() || !self.document.started.is_empty())
        {
            if self.document.started.is_empty() {
                self.document.started = now();
            }
            let (event, by, at) = ("failed".to_owned(), String::new(), begin.elapsed().as_secs_f64());
            let detail = failure.message.clone();
            self.document.events.push(Event { event, by, at, not_before: 0.0, detail });
            // What went wrong first is what is told.
            let _ = keep(self.folder, &self.document);
        }
        done
    }

    fn all(&mut self, begin: Instant) -> Result<Outcome, Failure> {
        let args = self.args;
        if self.control > 0 && !self.nothing_injected()? {
            return self.false_alarm();
        }
        // From the first line that is written the node may be drained and stay so: somebody must return it, whatever becomes
        // of this process.
        let guard = if args.resume { Some(Guard::of_node(&args.node)?) } else { None };
        if self.control > 0 && !self.programs_errors()? {
            if let Some(guard) = guard {
                self.give_back(begin);
                self.settle(guard, false);
            }
            return self.false_alarm();
        }
        let before = self.still_as_it_was()?;
        let mut repair = match args.wait_return {
            Some(limit) => Some(Repair::of(&before, limit)?),
            None => None,
        };
        let watch = self.watch(&self.document.id)?;
        let gpu = format!("GPU {} ({})", self.document.gpu, self.document.pci);
        println!("{} of {gpu} on {}", self.document.fault, self.document.node);
        let zero = Instant::now();
        self.document.started = jiff::Timestamp::now().to_string();
        let detail = self.inject()?;
        // The write lies between the command and its answer: times count from the command, the rest is in the bound.
        self.add("injected", zero, 0.0, detail);

        let drained = self.until(&watch, zero, &before, &mut repair);
        if let Hand::Bus(plan) = &self.hand {
            let detail = plan.after(Duration::from_secs(2));
            self.add("device", zero, 0.0, detail);
        }
        let wants = self.fault.drains();
        let untold = self.document.drain_untold();
        if let Some(why) = &untold {
            println!("  {:9.3} s  {why}", zero.elapsed().as_secs_f64());
        }
        if !drained && wants && !before.out_of_service() {
            let later = if guard.is_some() {
                "should it happen yet, a second process returns it".to_owned()
            } else {
                format!("should it happen later: scontrol update nodename={} state=resume", args.node)
            };
            println!(
                "  {:9.3} s  not drained within {} s; {later}",
                zero.elapsed().as_secs_f64(),
                args.within
            );
        }
        if drained && let Some(repair) = &mut repair {
            self.wait_return(repair, zero);
        }
        let again = format!("scontrol update nodename={} state=resume", args.node);
        let back = self.document.event("restored").is_some();
        match guard {
            Some(guard) => {
                if drained && !back {
                    self.give_back(zero);
                }
                self.settle(guard, wants);
            }
            None if drained && !back => println!("{} stays drained; return it: {again}", args.node),
            None => {}
        }
        print!("{}", self.document.timeline());
        keep(self.folder, &self.document)?;
        // Of a node that was drained before, a sign is all that can be asked for.
        let right =
            if before.out_of_service() { self.document.detected().is_some() } else { drained == wants };
        Ok(if right && (untold.is_none() || before.out_of_service()) {
            Outcome::Right
        } else {
            Outcome::Wrong
        })
    }

    /// Ends the process that would put things right, unless something is left for it.
    fn settle(&self, guard: Guard, may_drain: bool) {
        if self.document.settled(may_drain) {
            guard.done();
        } else {
            guard.leave();
        }
    }

    fn false_alarm(&mut self) -> Result<Outcome, Failure> {
        self.document.started = now();
        keep(self.folder, &self.document)?;
        Ok(Outcome::FalseAlarm)
    }

    /// The node, looked at once more: control runs take minutes, in which jobs may have come or somebody may have drained it.
    fn still_as_it_was(&mut self) -> Result<Node, Failure> {
        let args = self.args;
        let node = Node::read(&args.node)?;
        let bus = matches!(self.hand, Hand::Bus(_));
        let jobs = if args.with_jobs && !bus { Vec::new() } else { slurm::jobs(&args.node)? };
        let why = if !jobs.is_empty() {
            Some(format!("jobs {} came to {} meanwhile", jobs.join(", "), args.node))
        } else if bus && !node.reserved() {
            Some(format!("{} is {} now, and jobs may come", args.node, node.state))
        } else if !bus && node.out_of_service() {
            Some(format!("{} is {} {} now", args.node, node.state, node.reason))
        } else if let Hand::Bus(plan) = &self.hand {
            plan.now_refused()
        } else {
            None
        };
        self.document.before = node.state.clone();
        match why {
            Some(why) => {
                Err(Failure::input(format!("the fault was not injected: {why}; start again when it is free")))
            }
            None => Ok(node),
        }
    }

    fn inject(&mut self) -> Result<String, Failure> {
        let document = &mut self.document;
        match &mut self.hand {
            Hand::Agent(agent) => {
                document.read_back = agent.send(&document.id, &document.line)?;
                agent.end();
                Ok(match document.read_back {
                    Some(true) => "read back from the log".to_owned(),
                    Some(false) => "not found in the log again: only /dev/kmsg readers may see it".to_owned(),
                    None => "accepted".to_owned(),
                })
            }
            Hand::Bus(plan) => {
                // What a repair may need, before anything is touched.
                if let Some(folder) = self.folder {
                    let path = folder.raw("faults").join(format!("{}-{}.config", document.node, document.id));
                    let _ = std::fs::create_dir_all(folder.raw("faults"));
                    std::fs::write(&path, plan.config_space()).map_err(|error| {
                        Failure::input(format!(
                            "nothing was done: {} cannot be written: {error}",
                            path.display()
                        ))
                    })?;
                }
                plan.perform(&document.node, Duration::from_millis(self.args.hold))
            }
        }
    }

    /// False: the node was drained, or something alerted, without cause.
    fn nothing_injected(&mut self) -> Result<bool, Failure> {
        println!("control: nothing injected");
        let nothing = self.control_run(&[])?;
        let quiet = nothing.is_quiet();
        self.document.quiet = Some(nothing);
        Ok(quiet)
    }

    /// False: what programs' own errors write in the log drained the node.
    fn programs_errors(&mut self) -> Result<bool, Failure> {
        let noise = self.fault.noise();
        if noise.is_empty() {
            return Ok(true);
        }
        let words: Vec<&str> = noise.iter().map(|fault| fault.word()).collect();
        println!("control: {}, programs' own errors", words.join(" and "));
        let control = self.control_run(noise)?;
        let drained = control.drained.is_some();
        self.document.control = Some(control);
        Ok(!drained)
    }

    fn control_run(&mut self, noise: &[Fault]) -> Result<Control, Failure> {
        // Another id than the fault's: whoever shows this one has not seen that one.
        let mark = super::id(&self.document.id);
        // Of a program's error users may be told: only without one a message about the node is a false alarm.
        let watch = if noise.is_empty() { Some(self.watch(&mark)?) } else { None };
        if let Hand::Agent(agent) = &mut self.hand {
            for fault in noise {
                agent.send(&mark, &fault.line(self.document.gpu, &self.document.pci, &mark))?;
            }
        }
        let begin = Instant::now();
        let (mut drained, mut alarms) = (None, Vec::new());
        let out = |node: Node| {
            node.out_of_service().then(|| format!("{} {}", node.state, node.reason).trim().to_owned())
        };
        let was_out = self.document.before.clone();
        let was_out = slurm::out_of_service(&was_out);
        while begin.elapsed() < Duration::from_secs(self.control) && drained.is_none() {
            std::thread::sleep(self.poll());
            alarms.extend(
                watch
                    .iter()
                    .flat_map(Watch::new_signs)
                    .map(|sign| format!("{} ({}): {}", sign.event, sign.by, sign.detail)),
            );
            drained = Node::read(&self.args.node).ok().filter(|_| !was_out).and_then(out);
        }
        // A drain lasts: the last look tells of all before it, when Slurm answers it.
        if drained.is_none() && !was_out {
            drained = out(Node::read(&self.args.node)?);
        }
        let seconds = begin.elapsed().as_secs_f64();
        let node = &self.args.node;
        match &drained {
            Some(reason) => {
                println!("  {seconds:9.3} s  FALSE ALARM: {reason}");
                eprintln!(
                    "clustermax: {node} was drained in the control run ({reason}); the fault was not injected. Return the \
                     node: scontrol update nodename={node} state=resume"
                );
            }
            None if alarms.is_empty() => println!("  {seconds:9.3} s  quiet: nothing was drained"),
            None => {
                println!("  {seconds:9.3} s  FALSE ALARM: {}", alarms.join("; "));
                eprintln!(
                    "clustermax: {} about {node} while nothing was injected; the fault was not injected. Give --alert-match a \
                     text that only this fault's alerts have",
                    alarms.join("; ")
                );
            }
        }
        Ok(Control { seconds, drained, alarms })
    }

    /// Looks until the node is drained and the alert is there, or the time is up. True: drained.
    fn until(&mut self, watch: &Watch, zero: Instant, before: &Node, repair: &mut Option<Repair>) -> bool {
        let limit = Duration::from_secs(self.args.within);
        let mut last = 0.0;
        loop {
            let drained = self.look(watch, zero, before, &mut last);
            self.document.looked = Some(last);
            // The alert may come after the repair.
            if drained && let Some(repair) = repair {
                self.repaired(repair, zero);
            }
            let alerted = !self.document.alerts || self.document.alerted().is_some();
            if (drained && alerted) || zero.elapsed() >= limit {
                return drained;
            }
            std::thread::sleep(self.poll());
        }
    }

    /// One look at Slurm, and what the other sources have shown meanwhile. True when the node is drained.
    fn look(&mut self, watch: &Watch, zero: Instant, before: &Node, last: &mut f64) -> bool {
        let since = |at: Instant| at.saturating_duration_since(zero).as_secs_f64();
        let mut found: Vec<Event> = watch
            .new_signs()
            .into_iter()
            .map(|Sign { event, by, at, not_before, detail }| Event {
                event: event.to_owned(),
                by: if event == "alert" { by.to_owned() } else { String::new() },
                at: since(at),
                not_before: since(not_before),
                detail,
            })
            .collect();
        // A controller that does not answer now is asked again; the time between stays in the bounds.
        let mut drained = self.document.event("drained").is_some();
        let looked = since(Instant::now());
        if let Ok(node) = Node::read(&self.args.node) {
            let at = since(Instant::now());
            let mut add = |event: &str, detail: String| {
                let (event, by) = (event.to_owned(), String::new());
                found.push(Event { event, by, at, not_before: *last, detail });
            };
            if !node.reason.is_empty()
                && node.reason != before.reason
                && self.document.event("reason").is_none()
            {
                add("reason", node.reason.clone());
            }
            if node.out_of_service() && !before.out_of_service() && !drained {
                drained = true;
                add("drained", format!("{} {}", node.state, node.reason).trim().to_owned());
            }
            *last = looked;
        }
        found.sort_by(|a, b| a.at.total_cmp(&b.at));
        for event in found {
            println!(
                "  {:9.3} s  {:<9} {} (not at {:.3} s)",
                event.at, event.event, event.detail, event.not_before
            );
            self.document.events.push(event);
        }
        drained
    }

    /// Waits for the cluster's own repair: the node in service again, or another that was not before.
    fn wait_return(&mut self, repair: &mut Repair, zero: Instant) {
        let limit = repair.limit;
        println!("waits {limit:.0} s from the drain for the node or another in its place");
        let drained = self.document.event("drained").map_or(0.0, |event| event.at);
        while !self.repaired(repair, zero) {
            let left = drained + limit - zero.elapsed().as_secs_f64();
            if left <= 0.0 {
                println!("  {:9.3} s  not back within {limit:.0} s", zero.elapsed().as_secs_f64());
                return;
            }
            std::thread::sleep(self.poll().max(Repair::EVERY).min(Duration::from_secs_f64(left)));
        }
        if let Some(node) = repair.back.clone() {
            self.basic_command(zero, &node);
        }
    }

    /// One look for the repair, not more than one a second. True: it is there.
    fn repaired(&mut self, repair: &mut Repair, zero: Instant) -> bool {
        if repair.back.is_some() {
            return true;
        }
        if Instant::now() < repair.next {
            return false;
        }
        repair.next = Instant::now() + self.poll().max(Repair::EVERY);
        let looked = zero.elapsed().as_secs_f64();
        let Ok(now) = slurm::in_service(&repair.partitions) else { return false };
        let node = &self.args.node;
        let (event, name, detail) = if now.contains(node) {
            ("restored", node.clone(), "in service again, without our help".to_owned())
        } else if let Some(name) = now.into_iter().find(|name| !repair.strength.contains(name)) {
            let detail =
                format!("{name} is in service in partition {}, it was not before", repair.partitions);
            ("replaced", name, detail)
        } else {
            repair.last = looked;
            return false;
        };
        // The node itself was seen drained before; another may have come at any time since the injection.
        let drain = self.document.event("drained").map_or(0.0, |event| event.not_before);
        let not_before = if event == "restored" { repair.last.max(drain) } else { repair.last };
        self.add(event, zero, not_before, detail);
        repair.back = Some(name);
        true
    }

    fn add(&mut self, event: &str, zero: Instant, not_before: f64, detail: String) {
        let at = zero.elapsed().as_secs_f64();
        println!("  {at:9.3} s  {event:<9} {detail} (not at {not_before:.3} s)");
        let (event, by) = (event.to_owned(), String::new());
        self.document.events.push(Event { event, by, at, not_before, detail });
    }

    fn basic_command(&mut self, zero: Instant, node: &str) {
        let begin = zero.elapsed().as_secs_f64();
        let options = [
            "-w",
            node,
            "-N1",
            "-n1",
            "--immediate=60",
            "--time=2",
            "--quiet",
            "--job-name=clustermax-inject",
            "true",
        ];
        match run_for("srun", &options, Duration::from_secs(120)) {
            Ok(ran) if ran.ok() => self.add("command", zero, begin, format!("srun true ran on {node}")),
            Ok(ran) => self.add("command_failed", zero, begin, ran.complaint()),
            Err(why) => self.add("command_failed", zero, begin, why),
        }
    }

    /// Returns the node and times a basic command on it.
    fn give_back(&mut self, zero: Instant) {
        let poll = self.poll();
        let asked = zero.elapsed().as_secs_f64();
        if let Err(failure) = slurm::resume(&self.args.node) {
            self.add("return_failed", zero, asked, failure.message);
            return;
        }
        let limit = Instant::now() + BACK;
        let mut last = asked;
        loop {
            let looked = zero.elapsed().as_secs_f64();
            match Node::read(&self.args.node) {
                Ok(node) if node.in_service() => break,
                read if Instant::now() >= limit => {
                    let state = read.map_or_else(|failure| failure.message, |node| node.state);
                    let why = format!("not in service within {} s of the request: {state}", BACK.as_secs());
                    self.add("return_failed", zero, asked, why);
                    return;
                }
                Ok(_) => last = looked,
                Err(_) => {}
            }
            std::thread::sleep(poll);
        }
        self.add("returned", zero, last, "in service again".to_owned());
        let node = self.args.node.clone();
        self.basic_command(zero, &node);
        // A detector that sees the old line again drains it again: that is worth knowing.
        let seconds = slurm::health_check_interval().unwrap_or(5).min(60) + 2;
        let until = Instant::now() + Duration::from_secs(seconds);
        let mut last = zero.elapsed().as_secs_f64();
        while Instant::now() < until {
            if let Ok(node) = Node::read(&node) {
                if node.out_of_service() {
                    self.add("drained_again", zero, last, format!("{} {}", node.state, node.reason));
                    return;
                }
                last = zero.elapsed().as_secs_f64();
            }
            std::thread::sleep(poll);
        }
    }
}

/// How long a node that was returned may take to be in service.
const BACK: Duration = Duration::from_secs(120);

/// The cluster's own repair after a drain, as it is looked for.
struct Repair {
    partitions: String,
    /// Nodes that took jobs before the fault.
    strength: Vec<String>,
    /// Seconds from the drain on.
    limit: f64,
    /// Last look that did not show it, seconds after the injection.
    last: f64,
    next: Instant,
    /// The node that is there.
    back: Option<String>,
}

impl Repair {
    /// `sinfo` lists all nodes: not more often.
    const EVERY: Duration = Duration::from_secs(1);

    fn of(before: &Node, limit: u64) -> Result<Self, Failure> {
        let partitions = before.partitions.clone();
        let strength = slurm::in_service(&partitions)?;
        Ok(Self { partitions, strength, limit: limit as f64, last: 0.0, next: Instant::now(), back: None })
    }
}

/// The verdict file, where there is one and the node is this machine.
#[must_use]
pub fn verdict(local: bool, run_dir: &Path) -> Option<PathBuf> {
    Some(run_dir.join("verdict.json")).filter(|path| local && path.is_file())
}
