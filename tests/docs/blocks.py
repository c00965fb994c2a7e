"""Code blocks of a Markdown page, and how to run them.

A comment on the line above a fence says what is special about the block:

- `<!-- continue -->`: runs after the block before it, with its names.
- `<!-- no-run: reason -->`: is not run, and says why.
- `<!-- run-by: tests/….py -->`: that test runs it, with what it needs.
- `<!-- server -->`, `<!-- server, continue -->`: runs beside a server, in the order of the page: see `shell`.
- `<!-- prints -->` above a `text` block: exactly what the Python block before it prints.

Blocks run in a process of their own, forked from one that has loaded what they need except runnel: an interpreter that
starts anew takes three times as long. Runnel itself they import, so that an import that a page forgets is missed.
"""

import ast
import asyncio
import inspect
import os
import re
import sys
import types
import warnings
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

_FENCE = re.compile(r"(?P<indent> *)```(?P<language>\w*)")
_LOADED = ["asyncio", "google_crc32c", "httpx", "msgspec", "starlette.applications", "uvicorn", "uvloop"]
_BETWEEN = "\0"  # what two blocks print
_WORDS = "continue|no-run|run-by|prints|server|server, continue"
_COMMENT = re.compile(rf"<!-- *(?P<word>{_WORDS})(?:: *(?P<reason>.+?))? *-->")


class BadMark(ValueError):
    """A comment above a block that cannot mean anything."""


@dataclass
class Block:
    """A Python block: its source, where it stands, and what its marks say."""

    line: int
    source: str
    before: "Block | None" = None
    no_run: str | None = None
    run_by: str | None = None
    prints: str | None = None
    server: bool = False

    @property
    def is_run_here(self) -> bool:
        """Whether the page runs it, and not another test or none."""
        return self.no_run is None and self.run_by is None

    def chain(self) -> "list[Block]":
        """The blocks that have to run for this one, itself last."""
        return [*(self.before.chain() if self.before else ()), self]


def extract(page: str) -> list[Block]:
    """The Python blocks of a page, in order."""
    blocks: list[Block] = []
    lines = page.splitlines()
    number = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence is None:
            number += 1
            continue
        start, indent = number, fence["indent"]
        number += 1
        while number < len(lines) and lines[number] != f"{indent}```":
            number += 1
        source = "".join(f"{line.removeprefix(indent)}\n" for line in lines[start + 1 : number])
        number += 1
        mark = _COMMENT.fullmatch(lines[start - 1].strip()) if start else None
        if fence["language"] == "python":
            blocks.append(_python_block(source, start + 1, mark, blocks))
        elif mark and mark["word"] == "prints":
            _last(blocks, start + 1).prints = source
    return blocks


def _python_block(source: str, line: int, mark: re.Match[str] | None, blocks: list[Block]) -> Block:
    block = Block(line, source)
    if mark is None:
        return block
    block.server = mark["word"].startswith("server")
    if mark["word"].endswith("continue"):
        block.before = _last([one for one in blocks if one.is_run_here and (block.server or not one.server)], line)
    elif block.server:
        pass
    elif mark["word"] == "no-run" and mark["reason"]:
        block.no_run = mark["reason"]
    elif mark["word"] == "run-by" and mark["reason"]:
        block.run_by = mark["reason"]
    else:
        raise BadMark(f"line {line}: `no-run` needs a reason, `run-by` a test, and `prints` belongs above a text block")
    return block


def _last(blocks: list[Block], line: int) -> Block:
    if not blocks:
        raise BadMark(f"line {line}: there is no Python block before this one")
    return blocks[-1]


def last_of_chains(blocks: list[Block]) -> list[Block]:
    """Of each run of blocks that belong together the last one; without those that are not run, or need a server."""
    alone = [block for block in blocks if block.is_run_here and not block.server]
    continued = [block.before for block in alone]
    return [block for block in alone if block not in continued]


class Done(NamedTuple):
    """How blocks ended, and what each of them printed."""

    code: int
    printed: list[str]
    errors: str


def run(page: Path, line: int, folder: Path, timeout: float) -> Done:
    """Run the block that opens at the line, after those that it continues, in a process of its own, in the folder.

    Warnings are errors. A process that takes longer than `timeout` seconds is killed, and that is an error, too.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(_LOADED)
    out, err = folder.with_name(f"{folder.name}.out"), folder.with_name(f"{folder.name}.err")
    process = context.Process(target=_run, args=(page, line, folder, out, err))
    process.start()
    process.join(timeout)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError(f"{page}:{line} took longer than {timeout:g} s")
    return Done(process.exitcode, out.read_text().split(_BETWEEN), err.read_text())


def _run(page: Path, line: int, folder: Path, out: Path, err: Path) -> None:
    """Run a chain of blocks in this process, as its `__main__`, of which nothing else is left.

    Blocks may use `await` at the top level; those that do share one event loop.
    """
    for descriptor, path in ((1, out), (2, err)):
        with path.open("wb") as written:
            os.dup2(written.fileno(), descriptor)
    os.chdir(folder)
    sys.warnoptions[:] = ["error"]
    warnings.simplefilter("error")
    # Of what is installed, not of the block: the lock has httpx, and Starlette's TestClient would rather have httpx2.
    warnings.filterwarnings("ignore", "Using `httpx` with `starlette.testclient` is deprecated")
    (block,) = (block for block in extract(page.read_text()) if block.line == line)
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    codes = []
    for part in block.chain():
        padded = "\n" * part.line + part.source  # so that a traceback names the line of the page
        codes.append(compile(padded, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT))
    if any(code.co_flags & inspect.CO_COROUTINE for code in codes):
        asyncio.run(_run_awaiting(codes, main.__dict__))
    else:
        for number, code in enumerate(codes):
            _separate(number)
            exec(code, main.__dict__)


async def _run_awaiting(codes: list[types.CodeType], names: dict[str, object]) -> None:
    for number, code in enumerate(codes):
        _separate(number)
        result = eval(code, names)
        if inspect.isawaitable(result):
            await result


def _separate(number: int) -> None:
    if number:
        sys.stdout.write(_BETWEEN)
