"""What a group may and may not do with a record."""

from collections.abc import Callable

import pytest

from runnel.testing import History
from runnel.testing.verdict import DeliveredAfterAck, LeasedTwice, LostRecord


def group_of(*offsets: int) -> History:
    history = History()
    history.grouped("g", "t")
    for offset in offsets:
        history.intend("t", f"r{offset}", "p")
        history.acknowledged("t", f"r{offset}", 1, offset)
    return history


def lease(history: History, member: str, attempt: int = 1, until: float | None = None, offset: int = 0) -> None:
    history.leased("g", member, "t", 1, offset, f"r{offset}", attempt, until)


def ack(history: History, member: str, offset: int = 0) -> None:
    history.acked("g", member, "t", 1, offset)


def test_each_record_to_one_member_and_acked_is_clean() -> None:
    history = group_of(0, 1)
    for offset, member in enumerate("mn"):
        lease(history, member, offset=offset)
        ack(history, member, offset)
    history.drained("g", "t")
    verdict = history.check()
    verdict.raise_if_any()
    assert (verdict.groups, verdict.deliveries) == (1, 2)


def test_a_delivery_after_an_accepted_ack_is_found() -> None:
    history = group_of(0)
    lease(history, "m")
    ack(history, "m")
    lease(history, "n", attempt=2)
    assert history.check().violations == (
        DeliveredAfterAck(topic="t", epoch=1, offset=0, id="r0", group="g", member="n", settler="m"),
    )


def test_an_ack_outlives_a_restart_of_the_broker() -> None:
    history = group_of(0)
    lease(history, "m", attempt=3)
    ack(history, "m")
    history.restarted()
    lease(history, "m", attempt=1)
    assert [type(v) for v in history.check().violations] == [DeliveredAfterAck]


def test_an_older_attempt_that_was_noted_late_is_no_redelivery() -> None:
    history = group_of(0)
    lease(history, "m", attempt=2)
    ack(history, "m")
    lease(history, "n", attempt=1)
    assert history.check().clean


def test_two_members_that_hold_one_record_at_once_are_found() -> None:
    history = group_of(0)
    lease(history, "m")
    lease(history, "n", attempt=2)
    assert history.check().violations == (
        LeasedTwice(topic="t", epoch=1, offset=0, id="r0", group="g", member="n", holder="m"),
    )


def test_every_way_of_letting_go_frees_the_record() -> None:
    ways: dict[str, Callable[[History], None]] = {
        "nack": lambda h: h.nacked("g", "m", "t", 1, 0),
        "leaving": lambda h: h.left("g", "m"),
        "the broker's restart": lambda h: h.restarted(),
    }
    for way, let_go in ways.items():
        history = group_of(0)
        lease(history, "m")
        let_go(history)
        lease(history, "n", attempt=2)
        assert history.check().clean, way


@pytest.mark.parametrize(("until", "extended", "clean"), [(3.5, None, True), (9.0, None, False), (3.5, 9.0, False)])
def test_a_lease_runs_until_its_time(until: float, extended: float | None, clean: bool) -> None:
    history = group_of()
    lease(history, "m", until=until)  # at 2, by the counting clock
    history.extended("g", "m", "t", 1, 0, extended or until)  # at 3
    lease(history, "n", attempt=2)  # at 4
    history.intend("t", "r0")
    assert history.check().clean is clean


def test_a_member_that_came_back_holds_nothing_from_before() -> None:
    history = group_of(0)
    lease(history, "m")
    history.left("g", "m")
    lease(history, "n", attempt=2)
    history.nacked("g", "n", "t", 1, 0)
    lease(history, "m", attempt=3)
    assert history.check().clean


def test_records_that_were_never_delivered_are_lost() -> None:
    history = group_of(0, 1)
    lease(history, "m")
    [lost] = history.check().violations
    assert isinstance(lost, LostRecord)
    assert (lost.offset, lost.reader) == (1, "g")
    assert str(lost).endswith("but 'g' as a group never gave it to any member")


def test_a_group_that_is_still_at_work_has_lost_nothing_it_gave_out() -> None:
    history = group_of(0)
    lease(history, "m")
    assert history.check().clean


@pytest.mark.parametrize(
    ("nacked", "story"),
    [
        (False, "gave it to 'm' (attempt 1), who never settled it"),
        (True, "saw it go back from 'm' and never come again"),
    ],
)
def test_a_drained_group_must_have_settled_everything(nacked: bool, story: str) -> None:
    history = group_of(0)
    lease(history, "m")
    if nacked:
        history.nacked("g", "m", "t", 1, 0)
    history.drained("g", "t")
    [lost] = history.check().violations
    assert isinstance(lost, LostRecord)
    assert lost.story == f"as a group {story}"


def test_rejected_and_cleaned_records_are_dealt_with() -> None:
    history = group_of(0, 1)
    lease(history, "m")
    history.rejected("g", "m", "t", 1, 0)
    history.cleaned("t", 1, 1, 2)
    history.drained("g", "t")
    assert history.check().clean


@pytest.mark.parametrize(("end", "kinds"), [(None, {}), (1, {}), (2, {"lost": 1})])
def test_a_group_that_ended_is_owed_up_to_there(end: int | None, kinds: dict[str, int]) -> None:
    history = group_of(0, 1, 2)
    lease(history, "m")
    history.ended("g", "t", end)
    assert history.check().tally == kinds


def test_a_group_may_start_later() -> None:
    history = History()
    history.grouped("g", "t", start=1)
    for offset in (0, 1):
        history.intend("t", f"r{offset}")
        history.acknowledged("t", f"r{offset}", 1, offset)
    lease(history, "m", offset=1)
    assert history.check().clean


def test_what_a_group_invents_is_found_and_it_counts_as_a_witness() -> None:
    history = group_of(0)
    lease(history, "m")
    history.leased("g", "m", "t", 1, 1, "ghost")
    history.intend("t", "r2")
    history.leased("g", "m", "t", 1, 2, "r2")
    history.subscribed("s", "t", 0)
    history.delivered("s", "t", 1, 0, "r0")
    assert history.check().tally == {"invented": 1, "missed": 1}


def test_events_of_several_programs_are_ordered_by_their_clock() -> None:
    lines = [
        b'["leased",5.0,"g","n","t",1,0,"a",2,null]\n',
        b'["intended",1.0,"t","a","p"]\n',
        b'["leased",3.0,"g","m","t",1,0,"a",1,null]\n',
        b'["nacked",4.0,"g","m","t",1,0]\n',
    ]
    assert History.read(lines).check().clean
