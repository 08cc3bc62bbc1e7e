//! Turns an `nhc.conf` of LBNL's Node Health Check into this suite's configuration, and lists what has no counterpart.
//!
//! A line is `TARGET || CHECK ARGUMENTS`, where CHECK is shell code; only plain calls of the checks that NHC ships are understood.
//! Nothing of the file is run. What a rule of ours cannot say exactly is turned into the nearest one, with a note.

use std::fmt::Write as _;

use crate::learn::NETWORK;

/// What became of the file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Imported {
    mounts: Vec<Mount>,
    spaces: Vec<Space>,
    ports: Vec<Port>,
    memory_kib: Option<u64>,
    commands: Vec<Command>,
    /// Lines that need no configuration here, with what covers them.
    pub covered: Vec<Remark>,
    /// Parts of turned lines that have no counterpart.
    pub notes: Vec<Remark>,
    /// Lines that could not be turned.
    pub left: Vec<Remark>,
    /// Number of lines turned.
    pub turned: usize,
}

/// Something about a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remark {
    /// Line number, from 1.
    pub line: usize,
    /// The line.
    pub text: String,
    /// What is to be said.
    pub why: String,
}

#[derive(Debug, Clone, PartialEq)]
struct Mount {
    path: String,
    fstype: Option<String>,
    writable: bool,
}

#[derive(Debug, Clone, PartialEq)]
struct Space {
    path: String,
    fail_percent: f64,
}

#[derive(Debug, Clone, PartialEq)]
struct Port {
    device: String,
    port: u32,
    rate_gbps: f64,
}

#[derive(Debug, Clone, PartialEq)]
struct Command {
    name: String,
    token: String,
    /// Shell code; `$1` and on are the arguments.
    script: &'static str,
    args: Vec<String>,
    /// Milliseconds.
    timeout: u64,
    action: &'static str,
}

/// Outcome of one check line.
enum Turned {
    Done(Vec<String>),
    Covered(&'static str),
}

/// Reads the text of an `nhc.conf` for the node called `node`: lines whose target is not this node are left out.
#[must_use]
pub fn import(text: &str, node: &str) -> Imported {
    let mut out = Imported::default();
    for (index, raw) in text.lines().enumerate() {
        let line = raw.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let remark = |why: String| Remark { line: index + 1, text: line.to_string(), why };
        let Some((target, check)) = line.split_once("||") else {
            out.left.push(remark("not of the form TARGET || CHECK".into()));
            continue;
        };
        match matches(target.trim(), node) {
            Some(true) => {}
            Some(false) => continue,
            None => {
                out.left.push(remark(format!(
                    "target {}: only globs and simple node ranges are understood",
                    target.trim()
                )));
                continue;
            }
        }
        match words(check.trim()).and_then(|words| out.check(&words)) {
            Ok(Turned::Done(notes)) => {
                out.turned += 1;
                out.notes.extend(notes.into_iter().map(remark));
            }
            Ok(Turned::Covered(by)) => out.covered.push(remark(by.into())),
            Err(why) => out.left.push(remark(why)),
        }
    }
    out
}

impl Imported {
    /// The configuration, with everything that needs a look in comments.
    #[must_use]
    pub fn render(&self, file: &str, node: &str) -> String {
        let mut out = format!(
            "# Turned from {} for node {}: {} lines. Review it; the defaults are in docs/interfaces.md.\n",
            one_line(file),
            one_line(node),
            self.turned
        );
        for (title, remarks) in [
            ("Turned, except", &self.notes),
            ("Covered without configuration", &self.covered),
            ("NOT turned", &self.left),
        ] {
            if !remarks.is_empty() {
                let _ = writeln!(out, "#\n# {title}:");
            }
            for r in remarks {
                let _ =
                    writeln!(out, "#   line {}: {}\n#     {}", r.line, one_line(&r.text), one_line(&r.why));
            }
        }
        for c in &self.commands {
            let args: Vec<String> = ["-c", c.script, &c.name]
                .into_iter()
                .chain(c.args.iter().map(String::as_str))
                .map(quote)
                .collect();
            let _ = write!(
                out,
                "\n[[command]]\nname = {}\ntoken = {}\npath = \"/bin/sh\"\nargs = [{}]\ntimeout = {}\naction = \"{}\"\nmodes = [\"periodic\"]\n",
                quote(&c.name),
                quote(&c.token),
                args.join(", "),
                c.timeout,
                c.action
            );
        }
        if let Some(kib) = self.memory_kib {
            let _ = write!(out, "\n[profile]\nmemory_total_kib = {kib}\n");
        }
        for p in &self.ports {
            let _ = write!(
                out,
                "\n[[profile.ib_port]]\ndevice = {}\nport = {}\nrate_gbps = {:?}\n",
                quote(&p.device),
                p.port,
                p.rate_gbps
            );
        }
        for m in &self.mounts {
            let _ = write!(out, "\n[[profile.mount]]\npath = {}\n", quote(&m.path));
            if let Some(fstype) = &m.fstype {
                let _ = writeln!(out, "fstype = {}", quote(fstype));
            }
            let network = m.fstype.as_deref().is_some_and(|t| NETWORK.contains(&t));
            let _ = write!(out, "writable = {}\nnetwork = {network}\n", m.writable);
        }
        for s in &self.spaces {
            let _ = write!(
                out,
                "\n[[profile.space]]\npath = {}\nwarn_percent = {:?}\nfail_percent = {:?}\n",
                quote(&s.path),
                s.fail_percent.min(85.0),
                s.fail_percent
            );
        }
        out
    }

