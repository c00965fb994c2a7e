"""Bridges: from one broker to another, each record once, whatever is cut off in between."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel import Broker
from runnel.api import bridge as bridging
from runnel.api.bridge import PATH, Bridge
from runnel.server.options import ServerOptions
from runnel.server.server import Server
from tests.ports import free_port


async def stored(broker: Broker, topic: str, count: int) -> list[bytes]:
    """The first `count` values of a topic, and nothing behind them."""
    async with broker.subscribe(topic, start="earliest") as subscription:
        found = [(await anext(subscription)).value for _ in range(count)]
    assert broker.statistics().topics[topic].end == count
    return found


@pytest.fixture
async def backend() -> AsyncIterator[Broker]:
    async with runnel.open() as opened:
        yield opened


@pytest.fixture
async def central(tmp_path: Path) -> AsyncIterator[Broker]:
    async with runnel.open(tmp_path / "central") as opened:
        yield opened


async def test_what_is_published_here_is_there_with_key_and_headers(backend: Broker, central: Broker) -> None:
    async with central.subscribe("orders") as there, backend.bridge("orders", to=central):
        await backend.publish("orders", b"a", key="k", headers={"h": "x"})
        await backend.publish("orders", b"b")
        one, two = await anext(there), await anext(there)
    assert (one.value, one.key, one.headers["h"], two.value, two.key) == (b"a", b"k", "x", b"b", None)


async def test_every_topic_of_a_pattern_in_its_order(backend: Broker, central: Broker) -> None:
    async with central.subscribe(">") as there, backend.bridge("m.>", to=central, into="eu.{topic}"):
        for n in range(100):
            await backend.publish(f"m.{n % 7}", b"%d" % n)
        found = [await anext(there) for _ in range(100)]
    for topic in range(7):  # what came together is one transaction: topics keep their order, not one among others
        values = [record.value for record in found if record.topic == f"eu.m.{topic}"]
        assert values == [b"%d" % n for n in range(topic, 100, 7)]


async def test_it_goes_on_where_it_was(central: Broker, tmp_path: Path) -> None:
    for life in range(3):
        async with runnel.open(tmp_path / "source") as source:
            async with source.bridge("t", to=central) as bridge:
                for n in range(50):
                    await source.publish("t", b"%d" % (50 * life + n))
                await stored(central, "t", 50 * (life + 1))
            assert bridge.repeated == 0 or life
    assert await stored(central, "t", 150) == [b"%d" % n for n in range(150)]


async def test_a_bus_that_begins_anew_is_another_source(central: Broker) -> None:
    for life in range(2):
        async with runnel.open() as backend, backend.bridge("t", to=central):
            await backend.publish("t", b"%d" % life)
            await stored(central, "t", life + 1)
    assert len(await central.marks("bridge:t")) == 2


async def test_two_of_one_name_leave_each_other_alone(central: Broker) -> None:
    async with runnel.open() as one, runnel.open() as other:
        async with central.subscribe("t") as there, one.bridge("t", to=central), other.bridge("t", to=central):
            for n in range(10):
                await one.publish("t", b"%d" % n)
                await other.publish("t", b"%d" % (n + 100))
            found = {(await anext(there)).value for _ in range(20)}
    assert len(found) == 20


async def test_a_bus_that_closes_leaves_no_mark(central: Broker) -> None:
    async with central.subscribe("t") as there:
        async with runnel.open() as backend:
            running = asyncio.ensure_future(backend.bridge("t", to=central, start="earliest").run())
            await backend.publish("t", b"a")
            await anext(there)
        await running
    assert await central.marks("bridge:t") == {}


async def test_what_is_cut_off_anywhere_is_there_once(
    central: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridging, "PAUSES", (0.0,))
    monkeypatch.setattr(bridging, "RECORDS", 7)
    real, tries = central.transaction, 0

    class Unsure:
        """A transaction of which nobody hears how it ended: every third is done, every third is not."""

        def __init__(self) -> None:
            nonlocal tries
            tries += 1
            self._nth, self._real = tries, real()

        async def __aenter__(self) -> Any:
            self._tx = await self._real.__aenter__()
            return self._tx

        async def __aexit__(self, *how: Any) -> None:
            if self._nth % 3 == 1:
                await self._real.__aexit__(ValueError, ValueError(), None)
            else:
                await self._real.__aexit__(*how)
            if self._nth % 3 < 2:
                raise runnel.OutcomeUnknown("the line was cut")

    async with runnel.open(tmp_path / "source") as source:
        await source.topic("t").publish_many([b"%d" % n for n in range(200)])
        monkeypatch.setattr(central, "transaction", Unsure)
        async with source.bridge("t", to=central):
            assert await stored(central, "t", 200) == [b"%d" % n for n in range(200)]


async def test_a_target_that_is_unreachable_beyond_every_timeout_is_waited_for(
    backend: Broker, central: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridging, "PAUSES", (0.01,))
    port = free_port()
    server = await Server(central, ServerOptions(port=port, json_port=None)).__aenter__()
    url = f"runnel://127.0.0.1:{port}?timeout=0.1&backoff_min=0.01&backoff_max=0.02"
    async with backend.bridge("t", to=url):
        await backend.publish("t", b"before")
        assert await stored(central, "t", 1) == [b"before"]
        server.abort()
        await backend.publish("t", b"meanwhile")
        await asyncio.sleep(0.5)  # long enough for what it asks to have timed out, too
        async with Server(central, ServerOptions(port=port, json_port=None)):
            assert await stored(central, "t", 2) == [b"before", b"meanwhile"]


async def test_two_that_face_each_other_do_not_toss_a_record_for_ever(backend: Broker, central: Broker) -> None:
    async with backend.bridge("t", to=central), central.bridge("t", to=backend):
        await backend.publish("t", b"from the backend")
        assert await stored(central, "t", 1) == [b"from the backend"]
        await central.publish("t", b"from the centre")
        assert await stored(backend, "t", 2) == [b"from the backend", b"from the centre"]
        assert await stored(central, "t", 2) == [b"from the backend", b"from the centre"]


async def test_the_way_it_came_is_a_header(backend: Broker, central: Broker) -> None:
    async with central.subscribe("t") as there, backend.bridge("t", to=central):
        await backend.publish("t", b"a")
        assert (await anext(there)).headers[PATH] == backend.id


async def test_over_a_network_by_its_address(backend: Broker, central: Broker) -> None:
    async with Server(central, ServerOptions(port=0, json_port=None)) as server:
        async with central.subscribe("t") as there, backend.bridge("t", to=server.listeners[0].url):
            await backend.publish("t", b"a")
            assert (await anext(there)).value == b"a"


async def test_what_the_source_lost_is_counted(backend: Broker, central: Broker) -> None:
    bridge = backend.bridge("t", to=central, buffer=2)
    topic = backend.topic("t")
    async with central.subscribe("t") as there, bridge:
        await topic.publish_many([b"%d" % n for n in range(5)])
        assert [(await anext(there)).value for _ in range(2)] == [b"3", b"4"]
    assert bridge.missed == 3


async def test_records_too_large_for_one_transaction_go_in_several(
    backend: Broker, central: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridging, "BYTES", 100)
    real, counted = central.transaction, 0

    def counting() -> Any:
        nonlocal counted
        counted += 1
        return real()

    monkeypatch.setattr(central, "transaction", counting)
    await backend.topic("t").publish_many([b"%d" % n * 40 for n in range(7)], keys=["k"] * 7)
    async with backend.bridge("t", to=central, start="earliest"):
        assert await stored(central, "t", 7) == [b"%d" % n * 40 for n in range(7)]
    assert counted == 3


async def test_leaving_it_waits_for_the_transaction_in_hand(
    backend: Broker, central: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, begun, go_on = central.transaction, asyncio.Event(), asyncio.Event()

    class Slow:
        """A transaction that takes its time to commit."""

        def __init__(self) -> None:
            self._real = real()

        async def __aenter__(self) -> Any:
            return await self._real.__aenter__()

        async def __aexit__(self, *how: Any) -> None:
            begun.set()
            await go_on.wait()
            await self._real.__aexit__(*how)

    monkeypatch.setattr(central, "transaction", Slow)
    bridge = backend.bridge("t", to=central)
    await bridge.__aenter__()
    await backend.publish("t", b"a")
    await begun.wait()
    leaving = asyncio.ensure_future(bridge.__aexit__(None, None, None))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not leaving.done()
    go_on.set()
    await leaving
    assert bridge.bridged == 1
    assert await stored(central, "t", 1) == [b"a"]


async def test_leaving_it_does_not_wait_for_a_far_side_that_is_away(
    backend: Broker, central: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridging, "PAUSES", (3600.0,))
    failed = asyncio.Event()

    class Away:
        """A transaction that cannot be begun."""

        async def __aenter__(self) -> Any:
            failed.set()
            raise runnel.Unreachable("there", "nobody is")

        async def __aexit__(self, *how: Any) -> None: ...

    monkeypatch.setattr(central, "transaction", Away)
    async with backend.bridge("t", to=central) as bridge:
        await backend.publish("t", b"a")
        await failed.wait()
    assert bridge.bridged == 0


async def test_one_that_fails_says_so_in_the_log_and_at_its_end(
    backend: Broker, central: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    await central.topic("t", int).declare()
    bridge = backend.bridge("t", to=central)
    await bridge.__aenter__()
    await backend.publish("t", b"no number")
    assert bridge._task is not None
    await asyncio.wait([bridge._task])
    await asyncio.sleep(0)
    assert "bridge 'bridge:t' ended: " in caplog.text
    with pytest.raises(runnel.ValidationFailed):
        await bridge.__aexit__(None, None, None)


async def test_it_ends_with_its_source(central: Broker) -> None:
    async with runnel.open() as backend:
        async with central.subscribe("t") as there:
            running = asyncio.ensure_future(backend.bridge("t", to=central, start="earliest").run())
            await backend.publish("t", b"a")
            assert (await anext(there)).value == b"a"
    await running


@pytest.mark.parametrize("wrong", [{"into": "no{thing}"}, {"into": "{topic}."}, {"group": "g"}])
async def test_what_makes_no_bridge_is_refused(backend: Broker, central: Broker, wrong: dict[str, Any]) -> None:
    with pytest.raises(runnel.UsageError):
        backend.bridge("t", to=central, **wrong)


async def test_what_cannot_begin_says_why_at_once(backend: Broker, central: Broker) -> None:
    async with backend.bridge("t", to=central):
        with pytest.raises(runnel.NameInUse):
            async with backend.bridge("t", to=central):
                raise AssertionError("never reached")


async def test_its_name_shows_in_its_repr(backend: Broker, central: Broker) -> None:
    assert repr(Bridge(backend, "t", central)) == "<Bridge 'bridge:t', 0 bridged, 0 missed>"
