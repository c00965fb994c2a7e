"""Publishing over HTTP: one, many and events of others; stored when it is answered."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

import runnel
from runnel.api.broker import Broker
from runnel.core.record import Record
from runnel.server.http import listener, publish
from runnel.server.http.requests import RequestBody
from runnel.server.options import ServerOptions
from runnel.server.served_broker import ServedBroker
from tests.brokers import local_broker
from tests.server.http.browser import web

EVENT = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "paid"}


async def stored(broker: Broker, topic: str, count: int) -> list[Record[bytes]]:
    async with broker.subscribe(topic, start="earliest") as records:
        return [await anext(records) for _ in range(count)]


def refused(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert (response.status_code, response.json()["code"]) == (status, code), response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == status
    found: dict[str, Any] = response.json()
    return found


async def test_one_record_of_any_content_is_stored_as_it_is(tmp_path: Path) -> None:
    async with web(runnel.open(tmp_path)) as (broker, client):
        answer = await client.post(
            "/topics/orders.eu",
            content=b"\x00\xff",
            headers={"content-type": "image/png", "Runnel-Key": "42", "Runnel-Header-Shop": "caf%C3%A9"},
        )
        (record,) = await stored(broker, "orders.eu", 1)
        assert (answer.status_code, answer.json()) == (201, {"topic": "orders.eu", "epoch": record.epoch, "offset": 0})
        assert (record.value, record.key, dict(record.headers)) == (b"\x00\xff", b"42", {"shop": "café"})
        again = (await client.get(answer.headers["location"])).json()
        assert [one["offset"] for one in again["records"]] == [0]
        assert broker.statistics().journal is not None


async def test_what_is_sent_again_with_its_key_is_stored_once() -> None:
    async with web() as (broker, client):
        for _ in range(3):
            answer = await client.post("/topics/t", content=b"pay", headers={"Idempotency-Key": "once"})
            assert answer.json()["offset"] == 0
        assert broker.statistics().published == 1


async def test_times_priorities_and_expected_offsets_are_honoured() -> None:
    async with web() as (broker, client):
        await client.post("/topics/t", content=b"a", headers={"Runnel-Expected-Offset": "0", "Runnel-Priority": "9"})
        conflict = await client.post("/topics/t", content=b"b", headers={"Runnel-Expected-Offset": "0"})
        refused(conflict, 409, "offset_conflict")
        refused(await client.post("/topics/t", content=b"b", headers={"Runnel-Priority": "10"}), 400, "invalid_option")
        await client.post("/topics/t", content=b"late", headers={"Runnel-Delay": "3600", "Runnel-Expires": "7200"})
        async with broker.subscribe("t", group="g") as deliveries:
            assert (await anext(deliveries)).value == b"a"
        (group,) = broker.statistics().groups
        assert group.scheduled == 1


async def test_lines_are_records_side_by_side() -> None:
    async with web() as (broker, client):
        lines = b'{"a":1}\r\n\n{"a":2}\n{"a":3}'
        headers = {"content-type": "application/x-ndjson; charset=utf-8", "Runnel-Key": "k", "Runnel-Header-A": "b"}
        answer = await client.post("/topics/t", content=lines, headers=headers)
        assert answer.status_code == 201
        assert {name: answer.json()[name] for name in ("first", "last", "count")} == {"first": 0, "last": 2, "count": 3}
        found = await stored(broker, "t", 3)
        assert [one.value for one in found] == [b'{"a":1}', b'{"a":2}', b'{"a":3}']
        assert {(one.key, one.headers["a"]) for one in found} == {(b"k", "b")}


async def test_a_long_body_is_stored_in_pieces_and_says_how_far_it_came() -> None:
    async with web(max_body=1000) as (broker, client):
        many = b"".join(b"%06d\n" % number for number in range(5000))
        headers = {"content-type": "application/x-ndjson", "Runnel-Expected-Offset": "0"}
        answer = await client.post("/topics/t", content=many, headers=headers)
        assert (answer.json()["last"], answer.json()["count"]) == (4999, 5000)
        assert [one.value for one in await stored(broker, "t", 1000)][-1] != b""
        told = refused(
            await client.post("/topics/u", content=b"a\n" * 400 + b"x" * 2000, headers=headers), 413, "too_large"
        )
        assert told["stored"] == {"topic": "u", "epoch": told["stored"]["epoch"], "first": 0, "last": 399, "count": 400}
        again = await client.post("/topics/t", content=b"1\n2", headers=headers)
        refused(again, 409, "offset_conflict")


async def test_many_have_no_one_id_and_nothing_is_nothing() -> None:
    async with web() as (broker, client):
        kind = {"content-type": "application/x-ndjson"}
        both = await client.post("/topics/t", content=b"1\n2", headers=kind | {"Idempotency-Key": "x"})
        assert "Runnel-Expected-Offset" in refused(both, 400, "invalid_option")["detail"]
        refused(await client.post("/topics/t", content=b"\n\n", headers=kind), 400, "invalid_option")
        assert await broker.topics() == []


async def test_events_are_the_same_records_in_every_mode() -> None:
    async with web() as (broker, client):
        binary = {f"ce-{name}": value for name, value in EVENT.items()} | {"content-type": "application/json"}
        assert (await client.post("/topics/t", content=b'{"x":1}', headers=binary)).status_code == 201
        kind = {"content-type": "application/cloudevents+json"}
        whole = json.dumps(EVENT | {"data": {"x": 1}}, separators=(",", ":")).encode()
        assert (await client.post("/topics/t", content=whole, headers=kind)).status_code == 201
        kind = {"content-type": "application/cloudevents-batch+json", "Runnel-Expected-Offset": "2"}
        answer = await client.post("/topics/t", content=b"[" + whole + b"," + whole + b"]", headers=kind)
        assert (answer.json()["first"], answer.json()["last"], answer.json()["count"]) == (2, 3, 2)
        found = await stored(broker, "t", 4)
        assert {one.value for one in found} == {b'{"x":1}'}
        assert len({tuple(sorted(one.headers.items())) for one in found}) == 1
        refused(await client.post("/topics/t", content=b"[]", headers=kind), 400, "invalid_option")
        refused(await client.post("/topics/t", content=b"[" + whole + b"]", headers=kind), 409, "offset_conflict")


async def test_too_much_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "HTTP_LINGER", 0.2)
    async with web(max_body=100) as (broker, client):
        assert (await client.post("/topics/t", content=b"x" * 100)).status_code == 201
        refused(await client.post("/topics/t", content=b"x" * 101), 413, "too_large")

        async def endless() -> Any:
            while True:
                yield b"x" * 60

        try:
            refused(await client.post("/topics/t", content=endless()), 413, "too_large")
        except httpx.TransportError:
            pass  # it was still writing when the server had enough of it
        assert broker.statistics().published == 1


@pytest.mark.parametrize(
    "topic", ["a..b", "a b", "%24internal", "a.*", ">", "a%0Db", "a%00b", "x" * 256, "%FF", "%ED%A0%80"]
)
async def test_what_is_no_name_is_refused(topic: str) -> None:
    async with web() as (broker, client):
        answer = await client.post(f"/topics/{topic}", content=b"x")
        refused(answer, 400, "invalid_name")
        assert await broker.topics() == []


@pytest.mark.parametrize("value", ["a%0d%0ab", "a%0Ab", "%00"])
async def test_a_header_forges_no_line(value: str) -> None:
    async with web() as (broker, client):
        refused(await client.post("/topics/t", content=b"x", headers={"Runnel-Header-A": value}), 400, "invalid_option")
        assert await broker.topics() == []


async def test_compressed_bodies_and_closed_brokers_are_reported() -> None:
    async with web() as (broker, client):
        refused(
            await client.post("/topics/t", content=b"x", headers={"content-encoding": "gzip"}), 501, "not_supported"
        )
        broker.close()
        refused(await client.post("/topics/t", content=b"x"), 503, "broker_closed")


async def test_topics_are_not_made_where_that_is_off() -> None:
    async with web(local_broker(auto_create=False)) as (_, client):
        refused(await client.post("/topics/t", content=b"x"), 404, "unknown_topic")


@pytest.mark.parametrize("what", ["records", "presence"])
async def test_what_is_only_read_is_not_published_to(what: str) -> None:
    async with web() as (broker, client):
        answer = await client.post(f"/topics/t/{what}", content=b"x")
        refused(answer, 405, "method_not_allowed")
        assert answer.headers["allow"] == "GET"
        assert await broker.topics() == []


async def test_paths_that_were_looked_up_are_forgotten_when_they_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publish, "CACHED_TARGETS", 2)
    async with local_broker() as broker:
        route = publish.PublishRoute(ServedBroker(broker, ServerOptions()))
        for number in range(7):
            path = f"/topics/t{number % 3}"
            found = route._address({"path": path, "raw_path": path.encode(), "root_path": ""})
            assert (found.topic, found.records) == (path[8:], f"{path}/records")
            assert len(route._addresses) <= 2


async def test_a_topic_made_again_is_published_to_by_the_same_path() -> None:
    async with web() as (broker, client):
        first = (await client.post("/topics/t", content=b"x")).json()
        await broker.delete("t")
        again = (await client.post("/topics/t", content=b"y")).json()
        assert (again["offset"], again["epoch"] > first["epoch"]) == (0, True)


async def test_a_fault_of_the_server_is_a_problem_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: object) -> bytes:
        raise RuntimeError("not for the client's eyes")

    monkeypatch.setattr(RequestBody, "whole", broken)
    async with web() as (_, client):
        answer = await client.post("/topics/t", content=b"x")
        refused(answer, 500, "runnel_error")
        assert "eyes" not in answer.text
