"""`runnel completion`: shell completion of commands and options, generated from the parsers."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from runnel.cli.command import Commands, add_command

EXAMPLE = """\
examples:
  eval "$(runnel completion bash)"                                    in ~/.bashrc
  eval "$(runnel completion zsh)"                                     in ~/.zshrc, after compinit
  runnel completion fish > ~/.config/fish/completions/runnel.fish     once
"""

SHELLS = ("bash", "zsh", "fish")


FILES = ("FILE", "DIR", "PATH")  # what help calls values that are files or folders
WORDS = {"POLICY": ("drop_oldest", "drop_newest", "block", "disconnect"), "WHERE": ("earliest", "latest")}

Values: TypeAlias = tuple[str, ...] | None  # the values of an option; None: a file


class Level(NamedTuple):
    """A command with its completions: commands and options, each with its summary.

    `values`: of the options that take one.
    """

    path: tuple[str, ...]
    commands: dict[str, str]
    options: dict[str, str]
    values: dict[str, Values]


def add_to(commands: Commands) -> None:
    """Make `runnel completion` known."""
    parser = add_command(
        commands,
        "completion",
        "completion of commands and options, for bash, zsh and fish",
        EXAMPLE,
        run,
        "Prints a script with which a shell completes `runnel` commands.",
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
    values: dict[str, Values] = {}
    inner: list[tuple[str, argparse.ArgumentParser]] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            commands |= {one.dest: one.help or "" for one in action._get_subactions()}
            inner += action.choices.items()
        elif action.help != argparse.SUPPRESS:
            names = [name for name in action.option_strings if name.startswith("--")]
            options |= dict.fromkeys(names, action.help or "")
            if not names:
                commands |= dict.fromkeys(action.choices or (), "")
            elif action.nargs not in (0, "?"):
                values |= dict.fromkeys(names, _values_of(action))
    yield Level(path, commands, options, values)
    for name, child in inner:
        yield from levels_of(child, (*path, name))


def _values_of(action: argparse.Action) -> Values:
    if action.choices is not None:
        return tuple(map(str, action.choices))
    metavar = str(action.metavar)
    if metavar in FILES:
        return None
    return tuple(metavar.split("|")) if re.fullmatch(r"[a-z_]+(\|[a-z_]+)+", metavar) else WORDS.get(metavar, ())


def _by_values(levels: list[Level]) -> Iterator[tuple[Values, list[str]]]:
    """The values of an option, with the patterns of `command option` that have it; the most precise first."""
    all_names = dict.fromkeys(name for level in levels for name in level.values)
    meanings = {
        name: {one.values.get(name, ("a flag",)) for one in levels if name in one.options} for name in all_names
    }
    precise: dict[Values, list[str]] = {}
    common: dict[Values, list[str]] = {}
    for level in levels:
        for name, values in level.values.items():
            if len(meanings[name]) > 1:
                precise.setdefault(values, []).append(f'"{" ".join([*level.path, name])}"')
            elif (pattern := f'*" {name}"') not in common.setdefault(values, []):
                common[values].append(pattern)
    yield from precise.items()
    yield from common.items()


def bash(levels: list[Level]) -> str:
    """For bash: words by command; where there are none, files."""
    cases = "".join(
        f'        "{" ".join(one.path)}") words="{" ".join([*one.commands, *one.options])}" ;;\n' for one in levels
    )
    values = "".join(
        f"        {'|'.join(patterns)}) {'return' if some is None else _bash_words(some)} ;;\n"
        for some, patterns in _by_values(levels)
    )
    return f"""\
# bash completion of runnel; see `runnel completion --help`
_runnel() {{
    local path="" word words="" typed="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
    if [ "$typed" = "=" ]; then
        typed=""
    elif [ "$before" = "=" ]; then
        before="${{COMP_WORDS[COMP_CWORD-2]}}"
    fi
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case " {_paths(levels)} " in
            *" ${{path:+${{path// /_}}_}}$word "*) path="${{path:+$path }}$word" ;;
        esac
    done
    COMPREPLY=()
    case "$path $before" in
{values}    esac
    case "$path" in
{cases}    esac
    COMPREPLY=($(compgen -W "$words" -- "$typed"))
}}
complete -o default -F _runnel runnel
"""


def _bash_words(values: tuple[str, ...]) -> str:
    if not values:
        return "compopt +o default; return"
    return f'COMPREPLY=($(compgen -W "{" ".join(values)}" -- "$typed")); return'


def zsh(levels: list[Level]) -> str:
    """For zsh: words with what they are for; files besides."""
    cases = "".join(f'        "{" ".join(one.path)}") described=({" ".join(_described(one))}) ;;\n' for one in levels)
    values = "".join(
        f"        {'|'.join(patterns)}) {'_files' if some is None else 'compadd -- ' + ' '.join(some)}; return ;;\n"
        for some, patterns in _by_values(levels)
    )
    return f"""\
#compdef runnel
# zsh completion of runnel; see `runnel completion --help`
_runnel() {{
    local path_ word before="${{words[CURRENT-1]}}"
    local -a described
    if [[ "${{words[CURRENT]}}" == --*=* ]]; then
        before="${{words[CURRENT]%%=*}}"
        compset -P '*='
    fi
    for word in "${{words[@]:1:$((CURRENT - 2))}}"; do
        case " {_paths(levels)} " in
            *" ${{path_:+${{path_// /_}}_}}$word "*) path_="${{path_:+$path_ }}$word" ;;
        esac
    done
    case "$path_ $before" in
{values}    esac
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
        f"        contains -- (string join -- _ $path $word) {_paths(levels)}; and set -a path $word",
        "    end",
        '    test "$path" = "$argv"',
        "end",
    ]
    for one in levels:
        at = f"complete -c runnel -n '__runnel_at {' '.join(one.path)}'".replace("at '", "at'")
        lines += [f"{at} -f -a {name} -d {_quoted(said)}" for name, said in one.commands.items()]
        for name, said in one.options.items():
            behind = ""
            if name in one.values:
                words = one.values[name]
                behind = " -rF" if words is None else f" -x -a '{' '.join(words)}'" if words else " -x"
            lines.append(f"{at} -l {name.removeprefix('--')}{behind} -d {_quoted(said)}")
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
