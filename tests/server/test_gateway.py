"""A gateway: all that holds between a client and a server holds through it, and it keeps nothing that could be lost."""

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import runnel
from runnel.broker.broker import Broker
from runnel.client.options import ClientOptions
from runnel.core.errors import BadAddress, LimitExceeded, NotSupported, PublicBindRefused, Unreachable
from runnel.server import Gateway, Server, ServerOptions, TlsOptions
from runnel.wire.msgpack_messages import WirePolicy
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.server.certificates import Authority
from tests.server.json_lines_client import Client
from tests.server.native_client import connected, serving, until

TIMES: dict[str, Any] = {"backoff_min": 0.01, "backoff_max": 0.05}


@asynccontextmanager
async def gateway_of(engine: Server | str, **options: Any) -> AsyncIterator[Gateway]:
    """A gateway on a port of its own."""
    url = engine if isinstance(engine, str) else engine.listeners[0].url
    given: dict[str, Any] = {"port": 0, "json_port": None} | options
    async with Gateway(url, ServerOptions(**given)) as gateway:
        yield gateway


@asynccontextmanager
async def lines_of(gateway: Gateway) -> AsyncIterator[Client]:
    """A client of its JSON listener."""
    listener = next(listener for listener in gateway.listeners if listener.name == "json")
    client = Client(*await asyncio.open_connection(listener.host, listener.port))
    try:
        yield client
    finally:
        await client.gone()


async def joined(gateway: Gateway) -> None:
    """Return when its JSON listener has reached the engine: the engine has accepted it some time before that."""
    assert gateway._joining is not None
    await gateway._joining


async def test_a_client_does_not_notice_that_it_is_there() -> None:
    async with serving() as engine, gateway_of(engine) as gateway, runnel.open(gateway.listeners[0].url) as broker:
        orders = broker.topic("orders", dict[str, int])
        async with orders.subscribe() as records, broker.subscribe("orders", group="billing") as work:
            await orders.publish_many([{"id": number} for number in range(1000)])
            seen = 0
            async for record in records:
                assert record.value == {"id": seen}
                seen += 1
                if seen == 1000:
                    break
            async for delivery in work:
                await delivery.ack()
                break
        async with broker.transaction() as tx:
            tx.publish("paid", b"42")
            tx.mark("done", 1)
        assert await broker.mark("done") == 1
        assert await broker.topics() == ["orders", "paid"]
        assert broker.id == engine.broker.id
        assert (gateway.connections, engine.connections) == (1, 1)


async def test_its_doors_are_those_of_a_server(tmp_path: Path) -> None:
    async with serving() as engine, gateway_of(engine, json_port=0, unix=tmp_path / "sock") as gateway:
        assert [listener.name for listener in gateway.listeners] == ["native", "unix", "json"]
        assert engine.listeners[0].url in repr(gateway)
        async with runnel.open(gateway.listeners[1].url) as broker:
            assert (await broker.publish("t", b"x")).offset == 0
        with pytest.raises(NotSupported):
            await gateway.__aenter__()
    with pytest.raises(PublicBindRefused):
        await Gateway("runnel://127.0.0.1:1", ServerOptions(host="0.0.0.0", port=0)).__aenter__()
    with pytest.raises(BadAddress):
        Gateway("http://engine")


async def test_a_broker_that_lives_elsewhere_is_not_served_but_has_a_gateway_put_before_it() -> None:
    async with serving() as engine, runnel.open(engine.listeners[0].url) as remote:
        with pytest.raises(NotSupported, match=r"Gateway\(url\)"):
            Server(remote)


async def test_gateways_stand_in_a_row_and_the_last_one_may_be_a_socket_file(tmp_path: Path) -> None:
    async with serving(port=None, unix=tmp_path / "sock") as engine, gateway_of(engine) as first:
        async with gateway_of(first.listeners[0].url) as second, runnel.open(second.listeners[0].url) as broker:
            value = bytes(range(256)) * 40_000  # 10 MB: larger than any buffer in between
            async with broker.subscribe("t") as records:
                await broker.publish("t", value)
                assert (await anext(aiter(records))).value == value


