//! Manual pages and completions for bash, zsh and fish, made of the programs' own command lines, so that they can say
//! nothing else. `packaging/build-packages` asks each program for its own: `PROGRAM __pages DIR`.

use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;

/// First argument of a program that is to write its pages; the second is the folder, the package's `usr/share`.
pub const SUBCOMMAND: &str = "__pages";

/// Writes the pages of `commands` when the command line asks for them; to be called before it is parsed.
///
/// `section` is the manual's: 1 for everybody's programs, 8 for root's.
#[must_use]
pub fn asked(section: u8, commands: impl FnOnce() -> Vec<Command>) -> Option<ExitCode> {
    let mut args = std::env::args_os().skip(1);
    if args.next()? != SUBCOMMAND {
        return None;
    }
    let dir = args.next()?;
    for command in commands() {
        if let Err(e) = write(command, section, Path::new(&dir)) {
            eprintln!("{}: manual pages and completions cannot be written: {e}", dir.display());
            return Some(ExitCode::from(3));
        }
    }
    Some(ExitCode::SUCCESS)
}

/// Writes one program's pages below `share`.
///
/// # Errors
/// When a file cannot be written.
pub fn write(command: Command, section: u8, share: &Path) -> io::Result<()> {
    let name = command.get_name().to_owned();
    for (shell, folder, file) in [
        (Shell::Bash, "bash-completion/completions", name.clone()),
        (Shell::Zsh, "zsh/site-functions", format!("_{name}")),
        (Shell::Fish, "fish/vendor_completions.d", format!("{name}.fish")),
    ] {
        let mut text = Vec::new();
        clap_complete::generate(shell, &mut command.clone(), &name, &mut text);
        fs::create_dir_all(share.join(folder))?;
        fs::write(share.join(folder).join(file), text)?;
    }
    let man = share.join(format!("man/man{section}"));
    fs::create_dir_all(&man)?;
    let mut command = command.disable_help_subcommand(true);
    // Options of the program stand in its subcommands' pages, too.
    command.build();
    manual(&command, section, &man)
}

/// One page for a command, and one for each of its subcommands, as git's.
fn manual(command: &Command, section: u8, dir: &Path) -> io::Result<()> {
    for sub in command.get_subcommands().filter(|s| !s.is_hide_set()) {
        manual(sub, section, dir)?;
    }
    let page = Man::new(command.clone()).section(section.to_string()).manual("ClusterMAX for Slurm");
    // Without a date: the same program gives the same bytes.
    page.date("").generate_to(dir).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    #[test]
    fn a_program_and_its_subcommands_have_pages_and_completions() {
        let dir = tempfile::tempdir().unwrap();
        let run =
            Command::new("run").about("Look now").arg(Arg::new("mode").long("mode").help("Why it runs"));
        let command = Command::new("clustermax-x")
            .about("Looks")
            .subcommand(run)
            .subcommand(Command::new("inner").hide(true));
        write(command, 8, dir.path()).unwrap();
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        let page = read("man/man8/clustermax-x-run.8");
        assert!(page.contains(".SH OPTIONS") && page.contains("Why it runs"), "{page}");
        assert!(read("man/man8/clustermax-x.8").contains("clustermax\\-x \\- Looks"));
        assert!(!dir.path().join("man/man8/clustermax-x-inner.8").exists());
        for file in [
            "bash-completion/completions/clustermax-x",
            "zsh/site-functions/_clustermax-x",
            "fish/vendor_completions.d/clustermax-x.fish",
        ] {
            assert!(read(file).contains("mode"), "{file}");
        }
    }
}
