"""What the console shows: one view of a sample, and of a long list one page."""

import json
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel import Broker
from runnel.core.errors import InvalidName, InvalidOption
from runnel.core.statistics import RelayStatistics
from runnel.server.http.console import sampler as sampler_module
from runnel.server.http.console.connections import ConnectionTrends
from runnel.server.http.console.pages import VIEWS, ConsolePages, ConsoleQuery, parse_console_query, rounded
from runnel.server.http.console.sampler import BrokerSampler
from runnel.server.options import ServerOptions
from runnel.server.served_broker import ServedBroker
from runnel.testing.clock import JumpingClock

HOSTILE = "hostile.<img/src=x/onerror=alert(1)//"


def pages(broker: Broker, survey: BrokerSampler) -> ConsolePages:
    serving = ServedBroker(broker, ServerOptions())
    return ConsolePages(serving, survey, ConnectionTrends(serving.connections))


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_module, "STEP", 1e-9)  # a step with every sample


async def shown(broker: Broker, looks: int = 1, /, **asked: str) -> dict[str, Any]:
    survey = BrokerSampler(broker.backend)
    for _ in range(looks):
        if isinstance(broker.backend.clock, JumpingClock):
            await broker.backend.clock.advance(1.0)
        await survey.take()
    query = parse_console_query({name: [text] for name, text in asked.items()})
    page: dict[str, Any] = json.loads(pages(broker, survey).page(query))
    return page


def names(page: dict[str, Any]) -> list[str]:
    return [row["name"] for row in page["rows"]]


async def test_topics_come_in_pages_filtered_and_sorted(runnel_broker: Broker) -> None:
    for number in range(5):
        for _ in range(number + 1):
            await runnel_broker.publish(f"jobs.{number}", b"x" * (10 - number))
    await runnel_broker.publish("Other", b"")
    page = await shown(runnel_broker, view="topics", limit="2", **{"from": "2"})
    assert (names(page), page["total"], page["first"], page["limit"]) == (["jobs.1", "jobs.2"], 6, 2, 2)
    assert names(await shown(runnel_broker, filter="oTHE")) == ["Other"]
    assert names(await shown(runnel_broker, filter="job", sort="-published", limit="2")) == ["jobs.4", "jobs.3"]
    assert names(await shown(runnel_broker, filter="job", sort="bytes", limit="1")) == ["jobs.0"]
    assert names(await shown(runnel_broker, **{"from": "100"})) == []
    assert page["totals"]["topics"] == 6


async def test_a_topic_says_what_it_keeps_and_who_reads_it(runnel_broker: Broker) -> None:
    await runnel_broker.topic("a", retention_age=60.0, max_deliver=3).declare()
    await runnel_broker.publish("a", b"x")
    await runnel_broker.publish("b", b"x")
    async with (
        runnel_broker.subscribe("*", name="all"),
        runnel_broker.subscribe("b", name="other"),
        runnel_broker.subscribe("a", group="g"),
    ):
        page = await shown(runnel_broker, 2, view="topic", topic="a")
        assert page["topic"]["retention"] == {"age": 60.0}
        assert page["topic"]["options"] == {"max_deliver": 3}
        assert [one["label"] for one in page["subscribers"]] == ["all"]
        assert [one["name"] for one in page["groups"]] == ["g"]
        assert len(page["topic"]["rates"]) == 1
        page = await shown(runnel_broker, view="topic", topic="b")
        assert page["topic"]["retention"] == {"count": 1024, "bytes": 64 << 20, "default": True}
    assert (await shown(runnel_broker, view="topic", topic="nothing"))["topic"] is None
    assert "nothing" not in await runnel_broker.topics()


async def test_every_view_can_be_had_of_a_broker_with_nothing(runnel_broker: Broker) -> None:
    for view in VIEWS:
        page = await shown(runnel_broker, view=view, **({"topic": "t"} if view == "topic" else {}))
        assert page["view"] == view
        assert page["totals"]["durable"] is False
    assert (await shown(runnel_broker, view="journal"))["journal"] is None


async def test_groups_subscribers_and_dead_letters_are_shown(runnel_broker: Broker) -> None:
    async with (
        runnel_broker.subscribe("jobs", group="workers", name="w1") as deliveries,
        runnel_broker.subscribe("jobs", name="watcher") as watcher,
    ):
        await runnel_broker.publish("jobs", b"x")
        await (await anext(deliveries)).reject("bad")
        await anext(watcher)
        (group,) = (await shown(runnel_broker, view="groups", filter="WORK"))["rows"]
        assert (group["name"], group["dead_letter"], group["members"][0]["name"]) == (
            "workers",
            "dead-letters.workers",
            "w1",
        )
        assert (await shown(runnel_broker, view="groups", filter="nobody"))["total"] == 0
        (subscriber,) = (await shown(runnel_broker, view="subscribers", filter="watch", sort="-lag"))["rows"]
        assert (subscriber["label"], subscriber["lag"]) == ("watcher", 0)
        (dead,) = (await shown(runnel_broker, view="dead-letters"))["rows"]
        assert dead == {"name": "dead-letters.workers", "groups": ["workers"], "open": 1, "first": 0, "end": 1}
        assert (await shown(runnel_broker))["totals"]["dead_letters"] == 1


