"""Every call of a client, against a broker with a folder."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

import runnel
from runnel.core.backend import SettleVerb
from runnel.core.batch_format import pack, unpack
from runnel.core.record import Meta
from runnel.core.schema import Codec
from runnel.core.statistics import BackendSample, HandlerStatistics, Histogram, RelayStatistics, SnapshotStatistics
from runnel.server.native.calls import CALLS
from runnel.server.server import Server
from runnel.wire.binary_messages import unsubscribe_frame
from runnel.wire.frames import FrameKind
from runnel.wire.msgpack_messages import PublishDetails, Settlement
from tests.carried import columns_of
from tests.server.native_client import Raw, connected, serving


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with runnel.open(tmp_path / "data") as broker, serving(broker) as made:
        yield made


async def filled(raw: Raw, *values: bytes, topic: str = "t") -> int:
    """A topic with these records; its epoch."""
    return (await raw.published(raw.publish(topic, *values)))[0]


def test_the_table_holds_what_the_protocol_promises() -> None:
    promised = (
        "declare describe configure delete topics trim mark marks stages forget forget_group group group_pause "
        "group_resume group_reset replay discard statistics request reply producer_next info connections transact "
        "stage_write stage_drop stage_state place bounds history dead_letters dead_letter_list end_sequence "
        "sample flush sync finish report_relay report_pipeline report_handlers confirm_archived floors stage_block "
        "authenticate whoami reload doctor token_create token_list token_revoke cancel request_many presence "
        "follow read_file promote release_standby"
    )
    assert set(CALLS) == set(promised.split())


async def test_topics_are_declared_listed_and_deleted(raw: Raw) -> None:
    await raw.ask("declare", topic="orders", options={"retention_count": 10})
    await raw.ask("declare", topic="orders")
    conflict = raw.call("declare", topic="orders", options={"retention_count": 20})
    assert (await raw.error(conflict)).code == "topic_conflict"
    assert (await raw.error(raw.call("declare", topic="not a name"))).code == "invalid_name"
    assert (await raw.error(raw.call("declare", topic="x", options={"retention": 1}))).code == "invalid_option"
    assert await raw.ask("topics") == ["orders"]
    assert await raw.ask("describe", topic="orders") == {"options": {"retention_count": 10}}
    assert await raw.ask("describe", topic="nothing") is None
    await raw.ask("delete", topic="orders")
    assert await raw.ask("topics") == []
    assert (await raw.error(raw.call("delete", topic="orders"))).code == "unknown_topic"


async def test_a_typed_topic_is_declared_by_its_schema(raw: Raw) -> None:
    codec: Codec[Any] = Codec(dict[str, int])
    schema = {"encoding": "json", "schema": codec.schema}
    await raw.ask("declare", topic="typed", schema=[*schema.values()])
    other: Codec[Any] = Codec(list[str])
    conflict = raw.call("declare", topic="typed", schema=["json", other.schema])
    assert (await raw.error(conflict)).code == "schema_conflict"


async def test_a_malformed_schema_is_refused_and_makes_no_topic(raw: Raw) -> None:
    for encoding, schema in (("json", {"$ref": "#/$defs/Missing"}), ("json", {"properties": [1]}), ("xml", {})):
        refused = await raw.error(raw.call("declare", topic="t", schema=[encoding, schema]))
        assert refused.code == "invalid_option"
    assert await raw.ask("topics") == []


async def test_trimming_by_offset_and_by_time(raw: Raw) -> None:
    await filled(raw, b"0", b"1", b"2", b"3")
    assert await raw.ask("trim", topic="t", before=2) == 2
    assert await raw.ask("trim", topic="t", before={"time": datetime.now(UTC).isoformat()}, force=True) == 4
    assert (await raw.error(raw.call("trim", topic="t", before={"moon": 1}))).code == "invalid_option"
    assert (await raw.error(raw.call("trim", topic="t", before=-5))).code == "invalid_option"


async def test_groups_are_looked_at_paused_reset_and_forgotten(raw: Raw) -> None:
    await filled(raw, b"0", b"1")
    member = raw.subscribe("t", group="g", prefetch=1)
    await raw.grant(member)
    who = {"name": "g", "pattern": "t"}
    await raw.ask("group_pause", **who)
    about = await raw.ask("group", **who)
    assert (about["paused"], about["in_flight"], len(about["members"])) == (True, 1, 1)
    await raw.ask("group_resume", **who)
    await raw.ask("group_reset", **who, start="latest")
    assert (await raw.ask("group", **who))["lag"] == 0
    assert (await raw.error(raw.call("group_reset", **who, start={"sequence": 3}))).code == "invalid_option"
    assert (await raw.error(raw.call("forget_group", **who))).code == "group_in_use"
    raw.send(unsubscribe_frame(member))
    await raw.next(FrameKind.END, id=member)
    await raw.ask("forget_group", **who)
    assert (await raw.error(raw.call("group", **who))).code == "unknown_group"


async def test_history_comes_page_by_page(raw: Raw) -> None:
    epoch = await filled(raw, b"0", b"1", b"2")
    first = await raw.ask("history", topic="t", limit=2)
    assert [(one[0], one[1], one[2], one[6]) for one in first["records"]] == [
        ("t", epoch, 0, b"0"),
        ("t", epoch, 1, b"1"),
    ]
    assert (first["next"], first["first"], first["end"], first["gap"]) == (2, 0, 3, None)
    assert [one[6] for one in (await raw.ask("history", topic="t", start=-1))["records"]] == [b"2"]
    await raw.ask("trim", topic="t", before=2)
    assert (await raw.ask("history", topic="t", start=0))["gap"]["end"] == 2
    assert (await raw.error(raw.call("history", topic="none"))).code == "unknown_topic"
    assert (await raw.error(raw.call("history", topic="t", limit=0))).code == "invalid_option"


async def test_dead_letters_are_listed_and_all_put_back(raw: Raw) -> None:
    await filled(raw, b"0", b"1")
    member = raw.subscribe("t", group="g")
    grant = await raw.grant(member)
    raw.settle(Settlement(member, grant.lease, SettleVerb.REJECT, 0, 2, reason="bad"))
    await raw.ask("flush")
    ((name, groups, open_ones, first, end, _),) = await raw.ask("dead_letters")
    assert (name, groups, open_ones, first, end) == ("dead-letters.g", ["g"], 2, 0, 2)
    found = await raw.ask("dead_letter_list", topic=name, limit=1)
    assert ([one[6] for one in found["letters"]], found["next"], found["open"]) == ([b"0"], 1, 2)
    assert await raw.ask("replay", topic=name, all=True) == 2
    assert (await raw.ask("dead_letter_list", topic=name))["open"] == 0


async def test_a_relay_reports_what_statistics_and_the_console_show(raw: Raw) -> None:
    report = RelayStatistics(
        slot="s", state="streaming", published=(5, 2), snapshots=(SnapshotStatistics("t", 1, -1, False),)
    )
    await raw.ask("report_relay", report=report)
    assert msgspec.convert((await raw.ask("statistics"))["relays"], list[RelayStatistics]) == [report]
    assert msgspec.convert(await raw.ask("sample"), BackendSample).relays == (report,)
    await raw.ask("report_relay", report=msgspec.structs.replace(report, state="stopped"))
    assert (await raw.ask("statistics"))["relays"] == []


async def test_reports_of_handlers_add_up_and_a_repeated_one_counts_once(raw: Raw) -> None:
    durations = Histogram()
    durations.add(0.003)
    work = HandlerStatistics("work", "jobs", "g", 1, 0, 1, durations.snapshot())
    for client in ("a", "b", "b"):
        await raw.ask("report_handlers", client=client, handlers=[work])
    (found,) = msgspec.convert((await raw.ask("statistics"))["handlers"], list[HandlerStatistics])
    assert (found.handled, found.running, found.durations.count, found.durations.sum) == (2, 2, 2, 0.006)
    other = msgspec.structs.replace(work, durations=msgspec.structs.replace(work.durations, bounds=(1.0,)))
    assert (await raw.error(raw.call("report_handlers", client="c", handlers=[other]))).code == "invalid_option"


async def test_a_sample_holds_what_a_console_shows(raw: Raw, server: Server) -> None:
    await raw.ask("declare", topic="t", options={"retention_count": 10})
    await filled(raw, b"0", b"1")
    await raw.subscribed(raw.subscribe("t"))
    assert await raw.ask("end_sequence") == 2
    found = msgspec.convert(await raw.ask("sample"), BackendSample)
    again = await server.broker.backend.sample()
    assert (found.topics, found.subscriptions) == (again.topics, again.subscriptions)
    assert (found.topics[0].options.retention_count, found.topics[0].durable, found.published) == (10, True, 2)
    assert found.journal is not None
    assert (found.journal.fsync, len(found.journal.segments)) == ("commit", 1)


async def test_a_subscription_is_let_end_after_what_was_published(raw: Raw, server: Server) -> None:
    await filled(raw, b"0")
    reader = raw.subscribe("t", start="earliest")
    member = raw.subscribe("t", group="g")
    await raw.subscribed(reader)
    await raw.ask("finish", subscription=reader)
    await raw.next(FrameKind.END, id=reader)
    await raw.grant(member)
    await raw.ask("finish", subscription=member)
    await raw.ask("finish", subscription=99)  # one that has ended meanwhile is left alone


async def test_a_named_position_is_forgotten(raw: Raw) -> None:
    await filled(raw, b"0")
    id = raw.subscribe("t", name="me")
    await raw.subscribed(id)
    assert (await raw.error(raw.call("forget", name="me"))).code == "name_in_use"


async def test_a_transaction_publishes_acks_and_marks_as_one(raw: Raw) -> None:
    await filled(raw, b"work", topic="in")
    member = raw.subscribe("in", group="g")
    grant = await raw.grant(member)
    done = await raw.ask(
        "transact",
        publishes=[["out", pack([b"a", b"b"]), None], ["out", pack([b"c"]), PublishDetails(expected_offset=2)]],
        acks=[[member, grant.lease, grant.place, grant.place + 1]],
        marks=[["step", 1]],
    )
    assert done["applied"] is True
    assert [span[1:] for span in done["spans"]] == [[0, 1], [2, 2]]
    assert await raw.ask("mark", name="step") == 1
    assert await raw.ask("marks", prefix="st") == {"step": 1}
    assert (await raw.ask("group", name="g", pattern="in"))["acked"] == 1
    again = await raw.ask("transact", publishes=[["out", pack([b"a"]), None]], marks=[["step", 1]])
    assert again == {"applied": False, "spans": [None]}


async def test_a_transaction_that_is_refused_leaves_nothing(raw: Raw) -> None:
    await raw.ask("transact", marks=[["step", 1]])
    refused = raw.call("transact", publishes=[["out", pack([b"a"]), None]], marks=[["step", 3, 2]])
    assert (await raw.error(refused)).code == "mark_conflict"
    lost = raw.call("transact", publishes=[["out", pack([b"a"]), None]], acks=[[99, 1, 0, 1]])
    assert (await raw.error(lost)).code == "subscription_ended"
    assert (await raw.error(raw.call("transact", marks=[["alone"]]))).code == "invalid_option"
    broken = raw.call("transact", publishes=[["out", b"no batch at all", None]])
    assert (await raw.error(broken)).code == "bad_batch"
    assert await raw.ask("topics") in ([], ["out"])
    assert (await raw.ask("statistics"))["published"] == 0


async def test_a_transaction_over_an_absurd_range_of_places_is_refused_at_its_first(raw: Raw) -> None:
    await filled(raw, b"work")
    member = raw.subscribe("t", group="g")
    grant = await raw.grant(member)
    absurd = raw.call("transact", acks=[[member, grant.lease, 0, 2**60]])
    assert (await raw.error(absurd)).code == "invalid_option"
    assert await raw.ask("topics") == ["t"]


async def test_stages_are_written_looked_at_dropped_and_committed(raw: Raw) -> None:
    key, other = ["w", 1, 0, 0], ["w", 1, 1, 0]
    assert (await raw.ask("stage_write", topic="t", key=key))["records"] == 0
    batch = pack([b"0", b"1"], columns_of([Meta(key=b"k", headers={"a": "b"}), None]))
    assert (await raw.ask("stage_write", topic="t", key=key, batch=batch, ordinal=0))["records"] == 2
    again = await raw.ask("stage_write", topic="t", key=key, batch=batch, ordinal=0)
    assert again["records"] == 2  # sent again, stored once
    assert again == await raw.ask("stage_state", topic="t", key=key)
    more = pack([b"1", b"2"])
    assert (await raw.ask("stage_write", topic="t", key=key, batch=more, ordinal=1))["records"] == 3
    hole = raw.call("stage_write", topic="t", key=key, batch=more, ordinal=7)
    assert (await raw.error(hole)).code == "invalid_option"
    await raw.ask("stage_write", topic="t", key=other, batch=batch, ordinal=0)
    assert [(one["part"], one["records"]) for one in await raw.ask("stages")] == [(0, 3), (1, 2)]
    await raw.ask("stage_drop", topic="t", key=other)
    done = await raw.ask("transact", commits=[key])
    assert [span[1:] for span in done["spans"]] == [[0, 2]]
    id = raw.subscribe("t", start="earliest")
    found = unpack((await raw.deliver(id)).batch)
    assert (found.values[0], found.metas[0].key, dict(found.metas[0].headers)) == (b"0", b"k", {"a": "b"})


async def test_a_request_is_answered_over_the_wire(server: Server, raw: Raw) -> None:
    async with connected(server) as other:
        id = other.subscribe("ask")
        await other.subscribed(id)
        asking = raw.call(
            "request", topic="ask", batch=pack([b"6*7"], columns_of([Meta(key=b"k", headers={"h": "1"})]))
        )
        got = unpack((await other.deliver(id)).batch)
        assert (got.values, got.metas[0].key) == ((b"6*7",), b"k")
        inbox = got.metas[0].headers["runnel-reply-to"]
        answer = pack([b"42"], columns_of([Meta(headers={"unit": "answers"})]))
        assert await other.ask("reply", reply_to=inbox, batch=answer) is True
        reply = await raw.reply(asking)
        told = unpack(reply["batch"])
        assert (told.values, told.metas[0].headers["unit"]) == ((b"42",), "answers")
        assert {"topic", "offset", "sequence", "epoch", "time"} < set(reply)
        assert await other.ask("reply", reply_to=inbox, batch=answer) is False  # nobody waits any more


async def test_requests_without_a_responder(raw: Raw) -> None:
    assert (await raw.error(raw.call("request", topic="ask", batch=pack([b"?"])))).code == "no_responders"
    id = raw.subscribe("ask")
    await raw.subscribed(id)
    late = raw.call("request", topic="ask", batch=pack([b"?"]), timeout=0.01)
    assert (await raw.error(late)).code == "request_timeout"
    two = raw.call("request", topic="ask", batch=pack([b"?", b"?"]))
    assert (await raw.error(two)).code == "invalid_option"


async def test_a_producer_gets_its_next_number(raw: Raw) -> None:
    assert await raw.ask("producer_next", producer=7) is None
    await raw.published(raw.publish_batch("t", pack([b"0", b"1"], producer=7)))
    assert await raw.ask("producer_next", producer=7) == 2


async def test_dead_letters_are_replayed(raw: Raw) -> None:
    assert await raw.ask("replay", topic="dead") == 0
    assert (await raw.error(raw.call("discard", topic="dead"))).code == "unknown_topic"
    assert (await raw.error(raw.call("replay", topic="dead", offsets=[-1]))).code == "unknown_topic"
    assert (await raw.error(raw.call("replay", topic="dead", offsets=["x"]))).code == "invalid_option"


async def test_statistics_travel_whole(server: Server, raw: Raw) -> None:
    await filled(raw, b"0", b"1")
    id = raw.subscribe("t", name="me")
    await raw.values(id, 2)
    numbers = await raw.ask("statistics")
    here = server.broker.statistics()
    assert set(numbers) == set(here.__struct_fields__)
    assert numbers["topics"]["t"]["published"] == 2
    assert numbers["journal"] is not None
    assert [(pattern, name) for pattern, name, _ in numbers["flowed"]] == [*here.flowed]


async def test_a_server_tells_about_itself_and_its_connections(server: Server, raw: Raw) -> None:
    info = await raw.ask("info")
    assert info["listeners"] == [{"name": "native", "url": server.listeners[0].url}]
    assert (info["connections"], info["version"]) == (1, runnel.__version__)
    assert info["limits"]["max_frame"] == server.options.max_frame
    (one,) = await raw.ask("connections")
    assert (one["listener"], one["client"], one["subscriptions"]) == ("native", "raw", 0)


async def test_a_batch_is_staged_as_it_came_and_what_was_staged_before_is_passed_over(raw: Raw) -> None:
    key, whole = ["w", 1, 0, 0], ["w", 1, 1, 0]
    metas = [Meta(b"k%d" % number, {"n": str(number)}) if number % 2 else None for number in range(6)]
    data = pack([b"%d" % number for number in range(6)], columns_of(metas))
    head = pack([b"0", b"1"], columns_of(metas[:2]))
    assert (await raw.ask("stage_write", topic="t", key=key, batch=head, ordinal=0))["records"] == 2
    again = await raw.ask("stage_write", topic="t", key=key, batch=data, ordinal=0)  # of which two are there
    assert again["records"] == 6
    assert await raw.ask("stage_write", topic="t", key=key, batch=data, ordinal=0) == again
    found = await raw.ask("stage_write", topic="t", key=whole, batch=data, ordinal=0)
    assert found == {"records": 6, "bytes": len(data)}  # not a byte more or less
    await raw.ask("transact", commits=[key, whole])
    id = raw.subscribe("t", start="earliest", credit=1 << 20)
    await raw.subscribed(id)
    assert await raw.values(id, 12) == [b"%d" % number for number in range(6)] * 2


async def test_a_staged_batch_is_looked_at_like_a_published_one(raw: Raw) -> None:
    broken = bytearray(pack([b"a"]))
    broken[-1] ^= 1
    for data in (pack([b"a", b"b"], deltas=[0, 5]), bytes(broken), pack([b"a"], times=[7])):
        asked = raw.call("stage_write", topic="t", key=["w", 1, 0, 0], batch=data, ordinal=0)
        assert (await raw.error(asked)).code == "bad_batch"
    assert await raw.ask("stages") == []


async def test_places_are_stored_from_afar(raw: Raw) -> None:
    epoch = (await raw.published(raw.publish("t", b"a", b"b")))[0]
    await raw.ask("place", places=[["q/t", "t", epoch, 1]], hold=True)
    (found,) = (await raw.ask("statistics"))["cursors"]
    assert found == {"name": "q/t", "pattern": "t", "place": 1, "lag": 1, "hold": True}
    assert (await raw.error(raw.call("place", places=[["q/t", "t", epoch, 9]]))).code == "offset_out_of_range"
    assert (await raw.error(raw.call("place", places=[["q/t", "t"]]))).code == "invalid_option"
