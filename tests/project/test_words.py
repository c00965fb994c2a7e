"""Texts for people use the words of the field: STYLE in CONTRIBUTING.md, "Plain words"."""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.project.project import ROOT

AVOIDED = {
    "whoever": "name the actor",
    "nobody": "name the actor, or `no subscriber`, `no process`",
    "somebody": "name the actor",
    "anybody": "name the actor",
    "heir": "standby owner",
    "letterbox": "dead-letter topic",
    "told": "reported, printed, confirmed, gets",
    "door": "listener",
    "doors": "listeners",
}
VAGUE = {
    "no one": "name the actor",
    "go on|goes on|going on|went on": "continue, keep (doing)",
    "let go of|lets go of": "drop, release, close",
    "come again|comes again|came again": "is delivered again, is sent again",
    "as it stands|as they stand": "unchanged",
}
RIDDLE = re.compile(rf"\b({'|'.join(VAGUE)})\b", re.IGNORECASE)
WORD = re.compile(rf"\b({'|'.join(AVOIDED)})\b", re.IGNORECASE)
TEST = re.compile(r"def (test_\w+)")
COMMENT = re.compile(r"\s*(//|/?\*)")
CODE = re.compile(r"`[^`]*`")  # names, also old ones


def tracked(*patterns: str) -> list[Path]:
    found = subprocess.run(["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in found.stdout.splitlines()]


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """The comments and strings of a Python file that are sentences, with the line that each begins at."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) and " " in token.string and "{told}" not in token.string:
            yield token.start[0], token.string.replace("the user nobody", "")  # a name of the system


def comments_of(source: str) -> Iterator[tuple[int, str]]:
    """The comments and docstrings of a Python file, without other strings; line breaks count as spaces."""
    before = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and before == tokenize.NEWLINE):
            yield token.start[0], " ".join(token.string.split())
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            before = tokenize.NEWLINE if token.type in (tokenize.INDENT, tokenize.DEDENT) else token.type


def test_texts_for_people_name_the_actor() -> None:
    found = []
    for path in tracked("*.md"):
        lines = [(line, CODE.sub("", text)) for line, text in enumerate(path.read_text().splitlines(), 1)]
        found += [(path, line, text) for line, text in lines if WORD.search(text)]
    for path in tracked("src/*.js", "src/*.ts", "src/*.html"):
        comments = [one for one in enumerate(path.read_text().splitlines(), 1) if COMMENT.match(one[1])]
        found += [(path, line, text) for line, text in comments if WORD.search(text)]
    for path in tracked("src/*.py", "examples/*.py", "tools/*.py"):
        if WORD.search(path.read_text()):
            found += [(path, line, text) for line, text in texts_of(path.read_text()) if WORD.search(text)]
    assert [f"{path.relative_to(ROOT)}:{line}: {WORD.findall(text)}" for path, line, text in found] == []


def test_comments_of_the_source_use_the_words_of_the_field() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {RIDDLE.findall(text)}"
        for path in tracked("src/*.py")
        if RIDDLE.search(" ".join(path.read_text().split()))
        for line, text in comments_of(path.read_text())
        if RIDDLE.search(text)
    ]
    assert found == []


def test_names_of_tests_name_the_actor() -> None:
    names = [(path, name) for path in tracked("tests/*.py", "examples/*.py") for name in TEST.findall(path.read_text())]
    assert [f"{path.relative_to(ROOT)}: {name}" for path, name in names if WORD.search(name.replace("_", " "))] == []


def test_the_check_sees_comments_and_strings_and_no_names() -> None:
    source = '"""Whoever calls."""\ntold = 1  # nobody reads it\nprint("a heir")\n'
    assert [line for line, text in texts_of(source) if WORD.search(text)] == [1, 2, 3]
    assert not any(WORD.search(text) for _, text in texts_of("told = {'told': 1}\n"))
    source = '"""It goes\n on."""\nprint("goes on")  # as it stands\n'
    assert [line for line, text in comments_of(source) if RIDDLE.search(text)] == [1, 3]
