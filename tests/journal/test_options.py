"""What a journal can be told is checked when it is said."""

from __future__ import annotations

from typing import Any

import pytest

from runnel.core.errors import InvalidOption
from runnel.journal.options import FSYNC, JournalOptions


def test_the_defaults_keep_what_was_acknowledged() -> None:
    assert JournalOptions().fsync == "commit"


@pytest.mark.parametrize("fsync", FSYNC)
def test_every_kind_of_sync_can_be_chosen(fsync: str) -> None:
    assert JournalOptions(fsync=fsync).fsync == fsync


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("fsync", "never"),
        ("fsync_interval", 0),
        ("fsync_interval", -1.0),
        ("segment_bytes", 4095),
        ("segment_bytes", 0),
        ("segment_age", 0),
        ("segment_age", -1),
        ("min_free", -1),
        ("max_pending_bytes", 0),
        ("tail_bytes", 0),
        ("max_staged_bytes", 0),
        ("clean_bytes_per_second", 0),
        ("clean_bytes_per_second", 1.5),
        ("history_share", 0),
        ("history_share", 1.01),
        ("history_share", True),
        ("history_share", "half"),
        ("tombstone_age", -1),
        ("tombstone_age", True),
        ("stage_expiry", 0),
        ("stage_expiry", -1.0),
        ("scrub_interval", -1),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(InvalidOption) as raised:
        JournalOptions(**{option: value})
    assert (raised.value.option, raised.value.value) == (option, value)


def test_the_smallest_values_that_make_sense_are_taken() -> None:
    options = JournalOptions(segment_bytes=4096, min_free=0, segment_age=0.001, fsync_interval=0.001, tail_bytes=1)
    assert options.segment_bytes == 4096


@pytest.mark.parametrize(("size", "free"), [(4096, 128 << 20), (64 << 20, 128 << 20), (256 << 20, 512 << 20)])
def test_room_for_two_segments_is_left_and_128_mebibytes_at_least(size: int, free: int) -> None:
    assert JournalOptions(segment_bytes=size).min_free == free
    assert JournalOptions(segment_bytes=size, min_free=7).min_free == 7


@pytest.mark.parametrize(("size", "reserve"), [(4096, 512), (8 << 20, 1 << 20), (64 << 20, 1 << 20)])
def test_an_eighth_of_a_segment_up_to_a_mebibyte_is_kept_for_state(size: int, reserve: int) -> None:
    assert JournalOptions(segment_bytes=size).reserve == reserve


def test_they_cannot_be_changed_later() -> None:
    with pytest.raises(AttributeError):
        JournalOptions().fsync = "os"  # type: ignore[misc]
