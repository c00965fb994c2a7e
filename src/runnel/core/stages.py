"""Keys and descriptions of stages: records that are stored durably and not yet visible."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from runnel.core.errors import InvalidOption
from runnel.core.pattern import check_no_control

MANY_TOPICS = ">"  # in the place of the topic of a stage that holds records of many
STAGE_PIECE_BYTES = 1024 * 1024  # bytes of values that are staged at once; a larger value is a piece of its own

_LARGEST = 2**63 - 1


class StageKey(NamedTuple):
    """The key of a stage: a writer's batch, one part of it, and which attempt at it."""

    writer: str
    batch: int
    part: int
    attempt: int


class StageInfo(msgspec.Struct, frozen=True):
    """An open stage: whose it is, what it holds, and for how many seconds it was not written to.

    The `topic` of a stage of many topics is ">".
    """

    id: int
    writer: str
    batch: int
    part: int
    attempt: int
    topic: str
    records: int
    bytes: int
    age: float

    @property
    def key(self) -> StageKey:
        """The form in which a transaction commits it."""
        return StageKey(self.writer, self.batch, self.part, self.attempt)


def stage_name(key: StageKey) -> str:
    """How errors call a stage."""
    return f"{key.writer!r} batch {key.batch} part {key.part} attempt {key.attempt}"


def checked_stage_key(key: tuple[str, int, int, int]) -> StageKey:
    """`key`, if it is one."""
    if not isinstance(key, tuple) or len(key) != len(StageKey._fields):
        raise InvalidOption("stage", key, "expected a stage, or (writer, batch, part, attempt)")
    writer, *numbers = key
    if not isinstance(writer, str) or not 0 < len(writer) <= 256:
        raise InvalidOption("writer", writer, "a writer is a str of 1 to 256 characters")
    check_no_control("writer", writer)
    for name, number in zip(StageKey._fields[1:], numbers, strict=True):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _LARGEST:
            raise InvalidOption(name, number, f"expected a whole number from 0 to {_LARGEST}")
    return StageKey(writer, *numbers)


def values_staged(key: StageKey, ordinal: int, records: int) -> int:
    """How many values of a write that begins at `ordinal` are in a stage of so many `records` already."""
    if isinstance(ordinal, bool) or not isinstance(ordinal, int) or not 0 <= ordinal <= records:
        why = f"the stage {stage_name(key)} holds {records} records: the next is {records}"
        raise InvalidOption("ordinal", ordinal, why)
    return records - ordinal
