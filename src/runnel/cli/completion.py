"""`runnel completion`: shell completion of commands and options, generated from the parsers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import NamedTuple

from runnel.cli.command import Commands, add_command

EXAMPLE = """\
examples:
  eval "$(runnel completion bash)"                                    in ~/.bashrc
  eval "$(runnel completion zsh)"                                     in ~/.zshrc, after compinit
  runnel completion fish > ~/.config/fish/completions/runnel.fish     once
"""

SHELLS = ("bash", "zsh", "fish")


class Level(NamedTuple):
    """A command with what can stand behind it: commands and options, each with its summary."""

    path: tuple[str, ...]
    commands: dict[str, str]
    options: dict[str, str]


def add_to(commands: Commands) -> None:
    """Make `runnel completion` known."""
    parser = add_command(
        commands,
        "completion",
        "completion of commands and options, for bash, zsh and fish",
        EXAMPLE,
        run,
        "Prints a script that teaches a shell to complete `runnel`.",
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def run(chosen: argparse.Namespace) -> int:
    """Print the script."""
    from runnel.cli.main import make_parser

    levels = list(levels_of(make_parser()))
    print({"bash": bash, "zsh": zsh, "fish": fish}[chosen.shell](levels), end="")
    return 0


def levels_of(parser: argparse.ArgumentParser, path: tuple[str, ...] = ()) -> Iterator[Level]:
    """Every command, the outermost first."""
    commands: dict[str, str] = {}
    options: dict[str, str] = {}
    inner: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands |= {one.dest: one.help or "" for one in action._get_subactions()}
            inner += action.choices.items()
        elif action.help != argparse.SUPPRESS:
            options |= {name: action.help or "" for name in action.option_strings if name.startswith("--")}
    yield Level(path, commands, options)
    for name, child in inner:
        yield from levels_of(child, (*path, name))


def bash(levels: list[Level]) -> str:
    """For bash: words by command; where there are none, files."""
    cases = "".join(
        f'        "{" ".join(one.path)}") words="{" ".join([*one.commands, *one.options])}" ;;\n' for one in levels
    )
    return f"""\
# bash completion of runnel; see `runnel completion --help`
_runnel() {{
    local path="" word words=""
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case " {_paths(levels)} " in
            *" ${{path:+${{path// /_}}_}}$word "*) path="${{path:+$path }}$word" ;;
        esac
    done
    case "$path" in
{cases}    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _runnel runnel
"""


def zsh(levels: list[Level]) -> str:
    """For zsh: words with what they are for; files besides."""
    cases = "".join(f'        "{" ".join(one.path)}") described=({" ".join(_described(one))}) ;;\n' for one in levels)
    return f"""\
#compdef runnel
# zsh completion of runnel; see `runnel completion --help`
_runnel() {{
    local path_ word
    local -a described
    for word in "${{words[@]:1:$((CURRENT - 2))}}"; do
        case " {_paths(levels)} " in
            *" ${{path_:+${{path_// /_}}_}}$word "*) path_="${{path_:+$path_ }}$word" ;;
        esac
    done
    case "$path_" in
{cases}    esac
    _describe 'runnel' described
    _files
}}
compdef _runnel runnel
"""


def fish(levels: list[Level]) -> str:
    """For fish: a line for each word."""
    lines = [
        "# fish completion of runnel; see `runnel completion --help`",
        "function __runnel_at",
        "    set -l path",
        "    for word in (commandline -opc)[2..-1]",
        f"        contains -- (string join _ $path $word) {_paths(levels)}; and set -a path $word",
        "    end",
        '    test "$path" = "$argv"',
        "end",
    ]
    for one in levels:
        at = f"complete -c runnel -n '__runnel_at {' '.join(one.path)}'".replace("at '", "at'")
        lines += [f"{at} -f -a {name} -d {_quoted(said)}" for name, said in one.commands.items()]
        lines += [f"{at} -l {name.removeprefix('--')} -d {_quoted(said)}" for name, said in one.options.items()]
    return "\n".join(lines) + "\n"


def _paths(levels: list[Level]) -> str:
    """Every command as one word: `topic topic_list …`."""
    return " ".join("_".join(one.path) for one in levels if one.path)


def _described(level: Level) -> Iterator[str]:
    for name, said in (level.commands | level.options).items():
        yield _quoted(f"{name}:{said}" if said else name)


def _quoted(said: str) -> str:
    """In single quotes, on one line, short."""
    plain = re.sub(r"\s+", " ", said.replace("%%", "%").replace("'", ""))
    return f"'{plain[:77] + '...' if len(plain) > 80 else plain}'"
