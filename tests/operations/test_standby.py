"""A standby follows the journal of a primary, byte for byte, and takes its place."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path

import pytest

import runnel
from runnel.arrow.folder_reader import FolderReader
from runnel.core.errors import (
    FolderIsStandby,
    JournalFailed,
    NotPrimary,
    OutcomeUnknown,
    PromotionRefused,
    StandbyMissing,
    StandbyRefused,
    Superseded,
)
from runnel.core.replication import Generation
from runnel.journal.check.verify import verify
from runnel.server import Server, ServerOptions
from tests.operations.standby_pair import LEASE, Primary, Standby, check_same_files, opened, until


async def test_a_standby_copies_what_is_there_and_follows_what_comes(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a") as primary:
        for number in range(300):
            await primary.broker.publish("orders", b"%d" % number * 200)
        async with Standby(tmp_path / "b", primary.url) as standby:
            await standby.caught_up(primary)
            for number in range(300):  # it rolls meanwhile
                await primary.broker.publish("orders", b"%d" % number * 200)
            await standby.caught_up(primary)
            assert len(list((tmp_path / "b").glob("*.seg"))) > 2
            check_same_files(tmp_path / "a", tmp_path / "b")
            [one] = primary.figures.followers
            assert (one.name, one.mode, one.lag_bytes, one.state) == ("second", "async", 0, "following")
            assert standby.figures.lag_seconds == 0.0
            assert standby.figures.verified > 100_000


async def test_a_standby_goes_on_where_it_was(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a") as primary:
        for _ in range(200):
            await primary.broker.publish("orders", b"x" * 1000)
        async with Standby(tmp_path / "b", primary.url) as standby:
            await standby.caught_up(primary)
        for _ in range(100):
            await primary.broker.publish("orders", b"y" * 1000)
        async with Standby(tmp_path / "b", primary.url) as standby:
            await standby.caught_up(primary)
            assert standby.figures.verified < 150_000  # what it had was not copied again
            check_same_files(tmp_path / "a", tmp_path / "b")


async def test_a_torn_tail_of_a_standby_comes_again(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a") as primary:
        await primary.broker.publish("orders", b"x" * 1000)
        async with Standby(tmp_path / "b", primary.url) as standby:
            await standby.caught_up(primary)
            place = standby.replica.place
            assert place is not None
        with (tmp_path / "b" / "000000000001.seg").open("r+b") as file:
            file.seek(place.position)
            file.write(b"rnle half of an entry")
        await primary.broker.publish("orders", b"y" * 1000)
        async with Standby(tmp_path / "b", primary.url) as standby:
            await standby.caught_up(primary)
            check_same_files(tmp_path / "a", tmp_path / "b")


async def test_a_standby_follows_a_primary_that_comes_back(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a") as primary:
        port = primary.port
        await primary.broker.publish("orders", b"1")
        standby = await Standby(tmp_path / "b", primary.url).__aenter__()
        await standby.caught_up(primary)
    async with Primary(tmp_path / "a", port=port) as primary:
        await primary.broker.publish("orders", b"2")
        await standby.caught_up(primary)
        check_same_files(tmp_path / "a", tmp_path / "b")
        await standby.leave()


async def test_what_the_cleaner_and_retention_do_is_followed(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a") as primary:
        await primary.broker.topic("kept").declare()
        gone = primary.broker.topic("gone", retention_count=10)
        async with Standby(tmp_path / "b", primary.url) as standby:
            for number in range(600):
                await gone.publish(b"x" * 1000)
                if number % 40 == 0:
                    await primary.broker.publish("kept", b"k" * 1000)
            await until(lambda: any(info.generation for info in primary.broker.backend.store.journal.manifest.segments))
            await primary.broker.publish("kept", b"last")
            await standby.caught_up(primary)
            await until(lambda: len(list((tmp_path / "a").glob("*.seg"))) == len(list((tmp_path / "b").glob("*.seg"))))
            await standby.caught_up(primary)
            check_same_files(tmp_path / "a", tmp_path / "b")


async def test_a_promoted_standby_serves_and_gives_no_position_twice(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a") as primary, Standby(tmp_path / "b", primary.url) as standby:
        seen: list[tuple[int, bytes]] = []
        async with opened(f"{primary.url},127.0.0.1:{standby.port}") as client:
            topic = client.topic("orders")
            async with client.subscribe("orders", name="billing", start="earliest") as records:
                before = await topic.publish(b"before")
                record = await anext(records)
                seen.append((record.offset, record.value))
                await standby.caught_up(primary)
                await primary.die()
                with pytest.raises(PromotionRefused):
                    await standby.replication.promote(primary_is_down=False)
                async with await standby.promote(primary_is_down=True) as promoted:
                    after = await topic.publish(b"after")
                    record = await anext(records)
                    seen.append((record.offset, record.value))
                    assert after.epoch == before.epoch
                    assert after.offset > before.offset + 2**31
                    assert seen == [(before.offset, b"before"), (after.offset, b"after")]
                    assert promoted.broker.id != primary.broker.id
                    assert promoted.figures.generation == 1
                    assert verify(tmp_path / "b").whole


async def test_a_pattern_goes_on_at_the_promoted_server(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a") as primary, Standby(tmp_path / "b", primary.url) as standby:
        async with (
            opened(f"{primary.url},127.0.0.1:{standby.port}") as client,
            client.subscribe("orders.>", start="earliest") as records,
        ):
            await client.publish("orders.eu", b"1")
            assert (await anext(records)).value == b"1"
            await standby.caught_up(primary)
            await primary.die()
            async with await standby.promote(primary_is_down=True):
                await client.publish("orders.us", b"2")
                assert (await anext(records)).value == b"2"


async def next_event(primary: Primary, after: str) -> tuple[str, str]:
    """The id and the data of the first event that a browser gets which has seen `after`."""
    async with Server(primary.broker, ServerOptions(port=None, json_port=None, http_port=0)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.listeners[0].port)
        seen = f"Last-Event-ID: {after}\r\n" if after else ""
        writer.write(f"GET /events?topic=orders.*&start=earliest HTTP/1.1\r\nHost: 127.0.0.1\r\n{seen}\r\n".encode())
        found: dict[str, str] = {}
        while "value" not in found.get("data", ""):
            line = await reader.readuntil(b"\n")
            name, _, said = line.decode().strip().partition(": ")
            assert said != "gap"
            found[name] = said
        writer.close()
    return found["id"], json.loads(found["data"])["value"]


async def test_what_keeps_a_place_goes_on_after_one_failover_and_another(tmp_path: Path) -> None:
    """A pattern, a bridge, a browser's event id, and readers of ranges, as Spark has them."""
    first = await Primary(tmp_path / "a").__aenter__()
    second = await Standby(tmp_path / "b", first.url).__aenter__()
    async with (
        runnel.open() as far,
        opened(f"{first.url},127.0.0.1:{second.port}") as client,
        client.subscribe("orders.>", start="earliest") as records,
        client.bridge("orders.>", to=far) as bridge,
    ):
        origin, event_id = client.id, ""

        async def one_more(number: int, primary: Primary, standby: Standby | None = None) -> None:
            await client.publish("orders.eu", b"%d" % number)
            assert (await anext(records)).value == b"%d" % number
            await until(lambda: bridge.bridged == number)
            assert isinstance(await far.mark(f"{bridge.name} from {origin}"), int)
            nonlocal event_id
            event_id, value = await next_event(primary, event_id)
            assert value == str(number)
            assert primary.broker.backend.origin == client.backend.origin == origin
            with closing(FolderReader(str(primary.folder))) as folder:
                assert folder.journal == origin
            if standby is not None:
                await standby.caught_up(primary)
                await primary.die()
                await primary.__aexit__()

        await one_more(1, first, second)
        async with await second.promote(primary_is_down=True) as promoted:
            assert promoted.broker.id != origin
            third = Standby(tmp_path / "a", promoted.url, rejoin=True, port=first.port)
            await one_more(2, promoted, await third.__aenter__())
        async with await third.promote(primary_is_down=True) as promoted:
            await one_more(3, promoted)
        assert bridge.repeated == 0


