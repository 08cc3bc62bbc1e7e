//! Text tables for people.

use crate::catalogue::CATALOGUE;
use crate::config::{Config, Switch};
use crate::verdict::{Status, Verdict};

/// A verdict as a table: one line a check, then every finding with its mend.
#[must_use]
pub fn verdict(v: &Verdict) -> String {
    let mut out = format!(
        "node {}  {}  {} mode, {}, {:.3} s\n\n{:<22} {:<12} DETAIL\n",
        v.node,
        v.status.word().to_uppercase(),
        v.mode,
        v.enforcement,
        v.seconds,
        "CHECK",
        "STATUS"
    );
    for c in &v.checks {
        out.push_str(&format!("{:<22} {:<12} {}\n", c.check, c.status.word(), printable(&c.detail)));
    }
    for f in v.findings.iter().filter(|f| f.status != Status::Pass) {
        let device = f.device.as_ref().map_or(String::new(), |d| format!(" {}", d.name));
        out.push_str(&format!(
            "\n{} {}{device}: {}\n  seen: {}\n  action: {}{}\n  mend: {}\n",
            f.status.word().to_uppercase(),
            f.check,
            printable(&f.text),
            printable(&f.evidence),
            f.action.word(),
            if f.observe {
                " (observe: never drains)"
            } else if f.drains() {
                " (drains)"
            } else {
                ""
            },
            f.mend
        ));
    }
    if let Some(reason) = &v.reason {
        out.push_str(&format!("\nreason: {reason}\n"));
    }
    out
}

/// One line for each finding that takes the node out of service.
#[must_use]
pub fn draining(v: &Verdict) -> String {
    v.findings.iter().filter(|f| f.drains()).map(|f| format!("{} {}\n", v.enforcement, f.reason())).collect()
}

/// All checks with their switch.
#[must_use]
pub fn list(config: &Config) -> String {
    let mut out = format!("{:<22} {:<8} {:<34} ACTION\n", "CHECK", "STATE", "MODES");
    let state = |id: &str| match config.switch(id) {
        Switch::On => "on",
        Switch::Observe => "observe",
        Switch::Off => "off",
    };
    for c in CATALOGUE {
        let state = match c {
            _ if c.active() => "active",
            _ if c.guards() => "always",
            _ => state(c.id),
        };
        out.push_str(&format!("{:<22} {:<8} {:<34} {}\n", c.id, state, c.when(), c.action));
    }
    for c in &config.command {
        let id = format!("site.{}", c.name);
        let modes: Vec<&str> = c.modes.iter().map(|m| m.word()).collect();
        out.push_str(&format!("{id:<22} {:<8} {:<34} {}\n", state(&id), modes.join(","), c.action.word()));
    }
    out
}

/// Terminal escapes in outside text (kernel lines, command output) are shown, not obeyed.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
