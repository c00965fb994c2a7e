"""Units: what is written whole, and what it weighs."""

from runnel.broker.gate import Entry
from runnel.broker.log import Log
from runnel.broker.unit import Unit
from runnel.core.options import TopicOptions
from runnel.journal.parts import mark_part


def unit(late: int = 0) -> Unit:
    log = Log("t", 1, TopicOptions())
    entries = [(log, Entry([b"abc"], None, 3, extra=4)), (log, Entry([b"d"], None, 1))]
    return Unit(
        entries,
        [mark_part("m", 1)],
        lambda: None,
        lambda error: None,
        (lambda: [mark_part("n", number) for number in range(late)]) if late else None,
    )


def test_it_weighs_what_is_to_be_written() -> None:
    assert unit().size == 3 + 4 + 1 + len(mark_part("m", 1).body)


def test_its_state_is_what_was_given_and_what_is_known_only_when_it_is_written() -> None:
    assert unit().state() == [mark_part("m", 1)]
    assert unit(late=2).state() == [mark_part("m", 1), mark_part("n", 0), mark_part("n", 1)]


def test_it_says_what_it_holds() -> None:
    assert repr(unit()) == "<Unit of 2 publishes and 1 parts of state>"
