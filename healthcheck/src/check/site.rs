//! Site commands with Nagios exit codes: 0 ok, 1 warn, 2 critical, 3 unknown.

use super::{Context, Sink};
use crate::config::Switch;
use crate::facts::{CommandResult, Reading};
use crate::verdict::{Device, DeviceKind, Status, ascii};

pub fn run(c: &Context<'_>, sink: &mut Sink<'_>) {
    for command in &c.config.command {
        let id = format!("site.{}", command.name);
        if !command.modes.contains(&c.mode) || c.config.switch(&id) == Switch::Off {
            continue;
        }
        let Some(reading) = c.facts.commands.get(&command.name) else { continue };
        let (status, line) = judge(reading);
        if status == Status::Pass {
            sink.done(&id, Status::Pass, line);
            continue;
        }
        let device = Device::named(DeviceKind::Command, command.name.as_str());
        let mut f = sink.finding(&id, &command.token, status, Some(device));
        f.action = command.action;
        // What a command prints may carry anything; only plain text goes into a reason.
        f.text = ascii(&line).trim().chars().take(80).collect();
        f.evidence = format!("{}: {line}", command.path.display());
        f.mend = format!("see {}", command.path.display());
        sink.push(f);
    }
}

fn judge(reading: &Reading<CommandResult>) -> (Status, String) {
    match reading {
        Reading::Value(CommandResult { exit: Some(code), line }) => match code {
            0 => (Status::Pass, line.clone()),
            1 => (Status::Warn, line.clone()),
            2 => (Status::Fail, line.clone()),
            3 => (Status::Unknown, line.clone()),
            other => (Status::Unknown, format!("exit code {other} is none of Nagios' 0 to 3: {line}")),
        },
        Reading::Value(CommandResult { exit: None, .. }) => (Status::Unknown, "ended by a signal".into()),
        Reading::Unsupported => (Status::Unknown, "not run".into()),
        Reading::Unknown(why) | Reading::Hung(why) => (Status::Unknown, why.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nagios_codes() {
        let ended = |exit| judge(&Reading::Value(CommandResult { exit, line: "x".into() })).0;
        assert_eq!(ended(Some(0)), Status::Pass);
        assert_eq!(ended(Some(1)), Status::Warn);
        assert_eq!(ended(Some(2)), Status::Fail);
        for unknown in [Some(3), Some(4), Some(127), None] {
            assert_eq!(ended(unknown), Status::Unknown);
        }
        assert_eq!(judge(&Reading::Hung("late".into())).0, Status::Unknown);
    }
}
