"""Every option of publish and subscribe arrives at the broker, whichever listener it came through.

The cases are the fields of `PublishOptions` and `SubscribeOptions`: an option that is added there is tested here.
"""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from websockets.asyncio.client import connect

import runnel
from runnel.broker.writer import LocalFastPath
from runnel.core.errors import InvalidName, InvalidOption
from runnel.core.options import PYTHON_ONLY, OptionKind, PublishOptions, SubscribeOptions, options_of
from runnel.core.position import Position
from runnel.server import Server, ServerOptions
from runnel.server.http.options import event_options, header_of, publish_headers
from runnel.wire.frames import FrameKind
from runnel.wire.msgpack_messages import WirePolicy
from tests.option_samples import SAMPLES, Asked, beside, sampled
from tests.patience import PATIENCE
from tests.server.json_lines_client import Client, json_listener
from tests.server.native_client import connected

PORTABLE = [one for one in sampled(SubscribeOptions) if one[1].kind not in PYTHON_ONLY]
NAMES = {"start": "from"}  # in JSON


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[SubscribeOptions]:
    """What the broker was asked for by `subscribe`, the newest last."""
    return Asked(monkeypatch).found


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What records were published with, the newest last. Nothing is stored."""
    found: list[dict[str, Any]] = []

    async def publish(self: LocalFastPath, value: bytes, **options: Any) -> Position:
        found.append(PublishOptions.of(options).given())
        return Position(1, 0)

    monkeypatch.setattr(LocalFastPath, "publish", publish)
    return found


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    options = ServerOptions(port=0, json_port=None, http_port=0)
    async with runnel.open(tmp_path / "data") as broker, Server(broker, options) as served:
        yield served


def url(server: Server, scheme: str) -> str:
    return next(one.url for one in server.listeners if one.url.startswith(f"{scheme}://"))


# -- native -----------------------------------------------------------------------------------------------------


async def test_native_subscribe_has_every_option(server: Server, asked: list[SubscribeOptions]) -> None:
    async with runnel.open(url(server, "runnel")) as broker:
        for name, option, sample in PORTABLE:
            given = beside(name, option) | {name: sample.value}
            async with broker.subscribe(f"native.{name}", **given):
                assert getattr(asked[-1], name) == sample.value, name
        async with broker.subscribe("t", on_drop=print):
            assert asked[-1].on_drop is not None


async def test_native_subscribe_refuses_wrong_values_by_name(server: Server) -> None:
    address = next(one for one in server.listeners if one.url.startswith("runnel://"))
    async with connected(address) as raw:
        for name, option, sample in PORTABLE:
            if option.kind is OptionKind.SWITCH:
                continue  # a wrong type is a ProtocolError, which ends the connection
            wrong = WirePolicy(kind="nonsense") if option.kind is OptionKind.POLICY else sample.wrong_json
            id = raw.subscribe("t", **beside(name, option) | {name: wrong})
            with pytest.raises((InvalidOption, InvalidName), match=name):
                await raw.next(FrameKind.SUBSCRIBED, id=id)


# -- JSON lines and WebSocket -----------------------------------------------------------------------------------


def sub_line(name: str, value: Any) -> dict[str, Any]:
    option = options_of(SubscribeOptions)[name]
    return {"command": "SUB", "topic": f"lines.{name}", **beside(name, option), NAMES.get(name, name): value}


async def test_json_lines_sub_has_every_option(tmp_path: Path, asked: list[SubscribeOptions]) -> None:
    async with runnel.open(tmp_path / "data") as broker, json_listener(broker) as listener:
        client: Client = await listener.client()
        for name, _, sample in PORTABLE:
            line = sub_line(name, sample.json)
            assert (await client.ask(**line))["event"] == "subscribed", name
            assert getattr(asked[-1], name) == sample.value, name
            assert (await client.ask(command="UNSUB", topic=line["topic"]))["event"] == "unsubscribed"


async def test_json_lines_sub_refuses_wrong_values_by_name() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        for name, _, sample in PORTABLE:
            answer = await client.ask(**sub_line(name, sample.wrong_json))
            assert answer["event"] == "error", name
            assert answer["code"] in ("bad_command", "invalid_option", "invalid_name")
            assert NAMES.get(name, name) in answer["message"]


async def test_json_lines_sub_refuses_what_means_nothing_together() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        for line in ({"group": "g", "policy": "block"}, {"ack_wait": 5}, {"hold": True}):
            answer = await client.ask(command="SUB", topic="t", **line)
            assert (answer["event"], answer["code"]) == ("error", "invalid_option")


async def test_a_member_over_json_lines_holds_eight_mebibytes_at_most(asked: list[SubscribeOptions]) -> None:
    async with json_listener() as listener:
        client = await listener.client()
        for said, holds in ((None, 8 << 20), (1 << 30, 8 << 20), (1000, 1000)):
            await client.ask(command="SUB", topic="t", group="g", prefetch_bytes=said)
            assert asked[-1].prefetch_bytes == holds


async def test_json_lines_pub_has_every_option(published: list[dict[str, Any]]) -> None:
    async with json_listener() as listener:
        client = await listener.client()
        for name, _, sample in sampled(PublishOptions):
            answer = await client.ask(command="PUB", topic="t", payload="", **{name: sample.json})
            assert answer["event"] == "published", name
            assert published[-1] == {name: sample.value}


async def test_json_lines_pub_refuses_wrong_values_by_name() -> None:
    async with json_listener() as listener:
        client = await listener.client()
        for name, _, sample in sampled(PublishOptions):
            answer = await client.ask(command="PUB", topic="t", payload="", **{name: sample.wrong_json})
            assert (answer["event"], name in answer["message"]) == ("error", True), answer


async def test_a_websocket_has_the_options_of_json_lines(server: Server, asked: list[SubscribeOptions]) -> None:
    async with connect(url(server, "http").replace("http", "ws") + "/ws") as socket:
        for name, _, sample in PORTABLE:
            await socket.send(json.dumps(sub_line(name, sample.json)))
            assert json.loads(await socket.recv())["event"] == "subscribed", name
            assert getattr(asked[-1], name) == sample.value
            await socket.send(json.dumps({"command": "UNSUB", "topic": f"lines.{name}"}))
            assert json.loads(await socket.recv())["event"] == "unsubscribed"


# -- HTTP -------------------------------------------------------------------------------------------------------


async def test_http_publish_has_a_header_for_every_option(server: Server, published: list[dict[str, Any]]) -> None:
    assert set(options_of(PublishOptions)) - set(publish_headers()) == {"headers"}
    async with httpx.AsyncClient(base_url=url(server, "http"), timeout=PATIENCE) as client:
        for name, option in publish_headers().items():
            sample = SAMPLES[option.kind]
            answer = await client.post("/topics/t", content=b"", headers={header_of(name): sample.text})
            assert answer.status_code == 201, answer.text
            assert published[-1] == {name: sample.value}
        await client.post("/topics/t", content=b"", headers={"Runnel-Header-A": "b"})
        assert published[-1] == {"headers": {"a": "b"}}


async def test_http_publish_refuses_wrong_values_by_the_name_of_the_header(server: Server) -> None:
    async with httpx.AsyncClient(base_url=url(server, "http"), timeout=PATIENCE) as client:
        for name, option in publish_headers().items():
            if option.kind is OptionKind.KEY:
                continue  # any text is a key
            answer = await client.post("/topics/t", headers={header_of(name): SAMPLES[option.kind].wrong_text})
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_option")
            assert header_of(name).removeprefix("Runnel-").lower() in answer.json()["detail"].lower()


async def test_events_have_every_option_that_a_get_can_have(server: Server, asked: list[SubscribeOptions]) -> None:
    assert set(event_options()) == {"policy", "strict", "partial"}
    async with httpx.AsyncClient(base_url=url(server, "http"), timeout=PATIENCE) as client:
        for name, option in event_options().items():
            sample = SAMPLES[option.kind]
            async with client.stream("GET", f"/events?topic=t&{name}={quote(sample.text)}") as answer:
                assert answer.status_code == 200
                assert getattr(asked[-1], name) == sample.value


async def test_events_refuse_wrong_values_by_name(server: Server) -> None:
    async with httpx.AsyncClient(base_url=url(server, "http"), timeout=PATIENCE) as client:
        for name, option in event_options().items():
            answer = await client.get(f"/events?topic=t&{name}={quote(SAMPLES[option.kind].wrong_text)}")
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_option")
            assert name in answer.json()["detail"]
        answer = await client.get("/events?topic=t&policy=block")
        assert (answer.status_code, "does not make publishers wait" in answer.json()["detail"]) == (400, True)


async def test_a_strict_stream_ends_at_a_gap(server: Server) -> None:
    topic = server.broker.topic("t", retention_count=2)
    await topic.declare()
    async with httpx.AsyncClient(base_url=url(server, "http"), timeout=PATIENCE) as client:
        async with client.stream("GET", "/events?topic=t&strict=true") as answer:
            for number in range(5):  # the stream cannot read meanwhile, and two are kept
                topic.publish_nowait(str(number))
            told = [line async for line in answer.aiter_lines()]
    assert any("records_missed" in line for line in told)


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [
        ("policy", "block", "invalid_option"),
        ("policy", "block:31", "invalid_option"),
        ("buffer", 65_537, "limit_exceeded"),
        ("buffer_bytes", 1 << 40, "limit_exceeded"),
        ("max_ack_pending", 100_001, "limit_exceeded"),
    ],
)
async def test_json_lines_bound_what_one_subscriber_may_ask_for(option: str, value: object, code: str) -> None:
    """Else one connection that never reads could stop every publisher, or have the broker keep gigabytes for it."""
    group = {"group": "g"} if option == "max_ack_pending" else {}
    said = {"command": "SUB", "topic": "t", option: value, **group}
    async with json_listener() as listener:
        answer = await (await listener.client()).ask(**said)
    assert (answer["event"], answer["code"]) == ("error", code)
    assert option in answer["message"]