async def test_the_overview_says_what_needs_attention_the_worst_first(runnel_broker: Broker) -> None:
    assert (await shown(runnel_broker, view="overview"))["alerts"] == []
    async with (
        runnel_broker.subscribe("jobs", group="workers") as deliveries,
        runnel_broker.subscribe("jobs", name="slow", policy="drop_oldest", buffer=1),
    ):
        for _ in range(3):
            await runnel_broker.publish("jobs", b"x")
        await (await anext(deliveries)).reject("bad")
        found = (await shown(runnel_broker, view="overview"))["alerts"]
        assert [one["text"] for one in found] == [
            "1 open subscription has lost records",
            "1 dead letter to be dealt with",
        ]
    page = await shown(runnel_broker, view="overview")
    worst = page["alerts"][0]
    assert (worst["level"], worst["link"]) == ("bad", "#/groups?filter=workers")
    assert worst["text"] == "Group workers is stuck: 2 records wait, and no member is connected"
    assert [row["name"] for row in page["busy"]] == ["workers"]
    assert page["totals"]["groups_stuck"] == 1


async def test_relays_are_counted_and_shown_while_they_report(runnel_broker: Broker) -> None:
    assert (await shown(runnel_broker, view="relays"))["totals"]["relays"] == 0
    for slot in ("b", "a"):
        report = RelayStatistics(slot=slot, state="streaming", lag_bytes=7, retained_bytes=9, last_error="away")
        await runnel_broker.backend.report_relay(report)
    page = await shown(runnel_broker, view="relays")
    archive = RelayStatistics(kind="archive", slot="public.t", state="failed", rows=3)
    await runnel_broker.backend.report_relay(archive)
    assert page["totals"]["relays"] == 2
    assert [(row["slot"], row["lag_bytes"], row["last_error"]) for row in page["rows"]] == [
        ("a", 7, "away"),
        ("b", 7, "away"),
    ]
    (row, *_) = (page := await shown(runnel_broker, view="relays"))["rows"]
    assert (row["kind"], row["slot"], row["state"], row["rows"]) == ("archive", "public.t", "failed", 3)
    assert page["totals"]["relays"] == 3


async def test_the_journal_tells_its_segments_and_syncs(tmp_path: Path) -> None:
    async with runnel.open(tmp_path) as broker:
        await broker.publish("a", b"x")
        page = await shown(broker, 2, view="journal")
        (segment,) = page["rows"]
        assert (segment["number"], segment["sealed"], segment["bytes"] > 0) == (1, False, True)
        journal = page["journal"]
        assert journal["fsync"] == "commit"
        assert sum(journal["sync_durations"]["counts"]) == journal["syncs"]
        assert journal["sync"]["recent"] == [[0.0, 0.0, 0.0]]
        assert page["totals"]["durable"] is True
        assert page["totals"]["trouble"] is None
    async with runnel.open(tmp_path) as broker:
        sealed = (await shown(broker, view="journal"))["rows"][1]
        assert (sealed["sealed"], sealed["records"] > 0) == (True, True)


async def test_names_are_reported_unchanged(runnel_broker: Broker) -> None:
    await runnel_broker.publish(HOSTILE, b"")
    assert names(await shown(runnel_broker, filter="<img")) == [HOSTILE]


async def test_a_page_is_made_once_for_all_who_look(runnel_broker: Broker) -> None:
    survey = BrokerSampler(runnel_broker.backend)
    await survey.take()
    made = pages(runnel_broker, survey)
    query = parse_console_query({})
    first = made.page(query)
    assert made.page(ConsoleQuery(*query)) is first
    made.renew(1.0)
    assert made.page(query) is not first


@pytest.mark.parametrize(
    "asked",
    [
        {"view": "nothing"},
        {"view": "topic"},
        {"topic": "t"},
        {"sort": "nothing"},
        {"view": "journal", "sort": "name"},
        {"limit": "0"},
        {"limit": "501"},
        {"from": "-1"},
        {"filter": "x" * 256},
    ],
)
def test_what_makes_no_sense_is_refused(asked: dict[str, str]) -> None:
    with pytest.raises(InvalidOption):
        parse_console_query({name: [text] for name, text in asked.items()})


def test_a_topic_that_is_no_name_is_refused() -> None:
    with pytest.raises(InvalidName):
        parse_console_query({"view": ["topic"], "topic": ["a..b"]})


def test_rates_are_short_to_write() -> None:
    assert rounded([0.0, 1.26, 99.96, 1234.5]) == [0.0, 1.3, 100.0, 1234]