async def test_tls_ends_at_its_near_side_and_begins_again_at_the_far_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("server")
    secured = TlsOptions(cert=cert, key=key, client_ca=authority.cert)
    own_cert, own_key = authority.issue("gateway")
    async with serving(ssl=secured) as engine:
        url = f"{engine.listeners[0].url}?ca={authority.cert}&cert={own_cert}&key={own_key}"
        near = TlsOptions(cert=cert, key=key)
        async with gateway_of(url, ssl=near, json_port=0) as gateway:
            assert gateway.listeners[0].url.startswith("runnels://")
            async with runnel.open(gateway.listeners[0].url, ca=str(authority.cert)) as broker:
                async with broker.subscribe("t") as records:
                    await broker.publish("t", b"x" * 3_000_000)
                    assert len((await anext(aiter(records))).value) == 3_000_000
            await until(lambda: gateway.connections == 0)
        with pytest.raises(runnel.InvalidOption):
            await Gateway(f"{engine.listeners[0].url}?ca={tmp_path / 'none.pem'}").__aenter__()


async def test_an_engine_that_is_not_there_is_told_by_its_code_and_clients_wait_for_it() -> None:
    port = free_port()
    async with gateway_of(f"runnel://127.0.0.1:{port}") as gateway:
        with pytest.raises(Unreachable, match=rf"127\.0\.0\.1:{port} \(the engine\): connection refused"):
            await runnel.open(gateway.listeners[0].url).__aenter__()
        await until(lambda: gateway.connections == 0)
        coming = asyncio.ensure_future(runnel.open(gateway.listeners[0].url, wait=PATIENCE, **TIMES).__aenter__())
        await until(lambda: gateway._connections.accepted > 2)
        async with serving(port=port):
            broker = await coming
            assert (await broker.publish("t", b"x")).offset == 0
            await broker.__aexit__(None, None, None)


async def test_of_several_engines_the_one_that_answers_is_taken_and_is_tried_first_from_then_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dead = free_port()
    async with serving() as engine:
        live = engine.listeners[0].port
        async with gateway_of(f"runnel://127.0.0.1:{dead},127.0.0.1:{live}") as gateway:
            for _ in range(2):
                async with connected(gateway.listeners[0]) as raw:
                    assert await raw.ask("topics") == []
            assert [address.port for address in gateway._addresses] == [live, dead]
            engine.abort()
            for _ in range(3):
                async with connected(gateway.listeners[0], hello=False) as raw:
                    assert isinstance(await raw.error(), Unreachable)
            assert len([line for line in caplog.messages if line.startswith("clients are sent away")]) == 1


def test_it_gives_an_engine_less_time_than_clients_give_the_gateway() -> None:
    assert Gateway("runnel://engine")._client.connect_timeout < ClientOptions().connect_timeout
    assert Gateway("runnel://engine?connect_timeout=9")._client.connect_timeout == 9.0


async def test_an_engine_that_does_not_answer_is_given_up_on() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        fill = [socket.socket() for _ in range(4)]
        for one in fill:
            one.setblocking(False)
            one.connect_ex(silent.getsockname())
        url = f"runnel://127.0.0.1:{silent.getsockname()[1]}?connect_timeout=0.1"
        async with gateway_of(url) as gateway, connected(gateway.listeners[0], hello=False) as raw:
            error = await raw.error()
            assert isinstance(error, Unreachable)
            assert error.why == "no answer within 0.1 s"
            await raw.eof()
        for one in fill:
            one.close()


async def test_an_engine_that_dies_and_comes_back_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    port = free_port()
    broker = runnel.open(tmp_path / "data")
    await broker.__aenter__()
    engine = await Server(broker, ServerOptions(port=port, json_port=None)).__aenter__()
    async with gateway_of(engine, json_port=None) as gateway:
        url = gateway.listeners[0].url
        async with runnel.open(url, **TIMES) as publisher, runnel.open(url, **TIMES) as reader:
            topic = publisher.topic("t")
            async with reader.subscribe("t", start="earliest") as records:
                stream = aiter(records)
                await topic.publish(b"0")
                assert (await anext(stream)).value == b"0"
                for life in range(3):
                    waiting = [asyncio.ensure_future(topic.publish(b"%d" % (life * 100 + n + 1))) for n in range(100)]
                    await asyncio.sleep(0)
                    engine.abort()
                    await engine.close(0.0)
                    engine = await Server(broker, ServerOptions(port=port, json_port=None)).__aenter__()
                    await asyncio.gather(*waiting)
                values = [int((await anext(stream)).value) for _ in range(300)]
                assert values == list(range(1, 301))
            assert publisher.connection.connections == 4  # type: ignore[attr-defined]
    await engine.close(0.0)
    await broker.__aexit__(None, None, None)


