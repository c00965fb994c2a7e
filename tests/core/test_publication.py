"""One publish in a transaction: its place is known when that is committed, and not before."""

import pytest

from runnel.core.errors import NotSupported
from runnel.core.position import Position
from runnel.core.publishing import Publication


def test_a_publication_knows_its_place_once_it_has_one() -> None:
    publication = Publication("t", 3)
    assert "not committed" in repr(publication)
    with pytest.raises(NotSupported, match="'t'"):
        _ = publication.span
    publication.put(Position(1, 5))
    assert (publication.position, publication.span.last.offset) == (Position(1, 5), 7)


async def test_awaiting_it_is_over_at_once_and_says_nothing_about_its_place() -> None:
    publication = Publication("t", 1)
    assert await publication is publication
    with pytest.raises(NotSupported, match="when the block is left"):
        _ = publication.position


def test_a_stage_says_later_what_it_holds() -> None:
    publication = Publication("'w' batch 1 part 0 attempt 0", 0)
    publication.holds("t", 4)
    publication.put(Position(2, 10))
    assert (publication.topic, publication.span.last) == ("t", Position(2, 13))
    assert "4 records to 't'" in repr(publication)
