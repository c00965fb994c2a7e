"""A sample every second: rates since the last one, and no sample so long that others wait."""

import asyncio
from pathlib import Path

import pytest

import runnel
from runnel import Broker
from runnel.broker import sample
from runnel.server.http.console import sampler as module
from runnel.server.http.console.sampler import KEPT_RATES, BrokerSampler, Trend


def test_a_trend_tells_how_fast_a_counter_rises() -> None:
    trend = Trend(100)
    assert trend.rate is None
    trend.see(150, 2.0)
    assert trend.rate == 25.0
    trend.see(140, 1.0)
    assert trend.rate == 0.0, "a sum from which something ended is no negative rate"
    assert list(trend.rates) == [], "no step is over"


def test_a_trend_keeps_the_rates_of_steps_however_often_it_is_sampled() -> None:
    often, seldom = Trend(0), Trend(0)
    for second in range(1, 31):
        often.see(second * 5, 1.0)
        if second % 10 == 0:
            seldom.see(second * 5, 10.0)
            often.step(10.0)
            seldom.step(10.0)
    assert list(often.rates) == list(seldom.rates) == [5.0] * 3
    for _ in range(200):
        often.step(10.0)
    assert list(often.rates) == [0.0] * KEPT_RATES
    quiet = Trend(7)
    for _ in range(3):
        quiet.step(10.0)
    quiet.see(27, 1.0)
    assert quiet.step(10.0) == 2.0
    assert list(quiet.rates) == [0.0, 0.0, 0.0, 2.0], "what never moved remembers for how long"


@pytest.fixture
async def survey(runnel_broker: Broker) -> BrokerSampler:
    survey = BrokerSampler(runnel_broker.backend)
    now = iter(range(1000))

    class Loop:
        @staticmethod
        def time() -> float:
            return float(next(now))

    survey._loop = Loop()  # type: ignore[assignment]  # a second later, each time
    return survey


async def test_topics_have_rates_from_the_second_look_on(runnel_broker: Broker, survey: BrokerSampler) -> None:
    await runnel_broker.publish("a", b"12345")
    await survey.take()
    assert (survey.topics["a"].published.rate, survey.topics["a"].figures.kept_bytes) == (None, 5)
    for _ in range(3):
        await runnel_broker.publish("a", b"x")
    await runnel_broker.publish("new", b"xx")
    await survey.take()
    assert (survey.topics["a"].rate, survey.topics["new"].rate) == (3.0, 1.0)
    assert (survey.published.count, survey.published.rate, survey.published_bytes.rate) == (5, 4.0, 5.0)
    await runnel_broker.delete("a")
    await runnel_broker.publish("a", b"again")
    await survey.take()
    assert survey.published.count == 6, "what a deleted topic had still counts"
    assert survey.topics["a"].published.count == 1


async def test_internal_topics_are_left_out(runnel_broker: Broker, survey: BrokerSampler) -> None:
    with pytest.raises(runnel.NoResponders):
        await runnel_broker.request("nobody", b"?")
    runnel_broker.backend.catalog.make("$inside")
    await survey.take()
    assert not [name for name in survey.topics if name.startswith("$")]


async def test_subscribers_and_groups_are_seen(runnel_broker: Broker, survey: BrokerSampler) -> None:
    async with (
        runnel_broker.subscribe("a", name="one", policy="drop_oldest", buffer=2) as one,
        runnel_broker.subscribe("a", group="g", prefetch=7) as deliveries,
    ):
        await survey.take()
        for _ in range(5):
            await runnel_broker.publish("a", b"x")
        await (await anext(deliveries)).reject("bad")
        await anext(one)
        await survey.take()
        (track,) = survey.subscribers
        assert (track.figures.label, track.figures.dropped, track.delivered.rate) == ("one", 3, 2.0), (
            "both that were left"
        )
        assert (survey.dropped.count, survey.delivered.count) == (3, 2)
        assert survey.groups["g", "a"].figures.members[0].prefetch == 7
        assert [(one.name, one.groups, one.open) for one in survey.dead] == [("dead-letters.g", ["g"], 1)]
    await survey.take()
    assert survey.subscribers == []
    assert [one.name for one in survey.cursors] == ["one"], "its position is left"
    assert (survey.dropped.count, survey.delivered.count) == (3, 2), "what it had still counts"


async def test_syncs_are_reported_by_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP", 1e-9)
    async with runnel.open(tmp_path) as broker:
        survey = BrokerSampler(broker.backend)
        await survey.take()
        assert (survey.journal is not None, len(survey.syncs)) == (True, 0)
        await survey.take()
        for _ in range(3):
            await broker.publish("a", b"x")
        await survey.take()
        assert [one.syncs > 0 for one in survey.syncs] == [False, True]
        last = survey.syncs[-1]
        assert 0 < last.p50 <= last.p99


async def test_others_have_their_turn_during_a_look(runnel_broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample, "PER_TURN", 10)
    for number in range(100):
        await runnel_broker.publish(f"t.{number}", b"x")
    turns = 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_soon(turn)

    survey = BrokerSampler(runnel_broker.backend)
    asyncio.get_running_loop().call_soon(turn)
    await survey.take()
    assert turns >= 9
    assert len(survey.topics) == 100