    /// Turns one check; the error says why it cannot be.
    fn check(&mut self, words: &[String]) -> Result<Turned, String> {
        let (name, args) = words.split_first().ok_or("no check")?;
        match name.as_str() {
            "check_fs_mount" | "check_fs_mount_rw" | "check_fs_mount_ro" => self.mount(name, args),
            "check_fs_free" | "check_fs_ifree" => self.space(args, true),
            "check_fs_used" | "check_fs_iused" => self.space(args, false),
            "check_hw_physmem" => self.memory(args),
            "check_hw_ib" => self.port(args),
            "check_hw_eth" => self.ethernet(args),
            "check_ps_service" | "check_ps_daemon" => self.service(args),
            "check_cmd_status" => self.command_status(args),
            "check_file_test" => self.file_test(args),
            "check_dmi_data_match" => self.dmi(args),
            "check_nv_healthmon" => {
                Ok(Turned::Covered("the gpu.* checks read the GPUs themselves, in every mode"))
            }
            "check_hw_mcelog" => Ok(Turned::Covered("the kernel's own reports of machine checks are read")),
            "check_fs_size" => {
                Err("no check of a file system's size; profile.mount and profile.space are the nearest"
                    .into())
            }
            "check_fs_inodes" => {
                Err("no check of the number of inodes; profile.space watches the share in use".into())
            }
            "check_hw_cpuinfo" => {
                Err("no check of sockets and cores: slurmd compares them with slurm.conf itself".into())
            }
            "check_hw_physmem_free"
            | "check_hw_mem_free"
            | "check_hw_swap_free"
            | "check_hw_mem"
            | "check_hw_swap" => Err("free memory depends on jobs, swap is not checked".into()),
            "check_cmd_output" => {
                Err("matches on output: write a site command with Nagios exit codes".into())
            }
            "check_dmi_raw_data_match" => {
                Err("matches anywhere in dmidecode's output: write a site command".into())
            }
            "check_ps_unauth_users"
            | "check_ps_userproc_lineage"
            | "check_ps_blacklist"
            | "check_ps_kswapd"
            | "check_ps_cpu"
            | "check_ps_mem"
            | "check_ps_physmem"
            | "check_ps_time"
            | "check_ps_loadavg" => {
                Err("processes of users are judged by Slurm's cgroups, not by name or use".into())
            }
            "export" => Err("a setting of NHC".into()),
            _ if name.contains('=') => Err("a setting of NHC".into()),
            _ if name.starts_with("check_") => Err(format!("{name} has no counterpart")),
            _ => Err("shell code: write a site command with Nagios exit codes".into()),
        }
    }