async def test_a_group_goes_on_at_the_promoted_server(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a") as primary, Standby(tmp_path / "b", primary.url) as standby:
        async with opened(f"{primary.url},127.0.0.1:{standby.port}") as client:
            for number in range(4):
                await client.publish("jobs", b"%d" % number)
            async with client.subscribe("jobs", group="work", prefetch=1) as deliveries:
                for number in range(2):
                    delivery = await anext(deliveries)
                    assert delivery.value == b"%d" % number
                    await delivery.ack(durable=True)
                await standby.caught_up(primary)
                await primary.die()
                async with await standby.promote(primary_is_down=True):
                    values: set[bytes] = set()
                    while len(values) < 2:
                        delivery = await anext(deliveries)
                        await delivery.ack()
                        values.add(delivery.value)
                    assert values == {b"2", b"3"}


async def test_a_standby_refuses_clients_and_its_folder_refuses_brokers(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a") as primary, Standby(tmp_path / "b", primary.url) as standby:
        await standby.caught_up(primary)
        with pytest.raises(NotPrimary) as refused:
            await runnel.open(standby.url).__aenter__()
        assert refused.value.primary == primary.url
        async with runnel.open(standby.url, operator=True) as operator:
            figures = (await operator.backend.snapshot()).replication
            assert figures is not None
            assert (figures.role, figures.primary) == ("standby", primary.url)
    with pytest.raises(FolderIsStandby):
        await runnel.open(tmp_path / "b", share=False).__aenter__()


async def test_a_folder_of_a_primary_is_no_standby_unless_it_is_to_rejoin(tmp_path: Path) -> None:
    async with runnel.open(tmp_path / "b", share=False) as other:
        await other.publish("mine", b"1")
    async with Primary(tmp_path / "a") as primary:
        await primary.broker.publish("orders", b"1")
        with pytest.raises(StandbyRefused):
            await Standby(tmp_path / "b", primary.url).__aenter__()
        async with Standby(tmp_path / "b", primary.url, rejoin=True) as standby:
            await standby.caught_up(primary)
            check_same_files(tmp_path / "a", tmp_path / "b")


async def test_an_old_primary_rejoins_and_loses_what_the_new_one_has_not(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a") as primary:
        standby = await Standby(tmp_path / "b", primary.url).__aenter__()
        await primary.broker.publish("orders", b"both")
        await standby.caught_up(primary)
        await standby.replication.stop()
        await primary.broker.publish("orders", b"only the old one")
    async with await standby.promote(primary_is_down=True) as promoted:
        await promoted.broker.publish("orders", b"only the new one")
        async with Standby(tmp_path / "a", promoted.url, rejoin=True) as rejoined:
            await rejoined.caught_up(promoted)
            check_same_files(tmp_path / "b", tmp_path / "a")


# -- generations ------------------------------------------------------------------------------------------------


async def test_a_primary_that_is_shown_a_higher_generation_stops_for_good(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a") as primary:
        async with Standby(tmp_path / "b", primary.url) as standby:
            await standby.caught_up(primary)
        known = primary.replication.generation
        forged = Generation(known.origin, 9, "0" * 32)
        primary.replication.seen(forged)
        await primary.broker.publish("orders", b"a generation proves itself")
        key = standby.replica.lineage.key
        primary.replication.seen(Generation.made(known.origin, 1, key))
        with pytest.raises((OutcomeUnknown, JournalFailed)):
            await primary.broker.publish("orders", b"too late")
        with pytest.raises(Superseded):
            await runnel.open(primary.url).__aenter__()
        await until(lambda: primary.replication._storing.done())
        assert primary.figures.role == "superseded"
    with pytest.raises(Superseded):  # also in a program
        await runnel.open(tmp_path / "a", share=False).__aenter__()


async def test_clients_carry_the_generation_to_an_old_primary(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a") as primary:
        standby = await Standby(tmp_path / "b", primary.url).__aenter__()
        await primary.broker.publish("orders", b"1")
        await standby.caught_up(primary)
        async with await standby.promote(primary_is_down=True) as promoted:  # which is not true
            async with opened(f"{promoted.url},127.0.0.1:{primary.port}") as client:
                await client.publish("orders", b"2")
                await promoted.die()
                await until(lambda: primary.figures.role == "superseded")


# -- sync mode --------------------------------------------------------------------------------------------------


async def test_in_sync_mode_nothing_is_acknowledged_that_the_standby_has_not(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a", standby="sync") as primary, Standby(tmp_path / "b", primary.url) as standby:
        await primary.broker.publish("orders", b"1")
        await until(lambda: standby.figures.mode == "sync")
        for number in range(50):
            await primary.broker.publish("orders", b"%d" % number)
            assert standby.has_all_of(primary)
        assert primary.figures.mode == "sync"
        assert not primary.figures.holding
        await standby.replication.stop()
        waiting = asyncio.ensure_future(primary.broker.publish("orders", b"nobody confirms"))
        await until(lambda: primary.figures.holding)
        assert not waiting.done()
        with pytest.raises(StandbyMissing):
            await runnel.open(primary.url).__aenter__()
        async with runnel.open(primary.url, operator=True) as operator:
            assert await operator.backend.administer("release_standby", {}) == "second"
        await waiting


async def test_in_sync_mode_promotion_waits_for_the_lease_and_needs_nothing_else(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a", standby="sync") as primary:
        standby = await Standby(tmp_path / "b", primary.url).__aenter__()
        await primary.broker.publish("orders", b"1")
        await until(lambda: standby.figures.mode == "sync")
        await primary.broker.publish("orders", b"2")
        now = asyncio.get_running_loop().time
        began = now()
        partner = primary.replication._partner
        async with await standby.promote() as promoted:
            assert now() - began > LEASE / 2
            assert primary.replication._now() >= partner.lease_end  # the primary's ended before
            records = [record.value async for record in _all(promoted)]
            assert records == [b"1", b"2"]


async def _all(primary: Primary):  # type: ignore[no-untyped-def]
    async with primary.broker.subscribe("orders", start="earliest") as records:
        for _ in range(2):
            yield await anext(records)


async def test_a_sync_primary_that_opens_again_waits_for_its_standby(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a", standby="sync") as primary:
        port = primary.port
        async with Standby(tmp_path / "b", primary.url) as standby:
            await until(lambda: standby.figures.mode == "sync")
            await primary.broker.publish("orders", b"1")
        waiting = asyncio.ensure_future(primary.broker.publish("orders", b"2"))
        await until(lambda: primary.figures.holding)
    with pytest.raises(OutcomeUnknown):
        await waiting
    async with Primary(tmp_path / "a", standby="sync", port=port) as primary:
        with pytest.raises(StandbyMissing):
            await runnel.open(primary.url).__aenter__()
        async with Standby(tmp_path / "b", primary.url) as standby:
            await standby.caught_up(primary)
            await until(lambda: not primary.figures.holding)
            async with runnel.open(primary.url) as client:
                await client.publish("orders", b"3")


async def test_a_sync_pair_becomes_asynchronous_when_both_know(tmp_path: Path) -> None:
    async with Primary(tmp_path / "a", standby="sync") as primary:
        port = primary.port
        async with Standby(tmp_path / "b", primary.url) as standby:
            await until(lambda: standby.figures.mode == "sync")
    async with Primary(tmp_path / "a", standby="async", port=port) as primary:
        assert primary.figures.holding  # the standby may still be promoted
        async with Standby(tmp_path / "b", primary.url) as standby:
            await until(lambda: primary.figures.mode == "async")
            assert standby.figures.mode == "async"
            await primary.broker.publish("orders", b"1")
