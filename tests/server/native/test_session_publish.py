"""A publish under way: told of once, and weighed."""

import pytest

from runnel.core.batch_format import pack
from runnel.core.errors import BrokerClosed, PublishCancelled
from runnel.core.position import Position, Span
from runnel.server.native.session import PendingPublish
from runnel.wire.binary_messages import PUBLISH_OVERHEAD, batch_weight

SPAN = Span(Position(1, 0), Position(1, 0))


class Notes:
    """Whoever waits, taking notes."""

    def __init__(self) -> None:
        self.heard: list[Span | Exception | None] = []

    def published(self, publish: PendingPublish, result: Span | Exception | None) -> None:
        self.heard.append(result)


def test_the_end_of_a_publish_is_reported_once() -> None:
    notes = Notes()
    publish = PendingPublish(notes, 1, 100)
    publish(SPAN)
    publish(SPAN)
    publish.withdraw()
    publish.abandon()
    assert notes.heard == [SPAN]


def test_withdrawn_records_are_not_reported_again() -> None:
    notes = Notes()
    publish = PendingPublish(notes, 1, 100)
    publish.withdraw()
    publish(SPAN)
    assert notes.heard == [None]


class Waiting:
    """A publish that can be withdrawn at once, or only by its backend, later."""

    is_waiting = True

    def __init__(self, at_once: bool) -> None:
        self.at_once, self.asked = at_once, 0

    def withdraw(self) -> bool:
        self.asked += 1
        return self.at_once


def test_one_that_is_taken_back_at_once_is_answered_at_once() -> None:
    notes, gone = Notes(), BrokerClosed("publishing")
    publish = PendingPublish(notes, 1, 100)
    publish.waiting = Waiting(at_once=True)
    publish.withdraw(gone)
    publish.withdraw(gone)
    assert (notes.heard, publish.waiting.asked) == ([gone], 1)


@pytest.mark.parametrize("too_late", [True, False])
def test_one_that_only_the_backend_can_take_back_is_answered_when_that_knows(too_late: bool) -> None:
    notes, gone = Notes(), BrokerClosed("publishing")
    publish = PendingPublish(notes, 1, 100)
    publish.waiting = Waiting(at_once=False)
    publish.withdraw(gone)
    assert notes.heard == []
    publish(SPAN if too_late else PublishCancelled())
    assert notes.heard == [SPAN if too_late else gone]


def test_one_without_a_receiver_is_taken_back_and_forgotten() -> None:
    notes = Notes()
    publish = PendingPublish(notes, 1, 100)
    publish.waiting = waiting = Waiting(at_once=False)
    publish.abandon()
    publish(SPAN)
    assert (notes.heard, waiting.asked) == ([None], 1)


def test_a_small_publish_weighs_more_than_its_bytes_and_a_compressed_one_what_it_will_be() -> None:
    assert batch_weight(pack([b"x"])) > PUBLISH_OVERHEAD
    assert batch_weight(pack([bytes(1_000_000)], compression="zstd")) > 1_000_000
    assert batch_weight(b"") == PUBLISH_OVERHEAD
