"""From messages of pgoutput to records in commit order."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.core.dead_letter import REASON, TOPIC
from runnel.core.errors import ProtocolError
from runnel.postgres import changes as module
from runnel.postgres.changes import ChangeAssembler, PendingRows, cut_records
from runnel.postgres.config import relay_config
from runnel.postgres.emit import Emitted
from runnel.postgres.progress import START, RowPlace
from runnel.postgres.snapshot import ChunkWindow, PgSnapshot, SnapshotProgress
from runnel.postgres.types import TypeCatalog
from runnel.wire.pgoutput import UNCHANGED, Column, Relation
from tests.postgres.messages import CHAT, INT, begin, commit, delete, insert, message, truncate, update

SHAPES = {"public.chat": [["id", "int8"], ["room", "text"], ["body", "text"]]}
ALL = ["insert", "update", "delete", "truncate"]
Told = tuple[str, str, bytes | None]  # topic, operation, value


def assembler(published: RowPlace = START, shapes: Any = SHAPES, **table: Any) -> ChangeAssembler:
    config = relay_config(
        {
            "slot": "s",
            "table": [{"table": "chat", "topic": "chat.{room}", "key": "id", "publish": ALL} | table],
            "message": [{"prefix": "app", "topic": "app"}],
        }
    )
    made = ChangeAssembler(config, TypeCatalog(), published, shapes)
    made.learn(CHAT)
    return made


def feed(to: ChangeAssembler, *messages: bytes) -> PendingRows:
    for one in messages:
        assert to.feed(one) is None
    return to.take()


def told(rows: PendingRows) -> list[Told]:
    return [
        (run.topic, headers["pg-op"], value)
        for run in rows.runs
        for value, headers in zip(run.values, run.headers, strict=True)
    ]


def events(rows: PendingRows) -> list[Any]:
    return [json.loads(value) for run in rows.runs if run.topic == "relay.s" for value in run.values if value]


def test_a_transaction_is_ready_at_its_commit() -> None:
    made = assembler()
    assert not feed(made, begin(100, xid=9), insert("1", "a", "x"))
    assert made.in_transaction
    rows = feed(made, insert("2", "b", None), commit(100, 120))
    assert not made.in_transaction
    assert told(rows) == [
        ("chat.a", "insert", b'{"id":1,"room":"a","body":"x"}'),
        ("chat.b", "insert", b'{"id":2,"room":"b","body":null}'),
    ]
    assert (rows.place, rows.end) == (RowPlace(100, 2), 120)
    assert rows.runs[1].keys == [b"2"]
    assert rows.runs[1].headers == [
        {
            "pg-op": "insert",
            "pg-table": "public.chat",
            "pg-index": "2",
            "pg-lsn": "0/64",
            "pg-xid": "9",
            "pg-time": "2000-01-01T00:00:00.000000+00:00",
        }
    ]


def test_transactions_are_gathered_in_order_and_runs_of_a_topic_are_joined() -> None:
    made = assembler()
    rows = feed(
        made,
        *(begin(100), insert("1", "a", "x"), commit(100)),
        *(begin(200), commit(200)),
        *(begin(300), insert("2", "a", "y"), insert("3", "b", "z"), commit(300, 333)),
    )
    assert [(run.topic, len(run.values)) for run in rows.runs] == [("chat.a", 2), ("chat.b", 1)]
    assert (rows.place, rows.end, rows.records) == (RowPlace(300, 2), 333, 3)
    assert not made.take()


def test_an_empty_transaction_leaves_nothing() -> None:
    assert not feed(assembler(), begin(100), commit(100))


@given(st.lists(st.lists(st.sampled_from("abé"), max_size=4), max_size=6), st.integers(0, 30), st.data())
def test_read_again_from_any_place_the_rest_comes_and_nothing_twice(
    transactions: list[list[str]], cut: int, data: st.DataObject
) -> None:
    stream: list[bytes] = []
    places: list[RowPlace] = []
    for number, rooms in enumerate(transactions, 1):
        stream += [
            begin(number * 100),
            *(insert(str(i), room, "x") for i, room in enumerate(rooms)),
            commit(number * 100),
        ]
        places += [RowPlace(number * 100, i) for i in range(1, len(rooms) + 1)]
    published = data.draw(st.sampled_from([START, *places]))
    made = assembler(published)
    got: list[RowPlace] = []
    rows = feed(made, *stream)
    while rows:
        got += [
            RowPlace(int(headers["pg-lsn"].split("/")[1], 16), int(headers["pg-index"]))
            for run in rows.runs
            for headers in run.headers
        ]
        rows = made.take()
    assert got == [place for place in places if place > published]


def test_a_transaction_larger_than_an_entry_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_RECORDS", 2)
    made = assembler()
    assert not feed(made, begin(100), insert("1", "a", "x"), insert("2", "a", "x"))
    first = feed(made, insert("3", "a", "x"))
    assert (first.records, first.place, first.end, first.is_part) == (2, RowPlace(100, 2), 0, True)
    last = feed(made, insert("4", "a", "x"), truncate(), commit(100, 120))
    assert (last.records, last.place, last.end, last.is_part) == (2, RowPlace(100, 5), 120, True)
    again = assembler(RowPlace(100, 2))
    rows = feed(again, begin(100), *(insert(str(i), "a", "x") for i in range(1, 4)), commit(100, 120))
    assert (rows.records, rows.is_part) == (1, True)
    assert not feed(again, begin(200), insert("1", "a", "x"), commit(200)).is_part


def test_parts_are_taken_one_by_one_and_whole_transactions_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_RECORDS", 2)
    made = assembler()
    small = [begin(100), insert("1", "a", "x"), commit(100), begin(200), insert("2", "a", "x"), commit(200)]
    large = [begin(300), *(insert(str(i), "a", "x") for i in range(3)), commit(300)]
    behind = [begin(400), insert("9", "a", "x"), commit(400)]
    for one in (*small, *large, *behind, *large):
        made.feed(one)
    assert (made.ready_records, made.has_ready) == (9, True)
    taken = [made.take() for _ in range(6)]
    assert [(rows.records, rows.is_part) for rows in taken] == [
        (2, False),
        (2, True),
        (1, True),
        (1, False),
        (2, True),
        (1, True),
    ]
    assert not made.take()
    assert (made.ready_records, made.ready_size, made.has_ready, made.oldest_ready) == (0, 0, False, 0.0)


def test_bytes_count_for_parts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART_BYTES", 1000)
    rows = feed(assembler(), begin(100), *(insert(str(i), "a", "x" * 400) for i in range(4)))
    assert rows.records == 2


# -- UPDATE, DELETE, TRUNCATE --------------------------------------------------------------------------------------


def in_one(made: ChangeAssembler, *messages: bytes) -> list[Told]:
    return told(feed(made, begin(100), *messages, commit(100)))


def test_an_update_in_place_is_one_record_and_names_what_was_not_sent() -> None:
    made = assembler()
    rows = feed(made, begin(100), update(["1", "a", UNCHANGED]), commit(100))
    assert told(rows) == [("chat.a", "update", b'{"id":1,"room":"a"}')]
    assert rows.runs[0].headers[0]["pg-unchanged"] == "body"


def test_with_the_whole_old_row_nothing_is_missing() -> None:
    rows = feed(assembler(), begin(100), update(["1", "a", UNCHANGED], ["1", "a", "big"]), commit(100))
    assert told(rows) == [("chat.a", "update", b'{"id":1,"room":"a","body":"big"}')]
    assert "pg-unchanged" not in rows.runs[0].headers[0]


def test_a_changed_topic_or_key_is_a_delete_there_and_an_insert_here() -> None:
    moved = in_one(assembler(), update(["1", "b", "x"], ["1", "a", None], kind=b"K"))
    assert moved == [
        ("chat.a", "delete", b'{"id":1,"room":"a"}'),
        ("chat.b", "insert", b'{"id":1,"room":"b","body":"x"}'),
    ]
    renamed = in_one(assembler(compact=True), update(["2", "a", "x"], ["1", "a", "x"]))
    assert renamed == [("chat.a", "delete", None), ("chat.a", "insert", b'{"id":2,"room":"a","body":"x"}')]


def test_a_delete_says_what_is_known_and_is_a_tombstone_where_topics_are_compacted() -> None:
    assert in_one(assembler(), delete("1", "a", None)) == [("chat.a", "delete", b'{"id":1,"room":"a"}')]
    assert in_one(assembler(), delete("1", "a", "x", kind=b"O")) == [
        ("chat.a", "delete", b'{"id":1,"room":"a","body":"x"}')
    ]
    assert in_one(assembler(compact=True), delete("1", "a", None)) == [("chat.a", "delete", None)]


def test_operations_that_are_not_asked_for_are_counted_and_left_out() -> None:
    made = assembler(publish=["insert"])
    rows = feed(
        made,
        begin(100),
        delete("1", "a", None),
        update(["1", "a", "x"]),
        insert("2", "a", "x"),
        truncate(1),
        commit(100),
    )
    assert told(rows) == [("chat.a", "insert", b'{"id":2,"room":"a","body":"x"}')]
    assert rows.runs[0].headers[0]["pg-index"] == "3"


def test_a_truncate_is_an_event() -> None:
    rows = feed(assembler(), begin(100), truncate(1), commit(100))
    assert events(rows) == [{"event": "truncate", "table": "public.chat"}]
    assert rows.runs[0].keys == [b"public.chat"]


# -- shapes --------------------------------------------------------------------------------------------------------


def test_a_changed_shape_is_reported_before_the_first_row_that_has_it() -> None:
    made = assembler()
    grown = Relation(1, "public", "chat", "d", (*CHAT.columns, Column("at", 1184, -1, False)))
    assert not feed(made, begin(100), commit(100))
    for _ in range(2):  # PostgreSQL sends a shape again after each change of the catalog
        made.learn(grown)
        rows = feed(made, begin(200), insert("1", "a", "x", None), commit(200))
    made.learn(CHAT)
    back = feed(made, begin(300), insert("1", "a", "x"), insert("1", "a", "x"), commit(300))
    assert told(rows) == [("chat.a", "insert", b'{"id":1,"room":"a","body":"x","at":null}')]
    assert events(back) == [
        {
            "event": "schema",
            "table": "public.chat",
            "columns": SHAPES["public.chat"],
            "before": [*SHAPES["public.chat"], ["at", "timestamptz"]],
        }
    ]
    assert told(back)[0][:2] == ("relay.s", "event")


def test_a_shape_is_reported_once_and_not_for_rows_that_are_skipped() -> None:
    made = assembler(RowPlace(100, 1), shapes={})
    first = feed(made, begin(100), insert("1", "a", "x"), commit(100), begin(200), insert("2", "a", "x"), commit(200))
    assert [one["event"] for one in events(first)] == ["schema"]
    assert events(first)[0]["before"] is None
    assert not events(feed(made, begin(300), insert("3", "a", "x"), commit(300)))


def test_rows_of_other_tables_are_left_out_and_rows_without_a_shape_are_an_error() -> None:
    made = assembler()
    made.learn(Relation(5, "public", "other", "d", (Column("id", INT, -1, True),)))
    assert not feed(made, begin(100), insert("1", oid=5), commit(100))
    with pytest.raises(ProtocolError, match="before its shape"):
        feed(made, begin(200), insert("1", oid=6))


def test_changes_belong_to_transactions() -> None:
    for one in (insert("1", "a", "x"), commit(100)):
        with pytest.raises(ProtocolError, match=r"outside of a transaction|without a Begin"):
            feed(assembler(), one)


# -- what cannot be published --------------------------------------------------------------------------------------


def test_a_row_without_a_topic_is_a_dead_letter_in_its_place() -> None:
    made = assembler()
    rows = feed(made, begin(100), insert("1", "a", "x"), insert("2", None, "y"), insert("3", "a", "z"), commit(100))
    assert [run.topic for run in rows.runs] == ["chat.a", "relay.s.dead", "chat.a"]
    dead = rows.runs[1]
    assert dead.values == [b'{"id":2,"room":null,"body":"y"}']
    assert dead.headers[0][TOPIC] == "chat.{room}"
    assert "'room' is NULL" in dead.headers[0][REASON]
    assert made.dead == 1


def test_a_value_that_is_not_of_its_type_is_a_dead_letter() -> None:
    rows = feed(assembler(), begin(100), insert("1", "a", b"\xff"), commit(100))
    assert [run.topic for run in rows.runs] == ["relay.s.dead"]
    assert "column 'body'" in rows.runs[0].headers[0][REASON]


def test_a_value_that_is_too_large_is_an_event() -> None:
    rows = feed(assembler(max_value=40), begin(100), insert("1", "a", "x" * 40), commit(100))
    assert [one["event"] for one in events(rows)] == ["too_large"]
    assert "max_value (40)" in events(rows)[0]["reason"]


# -- messages ------------------------------------------------------------------------------------------------------


def test_messages_are_published_by_prefix_and_emitted_records_as_they_are() -> None:
    emitted = msgspec.msgpack.encode(Emitted("orders.paid", b"7", b"k", {"a": "b", "pg-lsn": "forged"}))
    rows = feed(
        assembler(),
        begin(100),
        message("app", b"\x00hello"),
        message("other", b"x"),
        message("runnel", emitted),
        message("runnel", b"nonsense"),
        commit(100),
    )
    assert told(rows) == [
        ("app", "message", b"\x00hello"),
        ("orders.paid", "message", b"7"),
        ("relay.s.dead", "message", b"nonsense"),
    ]
    assert rows.runs[1].keys == [b"k"]
    assert rows.runs[1].headers[0]["a"] == "b"
    assert rows.runs[1].headers[0]["pg-lsn"] == "0/64"
    assert "did not write" in rows.runs[2].headers[0][REASON]


def test_a_message_outside_of_a_transaction_is_left_out() -> None:
    assert not feed(assembler(), message("app", b"x", transactional=False))


def test_deletes_of_rows_past_their_time_are_left_out_unless_asked_for() -> None:
    for options, expected in (({}, []), ({"publish_expired": True}, [("chat.a", "delete", b'{"id":1,"room":"a"}')])):
        made = assembler(START, SHAPES, **options)
        assert in_one(made, message("runnel.expiry", b"s"), delete("1", "a", None)) == expected
        assert len(in_one(made, delete("2", "a", None))) == 1
        another = message("runnel.expiry", b"another")  # of a relay of the same table, or of `runnel relay retain`
        assert len(in_one(made, another, delete("2", "a", None))) == len(expected)


# -- snapshots -----------------------------------------------------------------------------------------------------


def window(made: ChangeAssembler, *rows: list[str], xmax: int = 1000, running: tuple[int, ...] = ()) -> list[bool]:
    """A chunk of these rows, whose query saw all transactions below `xmax` that were not running."""
    router = made._routers[1]
    assert router is not None
    finished: list[bool] = []
    chunk = made.window = ChunkWindow("t", router, ("id",), finished.append)
    read = [[text.encode() for text in row] for row in rows]
    chunk.read(read, PgSnapshot(xmax, frozenset(running)), SnapshotProgress(5, 1, ("9",)))
    return finished


LOW, HIGH = message("runnel.watermark", b"t:low"), message("runnel.watermark", b"t:high")


def test_rows_of_a_chunk_come_at_the_high_watermark_without_those_that_changed() -> None:
    made = assembler()
    finished = window(made, ["1", "a", "old"], ["2", "a", "same"], ["3", "a", "gone"])
    rows = feed(
        made,
        *(begin(100), LOW, commit(100)),
        *(begin(200), update(["1", "a", "new"]), delete("3", "a", None), commit(200)),
        *(begin(300), HIGH, commit(300)),
        *(begin(400), update(["2", "a", "newer"]), commit(400)),
    )
    assert [(operation, value) for _, operation, value in told(rows)] == [
        ("update", b'{"id":1,"room":"a","body":"new"}'),
        ("delete", b'{"id":3,"room":"a"}'),
        ("read", b'{"id":2,"room":"a","body":"same"}'),
        ("update", b'{"id":2,"room":"a","body":"newer"}'),
    ]
    assert finished == [True]
    assert rows.snapshots == {"public.chat": SnapshotProgress(5, 1, ("9",))}


def test_a_chunk_that_did_not_see_a_transaction_before_its_low_watermark_is_read_again() -> None:
    made = assembler()
    finished = window(made, ["1", "a", "old"], running=(77,))
    rows = feed(
        made,
        *(begin(100, xid=77), update(["1", "a", "new"]), commit(100)),
        *(begin(200), LOW, commit(200)),
        *(begin(300), HIGH, commit(300)),
    )
    assert [operation for _, operation, _ in told(rows)] == ["update"]
    assert finished == [False]
    assert rows.snapshots == {}
    assert made.window is None


def test_watermarks_of_another_life_are_ignored() -> None:
    made = assembler()
    finished = window(made, ["1", "a", "old"])
    assert not feed(made, begin(100), message("runnel.watermark", b"other:high"), commit(100))
    assert finished == []


def test_a_chunk_whose_low_watermark_was_not_seen_is_read_again() -> None:
    made = assembler()
    finished = window(made, ["1", "a", "old"])
    assert not feed(made, begin(100), HIGH, commit(100))
    assert finished == [False]


def test_a_chunk_of_a_table_that_was_truncated_meanwhile_is_read_again() -> None:
    made = assembler(publish=["insert"])
    finished = window(made, ["1", "a", "old"])
    assert not feed(
        made, begin(100), LOW, commit(100), begin(200), truncate(1), commit(200), begin(300), HIGH, commit(300)
    )
    assert finished == [False]


def test_a_request_for_a_snapshot_is_stored_with_its_place() -> None:
    made = assembler()
    ask = b'{"slot":"s","table":"public.chat"}'
    rows = feed(made, begin(100), message("runnel.snapshot", ask), commit(100))
    assert rows
    assert (rows.snapshots, rows.records) == ({"public.chat": SnapshotProgress(100, 0, None)}, 0)
    for other in (b'{"slot":"x","table":"public.chat"}', b'{"slot":"s","table":"x"}', b"nonsense"):
        assert not feed(made, begin(200), message("runnel.snapshot", other), commit(200))


def test_progress_of_snapshots_sorts_as_text() -> None:
    steps = [SnapshotProgress(9, 0, None), SnapshotProgress(9, 9, ("x:y",)), SnapshotProgress(9, 10, ("a", "b"))]
    steps += [steps[-1].done(), SnapshotProgress(10, 0, None)]
    texts = [step.pack() for step in steps]
    assert texts == sorted(texts)
    assert [SnapshotProgress.unpack(text) for text in texts] == steps
    assert [step.is_done for step in steps] == [False, False, False, True, False]


def test_a_snapshot_saw_what_was_committed_when_it_was_taken() -> None:
    seen = PgSnapshot.parse("90:100:95,97")
    assert [xid for xid in (89, 95, 96, 97, 99, 100, 101) if seen.saw(xid)] == [89, 96, 99]
    later = PgSnapshot.parse(f"{(1 << 32) + 5}:{(1 << 32) + 10}:{(1 << 32) + 7}")
    assert later.saw(2**32 - 3)
    assert later.saw(6)
    assert not later.saw(7)
    assert not later.saw(12)


# -- cutting ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", range(7))
def test_the_first_records_of_a_part_can_be_cut_off_and_the_others_stay_in_their_order(count: int) -> None:
    rows, topics = PendingRows(), "abbaab"
    for at, topic in enumerate(topics):
        rows.add(topic, b"%d" % at, None, {"pg-lsn": "0/10", "pg-index": str(at * 2)})
    place = cut_records(rows, count)
    assert place == (RowPlace(16, count * 2 - 2) if count else None)
    left = [(run.topic, value) for run in rows.runs for value in run.values]
    assert left == [(topic, b"%d" % at) for at, topic in enumerate(topics)][count:]
    assert rows.records == len(topics) - count
