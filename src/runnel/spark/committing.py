"""What the driver does when all tasks have staged: one small transaction makes everything visible, once.

Only the keys of stages come here, never a row. A mark in the same transaction says which batch of which query it was: a
batch that is committed again (Spark does that after a crash) is a no-op, and a driver that is behind is told so.
Below: line, core. Above: the writers; staging, for sweeping.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from runnel.core.errors import RunnelError
from runnel.core.stage import StageKey
from runnel.core.transaction_errors import Fenced, StageEnded, UnknownStage
from runnel.spark.line import Line


class Writer(NamedTuple):
    """Who stages: a query (or a job), and which life of it. Stages of two lives are never mixed up."""

    query: str
    life: str

    def __str__(self) -> str:
        return f"{self.family}{self.life}"

    @property
    def family(self) -> str:
        """How the names of all lives of the query begin."""
        return f"{self.mark}:"

    @property
    def mark(self) -> str:
        """Under what the query's last batch is remembered."""
        return f"spark:{self.query}"


def commit_batch(line: Line, writer: Writer, batch: int, keys: Sequence[StageKey]) -> bool:
    """Make the stages of a query's batch visible; False: they were before, and this is a repetition.

    If a later batch was committed before, `Fenced` is raised: somebody else goes on with this query.
    """
    applied = _transact(line, keys, [[writer.mark, batch]])
    if not applied:
        there = line.ask("mark", name=writer.mark)
        if there is not None and there > batch:
            raise Fenced(writer.mark, batch, there)
    sweep(line, writer, batch)
    return applied


def commit_job(line: Line, writer: Writer, keys: Sequence[StageKey], mark: tuple[str, int] | None) -> bool:
    """Make the stages of a job visible; False: `mark` (its name and value) says that they were before."""
    applied = True
    if keys or mark is not None:
        applied = _transact(line, keys, [] if mark is None else [[*mark]])
    sweep(line, writer, 0)
    return applied


def sweep(line: Line, writer: Writer, batch: int) -> None:
    """Drop what failed attempts left: of this writer up to `batch`, which is over, and of other lives before it.

    Another life may be at this very batch, and finds out by itself that it comes too late.
    """
    _drop(
        line,
        lambda name, number: (
            number <= batch if name == str(writer) else name.startswith(writer.family) and number < batch
        ),
    )


def make_room(line: Line, writer: Writer) -> None:
    """Drop what all other lives of the query have staged: there is no room for two."""
    _drop(line, lambda name, _: name.startswith(writer.family) and name != str(writer))


def _drop(line: Line, unwanted: Callable[[str, int], bool]) -> None:
    """Drop the stages of such writers and batches, as far as that can be done now: the rest expires."""
    try:
        for one in line.ask("stages"):
            if unwanted(one["writer"], one["batch"]):
                line.ask("stage_drop", topic=one["topic"], key=_key(one))
    except RunnelError:
        pass  # whoever calls has done what matters, or has worse to tell


def _transact(line: Line, keys: Sequence[StageKey], marks: list[list[Any]]) -> bool:
    """One transaction; whether it was applied. If the connection is lost meanwhile it is asked for again."""
    losses = line.losses
    try:
        return bool(line.ask("transact", commits=list(keys), marks=marks)["applied"])
    except (StageEnded, UnknownStage) as error:
        # Asked twice, because the first answer was lost. What was staged is durable and nobody else commits it: that
        # it is not there any more is the commit itself. With a mark the answer is not this error.
        is_done = isinstance(error, UnknownStage) or "commit" in error.why
        if line.losses == losses or marks or not is_done:
            raise
        return True


def _key(one: dict[str, Any]) -> StageKey:
    return StageKey(one["writer"], one["batch"], one["part"], one["attempt"])
