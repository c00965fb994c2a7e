"""A server's life: listeners that open, clients that come back, goodbyes that are heard."""

import asyncio
from pathlib import Path

import pytest

import runnel
from runnel.core.batch_format import pack
from runnel.core.errors import AddressInUse, NotSupported, PublicBindRefused
from runnel.server import Server, ServerOptions
from runnel.wire.frames import FrameKind, frame
from runnel.wire.msgpack_messages import Goodbye, Settlement, SettleVerb, WirePolicy, decode_message
from tests.brokers import local_broker
from tests.patience import PATIENCE
from tests.server.native_client import connected, serving


async def test_its_listeners_report_their_real_addresses(tmp_path: Path) -> None:
    async with serving(json_port=0, unix=tmp_path / "sock") as server:
        native, unix, lines = server.listeners
        assert (native.name, native.url) == ("native", f"runnel://127.0.0.1:{native.port}")
        assert (unix.name, unix.url) == ("unix", f"runnel+unix://{tmp_path / 'sock'}")
        assert (lines.name, lines.url) == ("json", f"tcp://127.0.0.1:{lines.port}")
        assert native.port != lines.port
        assert native.url in repr(server)


async def test_the_unix_listener_speaks_the_same_protocol(tmp_path: Path) -> None:
    async with serving(unix=tmp_path / "sock") as server:
        async with connected(server.listeners[1]) as raw, connected(server.listeners[0]) as other:
            id = raw.subscribe("t")
            await raw.subscribed(id)
            await other.published(other.publish("t", b"hello"))
            assert await raw.values(id, 1) == [b"hello"]
    assert not (tmp_path / "sock").exists()


async def test_a_port_that_is_taken_leaves_no_other_listener_open(tmp_path: Path) -> None:
    async with serving() as server:
        options = ServerOptions(port=0, unix=tmp_path / "sock", json_port=server.listeners[0].port)
        async with local_broker() as broker:
            with pytest.raises(AddressInUse):
                await Server(broker, options).__aenter__()
        assert not (tmp_path / "sock").exists()


async def test_a_public_address_is_refused() -> None:
    with pytest.raises(PublicBindRefused):
        async with serving(host="0.0.0.0"):
            pass


async def test_it_is_started_once() -> None:
    async with serving() as server:
        with pytest.raises(NotSupported):
            await server.__aenter__()


async def test_everybody_hears_a_goodbye_and_what_is_under_way_is_answered(tmp_path: Path) -> None:
    async with runnel.open(tmp_path / "data") as broker:
        async with serving(broker) as server, connected(server) as raw, connected(server) as idle:
            id = raw.publish("t", *[b"x" * 1000] * 1000)
            await idle.ask("topics")
            while not (await idle.ask("connections"))[0]["pending_bytes"]:
                if any(kind == FrameKind.PUBLISHED for kind, *_ in raw.inbox):
                    break
                await raw._more()
            closing = asyncio.ensure_future(server.close(PATIENCE))
            for client in (raw, idle):
                _, _, _, _, payload = await client.next(FrameKind.GOODBYE)
                assert decode_message(Goodbye, payload).retry is not None
            await raw.published(id)
            await raw.eof()
            await idle.eof()
            await raw.close()
            await idle.close()
            await closing
            assert server.connections == 0
            with pytest.raises(OSError, match=r"."):
                await asyncio.open_connection(server.listeners[0].host, server.listeners[0].port)


async def test_what_is_asked_after_the_goodbye_is_not_answered_and_nothing_is_stored() -> None:
    async with serving() as server, connected(server) as raw:
        id = raw.subscribe("ask")
        await raw.subscribed(id)
        raw.call("request", topic="ask", batch=pack([b"?"]), timeout=3600.0)  # keeps the connection
        await raw.deliver(id)
        closing = asyncio.ensure_future(server.close(PATIENCE))
        await raw.next(FrameKind.GOODBYE)
        late = [raw.publish("t", b"too late"), raw.subscribe("t"), raw.call("topics")]
        raw.send(frame(FrameKind.PING, 0))
        await raw.next(FrameKind.PONG)  # all before it was seen
        assert not [one for one in raw.inbox if one[3] in late]
        assert await server.broker.topics() == ["ask"]
        await server.close()
        await closing


async def test_acks_that_were_on_their_way_still_count() -> None:
    async with serving() as server, connected(server) as raw:
        member = raw.subscribe("t", group="g", ack_wait=3600.0)
        await raw.published(raw.publish("t", b"work"))
        grant = await raw.grant(member)
        closing = asyncio.ensure_future(server.close(PATIENCE))
        await raw.next(FrameKind.GOODBYE)
        raw.settle(Settlement(member, grant.lease, SettleVerb.ACK, grant.place, grant.place + 1), answered=False)
        await raw.eof()
        await raw.close()
        await closing
        (group,) = server.broker.statistics().groups
        assert (group.acked, group.lag) == (1, 0)


async def test_what_does_not_end_is_cut_off_at_the_deadline() -> None:
    async with serving() as server, connected(server) as raw:
        id = raw.subscribe("t", policy=WirePolicy(kind="block"), buffer=1)
        await raw.subscribed(id)
        await raw.published(raw.publish("t", b"one"))
        raw.publish("t", b"waits for ever")
        await raw.ask("topics")
        await server.close(0.05)
        assert server.connections == 0
        assert server.broker.statistics().subscriptions == ()


async def test_a_second_call_closes_at_once() -> None:
    async with serving() as server, connected(server) as raw:
        id = raw.subscribe("t", policy=WirePolicy(kind="block"), buffer=1)
        await raw.subscribed(id)
        await raw.published(raw.publish("t", b"one"))
        raw.publish("t", b"waits for ever")
        await raw.ask("topics")
        first = asyncio.ensure_future(server.close(3600.0))
        await raw.next(FrameKind.GOODBYE)
        async with asyncio.timeout(PATIENCE):
            await server.close(3600.0)
            await first
        assert server.connections == 0


async def test_a_hundred_clients_at_once_are_all_served_at_a_bounded_rate() -> None:
    async with serving(accept_rate=400) as server:
        loop = asyncio.get_running_loop()

        async def one(number: int) -> float:
            async with connected(server) as raw:
                await raw.published(raw.publish("t", b"%d" % number))
                return loop.time()

        began = loop.time()
        await asyncio.gather(*(one(number) for number in range(100)))
        assert loop.time() - began >= 0.14  # 40 at once, the rest at 400 a second
        assert server.broker.statistics().published == 100


async def test_the_broker_is_the_callers_and_goes_on_without_the_server() -> None:
    async with local_broker() as broker:
        async with Server(broker, ServerOptions(port=0, json_port=None)) as server:
            async with connected(server) as raw:
                await raw.published(raw.publish("t", b"over the wire"))
        assert (await broker.publish("t", b"in process")).offset == 1


async def test_a_server_knows_what_the_handlers_of_its_clients_did() -> None:
    async with serving() as server, runnel.open(server.listeners[0].url) as worker:

        @worker.on("jobs", group="g")
        async def work(data: bytes) -> None:
            worker.stop()

        await worker.publish("jobs", b"x")
        async with asyncio.timeout(PATIENCE):
            await worker.run(signals=False)  # the last report is sent before it returns
        (found,) = server.broker.statistics().handlers
        assert (found.name.rpartition(".")[2], found.pattern, found.group) == ("work", "jobs", "g")
        assert (found.handled, found.failed, found.running, found.durations.count) == (1, 0, 0, 1)
