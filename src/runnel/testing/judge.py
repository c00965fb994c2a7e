"""Judges a history: what each reader was owed, against what each saw.

First everything said about places is gathered: an ack or a delivery says which id stands at an
(epoch, offset). Then each reader is held against the places in its range. A record is *known* once
it was acknowledged or anybody got it; only known records can be missed. Doubt favours the broker:
whatever could have happened in a correct run is no violation.
Below: places, judge_subscribers, judge_groups, verdict. Above: history.
"""

from __future__ import annotations

from collections.abc import Sequence

from runnel.testing import history_events as events
from runnel.testing.history_events import Event
from runnel.testing.judge_groups import Groups
from runnel.testing.judge_subscribers import Subscribers
from runnel.testing.places import Places
from runnel.testing.verdict import Verdict, Violation


def judge(told: Sequence[Event], torn: int = 0) -> Verdict:
    """Everything that is wrong with these events: the log itself first, then each reader."""
    topics = Topics()
    reading: list[Event] = []
    grouping: list[Event] = []
    for event in told:
        kind = type(event)
        if kind in _READING:
            reading.append(event)
        elif kind in _PUBLISHING:
            _publish(event, topics)
        else:
            grouping.append(event)
    grouping += [event for event in reading if type(event) is events.Ended]
    subscribers = Subscribers(reading, topics)
    groups = Groups(grouping, topics)
    violations: list[Violation] = []
    for places in topics.values():
        violations += places.violations()
    violations += subscribers.violations()
    violations += groups.violations()
    fates = [fate for places in topics.values() for fate in places.fates.values() if fate.handed]
    acknowledged = sum(1 for fate in fates if fate.acknowledged)
    failed = sum(1 for fate in fates if fate.surely_failed)
    return Verdict(
        violations=tuple(violations),
        intended=len(fates),
        acknowledged=acknowledged,
        failed=failed,
        unknown=len(fates) - acknowledged - failed,
        deliveries=subscribers.deliveries + groups.deliveries,
        subscribers=subscribers.count,
        groups=groups.count,
        gaps=subscribers.gaps,
        torn=torn,
    )


class Topics(dict[str, Places]):
    """The places of each topic, made when first spoken of."""

    def __missing__(self, topic: str) -> Places:
        places = self[topic] = Places(topic)
        return places


def _publish(event: Event, topics: Topics) -> None:
    match event:
        case events.Intended(at, topic, id, publisher):
            topics[topic].intend(id, publisher, at)
        case events.Acknowledged(_, topic, id, epoch, offset):
            topics[topic].fate(id).acknowledged.append((epoch, offset))
            topics[topic].learn(epoch, offset, id)
        case events.Failed(_, topic, id):
            topics[topic].fate(id).failed += 1
        case events.Cleaned(_, topic, epoch, first, end):
            topics[topic].cleaned[epoch].append((first, end))
        case _:  # Unknown says no more than silence does
            pass


_PUBLISHING = {events.Intended, events.Acknowledged, events.Failed, events.Unknown, events.Cleaned}
_READING = {
    events.Delivered,
    events.Subscribed,
    events.Resumed,
    events.GapTold,
    events.SequencesTold,
    events.Ended,
}
