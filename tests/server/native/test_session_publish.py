"""A publish under way: told of once, and weighed."""

from runnel.core.batch_format import pack
from runnel.core.position import Position, Span
from runnel.server.native.session import PUBLISH_OVERHEAD, PendingPublish, batch_weight

SPAN = Span(Position(1, 0), Position(1, 0))


class Notes:
    """Whoever waits, taking notes."""

    def __init__(self) -> None:
        self.heard: list[Span | Exception | None] = []

    def published(self, publish: PendingPublish, result: Span | Exception | None) -> None:
        self.heard.append(result)


def test_the_end_of_a_publish_is_told_once() -> None:
    notes = Notes()
    publish = PendingPublish(notes, 1, 100)
    publish(SPAN)
    publish(SPAN)
    publish.give_up()
    assert notes.heard == [SPAN]


def test_what_was_given_up_is_not_told_again() -> None:
    notes = Notes()
    publish = PendingPublish(notes, 1, 100)
    publish.give_up()
    publish(SPAN)
    assert notes.heard == [None]


def test_a_small_publish_weighs_more_than_its_bytes_and_a_compressed_one_what_it_will_be() -> None:
    assert batch_weight(pack([b"x"])) > PUBLISH_OVERHEAD
    assert batch_weight(pack([bytes(1_000_000)], compression="zstd")) > 1_000_000
    assert batch_weight(b"") == PUBLISH_OVERHEAD
