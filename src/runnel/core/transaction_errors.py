"""What can go wrong with publishing exactly once: numbers, marks, expectations, stages.

They hang in the same tree as all others: see `runnel.core.errors`.
"""

from __future__ import annotations

from runnel.core.errors import Ended, NotNow, UsageError


class SequenceGap(UsageError):
    """A producer left out numbers: something that it published before is missing."""

    code = "sequence_gap"

    def __init__(self, producer: int, expected: int, got: int) -> None:
        self.producer, self.expected, self.got = producer, expected, got
        super().__init__(
            f"producer {producer:#x} published number {got}, and {expected} is next; "
            "publish what lies between first, in order"
        )


class SequenceOverlap(UsageError):
    """A list of records of which a producer published the first ones before, and the others not."""

    code = "sequence_overlap"

    def __init__(self, producer: int, sequence: int, end: int, stored: int) -> None:
        self.producer, self.sequence, self.end, self.stored = producer, sequence, end, stored
        super().__init__(
            f"producer {producer:#x} published numbers {sequence} to {end - 1}, and those before {stored} are stored "
            f"already; publish from {stored} on"
        )


class SequenceForgotten(UsageError):
    """Numbers that were stored before, and where they are is not remembered, or not as one piece."""

    code = "sequence_forgotten"

    def __init__(self, producer: int, sequence: int, oldest: int) -> None:
        self.producer, self.sequence, self.oldest = producer, sequence, oldest
        super().__init__(
            f"producer {producer:#x} published number {sequence}, and only the last publishes are remembered, from "
            f"{oldest} on, each as one piece; it was stored before, or left out when the producer began: go on behind"
        )


class OffsetConflict(NotNow):
    """Somebody else published first: the topic does not stand where the publisher expected."""

    code = "offset_conflict"

    def __init__(self, topic: str, expected: int, actual: int) -> None:
        self.topic, self.expected, self.actual = topic, expected, actual
        super().__init__(
            f"the next offset of {topic!r} is {actual}, not {expected} as expected; "
            "read what is new, decide again, and retry"
        )


class MarkConflict(NotNow):
    """A mark has another value than the transaction expected: somebody else took over."""

    code = "mark_conflict"

    def __init__(self, mark: str, expected: object, actual: object) -> None:
        self.mark, self.expected, self.actual = mark, expected, actual
        super().__init__(
            f"mark {mark!r} is {actual!r}, not {expected!r} as expected; "
            "somebody else moved it: read it again, and stop if you are not the one to go on"
        )


class TransactionEnded(Ended):
    """A transaction that was committed or given up takes nothing more."""

    code = "transaction_ended"

    def __init__(self) -> None:
        super().__init__("the transaction is over; open another with `async with broker.transaction()`")


class StageEnded(Ended):
    """A stage that was committed, dropped or superseded, or that expired."""

    code = "stage_ended"

    def __init__(self, stage: str, why: str) -> None:
        self.stage, self.why = stage, why
        done = "its records are in their topic: go on with the next batch"
        way_out = done if "commit" in why else "stage the records again as a new attempt"
        super().__init__(f"the stage {stage} is over: {why}; {way_out}")


class UnknownStage(UsageError):
    """A stage that was to be committed, and that nobody wrote to, as far as is remembered."""

    code = "unknown_stage"

    def __init__(self, stage: str) -> None:
        self.stage = stage
        super().__init__(
            f"there is no stage {stage}: nothing was written to it, or it was committed or dropped in an earlier life "
            "of the broker; a mark in the same transaction tells which"
        )


class StagingFull(NotNow):
    """As much is staged as may be, and nobody commits it."""

    code = "staging_full"

    def __init__(self, what: str, amount: int, limit_name: str, limit: int, advice: str = "") -> None:
        self.what, self.amount, self.limit_name, self.limit = what, amount, limit_name, limit
        usual = "commit or drop some first (`broker.stages()` and `runnel log staged` list them), or raise the limit"
        super().__init__(f"{amount:,} {what} would be staged, and {limit_name} is {limit:,}; {advice or usual}")


class Fenced(Ended):
    """A query that another one, of the same name, is ahead of: what it writes now was written already."""

    code = "fenced"

    def __init__(self, mark: str, batch: int, ahead: object) -> None:
        self.mark, self.batch, self.ahead = mark, batch, ahead
        super().__init__(
            f"batch {batch} of {mark!r} was to be committed, and batch {ahead} was before: another driver runs this "
            "query, or its checkpoint is an old copy; nothing was written. Stop the one that is behind; to write "
            "everything again, start with a new checkpoint"
        )
