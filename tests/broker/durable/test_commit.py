"""Atomic writes: what is written whole, and what it weighs."""

from runnel.broker.durable.commit import AtomicWrite
from runnel.broker.topic.log import Log
from runnel.core.options import TopicOptions
from runnel.core.publishing import Append
from runnel.journal.format.ledger import marker_part


def atomic_write(late: int = 0) -> AtomicWrite:
    log = Log("t", 1, TopicOptions())
    entries = [(log, Append([b"abc"], None, 3, extra=4)), (log, Append([b"d"], None, 1))]
    return AtomicWrite(
        entries,
        [marker_part("m", 1)],
        lambda: None,
        lambda error: None,
        (lambda: [marker_part("n", number) for number in range(late)]) if late else None,
    )


def test_it_weighs_what_is_to_be_written() -> None:
    assert atomic_write().size == 3 + 4 + 1 + len(marker_part("m", 1).body)


def test_its_state_is_what_was_given_and_what_is_known_only_when_it_is_written() -> None:
    assert atomic_write().state() == [marker_part("m", 1)]
    assert atomic_write(late=2).state() == [marker_part("m", 1), marker_part("n", 0), marker_part("n", 1)]


def test_it_says_what_it_holds() -> None:
    assert repr(atomic_write()) == "<AtomicWrite of 2 publishes and 1 parts of state>"