    fn mount(&mut self, name: &str, args: &[String]) -> Result<Turned, String> {
        let options = options(args, "0r", "tsoOeEf")?;
        let mut notes = Vec::new();
        let (mut fstype, mut points) = (None, options.rest.clone());
        for (option, value) in &options.given {
            match option {
                't' if plain(value) => fstype = Some(value.clone()),
                't' => notes.push(format!("type {value} is a pattern: the type is not checked")),
                's' => notes.push(format!("source {value} is not checked")),
                'o' => notes.push(format!("mount options {value} are not checked; read-only is")),
                'O' | 'e' | 'E' => notes.push("nothing is remounted or run: that is the operator's".into()),
                'f' => points.insert(0, value.clone()),
                '0' => notes
                    .push("-0 (not fatal) is the switch of the whole check here: checks.\"fs.mount\"".into()),
                _ => {}
            }
        }
        if name == "check_fs_mount_ro" {
            return Err("no check that a file system is mounted read-only".into());
        }
        if points.is_empty() {
            return Err("no mount point (-f)".into());
        }
        if let Some(bad) = points.iter().find(|p| !p.starts_with('/') || !plain(p)) {
            return Err(format!("mount point {bad} is not a plain absolute path"));
        }
        for path in points {
            let writable = name == "check_fs_mount_rw";
            match self.mounts.iter_mut().find(|m| m.path == path) {
                Some(known) => {
                    known.writable |= writable;
                    known.fstype = known.fstype.take().or_else(|| fstype.clone());
                }
                None => self.mounts.push(Mount { path, fstype: fstype.clone(), writable }),
            }
        }
        Ok(Turned::Done(notes))
    }

    fn space(&mut self, args: &[String], free: bool) -> Result<Turned, String> {
        let [path, limit] = args else { return Err("not MOUNTPOINT SHARE".into()) };
        if !path.starts_with('/') || !plain(path) {
            return Err(format!("mount point {path} is not a plain absolute path"));
        }
        let share = limit.strip_suffix('%').ok_or("an absolute size: profile.space knows shares only")?;
        let share: f64 = share.parse().map_err(|_| format!("{limit} is not a share"))?;
        let fail_percent = if free { 100.0 - share } else { share };
        if !(fail_percent > 0.0 && fail_percent <= 100.0) {
            return Err(format!("{limit} is not a share between 0 and 100 %"));
        }
        match self.spaces.iter_mut().find(|s| s.path == *path) {
            Some(known) => known.fail_percent = known.fail_percent.min(fail_percent),
            None => self.spaces.push(Space { path: path.clone(), fail_percent }),
        }
        Ok(Turned::Done(vec!["the share holds for blocks and inodes alike".into()]))
    }

    fn memory(&mut self, args: &[String]) -> Result<Turned, String> {
        let (least, rest) = args.split_first().ok_or("no size")?;
        let least = kib(least).ok_or_else(|| format!("{least} is not a size"))?;
        let fudge = match rest.get(1) {
            None => 0.0,
            Some(text) => match (text.strip_suffix('%').map(str::parse::<f64>), kib(text)) {
                (Some(Ok(percent)), _) if (0.0..100.0).contains(&percent) => percent / 100.0,
                (None, Some(size)) if size < least => size as f64 / least as f64,
                _ => return Err(format!("{text} is not a tolerance")),
            },
        };
        // Ours fails below 99 % of the key's value: this value gives NHC's limit.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes in KiB fit")]
        let value = (least as f64 * (1.0 - fudge) / 0.99) as u64;
        self.memory_kib = Some(value);
        Ok(Turned::Done(vec![
            "the upper limit is not checked: `clustermax-healthcheck learn` gives the true size".into(),
        ]))
    }

    fn port(&mut self, args: &[String]) -> Result<Turned, String> {
        let rate = args.first().ok_or("no rate")?;
        let rate_gbps: f64 = rate.parse().map_err(|_| format!("{rate} is not a rate in Gb/s"))?;
        if !(rate_gbps > 0.0 && rate_gbps < 1e6) {
            return Err(format!("{rate} is not a rate in Gb/s"));
        }
        let device = args.get(1).ok_or(
            "any one good port satisfies it, so a second port may be down unseen: `clustermax-healthcheck learn` lists all ports",
        )?;
        let (device, port) = device.split_once(':').unwrap_or((device, "1"));
        let port: u32 = port.parse().map_err(|_| format!("{port} is not a port"))?;
        if device.is_empty() || !device.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err(format!("{device} is not a device"));
        }
        self.ports.retain(|p| (p.device.as_str(), p.port) != (device, port));
        self.ports.push(Port { device: device.into(), port, rate_gbps });
        Ok(Turned::Done(Vec::new()))
    }