async def test_another_gateway_takes_the_clients_of_one_that_dies() -> None:
    async with serving() as engine, gateway_of(engine) as one, gateway_of(engine) as other:
        url = f"{one.listeners[0].url},127.0.0.1:{other.listeners[0].port}"
        async with runnel.open(url, **TIMES) as broker, broker.subscribe("t") as records:
            stream = aiter(records)
            await broker.publish("t", b"before")
            assert (await anext(stream)).value == b"before"
            assert (one.connections, other.connections) == (1, 0)
            waiting = [asyncio.ensure_future(broker.publish("t", b"%d" % number)) for number in range(100)]
            await asyncio.sleep(0)
            one.abort()
            await asyncio.gather(*waiting)
            assert [(await anext(stream)).value for _ in range(100)] == [b"%d" % number for number in range(100)]
            assert (one.connections, other.connections) == (0, 1)


async def test_a_gateway_that_stops_has_the_engine_answer_what_it_took() -> None:
    async with serving() as engine, gateway_of(engine) as one, gateway_of(engine) as other:
        url = f"{one.listeners[0].url},127.0.0.1:{other.listeners[0].port}"
        async with runnel.open(url, **TIMES) as broker, broker.subscribe("t") as records:
            done = asyncio.ensure_future(broker.topic("t").publish_many([b"%d" % number for number in range(1000)]))
            await until(lambda: engine.broker.statistics().published)
            await one.close(PATIENCE)
            assert (await done).last.offset == 999
            stream = aiter(records)
            for number in range(1000):
                assert (await anext(stream)).value == b"%d" % number
            assert one.connections == 0
            await until(lambda: other.connections == 1)


async def test_a_gateway_that_stops_ends_within_its_deadline_whatever_its_clients_do() -> None:
    lasting: dict[str, Any] = {"ping": 3600.0, "send_timeout": 3600.0}  # nobody is thrown out for anything else
    async with (
        serving(**lasting) as engine,
        gateway_of(engine, **lasting) as gateway,
        connected(gateway.listeners[0]) as raw,
    ):
        await raw.subscribed(raw.subscribe("t", credit=1 << 30))
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await engine.broker.topic("t").publish_many([b"x" * 10_000_000] * 3)  # more than is read
        await until(lambda: gateway._connections.describe()[0]["unsent_bytes"])
        await gateway.close(0.2)
        assert gateway.connections == 0
        await until(lambda: engine.connections == 0)


async def test_a_client_that_does_not_read_holds_no_more_than_its_bound() -> None:
    async with serving(high_water=64 << 10) as engine, gateway_of(engine, high_water=64 << 10) as gateway:
        async with connected(gateway.listeners[0]) as frozen, runnel.open(gateway.listeners[0].url) as other:
            id = frozen.subscribe("t", start="earliest", credit=1 << 30)
            await frozen.subscribed(id)
            frozen.writer.transport.pause_reading()  # type: ignore[attr-defined]
            topic = engine.broker.topic("t", retention_count=1000)
            for _ in range(100):
                await topic.publish(b"x" * 1_000_000)
            await until(lambda: gateway._connections.describe()[0]["unsent_bytes"])
            (mine, *_) = gateway._connections.describe()
            assert mine["unsent_bytes"] <= (64 << 10) + (256 << 10)
            assert (await other.publish("u", b"not held up")).offset == 0


async def test_an_engine_that_does_not_read_has_its_client_wait_and_not_the_gateway_remember() -> None:
    options: dict[str, Any] = {"high_water": 64 << 10, "max_pending_bytes": 64 << 10}
    async with serving(**options) as engine, gateway_of(engine, **options) as gateway:
        async with connected(gateway.listeners[0]) as raw:
            id = raw.subscribe("t", policy=WirePolicy(kind="block"), buffer=1)
            await raw.subscribed(id)
            for _ in range(100):
                raw.publish("t", b"x" * 100_000)
            await until(lambda: gateway._connections.describe()[0]["receive_bytes"])
            assert gateway._connections.describe()[0]["receive_bytes"] <= (64 << 10) + (256 << 10)
            raw.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            raw.cut()
        await until(lambda: engine.connections == 0)  # though neither of the two was being read from
        assert gateway.connections == 0


