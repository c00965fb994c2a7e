"""Two looks at a broker become rates; what is new, made again or restarted counts from nothing."""

from __future__ import annotations

from typing import Any

from runnel.cli.top import rates_between
from runnel.core.statistics import CursorStatistics, GroupStatistics, Statistics, SubscriberTotals, TopicStatistics


def topic(name: str, published: int, epoch: int = 1) -> TopicStatistics:
    return TopicStatistics(name, epoch, published, published * 10, 0, published, published * 10, 1)


def group(acked: int, redelivered: int = 0, lag: int = 0) -> GroupStatistics:
    return GroupStatistics("g", "t", lag, 2, 0, 1.5, acked, redelivered, 4, 0, 0, False, ())


def seen(**more: Any) -> Statistics:
    empty: dict[str, Any] = {"topics": {}, "subscriptions": (), "groups": (), "handlers": (), "flowed": {}}
    sums = {"published": 0, "published_bytes": 0, "delivered": 0, "dropped": 0, "waiting_publishers": 0}
    return Statistics(**(empty | sums | more))


def test_counters_become_rates_over_the_time_between() -> None:
    before = seen(published=100, delivered=50, dropped=1, topics={"t": topic("t", 100)}, groups=(group(5),))
    now = seen(published=300, delivered=450, dropped=3, topics={"t": topic("t", 300)}, groups=(group(25, 4, 7),))
    view = rates_between(before, now, 2.0)
    assert (view.published, view.delivered, view.dropped, view.dropped_ever) == (100.0, 200.0, 1.0, 3)
    assert (view.topics[0].published, view.topics[0].published_bytes, view.topics[0].end) == (100.0, 1000.0, 300)
    one = view.groups[0]
    assert (one.acked, one.redelivered, one.lag, one.dead_lettered, one.members) == (10.0, 2.0, 7, 4, 0)


def test_what_is_new_or_made_again_counts_from_nothing_and_never_backwards() -> None:
    before = seen(published=100, topics={"t": topic("t", 100), "v": topic("v", 100)})
    now = {"t": topic("t", 150, epoch=2), "u": topic("u", 8), "v": topic("v", 5)}
    view = rates_between(before, seen(published=5, topics=now), 1.0)
    assert {one.topic: one.published for one in view.topics} == {"t": 150.0, "u": 8.0, "v": 5.0}
    assert view.published == 5.0


def test_the_busiest_topic_is_first_and_the_reader_that_drops_most() -> None:
    view = rates_between(
        seen(),
        seen(
            topics={name: topic(name, count) for name, count in (("a", 1), ("b", 9), ("c", 1))},
            flowed={
                ("a", "slow"): SubscriberTotals(5, 0, 0, 90),
                ("b", "lossy"): SubscriberTotals(5, 3, 0, 0),
                ("c", "ok"): SubscriberTotals(5, 0, 0, 0),
            },
        ),
        1.0,
    )
    assert [one.topic for one in view.topics] == ["b", "a", "c"]
    assert [(one.subscriber, one.dropped, one.lag) for one in view.readers] == [
        ("lossy", 3, 0),
        ("slow", 0, 90),
        ("ok", 0, 0),
    ]


def test_a_name_that_reads_elsewhere_is_a_reader_by_its_places() -> None:
    def at(place: int, lag: int | None) -> dict[str, Any]:
        return {"cursors": (CursorStatistics("q/t", "t", place, lag, True), CursorStatistics("p", ">", 9, None, False))}

    (row,) = rates_between(seen(**at(100, 50)), seen(**at(300, 7)), 2.0).readers
    assert (row.reads, row.subscriber, row.delivered, row.lag) == ("t", "q/t", 100.0, 7)
    (row,) = rates_between(seen(), seen(**at(300, 7)), 2.0).readers
    assert row.delivered == 0.0  # it was not there before: nothing is known of how fast it moves


def test_a_name_that_was_left_shows_the_lag_of_its_place() -> None:
    left = seen(
        flowed={("t", "me"): SubscriberTotals(5, 0, 0, 0)}, cursors=(CursorStatistics("me", "t", 5, 12, False),)
    )
    (row,) = rates_between(seen(), left, 1.0).readers
    assert (row.delivered, row.lag) == (5.0, 12)
