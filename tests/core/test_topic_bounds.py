"""Where a topic begins and ends, and what a record of it weighs."""

from runnel.core.topic_bounds import TopicBounds, estimated_bytes


def test_a_record_weighs_the_average_of_all() -> None:
    assert TopicBounds("t", 1, 10, 20, bytes=1000).record_bytes == 100.0
    assert TopicBounds("t", 1, 10, 10, bytes=0).record_bytes == 1.0
    assert TopicBounds("t", 1, 0, 100, bytes=3).record_bytes == 1.0  # never nothing: it divides


def test_what_is_kept_weighs_its_share() -> None:
    assert estimated_bytes(1000, 10, 4) == 400
    assert estimated_bytes(0, 0, 0) == 0