async def test_what_a_client_held_goes_back_when_it_vanishes() -> None:
    async with serving() as engine, gateway_of(engine) as gateway:
        async with connected(gateway.listeners[0]) as raw, runnel.open(gateway.listeners[0].url) as broker:
            member = raw.subscribe("jobs", group="g", ack_wait=3600.0)
            await broker.publish("jobs", b"one")
            await raw.grant(member)
            async with broker.subscribe("jobs", group="g") as work:
                raw.cut()
                delivery = await anext(aiter(work))
                assert delivery.value == b"one"
                await delivery.ack()


async def test_a_client_that_closes_its_side_is_answered_first_and_then_let_go() -> None:
    async with serving() as engine, gateway_of(engine) as gateway, connected(gateway.listeners[0]) as raw:
        id = raw.publish("t", b"x")
        await raw.published(id)
        raw.goodbye()
        await raw.eof()
        await raw.close()
        await until(lambda: gateway.connections == engine.connections == 0)


async def test_those_who_are_too_many_are_told_the_limit() -> None:
    async with serving() as engine, gateway_of(engine, max_connections=1, json_port=0) as gateway:
        async with connected(gateway.listeners[0]) as raw:
            async with connected(gateway.listeners[0], hello=False) as late:
                error = await late.error()
                assert isinstance(error, LimitExceeded)
                assert error.limit == "max_connections"
                await late.eof()
            async with lines_of(gateway) as lines:
                assert (await lines.event())["code"] == "limit_exceeded"
            assert await raw.ask("topics") == []


async def test_a_storm_of_clients_is_let_in_at_a_bounded_rate() -> None:
    async with serving() as engine, gateway_of(engine, accept_rate=400) as gateway:
        loop = asyncio.get_running_loop()

        async def one(number: int) -> None:
            async with connected(gateway.listeners[0]) as raw:
                await raw.published(raw.publish("t", b"%d" % number))

        began = loop.time()
        await asyncio.gather(*(one(number) for number in range(100)))
        assert loop.time() - began >= 0.14  # 40 at once, the rest at 400 a second
        assert engine.broker.statistics().published == 100


async def test_json_lines_are_spoken_by_the_gateway_itself() -> None:
    async with serving() as engine:
        async with gateway_of(engine, json_port=0) as gateway:
            await joined(gateway)
            assert engine.connections == 1  # its own client
            async with lines_of(gateway) as lines, lines_of(gateway) as other:
                assert (await lines.ask(command="SUB", topic="test"))["event"] == "subscribed"
                assert (await other.ask(command="PUB", topic="test", payload="100"))["offset"] == 0
                message = await lines.event()
                assert (message["event"], message["payload"]) == ("message", "100")
                assert (await other.ask(command="TOPICS"))["topics"] == ["test"]
            assert await engine.broker.topics() == ["test"]
        assert engine.connections == 0  # it has said goodbye


async def test_the_json_door_says_that_there_is_no_engine_and_serves_once_there_is() -> None:
    port = free_port()
    async with gateway_of(f"runnel://127.0.0.1:{port}?backoff_min=0.01&backoff_max=0.05", json_port=0) as gateway:
        async with lines_of(gateway) as lines:
            (said,) = await lines.rest()
            assert (said["event"], said["code"]) == ("error", "unreachable")
        async with Broker() as broker, Server(broker, ServerOptions(port=port, json_port=None)):
            await joined(gateway)
            async with lines_of(gateway) as lines:
                assert (await lines.ask(command="PUB", topic="t", payload="x"))["event"] == "published"


async def test_a_port_that_speaks_no_tls_is_no_engine(tmp_path: Path) -> None:
    async with serving() as plain:
        listener = plain.listeners[0]
        async with gateway_of(f"runnels://{listener.host}:{listener.port}?connect_timeout=1") as gateway:
            async with connected(gateway.listeners[0], hello=False) as raw:
                assert isinstance(await raw.error(), Unreachable)


def test_its_context_trusts_nobody_without_a_reason() -> None:
    assert Gateway("runnels://engine")._client.ssl_context().verify_mode is ssl.CERT_REQUIRED
