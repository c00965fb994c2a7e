"""The reference has every metric, command and route of the code."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from runnel.cli.main import make_parser
from runnel.server.http.openapi import SPECIFICATION
from tests.project.project import ROOT
from tools import metric_table

REFERENCE = ROOT / "docs" / "reference"
OWN_PAGES = {"archive": "archive.md", "relay": "relay.md", "pipeline": "pipelines.md"}  # of commands


def test_the_tables_of_metrics_are_those_of_the_code() -> None:
    page = metric_table.PAGE.read_text()
    assert page == metric_table.written(page), "run `python -m tools.metric_table`"


def commands(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    groups = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    for group in groups:
        for name, child in group.choices.items():
            yield from commands(child, (*words, name))
    if not groups:
        yield words


def test_the_page_of_the_command_line_names_every_command() -> None:
    missing = []
    for words in commands(make_parser()):
        pages = [(REFERENCE / name).read_text() for name in ("command-line.md", OWN_PAGES.get(words[0], "auth.md"))]
        forms = [rf"runnel {words[0]}\b[^`]*\b{words[-1]}\b" if len(words) > 1 else rf"runnel {words[0]}\b"]
        if not any(re.search(form, page) for form in forms for page in pages):
            missing.append(" ".join(words))
    assert missing == []


def test_the_page_of_http_names_every_route_for_users() -> None:
    page = (REFERENCE / "http.md").read_text()
    routes = {path for path in SPECIFICATION["paths"] if not path.startswith("/console")}
    assert {path for path in routes if path not in page and f"/{path.rpartition('/')[2]}`" not in page} == set()