    fn ethernet(&mut self, args: &[String]) -> Result<Turned, String> {
        let [device] = args else { return Err("not one device".into()) };
        if !plain(device) || device.contains('/') {
            return Err(format!("{device} is not a device"));
        }
        self.site(
            device,
            "[ \"$(cat /sys/class/net/\"$1\"/operstate)\" = up ] || { echo \"$1 is not up\"; exit 2; }",
            vec![device.clone()],
            5000,
            "repair",
        );
        Ok(Turned::Done(Vec::new()))
    }

    fn service(&mut self, args: &[String]) -> Result<Turned, String> {
        let options = options(args, "0fSrcskvV", "udmeE")?;
        let (mut daemon, mut user, mut notes) = (None, None, Vec::new());
        for (option, value) in &options.given {
            match option {
                'u' => user = Some(value.clone()),
                'd' => daemon = Some(value.clone()),
                'm' => return Err(format!("process pattern {value}: write a site command")),
                'r' | 'c' | 's' | 'k' | 'e' | 'E' => {
                    notes.push("services are not restarted: that is systemd's (Restart=)".into())
                }
                '0' => notes.push("-0 (not fatal): set the check to observe, or to off".into()),
                _ => {}
            }
        }
        let service = options.rest.first().ok_or("no service")?;
        let user = user.or_else(|| options.rest.get(1).cloned());
        let daemon = daemon.unwrap_or_else(|| service.clone());
        if !plain(&daemon) || user.as_deref().is_some_and(|u| !plain(u)) {
            return Err("the process or its user is a pattern: write a site command".into());
        }
        if daemon.len() > 15 {
            notes.push("the kernel cuts process names to 15 characters".into());
        }
        let short: String = daemon.chars().take(15).collect();
        let script = if user.is_some() {
            "pgrep -x -u \"$2\" -- \"$1\" >/dev/null || { echo \"$1 of $2 is not running\"; exit 2; }"
        } else {
            "pgrep -x -- \"$1\" >/dev/null || { echo \"$1 is not running\"; exit 2; }"
        };
        let args = std::iter::once(short).chain(user).collect();
        self.site(service, script, args, 5000, "restart_service");
        Ok(Turned::Done(notes))
    }

    fn command_status(&mut self, args: &[String]) -> Result<Turned, String> {
        let options = options(args, "0", "trmeE")?;
        let (mut timeout, mut code) = (5000, 0u8);
        for (option, value) in &options.given {
            match option {
                't' => {
                    let seconds = value.parse::<u64>().ok().filter(|t| (1..=60).contains(t));
                    timeout = seconds
                        .ok_or_else(|| format!("-t {value}: a site command may take 1 to 60 s"))?
                        * 1000;
                }
                'r' => code = value.parse().map_err(|_| format!("-r {value} is not an exit code"))?,
                _ => return Err(format!("option -{option}: write a site command")),
            }
        }
        let program = options.rest.first().ok_or("no command")?;
        let name = program.rsplit('/').next().unwrap_or(program).to_string();
        let args = std::iter::once(code.to_string()).chain(options.rest.clone()).collect();
        self.site(
            &name,
            "want=$1; shift; \"$@\" >/dev/null 2>&1; code=$?; [ \"$code\" = \"$want\" ] || { echo \"$1 ended with $code, not $want\"; exit 2; }",
            args,
            timeout,
            "repair",
        );
        Ok(Turned::Done(Vec::new()))
    }

    fn file_test(&mut self, args: &[String]) -> Result<Turned, String> {
        let options = options(args, "abcdefghkprstuwxOGLSN", "")?;
        if options.given.is_empty() || options.rest.is_empty() {
            return Err("no test or no file".into());
        }
        let mut tests: Vec<String> = options.given.iter().map(|(o, _)| format!("-{o}")).collect();
        tests.push("--".into());
        let name = options.rest[0].rsplit('/').next().unwrap_or_default().to_string();
        self.site(
            &name,
            "t=; while [ \"$1\" != -- ]; do t=\"$t $1\"; shift; done; shift; for f; do for o in $t; do [ \"$o\" \"$f\" ] || { echo \"$f: test $o fails\"; exit 2; }; done; done",
            tests.into_iter().chain(options.rest.clone()).collect(),
            5000,
            "repair",
        );
        Ok(Turned::Done(Vec::new()))
    }

