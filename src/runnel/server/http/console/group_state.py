"""How a group does, in a word and a reason: stuck, behind, working, idle, paused. Pure: figures in, a verdict out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from runnel.core.statistics import GroupStatistics

STUCK_SECONDS = 30.0  # without an ack, while there is something to do
BEHIND_SECONDS = 60.0  # that a group would take for its lag, beyond which it counts as behind
RISING_STEPS = 6  # steps over which a lag that only grows makes a group count as behind


class GroupState(NamedTuple):
    """A verdict on a group. `state`: stuck, behind, working, idle or paused."""

    state: str
    reason: str


def judge(group: GroupStatistics, ack_rate: float | None, lags: Sequence[int], still: float, now: float) -> GroupState:
    """Judge a group by its figures, its acks per second, and its lag at the last steps, the newest last.

    `still`: seconds in which its count of acks was not seen to move, for members that say no time of their last ack.
    """
    if group.paused:
        return GroupState("paused", f"an operator paused it; {_waiting(group.lag)}")
    if group.lag <= 0:
        return GroupState("idle", "everything is acked")
    if not group.members:
        return GroupState("stuck", f"{_waiting(group.lag)}, and no member is connected")
    if group.scheduled >= group.lag:
        return GroupState("idle", f"{_waiting(group.lag)} for {'its' if group.lag == 1 else 'their'} time")
    last = max((one.last_ack for one in group.members if one.last_ack is not None), default=None)
    silent = min(group.oldest_unacked_age, still if last is None else now - last)
    if not ack_rate and silent >= STUCK_SECONDS:
        held = f"{_records(group.in_flight)} in flight" if group.in_flight else "nothing in flight"
        return GroupState("stuck", f"no ack for {_duration(silent)}: {_waiting(group.lag)}, {held}")
    rising = list(lags)[-RISING_STEPS:]
    if len(rising) == RISING_STEPS and rising == sorted(set(rising)):
        return GroupState("behind", f"its lag rose from {rising[0]:,} to {rising[-1]:,} in the last minute")
    if ack_rate and (needed := group.lag / ack_rate) >= BEHIND_SECONDS:
        return GroupState("behind", f"{_waiting(group.lag)}: {_duration(needed)} at {_rate(ack_rate)}")
    return GroupState("working", _rate(ack_rate) if ack_rate else "records are in flight")


def _rate(acks: float) -> str:
    return f"{acks:,.0f} acks/s" if acks >= 10 else f"{acks:,.1f} acks/s"


def _duration(seconds: float) -> str:
    for size, unit in ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min")):
        if seconds > 2 * size:
            return f"{seconds / size:,.1f}".removesuffix(".0") + f" {unit}"
    return f"{seconds:.0f} s"


def _records(count: int) -> str:
    return f"{count:,} record{'' if count == 1 else 's'}"


def _waiting(count: int) -> str:
    return f"{_records(count)} wait{'s' if count == 1 else ''}"
