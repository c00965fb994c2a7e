"""Writes the tables of docs/benchmarks.md from `benchmarks/results/`: `python -m benchmarks --publish`.

What a contender missed stands beside what it reached. A test compares the page with what this writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import results
from benchmarks.harness import number
from benchmarks.matrix.running import Matrix
from benchmarks.matrix.tables import table, tables
from benchmarks.report import calls

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"

_PART = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def parts(page: str) -> list[str]:
    """The questions that a page answers."""
    return [found[2] for found in _PART.finditer(page)]


def written(page: str, folder: Path = results.FOLDER) -> str:
    """The page with the tables of all results."""
    return _PART.sub(lambda found: f"{found[1]}\n{_part(found[2], folder)}\n{found[3]}", page)


def _part(name: str, folder: Path) -> str:
    told = results.read(name, folder)
    if told is None:
        return f"Not measured yet: `python -m benchmarks {name} --save`.\n"
    load = f", load {told['conditions']['load']}" if "load" in told["conditions"] else ""
    head = f"`{told['command']}`, commit {told['commit']}, {told['date']}{load}.\n"
    if "--quick" in told["command"]:
        head = f"{head[:-1]} **A quick run: small loads, few rounds. Do not quote it.**\n"
    body = [tables(Matrix.of(told))] if name == "matrix" else [told["question"], "", *_question(told)]
    return "\n".join([head, *body])


def _question(told: Mapping[str, Any]) -> Iterator[str]:
    contenders = told["contenders"]
    for league in dict.fromkeys(one["league"] for one in contenders):
        of_league = [one for one in contenders if one["league"] == league]
        columns = list(dict.fromkeys(name for one in of_league for name in one["figures"]))
        compared = any(one["times_best_peer"] is not None for one in of_league)
        rows = [[league or "contender", *columns, *(["× best peer"] if compared else [])]]
        for one in of_league:
            figures = [number(one["figures"][name]["median"]) if name in one["figures"] else "" for name in columns]
            rows.append([_named(one), *figures, *([_compared(one)] if compared else [])])
        yield from table(rows)
    if aims := told.get("aims"):
        missed = sum(not aim["met"] for aim in aims)
        yield f"Aims: {len(aims) - missed} met, **{missed} missed**.\n"
        yield from (f"- {aim['text']}" for aim in sorted(aims, key=lambda aim: aim["met"]))
        yield ""
    yield "How each was called:\n"
    called = calls((one["name"], one["call"]) for one in contenders)
    yield from (f"- {name}: `{call}`" for name, call in called.items())
    yield ""


def _named(one: Mapping[str, Any]) -> str:
    why = one["skipped"] or (f"failed, {one['error']}" if one["error"] else "")
    return f"{one['name']} ({why})" if why else str(one["name"])


def _compared(one: Mapping[str, Any]) -> str:
    ratio = one["times_best_peer"]
    if ratio is None:
        return ""
    return f"{number(ratio)}" if one["peer"] or ratio >= 1 else f"✗ **{number(ratio)}**"