    fn dmi(&mut self, args: &[String]) -> Result<Turned, String> {
        /// Lines of dmidecode that the kernel shows as files too.
        const FILES: [(&str, &str); 6] = [
            ("BIOS Information: Version: ", "bios_version"),
            ("BIOS Information: Vendor: ", "bios_vendor"),
            ("BIOS Information: Release Date: ", "bios_date"),
            ("System Information: Product Name: ", "product_name"),
            ("System Information: Manufacturer: ", "sys_vendor"),
            ("Base Board Information: Product Name: ", "board_name"),
        ];
        let [text] = args else {
            return Err("more than one string, or options: write a site command".into());
        };
        let found = FILES.iter().find_map(|(prefix, file)| Some((text.strip_prefix(prefix)?, *file)));
        let (value, file) = found.ok_or("only versions and names of BIOS, system and board are turned")?;
        if value.is_empty() || value.contains(['*', '?', '[', '!']) {
            return Err(format!("{value} is a pattern: write a site command"));
        }
        self.site(
            file,
            "seen=$(cat /sys/class/dmi/id/\"$1\"); [ \"$seen\" = \"$2\" ] || { echo \"$1 is $seen, not $2\"; exit 2; }",
            vec![file.into(), value.into()],
            5000,
            "repair",
        );
        Ok(Turned::Done(Vec::new()))
    }

    /// Adds a site command with a name and token of its own.
    fn site(
        &mut self,
        wish: &str,
        script: &'static str,
        args: Vec<String>,
        timeout: u64,
        action: &'static str,
    ) {
        let plain: String = wish.chars().filter(char::is_ascii_alphanumeric).take(40).collect();
        let plain = if plain.is_empty() { "nhc".into() } else { plain };
        let free =
            |name: &str, token: &str| !self.commands.iter().any(|c| c.name == name || c.token == token);
        let (mut name, mut token) = (plain.clone(), cut(&plain, 10));
        let mut n = 2;
        while !free(&name, &token) {
            name = format!("{plain}{n}");
            token = format!("{}{n}", cut(&plain, 10 - n.to_string().len()));
            n += 1;
        }
        self.commands.push(Command { name, token, script, args, timeout, action });
    }
}

fn cut(text: &str, length: usize) -> String {
    text.chars().take(length).collect()
}

/// No pattern of NHC's: glob, `/regex/`, `{range}`, `!`. A path is no regex.
fn plain(text: &str) -> bool {
    let regex = text.len() > 1 && text.starts_with('/') && text.ends_with('/');
    !text.is_empty() && !regex && !text.contains(['*', '?', '[', ']', '{', '}', '!', '\n'])
}

struct Options {
    given: Vec<(char, String)>,
    rest: Vec<String>,
}

/// Options as bash's `getopts` takes them: `flags` stand alone, `valued` take the rest of the word or the next word.
fn options(args: &[String], flags: &str, valued: &str) -> Result<Options, String> {
    let mut given = Vec::new();
    let mut args = args.iter();
    let mut rest = Vec::new();
    while let Some(arg) = args.next() {
        let Some(letters) = arg.strip_prefix('-').filter(|l| !l.is_empty()) else {
            rest.push(arg.clone());
            break;
        };
        if letters == "-" {
            break;
        }
        for (at, letter) in letters.char_indices() {
            if flags.contains(letter) {
                given.push((letter, String::new()));
            } else if valued.contains(letter) {
                let attached = &letters[at + letter.len_utf8()..];
                let value =
                    if attached.is_empty() { args.next().cloned() } else { Some(attached.to_string()) };
                given.push((letter, value.ok_or_else(|| format!("option -{letter} has no value"))?));
                break;
            } else {
                return Err(format!("option -{letter} is not known"));
            }
        }
    }
    rest.extend(args.cloned());
    Ok(Options { given, rest })
}

/// Splits as a shell does; what a shell would expand or act on is an error.
fn words(text: &str) -> Result<Vec<String>, String> {
    let shell = |c: char| format!("shell code ({c}): write a site command with Nagios exit codes");
    let mut out = Vec::new();
    let mut word: Option<String> = None;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        Some('\'') => break,
                        Some(c) => word.push(c),
                        None => return Err("a quote is not closed".into()),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match chars.next() {
                        Some('"') => break,
                        Some('\\') => match chars.next() {
                            Some(c @ ('"' | '\\' | '$' | '`')) => word.push(c),
                            Some(c) => word.extend(['\\', c]),
                            None => return Err("a quote is not closed".into()),
                        },
                        Some(c @ ('$' | '`')) => return Err(shell(c)),
                        Some(c) => word.push(c),
                        None => return Err("a quote is not closed".into()),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(chars.next().ok_or("ends in a backslash")?),
            '#' if word.is_none() => break,
            '$' | '`' | ';' | '|' | '&' | '<' | '>' | '(' | ')' => return Err(shell(c)),
            c if c.is_whitespace() => out.extend(word.take()),
            c => word.get_or_insert_default().push(c),
        }
    }
    out.extend(word);
    Ok(out)
}

