#!/usr/bin/env python3
"""Manual pages and bash completions from the programs' own --help, so that they can say nothing else."""

import argparse
import gzip
import re
import subprocess
from pathlib import Path

# Section of the manual and, where --help has no first line, what the program is.
PROGRAMS = {
    "clustermax": (1, ""),
    "clustermax-doctor": (8, ""),
    "clustermax-healthcheck": (8, ""),
    "clustermax-drain": (8, ""),
    "clustermax-prolog": (8, "Prolog of Slurm: lets no job start on a node with a fault"),
    "clustermax-epilog": (8, "Epilog of Slurm: finds the fault that a job left behind"),
}
HEADING = re.compile(r"^(Usage|Commands|Arguments|Options|[A-Z][a-z]+ codes?):(.*)$")


def help_of(program: Path, subcommand: str = "") -> str:
    """What --help prints, of the program or of one subcommand."""
    words = [str(program), *([subcommand] if subcommand else []), "--help"]
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=30).stdout


def sections(text: str) -> tuple:
    """The text before the first heading, and (heading, lines) of the rest."""
    about: list = []
    parts: list = []
    for line in text.splitlines():
        heading = HEADING.match(line)
        if heading:
            rest = heading.group(2).strip()
            parts.append((heading.group(1), [rest] if rest else []))
        elif parts:
            # Unindented text ends a section: what follows the options.
            if line and not line.startswith(" ") and parts[-1][0] in ("Options", "Commands", "Arguments"):
                parts.append(("Notes", [line]))
            else:
                parts[-1][1].append(line)
        else:
            about.append(line)
    return "\n".join(about).strip(), parts


def items(lines: list) -> list:
    """(term, description) of clap's lists, in both of its forms: on one line, or the description below."""
    found: list = []
    for line in lines:
        term = re.match(r"^ {2,6}(-{1,2}\S.*?|[a-z<\[]\S*?)(?: {2,}(.*))?$", line)
        if term and not line.startswith(" " * 8):
            found.append([term.group(1), term.group(2) or ""])
        elif line.strip() and found:
            found[-1][1] = f"{found[-1][1]} {line.strip()}".strip()
    return found


def roff(text: str) -> str:
    """Text as roff reads it literally."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def render(parts: list, level: str) -> list:
    """Sections of one --help as roff."""
    out: list = []
    for heading, lines in parts:
        if heading == "Usage":
            continue
        out.append(f"{level} {heading.upper() if level == '.SH' else heading}")
        entries = items(lines) if heading in ("Options", "Commands", "Arguments") else []
        for term, description in entries:
            out += [".TP", f"\\fB{roff(term)}\\fR", roff(description)]
        if not entries:
            out.append(roff("\n".join(line.strip() for line in lines if line.strip())))
    return out


def page(name: str, section: int, about: str, program: Path, version: str) -> str:
    """The whole manual page."""
    first, parts = sections(help_of(program))
    about = first.splitlines()[0] if first else about
    usage = next((lines for heading, lines in parts if heading == "Usage"), [name])
    out = [
        f'.TH {name.upper()} {section} "" "clustermax {version}" "ClusterMAX for Slurm"',
        ".SH NAME",
        f"{roff(name)} \\- {roff(about)}",
        ".SH SYNOPSIS",
        roff("\n".join(line.strip() for line in usage if line.strip())),
        *render(parts, ".SH"),
    ]
    for subcommand in subcommands(parts):
        text, sub = sections(help_of(program, subcommand))
        out += [f".SH {roff(f'{name} {subcommand}').upper()}", roff(text), ".PP"]
        out += [roff(line.strip()) for heading, lines in sub if heading == "Usage" for line in lines[:1]]
        out += render(sub, ".SS")
    out += [".SH SEE ALSO", "The documentation below /usr/share/doc/clustermax."]
    return "\n".join(out) + "\n"


def subcommands(parts: list) -> list:
    """Names of a program's subcommands."""
    lists = [items(lines) for heading, lines in parts if heading == "Commands"]
    return [term for entries in lists for term, _ in entries if term != "help"]


def options(parts: list) -> list:
    """Long options of one --help."""
    lists = [items(lines) for heading, lines in parts if heading == "Options"]
    return sorted(
        {o for entries in lists for term, _ in entries for o in re.findall(r"--[a-z][a-z-]*", term)}
    )


def completion(name: str, program: Path) -> str:
    """Completion for bash: subcommands, then their options, else files."""
    _, parts = sections(help_of(program))
    names = subcommands(parts)
    cases = [f"    {s}) words='{' '.join(options(sections(help_of(program, s))[1]))}' ;;" for s in names]
    function = "_" + name.replace("-", "_")
    return "\n".join(
        [
            f"# bash completion for {name}",
            f"{function}() {{",
            "    local cur=${COMP_WORDS[COMP_CWORD]} word words command=",
            f'    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do case " {" ".join(names)} " in'
            ' *" $word "*) command=$word; break ;; esac; done',
            "    case $command in",
            *cases,
            f"    *) words='{' '.join(names + options(parts))}' ;;",
            "    esac",
            '    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$cur")',
            "}",
            f"complete -o default -F {function} {name}",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--out", type=Path, required=True, help="the package's usr/share")
    args = parser.parse_args()
    for name, (section, about) in PROGRAMS.items():
        program = (args.programs / name).resolve()
        folder = args.out / "man" / f"man{section}"
        folder.mkdir(parents=True, exist_ok=True)
        text = page(name, section, about, program, args.version)
        # The same input gives the same bytes.
        (folder / f"{name}.{section}.gz").write_bytes(gzip.compress(text.encode(), mtime=0))
        folder = args.out / "bash-completion" / "completions"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(completion(name, program))


if __name__ == "__main__":
    main()
