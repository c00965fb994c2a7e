import subprocess
import sys
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

import runnel.testing
from runnel.core.record import Gap, Record
from runnel.testing import History
from runnel.testing import history_events as events
from runnel.testing.history import BadLine
from tests.nightly import examples
from tests.testing.model_run import FAULTS, Run


@given(Run.strategy())
def test_a_correct_run_breaks_no_promise(run: Run) -> None:
    run.history().check().raise_if_any()


@pytest.mark.parametrize("fault", FAULTS)
@examples(20, 50)
@given(data=st.data())
def test_one_planted_fault_is_found_and_nothing_else(fault: str, data: st.DataObject) -> None:
    run = data.draw(Run.strategy(minimal=True))
    history = run.history()
    kinds = FAULTS[fault](history.events, data)
    verdict = history.check()
    assert verdict.tally.keys() == kinds, verdict


@given(Run.strategy(), st.randoms())
def test_a_history_read_from_the_files_of_its_parties_in_any_order_judges_the_same(run: Run, random: object) -> None:
    history = run.history()
    files: dict[str, list[bytes]] = {}
    for event, line in zip(history.events, history.lines(), strict=True):
        party = next((str(getattr(event, f)) for f in ("publisher", "subscriber", "reader") if hasattr(event, f)), "p")
        files.setdefault("publishers" if party.startswith("p") else party, []).append(line)
    names = sorted(files)
    random.shuffle(names)  # type: ignore[attr-defined]
    again = History.read(line for name in names for line in files[name])
    assert len(again) == len(history)
    assert again.check() == history.check()


def test_events_are_written_as_lines_when_they_are_reported_and_not_kept() -> None:
    file: list[bytes] = []
    history = History(clock=count(10).__next__, write=file.append)
    history.intend("t", "a", "p")
    history.acknowledged("t", "a", 1, 0)
    assert file == [b'["intended",10,"t","a","p"]\n', b'["acknowledged",11,"t","a",1,0]\n']
    assert len(history) == 0
    assert History.read(file).check().acknowledged == 1


def test_a_line_that_a_kill_cut_short_is_skipped_and_counted() -> None:
    history = History.read([b'["intended",1,"t","a","p"]\n', b'["acknowl', b"", b'["failed",3,"t","a"]\n'])
    assert (len(history), history.torn) == (2, 1)
    assert "1 torn line skipped" in str(history.check())


@pytest.mark.parametrize("bad", [b'["acknowl\n', b'["nonsense",1]\n', b'["failed",1,"t"]\n', '{"not": "an array"}\n'])
def test_any_other_bad_line_raises_and_is_named(bad: bytes | str) -> None:
    with pytest.raises(BadLine, match="line 2 of the history") as caught:
        History.read([b'["intended",1,"t","a","p"]\n', bad])
    assert caught.value.number == 2


def test_bytes_and_text_name_the_same_value() -> None:
    history = History()
    history.intend("t", "é", "p")
    history.acknowledged("t", "é".encode(), 1, 0)
    history.delivered("s", "t", 1, 0, "é".encode())
    history.check().raise_if_any()


def test_ids_that_are_no_text_keep_apart() -> None:
    history = History()
    for offset, id in enumerate([b"\xff", b"\xfe"]):
        history.intend("t", id)
        history.acknowledged("t", id, 1, offset)
        history.delivered("s", "t", 1, offset, id)
    history.check().raise_if_any()


def record(offset: int, value: bytes, gap: Gap | None = None) -> Record[bytes]:
    from datetime import UTC, datetime

    return Record("t", offset, offset + 100, 1, None, value, {}, datetime.fromtimestamp(0, UTC), gap)


@pytest.mark.parametrize(
    ("gap", "told"),
    [
        (Gap("t", 0, 2, 2, "dropped"), events.GapTold(1, "s", "t", 1, 0, 2, 2)),
        (Gap("*", 100, 102, None, "dropped"), events.SequencesTold(1, "s", 100, 102, None)),
    ],
)
def test_a_record_as_delivered_tells_its_gap_too(gap: Gap, told: events.Event) -> None:
    history = History()
    history.saw("s", record(2, b"c", gap))
    history.saw("s", record(3, b"d"))
    assert history.events == [
        told,
        events.Delivered(2, "s", "t", 1, 2, "c", 102),
        events.Delivered(3, "s", "t", 1, 3, "d", 103),
    ]


def test_checking_changes_nothing() -> None:
    history = History()
    history.delivered("s", "t", 1, 0, "ghost")
    assert history.check() == history.check()
    assert repr(history) == "<History of 1 events>"


def test_every_recording_method_adds_one_event() -> None:
    history = History()
    told: list[Callable[[], None]] = [
        lambda: history.intend("t", "a"),
        lambda: history.acknowledged("t", "a", 1, 0),
        lambda: history.failed("t", "b"),
        lambda: history.unknown("t", "c"),
        lambda: history.subscribed("s", "t", 0),
        lambda: history.delivered("s", "t", 1, 0, "a"),
        lambda: history.gap("s", "t", 1, 1, 2, 1),
        lambda: history.sequence_gap("s", 4, 5, 1),
        lambda: history.ended("s"),
        lambda: history.resumed("s", "t"),
        lambda: history.grouped("g", "t"),
        lambda: history.leased("g", "m", "t", 1, 0, "a"),
        lambda: history.extended("g", "m", "t", 1, 0, 99.0),
        lambda: history.nacked("g", "m", "t", 1, 0),
        lambda: history.leased("g", "n", "t", 1, 0, "a", attempt=2),
        lambda: history.acked("g", "n", "t", 1, 0),
        lambda: history.rejected("g", "n", "t", 1, 0),
        lambda: history.left("g", "m"),
        lambda: history.drained("g", "t"),
        lambda: history.cleaned("t", 1, 0, 1),
        lambda: history.restarted(),
    ]
    for tell in told:
        tell()
    assert [event.at for event in history.events] == list(range(1, len(told) + 1))
    assert {type(event) for event in history.events} == set(events.Event.__args__)
    history.check().raise_if_any()


def test_the_checker_needs_no_loop_no_socket_and_no_broker() -> None:
    # What a tool that measures coverage has loaded before is not the checker's.
    code = "import sys; before = set(sys.modules); from runnel.testing import History; History().check(); "
    code += "print(*(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "runnel.testing.checker" in loaded
    assert not {"asyncio", "socket", "runnel.broker.backend"} & set(loaded)


def test_names_are_loaded_when_asked_for_and_others_refused() -> None:
    assert set(runnel.testing.__all__) <= set(dir(runnel.testing))
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        runnel.testing.Nonsense  # noqa: B018