/// Whether NHC would run a line with this target here; none for a regular expression, or what is not understood.
fn matches(target: &str, node: &str) -> Option<bool> {
    if let Some(rest) = target.strip_prefix('!') {
        return matches(rest, node).map(|m| !m);
    }
    if let Some(list) = target.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
        if list
            .split(',')
            .any(|part| part.matches('[').count() > 1 || part.contains('[') != part.contains(']'))
        {
            return None;
        }
        return Some(list.split(',').any(|part| in_range(part.trim(), node)));
    }
    if target.is_empty() || target.starts_with('/') || target.starts_with('@') {
        return None;
    }
    let pattern: Vec<char> = target.chars().collect();
    let node: Vec<char> = node.chars().collect();
    Some(glob(&pattern, &node))
}

/// `n00[20-39].sci`
fn in_range(part: &str, node: &str) -> bool {
    let Some((prefix, rest)) = part.split_once('[') else { return part == node };
    let Some((range, suffix)) = rest.split_once(']') else { return false };
    let (from, to) = range.split_once('-').unwrap_or((range, range));
    let number =
        node.strip_prefix(prefix).and_then(|n| n.strip_suffix(suffix)).filter(|n| n.len() == from.len());
    let parse = |t: &str| t.bytes().all(|b| b.is_ascii_digit()).then(|| t.parse::<u64>().ok()).flatten();
    match (number.and_then(parse), parse(from), parse(to)) {
        (Some(n), Some(from), Some(to)) => (from..=to).contains(&n),
        _ => false,
    }
}

/// `*`, `?` and `[a-z]`, in time linear in both lengths multiplied.
fn glob(pattern: &[char], text: &[char]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to go on when what follows the last star does not fit.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        let step = match pattern.get(p) {
            Some('*') => {
                star = Some((p + 1, t));
                p += 1;
                continue;
            }
            Some('?') => Some(1),
            Some('[') => class(&pattern[p..], text[t]),
            Some(c) if *c == text[t] => Some(1),
            _ => None,
        };
        match (step, star) {
            (Some(step), _) => {
                p += step;
                t += 1;
            }
            (None, Some((after, from))) => {
                star = Some((after, from + 1));
                (p, t) = (after, from + 1);
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// Length of the class that `pattern` starts with, when `c` is in it.
fn class(pattern: &[char], c: char) -> Option<usize> {
    let end = pattern.iter().skip(2).position(|x| *x == ']')? + 2;
    let inside = &pattern[1..end];
    let (not, inside) = match inside.split_first() {
        Some(('!' | '^', rest)) => (true, rest),
        _ => (false, inside),
    };
    let mut found = false;
    let mut at = 0;
    while at < inside.len() {
        if inside.get(at + 1) == Some(&'-') && at + 2 < inside.len() {
            found |= (inside[at]..=inside[at + 2]).contains(&c);
            at += 3;
        } else {
            found |= inside[at] == c;
            at += 1;
        }
    }
    (found != not).then_some(end + 1)
}

/// `32gb`, `5GB`, `1024` (KiB), as NHC reads sizes: powers of 1024. In KiB.
fn kib(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let digits = lower.bytes().take_while(|b| b.is_ascii_digit() || *b == b'.').count();
    let (number, unit) = lower.split_at(digits);
    let factor: f64 = match unit.trim_end_matches(['b', 'i']) {
        "" if unit == "b" => 1.0 / 1024.0,
        "" | "k" => 1.0,
        "m" => 1024.0,
        "g" => 1024.0 * 1024.0,
        "t" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let value = number.parse::<f64>().ok()? * factor;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be in range")]
    (1.0..1e15).contains(&value).then_some(value as u64)
}

/// A TOML basic string.
fn quote(text: &str) -> String {
    toml::Value::String(text.to_string()).to_string().replace('\n', "\\n")
}

fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
